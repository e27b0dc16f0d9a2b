"""h13, h14: settling never overwrites, and nothing pending is replaced before it is settled (R2, R3)."""

from __future__ import annotations

from llog.testing.hazards.toolkit import (
    alone,
    append,
    compact,
    expect_answers_hold,
    expect_compacts_to_the_end,
    unsettled,
)
from llog.testing.sim import Script, script


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
