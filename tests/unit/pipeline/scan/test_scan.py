"""`llog.scan`: byte-exact against the Python reader, whatever the log went through; how often it asks the store."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import llog
from llog.errors import InvalidArgument, OffsetOutOfRange, RecordsLost, TopicNotFound
from llog.formats.arrow import SCHEMA
from llog.formats.records.encode import encode_records
from llog.limits import SPLIT_BATCH_BYTES_MAX, SPLIT_BYTES_MIN
from llog.log.append.append import EncodedGroup
from llog.log.cleanup.retention import delete_records
from llog.log.keys import Log
from llog.log.metrics import READ_GETS
from llog.log.read.fetch import Fetcher
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.pipeline.scan.plan import ScanRequest, plan_again, plan_scan, splits_between
from llog.pipeline.scan.split_read import split_batches
from llog.pipeline.scan.splits import ScanRange, Split
from llog.pipeline.scan.subscription import Subscription, find_logs
from llog.settings import Settings
from llog.wiring import OpenedLog
from tests.benchmarks.log_setup import record_batch
from tests.unit.pipeline.mixed_log import (
    LOGS,
    NOW_MS,
    append,
    opened_for_writing,
    random_group,
    rows_of,
    rows_read,
    write_history,
)

BOTH = ["orders", "visits"]


class Counts(dict[str, int]):
    def count(self, name: str, value: int = 1) -> None:
        self[name] = self.get(name, 0) + value


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    objects = f"memory://scan-{time.time_ns()}"
    return Settings.from_env({}, metadata_url=f"lmdb://{tmp_path}/metadata", objects_url=objects, wal_url=objects)


@pytest.fixture
async def opened(settings: Settings) -> AsyncIterator[OpenedLog]:
    log = await opened_for_writing(settings)
    yield log
    await log.close()


def scanned(settings: Settings, **options: Any) -> pa.Table:
    return llog.scan(options.pop("topic", BOTH), settings=settings, **options).to_arrow()


# -- the same bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200 if os.environ.get("LLOG_SOAK") == "1" else 4))
async def test_a_scan_gives_what_the_reader_gives(opened: OpenedLog, settings: Settings, seed: int) -> None:
    rng = random.Random(seed)
    await write_history(opened, rng, appends=rng.randint(1, 40))
    expected = await rows_read(opened, sorted({log for log in LOGS if log in await _present(opened)}))
    for split_bytes in (SPLIT_BYTES_MIN, 1 << 25):
        topics = sorted({row.topic for row in expected})
        table = scanned(settings, topic=topics, split_bytes=split_bytes)
        assert table.schema == SCHEMA
        assert rows_of(table) == expected


async def _present(opened: OpenedLog) -> set[Log]:
    splits = await plan_scan(opened.context, ScanRequest(subscription=Subscription(pattern=".*")))
    return {part.log for split in splits for part in split.parts}


async def test_segments_cut_into_many_splits_give_every_record_once(opened: OpenedLog, settings: Settings) -> None:
    log, rng = Log("orders", 0), random.Random(3)
    for _ in range(30):
        await append(opened, [random_group(rng, log, value_bytes_max=2_000)])
    before = await rows_read(opened, [log])
    while await compact_once(opened.context, log):
        pass
    expected = await rows_read(opened, [log])
    assert expected == before
    scan = llog.scan("orders", settings=settings, split_bytes=SPLIT_BYTES_MIN)
    splits = scan.plan()
    assert len(splits) > 5, "more splits than partitions, out of one segment"
    assert {part.type for split in splits for part in split.parts} == {"COMPACTED"}
    assert rows_of(scan.to_arrow()) == expected


@pytest.mark.parametrize("seed", range(50 if os.environ.get("LLOG_SOAK") == "1" else 2))
async def test_any_range_of_offsets_is_cut_out_exactly(opened: OpenedLog, settings: Settings, seed: int) -> None:
    rng, log = random.Random(seed), Log("orders", 0)
    await write_history(opened, rng, appends=25, logs=[log], compacting=0.2)
    expected = await rows_read(opened, [log])
    for _ in range(6):
        start = rng.randint(1, len(expected))
        stop = rng.randint(start, len(expected) + 1)
        table = scanned(
            settings, topic="orders", starting_offsets={0: start}, ending_offsets={0: stop}, split_bytes=SPLIT_BYTES_MIN
        )
        assert rows_of(table) == expected[start - 1 : stop - 1]


async def test_a_scan_reads_on_while_the_log_is_compacted_under_it(opened: OpenedLog) -> None:
    """Objects of the plan go one by one: what is left of a split is planned again (R10)."""
    rng, context = random.Random(11), opened.context
    await write_history(opened, rng, appends=30, compacting=0)
    expected = await rows_read(opened)
    splits = await plan_scan(context, ScanRequest(subscription=Subscription(pattern=".*"), split_bytes=SPLIT_BYTES_MIN))
    fetcher, found, counts = Fetcher(context.find_object), [], Counts()
    fetcher.metrics = counts

    async def replan(ranges: Any) -> list[Split]:
        return await plan_again(context, ranges)

    for number, split in enumerate(splits):
        found += [batch async for batch in split_batches(fetcher, split, replan=replan)]
        if number == 0:
            for log in LOGS:
                await compact_once(context, log)
            assert context.wal is not None
            blobs = [meta.name async for meta in context.wal.list(context.keys.blobs())]
            await context.wal.delete_many(blobs)
    assert len(splits) > 1
    assert counts["log_read_restarts"] == len(splits) - 1
    assert rows_of(pa.Table.from_batches(found)) == expected


class Stopped(Exception):
    pass


class StopsAtWrite:
    """A metadata store that fails at the n-th write, and so leaves a compaction half-way."""

    def __init__(self, inner: Any, writes: int) -> None:
        self._inner, self._left = inner, writes

    def __getattr__(self, name: str) -> Any:
        if name in ("put", "delete", "write"):
            self._left -= 1
            if self._left < 0:
                raise Stopped
        return getattr(self._inner, name)


async def test_a_compaction_that_stands_still_half_way_changes_nothing(opened: OpenedLog, settings: Settings) -> None:
    """At whichever write: swapped but not yet deleted, cursor not moved, and so on (I5)."""
    rng, context = random.Random(9), opened.context
    for writes in range(40):
        log = Log(f"half-way-{writes}", 0)
        for _ in range(5):
            await append(opened, [random_group(rng, log)])
        before = await rows_read(opened, [log])
        stopping: Any = StopsAtWrite(context.metadata, writes)
        try:
            done = await compact_once(replace(context, metadata=stopping), log)
        except* Stopped:
            done = None
        table = scanned(settings, topic=log.topic, split_bytes=SPLIT_BYTES_MIN)
        assert rows_of(table) == before, writes
        if done is not None:
            break
    assert done is not None
    assert writes > 5, "there was something to stop at"


async def test_without_anyone_to_plan_again_a_missing_object_is_an_error(opened: OpenedLog) -> None:
    context = opened.context
    await append(opened, [random_group(random.Random(1), Log("orders", 0))])
    [split] = await plan_scan(context, ScanRequest(subscription=Subscription(("orders",))))
    assert context.wal is not None
    await context.wal.delete_many([meta.name async for meta in context.wal.list(context.keys.blobs())])
    with pytest.raises(llog.errors.ObjectNotFound):
        async for _ in split_batches(Fetcher(context.find_object), split):
            pass


# -- requests --------------------------------------------------------------------------------------------------------


async def test_each_blob_is_one_request_for_all_partitions(opened: OpenedLog, settings: Settings) -> None:
    logs, rng = [Log("wide", partition) for partition in range(64)], random.Random(5)
    for _ in range(5):
        await append(opened, [random_group(rng, log, records_max=5, value_bytes_max=50) for log in logs])
    counts = Counts()
    table = llog.scan("wide", settings=settings, metrics=counts).to_arrow()
    assert counts[READ_GETS] == 5
    assert rows_of(table) == await rows_read(opened, logs)


async def test_a_whole_segment_is_one_request_and_a_part_of_one_takes_its_footer_too(
    opened: OpenedLog, settings: Settings
) -> None:
    log, rng = Log("orders", 0), random.Random(6)
    for _ in range(10):
        await append(opened, [random_group(rng, log)])
    assert await compact_once(opened.context, log) is not None
    counts = Counts()
    rows = len(scanned(settings, topic="orders", metrics=counts))
    assert counts[READ_GETS] == 1
    counts.clear()
    assert len(scanned(settings, topic="orders", starting_offsets={0: 3}, metrics=counts)) == rows - 2
    assert counts[READ_GETS] == 2


# -- shape -----------------------------------------------------------------------------------------------------------


async def test_batches_are_neither_huge_nor_tiny(opened: OpenedLog, settings: Settings) -> None:
    log, other = Log("orders", 0), Log("orders", 1)
    await append(opened, [EncodedGroup(log, 9_000, "kafka-v2", [record_batch(9_000, 1_000)], NOW_MS)])
    for _ in range(50):
        await append(opened, [EncodedGroup(other, 1, "kafka-v2", [record_batch(1, 10)], NOW_MS)])
    sizes = [(batch.num_rows, batch.nbytes) for batch in llog.scan("orders", settings=settings)]
    assert sum(rows for rows, _ in sizes) == 9_050
    assert len(sizes) <= 5
    assert max(size for _, size in sizes) <= 1.25 * SPLIT_BATCH_BYTES_MAX


async def test_columns_come_as_chosen(opened: OpenedLog, settings: Settings) -> None:
    await append(opened, [random_group(random.Random(1), Log("orders", 0))])
    table = scanned(settings, topic="orders", columns=["offset", "value"])
    assert table.schema.names == ["offset", "value"]
    assert table["value"].to_pylist() == [row.value for row in await rows_read(opened, [Log("orders", 0)])]
    with pytest.raises(InvalidArgument, match="columns: 'valeu' must be one of key, value"):
        llog.scan("orders", settings=settings, columns=["valeu"])


async def test_timestamps_are_exact(opened: OpenedLog, settings: Settings) -> None:
    rng, log = random.Random(8), Log("orders", 0)
    await write_history(opened, rng, appends=12, logs=[log], compacting=0.3)
    rows = await rows_read(opened, [log])
    since = sorted(row.timestamp_us for row in rows)[len(rows) // 2] // 1_000
    first = next(i for i, row in enumerate(rows) if row.timestamp_us >= since * 1_000)
    instant = datetime.fromtimestamp(since / 1_000, UTC)
    assert rows_of(scanned(settings, topic="orders", starting_timestamp=instant)) == rows[first:]
    assert rows_of(scanned(settings, topic="orders", ending_timestamp=since)) == rows[:first]
    assert len(scanned(settings, topic="orders", starting_timestamp=10**15)) == 0


async def test_a_timestamp_beyond_microseconds_is_their_last_and_stops_no_reader(
    opened: OpenedLog, settings: Settings
) -> None:
    """A producer that sends nanoseconds: its records are in the log, and must not keep others from being read."""
    log, nanoseconds = Log("orders", 0), NOW_MS * 1_000_000
    newer = bytes(encode_records([b"a", b"b"], timestamps_ms=[NOW_MS, nanoseconds]))
    older = bytes(encode_records([b"c"], timestamps_ms=[-nanoseconds]))
    await append(opened, [EncodedGroup(log, 3, "kafka-v2", [newer, older], nanoseconds)])
    for _ in range(2):
        table = scanned(settings, topic="orders")
        assert table["value"].to_pylist() == [b"a", b"b", b"c"]
        last_us = (2**63 - 1) // 1_000 * 1_000
        assert table["timestamp"].cast(pa.int64()).to_pylist() == [NOW_MS * 1_000, last_us, -last_us]
        await compact_once(opened.context, log)


async def test_duckdb_and_record_batch_readers_take_a_scan(opened: OpenedLog, settings: Settings) -> None:
    duckdb = pytest.importorskip("duckdb")
    await write_history(opened, random.Random(2), appends=5, logs=[Log("orders", 0)])
    expected = await rows_read(opened, [Log("orders", 0)])
    scan = llog.scan("orders", settings=settings)
    assert rows_of(pa.RecordBatchReader.from_stream(scan).read_all()) == expected
    for _ in range(2):  # a question, not a cursor
        found = duckdb.sql('select count(*), max("offset") from scan').fetchall()
        assert found == [(len(expected), expected[-1].offset)]


async def test_a_scan_that_is_dropped_leaves_no_thread(opened: OpenedLog, settings: Settings) -> None:
    await write_history(opened, random.Random(2), appends=20)
    batches = iter(llog.scan(BOTH, settings=settings, split_bytes=SPLIT_BYTES_MIN))
    next(batches)
    assert any(thread.name.startswith("llog-scan") for thread in threading.enumerate())
    batches.close()  # type: ignore[attr-defined]
    assert not any(thread.name.startswith("llog-scan") for thread in threading.enumerate())


# -- what is wrong ---------------------------------------------------------------------------------------------------


async def test_errors_name_what_is_wrong(opened: OpenedLog, settings: Settings) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in LOGS])
    with pytest.raises(TopicNotFound, match="nowhere: no such topic"):
        scanned(settings, topic="nowhere")
    with pytest.raises(InvalidArgument, match="starting_offsets: names no offset for orders:1"):
        scanned(settings, topic="orders", starting_offsets={0: 1})
    with pytest.raises(OffsetOutOfRange, match="ending_offsets: orders:0: offset 9999 is outside 1 … "):
        scanned(settings, topic="orders", ending_offsets={0: 9_999, 1: -1})
    with pytest.raises(InvalidArgument, match=r"starting_timestamp: .* needs a time zone"):
        llog.scan("orders", settings=settings, starting_timestamp=datetime(2026, 1, 1))
    with pytest.raises(InvalidArgument, match="subscription: give exactly one of topics, a pattern"):
        llog.scan(settings=settings)
    with pytest.raises(InvalidArgument, match="pattern '\\('"):
        llog.scan(pattern="(", settings=settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": "offset"}, "columns: 'offset' is one string; give a list"),
        ({"topic": 5}, "topic: 5 must be a topic name or a list of topic names"),
        ({"topic": ["orders", 5]}, "topic: 5"),
        ({"partitions": 0}, "partitions: 0 must be a list of partition numbers"),
        ({"partitions": ["0"]}, "partitions: '0' must be a partition number"),
        ({"split_bytes": 1}, "split_bytes: 1 must be an integer from"),
        ({"split_bytes": "64MiB"}, "split_bytes: '64MiB' must be an integer from"),
        ({"threads": "2"}, "threads: '2' must be an integer from 1 to"),
        ({"starting_offsets": None}, "starting_offsets: None must be"),
        ({"starting_offsets": 1.5}, "starting_offsets: 1.5 must be"),
        ({"starting_offsets": -3}, "starting_offsets: -3 must be an offset"),
        ({"ending_offsets": {0: 1.5}}, "ending_offsets: orders:0: 1.5 is neither an offset"),
        ({"ending_offsets": {0: "latest"}}, "ending_offsets: orders:0: 'latest' is neither an offset"),
        ({"starting_offsets": {"0": 1}}, "starting_offsets: '0' must be a partition number"),
        ({"starting_offsets": {"orders": {"0": 1}}}, "starting_offsets: '0' must be a partition number"),
        ({"starting_timestamp": 1.5}, "starting_timestamp: 1.5 must be milliseconds"),
        ({"ending_timestamp": date(2026, 1, 1)}, "ending_timestamp: 2026-01-01 must be milliseconds"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        llog.scan(**{"topic": "orders", **arguments})
    assert message in str(refused.value)


async def test_offset_0_is_before_the_first_record_and_loses_nothing(opened: OpenedLog, settings: Settings) -> None:
    """Kafka's logs begin at offset 0, so its users write that."""
    log = Log("orders", 0)
    await append(opened, [random_group(random.Random(1), log)])
    rows = await rows_read(opened, [log])
    for start in (0, {0: 0}):
        assert rows_of(scanned(settings, topic="orders", starting_offsets=start)) == rows
    assert len(scanned(settings, topic="orders", ending_offsets=0)) == 0
    await delete_records(opened.context, log, 3)
    with pytest.raises(
        RecordsLost, match="starting_offsets: orders:0: offset 1 is lost: the log now begins at offset 3"
    ):
        scanned(settings, topic="orders", starting_offsets=0)


