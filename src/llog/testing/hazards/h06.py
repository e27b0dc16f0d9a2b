"""h06: a producer's retry is recognised, whatever was compacted, removed or still pending meanwhile."""

from __future__ import annotations

from llog.testing.hazards.toolkit import (
    COMPACTION,
    INDEX,
    SNAPSHOT,
    alone,
    append,
    claim,
    compact,
    delete_below,
    entry_key,
    expect,
    expect_answers_hold,
    expect_compacts_to_the_end,
    expect_landed,
    snapshot_of,
    unsettled,
    written,
)
from llog.testing.sim import Script, script

FIRST = claim(0)
RETRY = append(b"sale", by=FIRST)


def _first_time(script: Script) -> None:
    expect_landed(alone(script, append(b"sale", by=FIRST), "producer"), 1)


@script("h06a", atomic_groups=False)
def a_retry_meets_an_entry_that_was_just_swapped(script: Script) -> None:
    _first_time(script)
    compactor = script.actor("compactor", compact())
    compactor.run_until("put", entry_key(1)).perform()
    compactor.run_until("put", COMPACTION)  # swapped; the cursor has not moved
    expect_landed(alone(script, RETRY, "retry"), 1)
    compactor.finish()
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


@script("h06b", atomic_groups=False)
def compaction_passes_between_snapshot_and_scan(script: Script) -> None:
    _first_time(script)
    written(script, b"other")
    retry = script.actor("retry", RETRY)
    retry.run_until("put_object")
    retry.run_until("scan", INDEX)  # it has read the old snapshot
    alone(script, compact(), "compactor")
    expect_landed(retry.finish(), 1)
    expect_answers_hold(script)


@script("h06c", atomic_groups=False)
def a_retry_while_the_first_time_is_pending(script: Script) -> None:
    first = unsettled(script, "producer", append(b"sale", by=FIRST))
    expect_landed(alone(script, RETRY, "retry"), 1)
    first.finish()
    expect_answers_hold(script)


@script("h06d", atomic_groups=False)
def a_retry_of_what_retention_removed(script: Script) -> None:
    _first_time(script)
    written(script, b"other")
    alone(script, delete_below(2), "retention")
    expect_landed(alone(script, RETRY, "retry"), 1)
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


@script("h06e", atomic_groups=False)
def a_zombie_comes_late_with_an_old_snapshot(script: Script) -> None:
    _first_time(script)
    zombie = script.actor("zombie", compact())
    zombie.run_until("put", SNAPSHOT)  # about to move the snapshot to 2
    zombie.sleep()
    expect_landed(alone(script, append(b"next sale", by=claim(1)), "producer"), 2)
    for _ in range(2):  # the zombie's run, then a run of its own
        alone(script, compact(), "compactor")
    before = snapshot_of(script).as_of
    zombie.wake()
    zombie.finish()
    after = snapshot_of(script).as_of
    expect(after >= before, f"the producer snapshot went back from {before} to {after}")
    expect_landed(alone(script, append(b"next sale", by=claim(1)), "retry"), 2)
    expect_answers_hold(script)
