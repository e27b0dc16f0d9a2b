"""h07: the cursor moves before lower keys are deleted, so an entry that a late settle brings back is a phantom.
h08: one record guards all rewriting of a log; a compactor that comes late fails at its version (R12).
h09: retention and compaction do not stand in each other's way.
"""

from __future__ import annotations

from llog.testing.hazards.toolkit import (
    COMPACTION,
    INDEX,
    alone,
    append,
    apply_retention,
    compact,
    control_of,
    delete_below,
    entries_of,
    entry_key,
    expect,
    expect_answers_hold,
    expect_compacts_to_the_end,
    expect_contents,
    object_name,
    reaches,
    unsettled,
    written,
)
from llog.testing.sim import Script, SimFault, script


@script("h07", atomic_groups=False)
def a_late_settle_brings_a_lower_key_back(script: Script) -> None:
    writer = unsettled(script, "writer", append(b"one"))
    writer.sleep()
    written(script, b"two")  # settles the first append
    blob = next(entry.value.data_key for entry in entries_of(script) if entry.end_offset == 1)
    compactor = script.actor("compactor", compact())
    if reaches(compactor, "delete", entry_key(1)):
        compactor.perform()
    compactor.crash()
    script.world.bucket().delete(object_name(script, blob))  # nothing names it: vacuum takes it
    writer.wake()
    writer.finish()
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


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


@script("h09a", atomic_groups=False)
def the_log_starts_inside_an_entry_above_the_cursor(script: Script) -> None:
    alone(script, append(b"one", b"two"), "writer")
    alone(script, append(b"three", b"four"), "writer")
    alone(script, delete_below(4), "retention")
    expect_contents(script, (4, b"four"))
    expect_compacts_to_the_end(script)
    expect_contents(script, (4, b"four"))


@script("h09b", atomic_groups=False)
def a_late_settle_below_the_start(script: Script) -> None:
    writer = unsettled(script, "writer", append(b"one"))
    writer.sleep()
    alone(script, delete_below(2), "retention")  # settles it, then removes it
    writer.wake()
    writer.finish()
    written(script, b"two")
    expect_answers_hold(script)
    alone(script, apply_retention(retention_ms=10**12), "retention")
    start = control_of(script).log_start_offset
    left = [entry.end_offset for entry in entries_of(script) if entry.end_offset < start]
    expect(not left, f"entries that end at {left} stay for ever; the log starts at {start}")
    expect_compacts_to_the_end(script)