async def test_lost_records_are_an_error_unless_they_may_be(opened: OpenedLog, settings: Settings) -> None:
    log = Log("orders", 0)
    await write_history(opened, random.Random(4), appends=10, logs=[log])
    rows = await rows_read(opened, [log])
    await delete_records(opened.context, log, rows[10].offset)
    with pytest.raises(RecordsLost, match=r"starting_offsets: orders:0: offset 3 is lost.*fail_on_data_loss=False"):
        scanned(settings, topic="orders", starting_offsets={0: 3})
    table = scanned(settings, topic="orders", starting_offsets={0: 3}, fail_on_data_loss=False)
    assert rows_of(table) == rows[10:]
    assert rows_of(scanned(settings, topic="orders")) == rows[10:]


async def test_a_start_past_the_end_reads_nothing_of_that_log_if_records_may_be_lost(
    opened: OpenedLog, settings: Settings
) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in LOGS])
    starts = {0: 9_999, 1: 1}
    message = r"starting_offsets: orders:0: offset 9999 is outside.*; set fail_on_data_loss=False to start at the end"
    with pytest.raises(OffsetOutOfRange, match=message):
        scanned(settings, topic="orders", starting_offsets=starts)
    for ending in ("latest", {0: 2, 1: -1}):
        read = scanned(
            settings, topic="orders", starting_offsets=starts, ending_offsets=ending, fail_on_data_loss=False
        )
        assert rows_of(read) == await rows_read(opened, [Log("orders", 1)])


