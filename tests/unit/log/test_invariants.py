"""Every fault that can be planted is found, and a log that moves is not accused of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import replace as replace_fields

import pytest
from msgspec.structs import replace

from llog.errors import LogBusy, OffsetOutOfRange, PartitionNotInitialized
from llog.formats.values import (
    CompactionRecord,
    CompactionRun,
    ControlRecord,
    IndexEntry,
    Pending,
    ProducerSnapshot,
    decode_value,
    encode_value,
)
from llog.log.append.append import Appender
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogContext
from llog.log.index import Entry
from llog.log.inspect.check_objects import LogFault
from llog.log.inspect.coherent import run_of
from llog.log.inspect.invariants import SnapshotTiling, Tiling, check_log
from llog.log.keys import Log
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.contract.backup_suite import memory_context
from tests.contract.log_suite import ORDERS, group

# -- the rules ------------------------------------------------------------------------------------------------------


def wal(start: int, end: int, **fields: object) -> Entry:
    value = IndexEntry(
        type="WAL", msg_count=end - start + 1, data_key="memory://x/a", encoding="kafka-v2", created_at_ms=1
    )
    return Entry(end, replace(value, **fields), 1)


def compacted(start: int, end: int, **fields: object) -> Entry:
    return wal(start, end, type="COMPACTED", level=1, **{"data_key": "memory://x/s", **fields})


def control(counter: int, *, start: int = 1, pending: Pending | None = None) -> ControlRecord:
    return ControlRecord(log_state="OPEN", sequence_counter=counter, log_start_offset=start, pending=pending)


def pending(start: int, end: int) -> Pending:
    return Pending(
        append_id="p",
        start_offset=start,
        end_offset=end,
        msg_count=end - start + 1,
        data_key="memory://x/p",
        encoding="kafka-v2",
        created_at_ms=1,
    )


def run(start: int, end: int) -> CompactionRun:
    return CompactionRun(
        compaction_id="r",
        kind="COMPACT",
        state="WRITING_COMPACTED_INDEX",
        start_offset=start,
        end_offset=end,
        last_start_offset=end,
        end_version=1,
        msg_count=end - start + 1,
        data_key="memory://x/s",
        encoding="kafka-v2",
        created_at_ms=1,
        entry=compacted(start, end).value,
    )


def tiling_faults(
    control: ControlRecord,
    compaction: CompactionRecord | None,
    entries: list[Entry],
    *,
    counter_after: int | None = None,
) -> list[LogFault]:
    """I4, I5, I6 and I11 of a log at rest, or of one read coherently. Then `counter_after` is the counter after the
    entries were read, and entries of appends in between are skipped."""
    tiling = Tiling(control, compaction, counter_after=counter_after)
    run = run_of(control, compaction)
    if run is not None:
        tiling.end_entry = next((entry for entry in entries if entry.end_offset == run.end_offset), None)
    for entry in entries:
        tiling.add(entry)
    return tiling.finish()


def kinds(
    head: ControlRecord, record: CompactionRecord | None, entries: list[Entry]
) -> list[tuple[str, str, int, int]]:
    return [(f.invariant, f.kind, f.start_offset, f.end_offset) for f in tiling_faults(head, record, entries)]


CURSOR_1 = CompactionRecord(offset=1)


@pytest.mark.parametrize(
    ("head", "record", "entries"),
    [
        (control(1), CURSOR_1, []),
        (control(7), CURSOR_1, [wal(1, 3), wal(4, 6)]),
        (control(7, start=2), CURSOR_1, [wal(1, 3), wal(4, 6)]),
        (control(7, start=4), CURSOR_1, [wal(1, 3), wal(4, 6)]),
        (control(7, pending=pending(4, 6)), CURSOR_1, [wal(1, 3)]),
        (control(7, pending=pending(4, 6)), CURSOR_1, [wal(1, 3), wal(4, 6)]),
        (control(7), CompactionRecord(offset=7), [wal(1, 3), compacted(1, 6)]),
        (control(7), CompactionRecord(offset=1, in_flight=run(1, 6)), [wal(1, 3), compacted(1, 6)]),
        (control(7), CompactionRecord(offset=1, in_flight=run(1, 6)), [wal(1, 3), wal(4, 6)]),
        (replace(control(4), incarnation=2), replace(CURSOR_1, incarnation=2), [wal(1, 3, incarnation=2), wal(4, 6)]),
    ],
    ids=[
        "empty",
        "tiled",
        "straddling",
        "below start",
        "pending",
        "settled",
        "phantom",
        "swapped",
        "not yet",
        "dead life",
    ],
)
def test_a_whole_log_has_no_fault(head: ControlRecord, record: CompactionRecord, entries: list[Entry]) -> None:
    assert kinds(head, record, entries) == []


@pytest.mark.parametrize(
    ("head", "record", "entries", "fault"),
    [
        (control(7), CURSOR_1, [wal(1, 3), wal(5, 6)], ("I4", "gap", 4, 4)),
        (control(7), CURSOR_1, [wal(2, 6)], ("I4", "gap", 1, 1)),
        (control(7), CURSOR_1, [wal(1, 3)], ("I4", "gap", 4, 6)),
        (control(7, pending=pending(5, 6)), CURSOR_1, [wal(1, 3)], ("I4", "gap", 4, 4)),
        (control(7), CURSOR_1, [wal(1, 3), wal(3, 6)], ("I5", "overlap", 3, 3)),
        (control(7), CURSOR_1, [wal(1, 3), compacted(1, 6)], ("I5", "overlap", 1, 3)),
        (control(4), CURSOR_1, [wal(1, 3), wal(4, 6)], ("I4", "beyond counter", 4, 6)),
        (control(4), CompactionRecord(offset=5), [compacted(1, 3)], ("I6", "cursor", 4, 5)),
        (control(4), None, [wal(1, 3)], ("I6", "no compaction record", 0, 0)),
        (control(4, start=9), CURSOR_1, [], ("I4", "log start", 4, 9)),
        (control(9, pending=pending(4, 6)), CURSOR_1, [wal(1, 3), wal(4, 6), wal(7, 8)], ("I4", "pending", 4, 6)),
        (control(4), CURSOR_1, [wal(1, 3), wal(4, 6, incarnation=2)], ("I11", "later incarnation", 4, 6)),
        (
            replace(control(4), incarnation=2),
            CURSOR_1,
            [wal(1, 3, incarnation=2)],
            ("I11", "earlier incarnation", 0, 0),
        ),
    ],
)
def test_every_fault_of_the_index_is_named(
    head: ControlRecord, record: CompactionRecord | None, entries: list[Entry], fault: tuple[str, str, int, int]
) -> None:
    assert kinds(head, record, entries) == [fault]


def test_appends_that_came_while_the_index_was_read_are_no_fault() -> None:
    entries = [wal(1, 3), wal(4, 6)]
    assert tiling_faults(control(4), CURSOR_1, entries, counter_after=7) == []
    assert tiling_faults(control(4), CURSOR_1, entries, counter_after=6) != []


@pytest.mark.parametrize(
    ("head", "entries", "kind"),
    [
        (None, [], "no snapshot"),
        (ProducerSnapshot(as_of=8, pages=0), [], "snapshot"),
        (ProducerSnapshot(as_of=1, pages=1), [wal(1, 6)], "snapshot pages"),
        (ProducerSnapshot(as_of=1, pages=0), [compacted(1, 6)], "snapshot hole"),
        (ProducerSnapshot(as_of=2, pages=0), [wal(1, 6)], "snapshot hole"),
        (ProducerSnapshot(as_of=1, pages=0), [wal(1, 3)], "snapshot hole"),
        (ProducerSnapshot(as_of=1, pages=0, incarnation=2), [wal(1, 6)], "no snapshot"),
    ],
)
def test_every_fault_of_the_producer_snapshot_is_named(
    head: ProducerSnapshot | None, entries: list[Entry], kind: str
) -> None:
    tiling = SnapshotTiling(control(7), head, 0)
    for entry in entries:
        tiling.add(entry)
    assert [(fault.invariant, fault.kind) for fault in tiling.finish()] == [("I12", kind)]


@pytest.mark.parametrize("as_of", [1, 4, 7])
def test_a_snapshot_at_a_boundary_is_fine(as_of: int) -> None:
    for head, entries in [(control(7), [wal(1, 3), wal(4, 6)]), (control(7, pending=pending(4, 6)), [wal(1, 3)])]:
        tiling = SnapshotTiling(head, ProducerSnapshot(as_of=as_of, pages=0), 0)
        for entry in entries:
            tiling.add(entry)
        assert tiling.finish() == []


# -- planted in a store -----------------------------------------------------------------------------------------------


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore(f"memory://check-{time.time_ns()}")


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
async def context(objects: MemoryObjectStore, request: pytest.FixtureRequest) -> LogContext:
    """Offsets 1-6 in a segment, 7-8, 9-10, 11-12 in blobs."""
    context = memory_context(objects, atomic=request.param)
    appender = Appender(context)
    for number in range(6):
        await appender.append([group(ORDERS, b"%d" % number, b"x" * 50)])
    assert await compact_once(context, ORDERS, max_offsets=6) is not None
    await appender.close()
    return context


async def found(context: LogContext, *, deep: bool = True) -> list[tuple[str, str, int, int]]:
    checked = await check_log(context, ORDERS, deep=deep)
    assert checked.settled
    return [(f.invariant, f.kind, f.start_offset, f.end_offset) for f in checked.faults]


async def change_entry(context: LogContext, end: int, change: Callable[[IndexEntry], IndexEntry]) -> None:
    key = context.keys.index_entry(ORDERS, end)
    record = await context.metadata.get(key)
    assert record is not None
    await context.metadata.put(key, encode_value(change(decode_value(IndexEntry, record.value, key.path))))


async def change_object(context: LogContext, end: int, change: Callable[[bytearray], bytes | bytearray]) -> None:
    record = await context.metadata.get(context.keys.index_entry(ORDERS, end))
    assert record is not None
    store, name = await context.find_object(decode_value(IndexEntry, record.value, "").data_key)
    await store.put(name, [bytes(change(bytearray(await store.get(name))))])


async def test_a_sound_log_is_found_sound(context: LogContext) -> None:
    checked = await check_log(context, ORDERS, deep=True)
    assert (checked.faults, checked.settled, checked.entries, checked.rounds) == ((), True, 4, 1)
    with pytest.raises(PartitionNotInitialized):
        await check_log(context, Log("nobody", 0))


async def test_a_missing_entry_is_a_gap(context: LogContext) -> None:
    await context.metadata.delete(context.keys.index_entry(ORDERS, 10))
    assert await found(context) == [("I4", "gap", 9, 10), ("I12", "snapshot hole", 9, 12)]


async def test_an_entry_that_claims_too_much_overlaps(context: LogContext) -> None:
    await change_entry(context, 10, lambda entry: replace(entry, msg_count=3))
    assert ("I5", "overlap", 8, 8) in await found(context)


async def test_an_entry_beyond_the_counter_is_found(context: LogContext) -> None:
    record = await context.metadata.get(context.keys.index_entry(ORDERS, 12))
    assert record is not None
    await context.metadata.put(context.keys.index_entry(ORDERS, 14), record.value)
    assert await found(context) == [("I4", "beyond counter", 13, 14)]


async def test_a_value_that_is_no_entry_is_found(context: LogContext) -> None:
    await context.metadata.put(context.keys.index_entry(ORDERS, 10), b"{}")
    assert ("I4", "unreadable", 0, 0) in await found(context)


async def test_a_cursor_beyond_the_counter_is_found(context: LogContext) -> None:
    key = context.keys.compaction(ORDERS)
    await context.metadata.put(key, encode_value(CompactionRecord(offset=99)))
    assert ("I6", "cursor", 13, 99) in await found(context)


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize(("end", "start"), [(6, 1), (10, 9)], ids=["segment", "blob"])
async def test_a_missing_object_is_found(context: LogContext, end: int, start: int, deep: bool) -> None:
    record = await context.metadata.get(context.keys.index_entry(ORDERS, end))
    assert record is not None
    store, name = await context.find_object(decode_value(IndexEntry, record.value, "").data_key)
    await store.delete(name)
    assert await found(context, deep=deep) == [("I8", "missing object", start, end)]


@pytest.mark.parametrize("at", [-1, -60])
async def test_a_flipped_bit_in_a_blob_is_found_by_a_deep_check(context: LogContext, at: int) -> None:
    def flip(data: bytearray) -> bytearray:
        data[at] ^= 0x10
        return data

    await change_object(context, 10, flip)
    assert await found(context, deep=False) == []
    assert [fault[:2] for fault in await found(context)] == [("I8", "checksum")]


async def test_a_flipped_bit_in_a_segments_data_is_found_by_a_deep_check(context: LogContext) -> None:
    def flip(data: bytearray) -> bytearray:
        data[100] ^= 1
        return data

    await change_object(context, 6, flip)
    assert await found(context, deep=False) == []
    assert await found(context) == [("I8", "checksum", 1, 6)]


@pytest.mark.parametrize("lost_bytes", [1, 8, 40, 200])
async def test_a_truncated_segment_is_found_by_any_check(context: LogContext, lost_bytes: int) -> None:
    await change_object(context, 6, lambda data: data[:-lost_bytes])
    assert await found(context, deep=False) == [("I8", "malformed object", 1, 6)]


@pytest.mark.parametrize("deep", [True, False])
async def test_a_truncated_blob_is_found(context: LogContext, deep: bool) -> None:
    await change_object(context, 10, lambda data: data[:-1])
    [fault] = await found(context, deep=deep)
    assert fault[0] == "I8"


async def test_a_wrong_count_of_records_is_found(context: LogContext) -> None:
    await change_entry(context, 6, lambda entry: replace(entry, record_count=5))
    assert await found(context, deep=False) == [("I8", "malformed object", 1, 6)]


async def test_an_entry_that_names_another_logs_slice_is_found(context: LogContext) -> None:
    other = Appender(context)
    await other.append([group(Log("other", 0), b"a", b"b"), group(ORDERS, b"c", b"d")])
    await other.close()
    record = await context.metadata.get(context.keys.index_entry(Log("other", 0), 2))
    assert record is not None
    foreign = decode_value(IndexEntry, record.value, "")
    await change_entry(
        context, 14, lambda entry: replace(entry, byte_offset=foreign.byte_offset, byte_length=foreign.byte_length)
    )
    assert await found(context) == [("I8", "malformed object", 13, 14)]


async def test_a_log_that_moves_all_the_time_is_accused_of_nothing(context: LogContext) -> None:
    working = True

    async def write() -> None:
        appender = Appender(context)
        while working:
            await appender.append([group(ORDERS, b"more")])
            await asyncio.sleep(0)
        await appender.close()

    async def compact() -> None:
        while working:
            with contextlib.suppress(LogBusy):  # `trim` was faster each time
                await compact_once(context, ORDERS, max_offsets=7)
            await asyncio.sleep(0)

    async def trim() -> None:
        start = 3
        while working:
            with contextlib.suppress(OffsetOutOfRange):
                await delete_records(context, ORDERS, start)
                start += 2
            await asyncio.sleep(0.005)

    async def let_others_work(_: float) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    delays = FaultRates(delay=1.0)
    metadata = FaultyMetadataStore(
        context.metadata, random_source=random.Random(1), rates=delays, sleep=let_others_work
    )
    slow = replace_fields(context, metadata=metadata)
    tasks = [asyncio.create_task(work()) for work in (write, compact, trim)]
    try:
        for _ in range(6):
            checked = await check_log(slow, ORDERS)
            assert checked.faults == ()
    finally:
        working = False
        await asyncio.gather(*tasks)
    assert (await check_log(context, ORDERS, deep=True)).faults == ()
