"""h18, h19: what an old release may not write, and what must be durable before anything names it (R1)."""

from __future__ import annotations

import json

from llog.log.append.append import Appended
from llog.log.context import LogContext
from llog.testing.hazards.toolkit import (
    KEYS,
    ORDERS,
    alone,
    append,
    doing,
    expect,
    expect_answers_hold,
    written,
)
from llog.testing.sim import Script, script


@script("h18", atomic_groups=False)
def an_old_process_meets_a_value_of_a_newer_release(script: Script) -> None:
    written(script, b"one")
    key = KEYS.control(ORDERS)

    async def upgrade(context: LogContext) -> None:
        """What a later release would do: a field that this one does not know."""
        found = await context.metadata.get(key, strict=True)
        assert found is not None
        newer = {**json.loads(found.value), "v": 1_000, "frost_line_ms": 5}
        await context.metadata.put(key, json.dumps(newer).encode(), expected=found.version)

    alone(script, doing(upgrade), "newer release")
    outcome = alone(script, append(b"two"), "older release")
    record = script.world.metadata.find(key)
    assert record is not None
    kept = json.loads(record.value).get("frost_line_ms")
    expect(kept == 5, "an older release rewrote control and dropped a field it does not know")
    expect(not isinstance(outcome, Appended), f"an older release appended to a log it does not understand: {outcome}")


@script("h19", atomic_groups=False)
def the_power_fails_while_the_blob_is_written(script: Script) -> None:
    written(script, b"one")
    writer = script.actor("writer", append(b"two"))
    writer.run_until("put_object")
    # Whatever it does before the put returns, it does; then the power fails, and the object was never there.
    while other := [call for call in writer.waiting() if call.operation != "put_object"]:
        [(operation, path), *_] = other[0].parts()
        writer.perform(operation=operation, path=path)
    writer.crash()
    expect_answers_hold(script)
    written(script, b"three")
    expect_answers_hold(script)
