"""h10, h21: answers of a reader when metadata is stale, entries have a gap, or an object is gone."""

from __future__ import annotations

from llog.errors import LlogError
from llog.testing.hazards.toolkit import (
    INDEX,
    alone,
    compact,
    entries_of,
    expect,
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
