"""What reading promises on every metadata store: each record once, in order, by few requests, whatever changes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from llog.errors import InconsistentReadState, InvalidArgument, LogDeleted, OffsetOutOfRange
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_records
from llog.formats.values import ControlRecord, IndexEntry, Pending, decode_value, encode_value
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogContext
from llog.log.index import entry_of
from llog.log.keys import Log
from llog.log.metrics import READ_BYTES, READ_GETS, READ_RECORDS, READ_RESTARTS
from llog.log.read.fetch import LOG_READ_WHOLE_BYTES_MAX, Fetcher
from llog.log.read.read import iter_runs, read_offset, view
from llog.log.read.records import LogRecord, RecordRun
from llog.log.read.timestamps import (
    OffsetAndTimestamp,
    earliest_offset,
    latest_offset,
    max_timestamp,
    offset_for_timestamp,
)
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.port import ANY, Key, Record
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.wrappers import MeteredObjectStore
from tests.contract.log_suite import context_on
from tests.contract.on_stores import OpenStore

ORDERS = Log("orders", 0)
SCHEDULES = 100 if os.environ.get("LLOG_SOAK") == "1" else 3
PIECE_BYTES = 64 * 1024


def records(*values: bytes, log: Log = ORDERS, timestamps_ms: list[int] | None = None) -> EncodedGroup:
    stamps = timestamps_ms or [5] * len(values)
    return EncodedGroup(log, len(values), "kafka-v2", [encode_records(list(values), timestamps_ms=stamps)], max(stamps))


def bare(*values: bytes) -> EncodedGroup:
    return EncodedGroup(ORDERS, len(values), "bytes-batch-v1", encode_bytes_batch(list(values)))


class Counts(dict[str, int]):
    def count(self, name: str, value: int = 1) -> None:
        self[name] = self.get(name, 0) + value


def gets_of(objects: MeteredObjectStore) -> int:
    return sum(objects.stats.operations[name].request_count for name in ("get", "range_get", "head"))


async def append(context: LogContext, *groups: EncodedGroup) -> list[Appended]:
    appender = Appender(context)
    landed = []
    for group in groups:
        [outcome] = await appender.append([group])
        assert isinstance(outcome, Appended), outcome
        landed.append(outcome)
    await appender.close()
    return landed


async def read_from(context: LogContext, offset: int, **options: Any) -> list[LogRecord]:
    return [r async for run in iter_runs(context, ORDERS, offset, **options) for r in run.records()]


async def payloads(context: LogContext, offset: int = 1, **options: Any) -> list[bytes | None]:
    return [record.payload for record in await read_from(context, offset, **options)]


async def index_of(context: LogContext) -> list[Record]:
    return await context.metadata.scan(context.keys.index(ORDERS), strict=True)


async def change_entry(context: LogContext, record: Record, **fields: Any) -> None:
    value = replace(decode_value(IndexEntry, record.value, record.key.path), **fields)
    await context.metadata.put(record.key, encode_value(value), expected=record.version)


async def change_control(context: LogContext, **fields: Any) -> None:
    key = context.keys.control(ORDERS)
    found = await context.metadata.get(key, strict=True)
    assert found is not None
    control = replace(decode_value(ControlRecord, found.value, key.path), **fields)
    await context.metadata.put(key, encode_value(control), expected=found.version)


async def a_run(runs: AsyncGenerator[RecordRun, None]) -> list[bytes | None]:
    return [record.payload for record in (await anext(runs)).records()]


class ReadContract:
    """Inherited per metadata store; the subclass provides `open_store`."""

    @pytest.fixture
    async def open_store(self) -> OpenStore:
        pytest.fail("the store's test class must provide open_store")

    @pytest.fixture
    def objects(self, request: pytest.FixtureRequest) -> MeteredObjectStore:
        return MeteredObjectStore(MemoryObjectStore(f"memory://read-{request.node.name}-{time.time_ns()}"))

    @pytest.fixture
    async def context(self, open_store: OpenStore, objects: MeteredObjectStore) -> LogContext:
        return context_on(await open_store(), objects, 1)

    # -- few requests ---------------------------------------------------------------------------------------------
    async def test_neighbours_in_one_blob_are_one_request(
        self, context: LogContext, objects: MeteredObjectStore
    ) -> None:
        groups = [records(b"a"), records(b"b", b"c"), bare(b"d")]
        await append(context, *groups)
        blob = bytearray(b"header")
        for group, record in zip(groups, await index_of(context), strict=True):
            body = b"".join(group.body)
            place = {"byte_offset": len(blob), "byte_length": len(body)}
            await change_entry(context, record, data_key=objects.uri("blob"), **place)
            blob += body + b"a slice of another log"
        await objects.put("blob", [blob])
        before = gets_of(objects)
        assert await payloads(context) == [b"a", b"b", b"c", b"d"]
        assert gets_of(objects) - before == 1

    async def test_many_entries_take_few_scans_of_the_index(
        self, context: LogContext, objects: MeteredObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        values = [b"%d" % i for i in range(200)]
        await append(context, *(records(value) for value in values))
        scans = 0
        plain = context.metadata.scan

        async def counted(*args: Any, **options: Any) -> list[Record]:
            nonlocal scans
            scans += 1
            return await plain(*args, **options)

        monkeypatch.setattr(context.metadata, "scan", counted)
        assert await payloads(context) == values
        assert scans <= 3, "32, then 128, then the rest"
        assert METADATA_SCAN_PAGE_RECORDS_MAX >= 200

    async def test_a_compacted_log_is_read_by_one_request_per_budget(
        self, context: LogContext, objects: MeteredObjectStore
    ) -> None:
        rng = random.Random(3)
        values = [rng.randbytes(rng.randrange(1, 9_000)) for _ in range(500)]
        await append(context, *(records(*values[i : i + 10]) for i in range(0, 500, 10)))
        while await compact_once(context, ORDERS, target_bytes=9 * PIECE_BYTES) is not None:
            pass
        segments = [entry_of(record).value for record in await index_of(context)]
        assert len(segments) > 2
        for start in (1, 2, 77):
            counts = Counts()
            before = gets_of(objects)
            fetcher = Fetcher(context.find_object, counts)
            found = await payloads(context, start, fetcher=fetcher, bytes_max=PIECE_BYTES)
            assert found == values[start - 1 :]
            gets = gets_of(objects) - before
            assert gets <= counts[READ_BYTES] / PIECE_BYTES + (start > 1), "one more where it begins in the middle"
            assert counts[READ_GETS] == gets
            assert counts[READ_RECORDS] == len(found)
            assert READ_RESTARTS not in counts

    async def test_a_small_segment_is_one_request_and_small_neighbours_are_fetched_together(
        self, context: LogContext, objects: MeteredObjectStore
    ) -> None:
        await append(context, *(records(b"%d-a" % i, b"%d-b" % i) for i in range(6)))
        while await compact_once(context, ORDERS, max_offsets=4) is not None:
            pass
        for start, segments in ((1, 3), (2, 3), (6, 2), (12, 1)):
            before = gets_of(objects)
            assert len(await payloads(context, start)) == 13 - start
            assert gets_of(objects) - before == segments

    async def test_any_offset_of_a_segment_is_two_requests_away(
        self, context: LogContext, objects: MeteredObjectStore
    ) -> None:
        values = [bytes([i]) * 50_000 for i in range(50)]
        await append(context, *(records(*values[i : i + 5]) for i in range(0, 50, 5)))
        assert await compact_once(context, ORDERS) is not None
        [record] = await index_of(context)
        assert (entry_of(record).value.byte_length or 0) > LOG_READ_WHOLE_BYTES_MAX
        for offset in (1, 17, 50):
            before, bytes_before = gets_of(objects), objects.stats.operations["range_get"].byte_count
            assert (await read_offset(context, ORDERS, offset)).payload == values[offset - 1]
            assert gets_of(objects) - before <= 2
            assert objects.stats.operations["range_get"].byte_count - bytes_before < 300_000, "one batch and the footer"
        fetcher = Fetcher(context.find_object)
        await read_offset(context, ORDERS, 1, fetcher=fetcher)
        before = gets_of(objects)
        assert (await read_offset(context, ORDERS, 30, fetcher=fetcher)).payload == values[29]
        assert gets_of(objects) - before == 1, "the footer is kept"
        found = await payloads(context, 7, end_offset=8)
        assert found[:2] == values[6:8]
        assert len(found) < 10, "no more batches than it takes"

    async def test_an_entry_without_a_segments_lengths_is_read_by_its_footer(self, context: LogContext) -> None:
        await append(context, records(b"a", b"b"), records(b"c"))
        assert await compact_once(context, ORDERS) is not None
        [record] = await index_of(context)
        await change_entry(context, record, byte_length=None, footer_length=None, byte_offset=None)
        assert await payloads(context) == [b"a", b"b", b"c"]
        assert await payloads(context, 3) == [b"c"]
        assert (await read_offset(context, ORDERS, 2)).payload == b"b"

    # -- what lies where ------------------------------------------------------------------------------------------
    @pytest.mark.parametrize("encoding", ["kafka-v2", "bytes-batch-v1"])
    async def test_an_entry_without_a_byte_range_means_the_whole_object(
        self, context: LogContext, objects: MeteredObjectStore, encoding: str
    ) -> None:
        group = records(b"b", b"c") if encoding == "kafka-v2" else bare(b"b", b"c")
        await append(context, records(b"a"), group, records(b"d"))
        await objects.put("alone", group.body)
        record = (await index_of(context))[1]
        await change_entry(context, record, data_key=objects.uri("alone"), byte_offset=None, byte_length=None)
        assert await payloads(context) == [b"a", b"b", b"c", b"d"]
        assert (await read_offset(context, ORDERS, 3)).payload == b"c"

    async def test_a_pending_append_is_read_though_it_is_never_settled(self, context: LogContext) -> None:
        landed = await append(context, records(b"a"), records(b"b", b"c", timestamps_ms=[7, 8]))
        record = (await index_of(context))[-1]
        entry = entry_of(record)
        pending = Pending(
            append_id=entry.value.append_id,
            start_offset=landed[1].start_offset,
            end_offset=landed[1].end_offset,
            msg_count=2,
            data_key=entry.value.data_key,
            encoding=entry.value.encoding,
            byte_offset=entry.value.byte_offset,
            byte_length=entry.value.byte_length,
            max_timestamp_ms=8,
            created_at_ms=entry.value.created_at_ms,
        )
        await context.metadata.delete(record.key, expected=record.version)
        await change_control(context, pending=pending)
        assert await payloads(context) == [b"a", b"b", b"c"]
        assert await payloads(context, 3) == [b"c"]
        assert (await read_offset(context, ORDERS, 2)).payload == b"b"
        assert await offset_for_timestamp(context, ORDERS, 6) == (2, 7)

    async def test_late_settled_entries_of_a_compacted_range_are_passed_over(self, context: LogContext) -> None:
        values = [b"%d" % i for i in range(80)]
        await append(context, *(records(value) for value in values))
        late = (await index_of(context))[:-1]
        assert await compact_once(context, ORDERS) is not None
        for record in late:
            await context.metadata.put(record.key, record.value, expected=ANY)
            value = decode_value(IndexEntry, record.value, record.key.path)
            store, name = await context.find_object(value.data_key)
            await store.delete(name)
        assert await payloads(context) == values
        assert (await read_offset(context, ORDERS, 2)).payload == b"1"

    async def test_old_keys_below_a_swapped_end_key_are_read_once(self, context: LogContext) -> None:
        """Between steps 7 and 8 of a compaction (I5): lower keys are valid still, the end key covers them too."""
        await append(context, *(records(b"%d-a" % i, b"%d-b" % i) for i in range(3)))
        old = (await index_of(context))[:-1]
        assert await compact_once(context, ORDERS) is not None
        for record in old:
            await context.metadata.put(record.key, record.value, expected=ANY)
        key = context.keys.compaction(ORDERS)
        found = await context.metadata.get(key, strict=True)
        assert found is not None
        await context.metadata.put(key, found.value.replace(b'"offset":7', b'"offset":1'), expected=found.version)
        assert (await view(context, ORDERS, strict=True)).cursor == 1
        expected = [b"0-a", b"0-b", b"1-a", b"1-b", b"2-a", b"2-b"]
        assert await payloads(context) == expected
        assert await payloads(context, bytes_max=1) == expected
        assert await payloads(context, 4) == expected[3:]

    # -- what changes meanwhile -----------------------------------------------------------------------------------
    async def test_a_read_follows_an_object_that_compaction_replaced(self, context: LogContext) -> None:
        values = [b"%d" % i for i in range(6)]
        landed = await append(context, *(records(value) for value in values))
        counts = Counts()
        async with aclosing(iter_runs(context, ORDERS, 1, bytes_max=1, fetcher=counted(context, counts))) as runs:
            found = await a_run(runs)
            assert await compact_once(context, ORDERS) is not None
            for append_ in landed:
                store, name = await context.find_object(append_.wal_uri)
                await store.delete(name)
            found += [record.payload async for run in runs for record in run.records()]
        assert found == values

    async def test_an_object_that_stays_away_is_an_error_and_never_the_end(self, context: LogContext) -> None:
        landed = await append(context, records(b"a"), records(b"b"), records(b"c"))
        store, name = await context.find_object(landed[1].wal_uri)
        await store.delete(name)
        counts = Counts()
        with pytest.raises(InconsistentReadState):
            await payloads(context, fetcher=counted(context, counts), bytes_max=1)
        assert counts[READ_RESTARTS] > 3
        with pytest.raises(InconsistentReadState):
            await read_offset(context, ORDERS, 2)
        await change_entry(context, (await index_of(context))[1], max_timestamp_ms=9)
        with pytest.raises(InconsistentReadState):
            await offset_for_timestamp(context, ORDERS, 9)
        assert await payloads(context, 3) == [b"c"]

    async def test_a_gap_in_the_index_is_an_error_and_never_the_end(self, context: LogContext) -> None:
        await append(context, records(b"a"), records(b"b"), records(b"c"))
        for hole in (2, 1):
            record = (await index_of(context))[hole]
            await context.metadata.delete(record.key, expected=record.version)
            with pytest.raises(InconsistentReadState, match="no entry covers offset"):
                await payloads(context)
        assert (await read_offset(context, ORDERS, 1)).payload == b"a"

    async def test_an_offset_that_retention_passed_meanwhile_is_out_of_range(self, context: LogContext) -> None:
        await append(context, *(records(b"%d" % i) for i in range(6)))
        async with aclosing(iter_runs(context, ORDERS, 1, bytes_max=1)) as runs:
            assert await a_run(runs) == [b"0"]
            await delete_records(context, ORDERS, 4)
            with pytest.raises(OffsetOutOfRange) as caught:
                await anext(runs)
        assert (caught.value.offset, caught.value.log_start_offset, caught.value.next_offset) == (2, 4, 7)
        assert await payloads(context, 4) == [b"3", b"4", b"5"]
        with pytest.raises(OffsetOutOfRange):
            await payloads(context, 8)

    async def test_two_incarnations_of_a_topic_are_never_read_as_one(self, context: LogContext) -> None:
        await append(context, *(records(b"%d" % i) for i in range(3)))
        async with aclosing(iter_runs(context, ORDERS, 1, bytes_max=1)) as runs:
            assert await a_run(runs) == [b"0"]
            await change_control(context, incarnation=2)
            with pytest.raises(LogDeleted):
                await anext(runs)

    async def test_the_end_is_where_it_is_when_it_is_reached(self, context: LogContext) -> None:
        await append(context, records(b"a"), records(b"b"))
        async with aclosing(iter_runs(context, ORDERS, 1, bytes_max=1)) as runs:
            found = await a_run(runs)
            await append(context, records(b"c"))
            found += [record.payload async for run in runs for record in run.records()]
        assert found == [b"a", b"b", b"c"]

    async def test_a_stale_answer_is_not_the_end(self, context: LogContext, monkeypatch: pytest.MonkeyPatch) -> None:
        await append(context, records(b"a"), records(b"b"))
        plain = context.metadata.get_many
        past = await plain([context.keys.control(ORDERS), context.keys.compaction(ORDERS)])
        await append(context, records(b"c"), records(b"d"))

        async def deposed(keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
            return await plain(keys, strict=True) if strict else past

        async with aclosing(iter_runs(context, ORDERS, 1, bytes_max=1)) as runs:
            found = await a_run(runs)
            monkeypatch.setattr(context.metadata, "get_many", deposed)
            found += [record.payload async for run in runs for record in run.records()]
        assert found == [b"a", b"b", b"c", b"d"]
        assert (await read_offset(context, ORDERS, 4)).payload == b"d"
        assert await payloads(context, 3, end_offset=3) == [b"c"], "what was asked for is looked for strictly"
        assert await payloads(context, 5, end_offset=9) == []

    async def test_bytes_that_differ_from_their_entry_are_never_returned(
        self, context: LogContext, objects: MeteredObjectStore
    ) -> None:
        await append(context, records(b"a", b"b"), records(b"c"), records(b"d"))
        record = (await index_of(context))[1]
        await change_entry(context, record, **{"byte_length": 3})
        with pytest.raises(InconsistentReadState, match="offset 3"):
            await payloads(context)
        record = (await index_of(context))[1]
        await objects.put("other", records(b"x", b"y").body)
        await change_entry(context, record, data_key=objects.uri("other"), byte_offset=None, byte_length=None)
        with pytest.raises(InconsistentReadState, match="holds 2 offsets, its index entry says 1"):
            await payloads(context, 3)
        body = bytearray(b"".join(records(b"z").body))
        body[-1] ^= 1
        await objects.put("broken", [body])
        record = (await index_of(context))[1]
        await change_entry(context, record, data_key=objects.uri("broken"))
        with pytest.raises(InconsistentReadState, match="broken"):
            await read_offset(context, ORDERS, 3)
        assert await payloads(context, 4) == [b"d"]

    # -- timestamps -----------------------------------------------------------------------------------------------
    async def test_a_timestamp_is_found_without_reading_what_is_older(
        self, context: LogContext, objects: MeteredObjectStore
    ) -> None:
        groups = [records(b"a", b"b", timestamps_ms=[100 * i + 50, 100 * i]) for i in range(10)]
        await append(context, *groups)
        before = gets_of(objects)
        assert await offset_for_timestamp(context, ORDERS, 650) == (13, 650)
        assert await offset_for_timestamp(context, ORDERS, 951) is None
        assert gets_of(objects) - before == 1
        assert await compact_once(context, ORDERS) is not None
        fetcher = Fetcher(context.find_object)
        before = gets_of(objects)
        assert await offset_for_timestamp(context, ORDERS, 651, fetcher=fetcher) == (15, 750)
        assert gets_of(objects) - before == 2, "the footer and one batch"
        assert await max_timestamp(context, ORDERS, fetcher=fetcher) == (19, 950)
        assert gets_of(objects) - before == 3, "one batch more"
        assert await offset_for_timestamp(context, ORDERS, 0) == (1, 50)
        with pytest.raises(InvalidArgument):
            await offset_for_timestamp(context, ORDERS, -1)

    async def test_what_lies_below_the_start_has_no_timestamp_any_more(
        self, context: LogContext, objects: MeteredObjectStore
    ) -> None:
        for compacted in (False, True):
            log_start = await next_offset(context)
            await append(context, records(b"a", b"b", b"c", timestamps_ms=[900, 300, 500]), records(b"d"))
            if compacted:
                assert await compact_once(context, ORDERS, max_offsets=4) is not None
            await delete_records(context, ORDERS, log_start + 1)
            assert await earliest_offset(context, ORDERS) == log_start + 1
            assert await latest_offset(context, ORDERS) == log_start + 4
            assert await offset_for_timestamp(context, ORDERS, 600) is None
            assert await offset_for_timestamp(context, ORDERS, 301) == (log_start + 2, 500)
            assert await max_timestamp(context, ORDERS) == (log_start + 2, 500)
            await delete_records(context, ORDERS, -1)
            assert await max_timestamp(context, ORDERS) is None
            assert await offset_for_timestamp(context, ORDERS, 0) is None

    async def test_an_entry_without_its_newest_timestamp_is_read(self, context: LogContext) -> None:
        await append(context, records(b"a", timestamps_ms=[700]), records(b"b", timestamps_ms=[900]), bare(b"c"))
        for record in (await index_of(context))[:2]:
            await change_entry(context, record, max_timestamp_ms=-1)
        third = entry_of((await index_of(context))[2]).value
        assert await offset_for_timestamp(context, ORDERS, 800) == (2, 900)
        assert await offset_for_timestamp(context, ORDERS, 901) == (3, third.created_at_ms)
        assert await offset_for_timestamp(context, ORDERS, third.created_at_ms + 1) is None
        assert await max_timestamp(context, ORDERS) == (3, third.created_at_ms)

    async def test_an_entry_with_a_too_new_timestamp_does_not_mislead(self, context: LogContext) -> None:
        await append(context, records(b"a", timestamps_ms=[700]), records(b"b", timestamps_ms=[300]))
        record = (await index_of(context))[1]
        await change_entry(context, record, max_timestamp_ms=10_000)
        assert await offset_for_timestamp(context, ORDERS, 800) is None
        assert await max_timestamp(context, ORDERS) == (1, 700)

    # -- all of it ------------------------------------------------------------------------------------------------
    @pytest.mark.parametrize("seed", range(SCHEDULES))
    async def test_reads_match_a_model_of_appends_compaction_and_deletion(self, context: LogContext, seed: int) -> None:
        rng = random.Random(seed)
        model: dict[int, tuple[bytes, int | None]] = {}
        appender = Appender(context)
        start = 1
        for step in range(25):
            act = rng.random() if model else 0.0
            if act < 0.7:
                values = [b"%d-%d" % (step, i) + bytes(rng.randrange(200)) for i in range(rng.randrange(1, 5))]
                stamps = [rng.randrange(1_000) for _ in values]
                is_bare = rng.random() < 0.4
                group = bare(*values) if is_bare else records(*values, timestamps_ms=stamps)
                [landed] = await appender.append([group])
                assert isinstance(landed, Appended)
                for i, value in enumerate(values):
                    model[landed.start_offset + i] = value, None if is_bare else stamps[i]
            elif act < 0.9:
                await compact_once(context, ORDERS, max_offsets=rng.randrange(1, 12))
            elif model:
                start = rng.randrange(start, max(model) + 2)
                await delete_records(context, ORDERS, start)
                model = {offset: record for offset, record in model.items() if offset >= start}
        fetcher = Fetcher(context.find_object)
        end = max(model, default=start - 1) + 1
        for offset in {start, end, *(rng.randrange(start, end + 1) for _ in range(8))}:
            bytes_max = rng.choice([1, 300, 2_000, 8 << 20])
            found = await read_from(context, offset, bytes_max=bytes_max, fetcher=fetcher)
            assert [(r.offset, r.payload) for r in found] == [
                (o, value) for o, (value, _) in sorted(model.items()) if o >= offset
            ]
        await self._check_timestamps(context, rng, await read_from(context, start), model)
        await appender.close()

    async def _check_timestamps(
        self,
        context: LogContext,
        rng: random.Random,
        found: list[LogRecord],
        model: dict[int, tuple[bytes, int | None]],
    ) -> None:
        for record in found:
            given = model[record.offset][1]
            assert given is None or record.timestamp_ms == given
        for asked in [0, 999, 1_000, 2**60, *(rng.randrange(1_000) for _ in range(5))]:
            first = next((r for r in found if r.timestamp_ms >= asked), None)
            expected = None if first is None else OffsetAndTimestamp(first.offset, first.timestamp_ms)
            assert await offset_for_timestamp(context, ORDERS, asked) == expected
        newest = max(found, key=lambda r: r.timestamp_ms, default=None)
        expected = None if newest is None else OffsetAndTimestamp(newest.offset, newest.timestamp_ms)
        assert await max_timestamp(context, ORDERS) == expected


def counted(context: LogContext, counts: Counts) -> Fetcher:
    return Fetcher(context.find_object, counts)


async def next_offset(context: LogContext) -> int:
    if await context.metadata.get(context.keys.control(ORDERS), strict=True) is None:
        return 1
    return await latest_offset(context, ORDERS)
