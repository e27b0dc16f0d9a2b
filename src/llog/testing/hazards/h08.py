"""h08: one record guards all rewriting of a log; a compactor that comes late fails at its version."""

from __future__ import annotations

from llog.testing.hazards.toolkit import (
    COMPACTION,
    INDEX,
    alone,
    compact,
    entry_key,
    expect_answers_hold,
    expect_compacts_to_the_end,
    written,
)
from llog.testing.sim import Script, SimFault, script


@script("h08a", atomic_groups=False)
def a_zombie_publishes_after_a_longer_run(script: Script) -> None:
    """R12: a compactor that lost its claim fails at the version of the compaction record."""
    written(script, b"one", b"two")
    zombie = script.actor("zombie", compact())
    zombie.run_until("put", COMPACTION)  # its segment of two records is written, not published
    zombie.sleep()
    written(script, b"three")
    alone(script, compact(), "compactor")
    zombie.wake()
    zombie.finish()
    written(script, b"four")
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


@script("h08b", atomic_groups=False)
def a_slow_resumer_ends_a_run_that_is_not_its_own(script: Script) -> None:
    written(script, b"one", b"two")
    slow = script.actor("slow", compact())
    slow.run_until("delete", entry_key(1)).perform()
    slow.run_until("put", COMPACTION)  # about to end its run
    slow.sleep()
    alone(script, compact(), "resumer")
    written(script, b"three", b"four")
    other = script.actor("other", compact())
    other.run_until("put", entry_key(4)).perform()
    other.run_until("put", COMPACTION)  # swapped; the cursor has not moved
    other.crash()
    slow.wake()
    slow.finish()
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


@script("h08c", atomic_groups=False)
def the_end_key_seems_not_to_be_there(script: Script) -> None:
    written(script, b"one")
    past = script.moment()
    written(script, b"two")
    compactor = script.actor("compactor", compact())
    compactor.run_until("put", entry_key(2)).perform(SimFault.LOST_REPLY)  # swapped, without an answer
    compactor.run_until("get", f"{INDEX}/*")  # refused the second time: what stands there?
    compactor.reads_as_of(past)
    compactor.perform(operation="get", path=f"{INDEX}/*")
    compactor.reads_as_of(None)
    compactor.finish()
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)
