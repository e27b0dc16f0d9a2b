"""h11: crashes and sleeping compactors leave no garbage for good; segment records are not references."""

from __future__ import annotations

from llog.testing.hazards.toolkit import (
    COMPACTION,
    SEGMENTS,
    alone,
    clean,
    compact,
    delete_below,
    entry_key,
    expect_answers_hold,
    expect_no_orphans,
    hours_pass,
    merge,
    written,
)
from llog.testing.sim import Script, script


@script("h11a", atomic_groups=False)
def a_compactor_crashes_before_it_publishes(script: Script) -> None:
    written(script, b"one", b"two")
    compactor = script.actor("compactor", compact())
    compactor.run_until("put", COMPACTION)  # its segment is written and registered
    compactor.crash()
    expect_no_orphans(script)
    expect_answers_hold(script)


@script("h11b", atomic_groups=False)
def a_merge_crashes_before_its_sources_are_retired(script: Script) -> None:
    for token in (b"one", b"two"):
        written(script, token)
        alone(script, compact(), "compactor")
    merger = script.actor("merger", merge())
    merger.run_until("delete", "*/index/*").perform()
    # The merged segment's record is finished, the sources' are not touched yet.
    merger.run_until("put", SEGMENTS).perform()
    merger.run_until("put", SEGMENTS)
    merger.crash()
    alone(script, merge(), "merger")
    expect_no_orphans(script)
    expect_answers_hold(script)


@script("h11c", atomic_groups=False)
def retention_crashes_after_the_entry_is_gone(script: Script) -> None:
    written(script, b"one")
    alone(script, compact(), "compactor")
    written(script, b"two")
    retention = script.actor("retention", delete_below(2))
    retention.run_until("delete", entry_key(1)).perform()
    retention.crash()
    expect_no_orphans(script)
    expect_answers_hold(script)


@script("h11d", atomic_groups=False)
def a_zombie_finishes_a_segment_that_was_merged_away(script: Script) -> None:
    written(script, b"one")
    zombie = script.actor("zombie", compact())
    zombie.run_until("put", SEGMENTS).perform()
    zombie.run_until("put", SEGMENTS)  # its run is published; about to call its segment finished
    alone(script, compact(), "resumer")
    written(script, b"two")
    alone(script, compact(), "compactor")
    alone(script, merge(), "merger")
    hours_pass(script)
    alone(script, clean(), "vacuum")  # the merged segments' objects and records go
    zombie.finish()
    expect_no_orphans(script)
    expect_answers_hold(script)
