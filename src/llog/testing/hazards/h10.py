"""h10, h21: what a reader answers when metadata is old, an index has a gap, or an object is gone.
h11: crashes and stale processes leave nothing behind for ever; segment records are not references.
"""

from __future__ import annotations

from llog.errors import LlogError
from llog.testing.hazards.toolkit import (
    COMPACTION,
    INDEX,
    SEGMENTS,
    alone,
    clean,
    compact,
    delete_below,
    entries_of,
    entry_key,
    expect,
    expect_answers_hold,
    expect_no_orphans,
    hours_pass,
    merge,
    object_name,
    read_from,
    written,
)
from llog.testing.sim import Puppet, Script, script


def _expect_read(reader: Puppet, *records: tuple[int, bytes]) -> None:
    found = reader.finish()
    said = f"{type(found).__name__}: {found}" if isinstance(found, LlogError) else found
    expect(found == list(records), f"a consumer reads {said}, expected {list(records)}")


@script("h10", atomic_groups=False)
def a_deposed_leader_knows_of_fewer_records(script: Script) -> None:
    written(script, b"one")
    past = script.moment()
    written(script, b"two", b"three")
    reader = script.actor("reader", read_from(3))
    reader.reads_as_of(past)
    _expect_read(reader, (3, b"three"))


@script("h21", atomic_groups=False)
def neither_a_missing_object_nor_a_gap_is_the_end(script: Script) -> None:
    written(script, b"one")
    past = script.moment()
    written(script, b"two")
    # A gap: control as it is now, the index from the past.
    reader = script.actor("sees a gap", read_from(2))
    reader.run_until("scan", INDEX)
    reader.reads_as_of(past)
    reader.perform()
    reader.reads_as_of(None)
    _expect_read(reader, (2, b"two"))
    # A missing object: compaction swaps the entry, and vacuum takes the blob, while the reader is about to read it.
    reader = script.actor("meets a 404", read_from(1))
    reader.run_until("get_*", "*/wal-shared/*")
    blobs = [object_name(script, entry.value.data_key) for entry in entries_of(script)]
    alone(script, compact(), "compactor")
    for blob in blobs:
        script.world.bucket().delete(blob)
    _expect_read(reader, (1, b"one"), (2, b"two"))


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