async def test_records_that_go_while_a_read_is_planned_are_lost_data_like_any_other(opened: OpenedLog) -> None:
    """Between the look at the logs' ends and the walk through their entries retention may pass, or a deletion."""
    log, context = Log("orders", 0), opened.context
    await append(opened, [random_group(random.Random(1), log)])
    [ends] = (await find_logs(context, Subscription(("orders",)))).values()
    seen = [ScanRange(log, 1, ends.next_offset, ends.incarnation)]
    await delete_records(context, log, 4)
    request = ScanRequest(subscription=Subscription(("orders",)))
    with pytest.raises(RecordsLost, match="offset 1 is lost: the log now begins at offset 4"):
        await splits_between(context, request, seen)
    lenient = msgspec.structs.replace(request, fail_on_data_loss=False)
    [split] = await splits_between(context, lenient, seen)
    assert [(part.start_offset, part.stop_offset) for part in split.parts] == [(4, ends.next_offset)]
    await delete_topic(context, "orders")
    assert await splits_between(context, lenient, seen) == []
    await append(opened, [random_group(random.Random(2), log)])
    assert await splits_between(context, lenient, seen) == []


async def test_planning_again_notices_a_new_life_of_the_topic(opened: OpenedLog) -> None:
    log, context = Log("orders", 0), opened.context
    await append(opened, [random_group(random.Random(1), log)])
    [split] = await plan_scan(context, ScanRequest(subscription=Subscription(("orders",))))
    left = [ScanRange(log, 1, 2, split.parts[0].incarnation)]
    assert len(await plan_again(context, left)) == 1
    await delete_topic(context, "orders")
    with pytest.raises(RecordsLost, match="its topic was deleted"):
        await plan_again(context, left)
    await append(opened, [random_group(random.Random(2), log)])
    with pytest.raises(RecordsLost, match="deleted and created again"):
        await plan_again(context, left)
    assert await plan_again(context, left, fail_on_data_loss=False) == []


async def test_empty_topics_and_patterns_that_fit_nothing_give_no_rows(opened: OpenedLog, settings: Settings) -> None:
    table = llog.scan(pattern="nothing-.*", settings=settings).to_arrow()
    assert (len(table), table.schema) == (0, SCHEMA)
