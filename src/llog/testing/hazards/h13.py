"""h13, h14: settling never overwrites, and no pending append is replaced before it is settled (R2, R3).
h15: compaction takes whole entries (R11).
h16, h20: a fence counts once and is checked inside the compare-and-set (R6).
h18, h19: an old release does not write newer values; a blob is durable before an entry names it (R1).
"""

from __future__ import annotations

import json

from llog.errors import LogFenced
from llog.log.append.append import Appended
from llog.log.context import LogContext
from llog.log.fence import fence, unfence
from llog.testing.hazards.toolkit import (
    CONTROL,
    KEYS,
    ORDERS,
    alone,
    append,
    compact,
    compaction_of,
    control_of,
    doing,
    expect,
    expect_answers_hold,
    expect_compacts_to_the_end,
    expect_contents,
    expect_tiled,
    unsettled,
    written,
)
from llog.testing.sim import Script, SimFault, script


@script("h13", atomic_groups=False)
def a_late_settle_after_compaction_to_the_tail(script: Script) -> None:
    writer = unsettled(script, "writer", append(b"one"))
    helper = unsettled(script, "helper", append(b"two"))  # settling it for the writer, held too
    alone(script, compact(), "compactor")  # settles, clears and compacts it
    writer.finish()
    expect_answers_hold(script)
    helper.finish()
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


@script("h14", atomic_groups=False)
def the_next_append_finds_one_that_was_never_settled(script: Script) -> None:
    writer = unsettled(script, "writer", append(b"one"))
    writer.crash()
    alone(script, append(b"two"), "next")
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


@script("h15", atomic_groups=False)
def a_run_would_end_inside_an_entry(script: Script) -> None:
    written(script, b"one")
    alone(script, append(b"two", b"three", b"four"), "writer")
    alone(script, compact(max_offsets=2), "compactor")
    cursor = compaction_of(script).offset
    expect(cursor == 2, f"the cursor is at {cursor}, and entries begin at 1 and 2")
    expect_answers_hold(script)
    expect_tiled(script)
    expect_compacts_to_the_end(script)


@script("h16", atomic_groups=False)
def a_repeated_fence_does_not_undo_a_later_unfence(script: Script) -> None:
    written(script, b"one")
    # The operator's tool crashed after the fence; a colleague opened the log again; the tool is started once more.
    tool = script.actor("tool", doing(lambda context: fence(context, ORDERS, expected_epoch=0)))
    tool.run_until("put", CONTROL).perform(SimFault.CRASH_AFTER)
    alone(script, doing(lambda context: unfence(context, ORDERS)), "colleague")
    alone(script, doing(lambda context: fence(context, ORDERS, expected_epoch=0)), "tool")
    state = control_of(script).log_state
    expect(state == "OPEN", f"a repeated fence left the log {state}")
    # The reply alone is lost, and the tool tries again by itself.
    tool = script.actor("retrying tool", doing(lambda context: fence(context, ORDERS)))
    tool.run_until("put", CONTROL).perform(SimFault.LOST_REPLY)
    alone(script, doing(lambda context: unfence(context, ORDERS)), "colleague")
    tool.finish()
    state = control_of(script).log_state
    expect(state == "OPEN", f"a fence that was tried again left the log {state}")
    written(script, b"two")


@script("h20", atomic_groups=False)
def a_fence_between_the_look_and_the_commit(script: Script) -> None:
    written(script, b"one")
    writer = script.actor("writer", append(b"too late"))
    writer.run_until("put_object").run_until("put", CONTROL)  # it saw an open log
    alone(script, doing(lambda context: fence(context, ORDERS)), "operator")
    outcome = writer.finish()
    expect(isinstance(outcome, LogFenced), f"an append to a fenced log got: {outcome}")
    expect_contents(script, (1, b"one"))


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
