"""h26, h27: what vacuum must still find when a topic shrank, or when only a phantom names an object (I13)."""

from __future__ import annotations

from typing import Any

from llog.log.append.append import Appender
from llog.log.keys import Log
from llog.testing.hazards.toolkit import (
    ORDERS,
    alone,
    append,
    compact,
    context_of,
    expect_answers_hold,
    expect_no_orphans,
    reborn,
    record_group,
    unsettled,
    written,
)
from llog.testing.sim import ActorContext, Script, script

CLICKS = Log("clicks", 0)


@script("h26", atomic_groups=False)
def a_topic_is_created_again_with_fewer_partitions(script: Script) -> None:
    written(script, b"one", log=Log(ORDERS.topic, 1))
    reborn(script, b"new")  # one partition; the tombstone of the other stays
    expect_no_orphans(script)


@script("h27", atomic_groups=False)
def a_phantom_is_all_that_names_a_blob(script: Script) -> None:
    writer = unsettled(script, "writer", append(b"one"))

    async def write_both(ctx: ActorContext) -> Any:
        """A blob that another log keeps alive, so that vacuum has no other reason to ask about ours."""
        appender = Appender(context_of(ctx))
        await appender.append([record_group(ORDERS, (b"two",)), record_group(CLICKS, (b"click",))])
        await appender.close()

    alone(script, write_both, "writer")
    alone(script, compact(), "compactor")
    writer.finish()  # its entry comes back, below the cursor
    expect_answers_hold(script)
    expect_no_orphans(script, also=(CLICKS,))
