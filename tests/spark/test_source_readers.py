"""The readers of the data source as Spark calls them, without a session: many triggers, restarts and limits, fast."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pickle
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from llog.audit_log import os_user
from llog.broker.groups.positions import GroupPositions
from llog.errors import (
    InvalidArgument,
    MetadataUnavailable,
    ObjectNotFound,
    OffsetOutOfRange,
    RecordsLost,
    TopicNotFound,
)
from llog.log.cleanup.retention import delete_records
from llog.log.keys import Log
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.scan.stream_offsets import LAG
from llog.settings import Settings
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.wiring import OpenedLog, open_log
from tests.audit_lines import audit_lines
from tests.unit.pipeline.mixed_log import LOGS, append, opened_for_writing, random_group, rows_read, write_history

if TYPE_CHECKING:
    from llog.spark.source.stream_reader import LlogStreamReader

pytest.importorskip("pyspark")


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OpenedLog]:
    settings = Settings.from_env(
        {}, metadata_url=f"lmdb://{tmp_path}/metadata", objects_url=f"file://{tmp_path}/objects"
    )
    log = await opened_for_writing(settings)
    yield log
    await log.close()


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {
        "llog.metadata.url": f"lmdb://{tmp_path}/metadata",
        "llog.objects.url": f"file://{tmp_path}/objects",
        "llog.wal.url": f"file://{tmp_path}/objects",
        "startingOffsets": "earliest",
    }


def stream(options: dict[str, str], **more: object) -> LlogStreamReader:
    from llog.spark.source.source import SCHEMA, LlogDataSource

    source = LlogDataSource({**options, **{name: str(value) for name, value in more.items()}})
    reader = source.streamReader(SCHEMA)
    copied: LlogStreamReader = pickle.loads(pickle.dumps(reader))
    return copied


def offsets_read(reader: LlogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    """What a micro-batch reads."""
    rows: list[tuple[str, int, int]] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset")]
            rows += zip(*columns, strict=True)
    return rows


@pytest.mark.parametrize("seed", range(100 if os.environ.get("LLOG_SOAK") == "1" else 3))
async def test_a_stream_reads_every_record_once_over_many_triggers_and_restarts(
    opened: OpenedLog, options: dict[str, str], seed: int
) -> None:
    rng, seen = random.Random(seed), Counter[tuple[str, int, int]]()
    await append(opened, [random_group(rng, Log("orders", 0))])
    limits = rng.choice([{"maxOffsetsPerTrigger": 25}, {"maxBytesPerTrigger": 9_000}, {}])
    more = {"subscribePattern": ".*", "splitBytes": 1 << 16, **limits}
    reader = stream(options, **more)
    at = reader.initialOffset()
    for _ in range(12):
        await write_history(opened, rng, appends=rng.randrange(3), compacting=0.5)
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        if rng.random() < 0.3:  # the query stops before the batch is done, and does it again
            offsets_read(reader, at, end)
            reader.stop()
            reader = stream(options, **more)
            for log in LOGS:
                if str(log.partition) in end.get(log.topic, {}):
                    await compact_once(opened.context, log)
                    await merge_once(opened.context, log, min_inputs=2)
        seen.update(offsets_read(reader, at, end))
        at = end
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        seen.update(offsets_read(reader, at, end))
        at = end
    reported = reader.reportLatestOffset() or {}
    assert {name: value for name, value in reported.items() if name != LAG} == at
    assert reader.partitions(at, at) == []
    reader.stop()
    present = [Log(topic, int(number)) for topic, of in at.items() if not topic.startswith("@") for number in of]
    expected = await rows_read(opened, present)
    assert seen == Counter((row.topic, row.partition, row.offset) for row in expected)


@pytest.mark.parametrize("seed", range(3))
async def test_more_tasks_than_there_are_slices_read_every_record_once(
    opened: OpenedLog, options: dict[str, str], seed: int
) -> None:
    logs = [Log("orders", 0), Log("orders", 1)]
    await append(opened, [random_group(random.Random(seed), log) for log in logs])
    rows = [(row.topic, row.partition, row.offset) for row in await rows_read(opened, logs)]
    reader = stream(options, subscribe="orders", minPartitions=9)
    at = reader.initialOffset()
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert len(reader.partitions(at, end)) >= min(9, len(rows))
    assert sorted(offsets_read(reader, at, end)) == rows
    reader.stop()


async def test_available_now_ends_at_what_was_there_when_it_began(opened: OpenedLog, options: dict[str, str]) -> None:
    await append(opened, [random_group(random.Random(1), Log("orders", 0))])
    rows = len(await rows_read(opened, [Log("orders", 0)]))
    reader = stream(options, subscribe="orders", maxOffsetsPerTrigger=7)
    reader.prepareForTriggerAvailableNow()
    await append(opened, [random_group(random.Random(2), log) for log in (Log("orders", 0), Log("orders", 1))])
    at, read = reader.initialOffset(), list[tuple[str, int, int]]()
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        assert len(offsets_read(reader, at, end)) <= 7
        read += offsets_read(reader, at, end)
        at = end
    reader.stop()
    assert read == [("orders", 0, offset) for offset in range(1, rows + 1)]


async def test_progress_is_kept_as_a_group_s_positions_when_spark_asks_how_far_to_go(
    opened: OpenedLog, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    log, groups = Log("orders", 0), GroupPositions(opened.context)
    await append(opened, [random_group(random.Random(1), log)])
    reader = stream(options, subscribe="orders", groupId="reports")
    at = reader.initialOffset()
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    [kept] = (await groups.fetch("reports", [log])).values()
    assert kept is not None
    assert kept.position.offset == 1, "nothing was processed yet"
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    [kept] = (await groups.fetch("reports", [log])).values()
    assert kept is not None
    assert kept.position.offset == end["orders"]["0"]
    commits = audit_lines(caplog)
    assert [(line["action"], line["object"], line["principal"]) for line in commits[-2:]] == [
        ("group.commit", "reports", f"spark:{os_user()}")
    ] * 2
    reader.stop()


async def test_progress_in_a_topic_that_is_no_more_is_not_kept_for_the_one_that_took_its_name(
    opened: OpenedLog, options: dict[str, str]
) -> None:
    log, groups = Log("orders", 0), GroupPositions(opened.context)
    await append(opened, [random_group(random.Random(1), log)])
    reader = stream(options, subscribe="orders", groupId="reports")
    at = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    await delete_topic(opened.context, "orders")
    await append(opened, [random_group(random.Random(2), log)])
    with pytest.raises(RecordsLost, match="its topic was deleted and created again"):
        reader.latestOffset(at, reader.getDefaultReadLimit())
    assert await groups.fetch("reports", [log]) == {log: None}, "it would skip records that were never read"
    reader.stop()


async def test_a_stream_may_begin_at_named_offsets_and_refuses_those_outside(
    opened: OpenedLog, options: dict[str, str]
) -> None:
    await append(opened, [random_group(random.Random(1), Log("orders", 0))])
    more = {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 4}}'}
    reader = stream(options | more)
    at = reader.initialOffset()
    assert at["orders"] == {"0": 4}
    assert offsets_read(reader, at, reader.latestOffset(at, reader.getDefaultReadLimit()))[0] == ("orders", 0, 4)
    reader.stop()
    reader = stream(options | more | {"startingOffsets": '{"orders": {"0": 99999}}'})
    with pytest.raises(
        OffsetOutOfRange, match=r"startingOffsets: orders:0: offset 99999 is outside.*failOnDataLoss=false"
    ):
        reader.initialOffset()
    reader.stop()


async def test_a_stream_that_may_lose_records_begins_at_the_end_of_a_log_that_is_shorter_than_its_start(
    opened: OpenedLog, options: dict[str, str]
) -> None:
    log = Log("orders", 0)
    await append(opened, [random_group(random.Random(1), log)])
    more = {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 99999}}', "failOnDataLoss": "false"}
    reader = stream(options | more)
    at = reader.initialOffset()
    assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
    await append(opened, [random_group(random.Random(2), log)])
    later = await rows_read(opened, [log], start=at["orders"]["0"])
    assert offsets_read(reader, at, reader.latestOffset(at, reader.getDefaultReadLimit())) == [row[:3] for row in later]
    reader.stop()


async def test_lost_records_end_a_stream_unless_told_otherwise(opened: OpenedLog, options: dict[str, str]) -> None:
    log = Log("orders", 0)
    await append(opened, [random_group(random.Random(1), log)])
    reader = stream(options, subscribe="orders")
    at = reader.initialOffset()
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    await append(opened, [random_group(random.Random(2), log)])
    await delete_records(opened.context, log, end["orders"]["0"] + 3)
    message = r"the stream's position: orders:0: offset \d+ is lost: the log now begins at offset \d+; set failOnData"
    with pytest.raises(RecordsLost, match=message):
        reader.latestOffset(end, reader.getDefaultReadLimit())
    with pytest.raises(RecordsLost, match="the stream's position: orders:0: offset 1 is lost"):
        reader.partitions(at, end)
    reader.stop()
    reader = stream(options, subscribe="orders", failOnDataLoss="false")
    assert offsets_read(reader, at, end) == []
    further = reader.latestOffset(end, reader.getDefaultReadLimit())
    left = await rows_read(opened, [log], start=end["orders"]["0"] + 3)
    assert offsets_read(reader, end, further) == [row[:3] for row in left]
    reader.stop()


async def test_a_topic_that_was_deleted_and_created_again_is_noticed(
    opened: OpenedLog, options: dict[str, str]
) -> None:
    log = Log("orders", 0)
    await append(opened, [random_group(random.Random(1), log)])
    reader = stream(options, subscribe="orders")
    at = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    await delete_topic(opened.context, "orders")
    with pytest.raises(TopicNotFound, match="orders: no such topic"):
        reader.latestOffset(at, reader.getDefaultReadLimit())
    for seed in (2, 3, 4):
        await append(opened, [random_group(random.Random(seed), log)])
    with pytest.raises(RecordsLost, match="its topic was deleted and created again"):
        reader.latestOffset(at, reader.getDefaultReadLimit())
    reader.stop()
    reader = stream(options, subscribe="orders", failOnDataLoss="false")
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert offsets_read(reader, at, end) == [row[:3] for row in await rows_read(opened, [log])], "from its beginning"
    reader.stop()


async def test_a_position_behind_the_end_of_its_log_is_lost_data_not_a_wait(
    opened: OpenedLog, options: dict[str, str]
) -> None:
    """A checkpoint outlived its log: records of the new one would be passed over until it is as long."""
    log = Log("orders", 0)
    await append(opened, [random_group(random.Random(1), log)])
    rows = [row[:3] for row in await rows_read(opened, [log])]
    before = {"orders": {"0": 500}, "@lives": {"orders": 1}}
    at = {"orders": {"0": 1_000}, "@lives": {"orders": 1}}
    reader = stream(options, subscribe="orders")
    message = rf"the stream's position: orders:0: offset \d+ is lost: the log now ends at offset {len(rows) + 1}"
    with pytest.raises(RecordsLost, match=message):
        reader.latestOffset(at, reader.getDefaultReadLimit())
    with pytest.raises(RecordsLost, match=message):
        reader.partitions(before, at)
    reader.stop()
    reader = stream(options, subscribe="orders", failOnDataLoss="false")
    assert reader.partitions(before, at) == []
    assert offsets_read(reader, at, reader.latestOffset(at, reader.getDefaultReadLimit())) == rows
    reader.stop()


async def test_a_checkpoint_of_a_cluster_that_was_emptied_and_filled_again_is_lost_data(
    opened: OpenedLog, options: dict[str, str]
) -> None:
    """Its logs are as long as before, and of the first incarnation again: only the topics' ids differ."""
    log = Log("orders", 0)
    await append(opened, [random_group(random.Random(1), log)])
    reader = stream(options, subscribe="orders")
    before, at = reader.initialOffset(), {"orders": {"0": 3}, "@lives": {"orders": 1}, "@ids": {"orders": "another"}}
    for ask in (lambda: reader.latestOffset(at, reader.getDefaultReadLimit()), lambda: reader.partitions(before, at)):
        with pytest.raises(RecordsLost, match=r"orders:0: .* its topic is another one of the same name"):
            ask()
    reader.stop()
    reader = stream(options, subscribe="orders", failOnDataLoss="false")
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert offsets_read(reader, at, end) == [row[:3] for row in await rows_read(opened, [log])], "from its beginning"
    older = {name: value for name, value in before.items() if name != "@ids"}
    assert offsets_read(reader, older, end) == offsets_read(reader, before, end), "checkpoints without ids are read"
    reader.stop()


async def test_a_topic_that_a_stream_is_no_longer_told_to_read_is_not_called_deleted_only(
    opened: OpenedLog, options: dict[str, str]
) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in LOGS])
    reader = stream(options, subscribe="orders,visits")
    at = reader.initialOffset()
    reader.stop()
    reader = stream(options, subscribe="orders")
    with pytest.raises(RecordsLost, match=r"visits:0: .* its topic was deleted, or is no longer subscribed to"):
        reader.latestOffset(at, reader.getDefaultReadLimit())
    reader.stop()


async def test_a_stream_outlives_a_metadata_store_that_is_away_for_a_while(
    opened: OpenedLog, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from llog.spark.source import metadata_retry

    await append(opened, [random_group(random.Random(1), Log("orders", 0))])
    reader = stream(options, subscribe="orders", groupId="reports")
    planner = reader._planning
    context, away = planner._opened.context, random.Random(1)
    faulty = FaultyMetadataStore(context.metadata, random_source=away, rates=FaultRates(unavailable=0.15))
    planner._opened = planner._opened._replace(context=dataclasses.replace(context, metadata=faulty))
    at = reader.initialOffset()
    for _ in range(8):
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        assert [row[2] for row in offsets_read(reader, at, end)] == list(range(1, end["orders"]["0"]))
    faulty.rates = FaultRates(unavailable=1)
    monkeypatch.setattr(metadata_retry, "SPARK_METADATA_ATTEMPTS_MAX", 4)
    with pytest.raises(MetadataUnavailable):
        reader.latestOffset(at, reader.getDefaultReadLimit())
    reader.stop()


async def test_a_stream_may_begin_at_offset_0(opened: OpenedLog, options: dict[str, str]) -> None:
    await append(opened, [random_group(random.Random(1), Log("orders", 0))])
    reader = stream(options | {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 0}}'})
    at = reader.initialOffset()
    assert at["orders"] == {"0": 1}
    assert offsets_read(reader, at, reader.latestOffset(at, reader.getDefaultReadLimit()))[0] == ("orders", 0, 1)
    reader.stop()


async def test_an_executor_plans_again_from_the_cluster_of_the_plan_and_from_no_other(
    opened: OpenedLog, options: dict[str, str], tmp_path: Path
) -> None:
    from llog.spark.source.source import SCHEMA, LlogDataSource
    from llog.spark.source.worker import SplitWork, read_work

    log, context = Log("orders", 0), opened.context
    await append(opened, [random_group(random.Random(1), log)])
    expected = [row.offset for row in await rows_read(opened, [log])]
    reader = LlogDataSource({**options, "subscribe": "orders", "failOnDataLoss": "false"}).reader(SCHEMA)
    [partition] = await asyncio.to_thread(reader.partitions)
    assert await compact_once(context, log) is not None
    assert context.wal is not None
    await context.wal.delete_many([meta.name async for meta in context.wal.list(context.keys.blobs())])
    batches = await asyncio.to_thread(list, reader.read(partition))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == expected
    work = msgspec.msgpack.decode(partition.work, type=SplitWork)  # type: ignore[attr-defined]
    empty = Settings.from_env({}, metadata_url=f"lmdb://{tmp_path}/empty", objects_url=f"file://{tmp_path}/objects")
    await (await open_log(empty)).close()
    for url in (f"lmdb://{tmp_path}/nowhere", empty.metadata_url):
        other = msgspec.msgpack.encode(replace(work, metadata_url=url))
        with pytest.raises(ObjectNotFound, match=r"cannot plan again: run the query again \((Inv|Cl)"):
            await asyncio.to_thread(list, read_work(other))
    assert not (tmp_path / "nowhere").exists()


def test_a_schema_may_name_some_of_the_columns_and_no_others(options: dict[str, str]) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    from llog.spark.source.source import LlogDataSource, columns_of

    assert LlogDataSource.name() == "llog"
    assert columns_of(StructType([StructField("offset", LongType())])) == ["offset"]
    with pytest.raises(InvalidArgument, match="schema: column value must be binary"):
        columns_of(StructType([StructField("value", StringType())]))
    with pytest.raises(InvalidArgument, match="schema: column offset must be nullable"):
        columns_of(StructType([StructField("offset", LongType(), nullable=False)]))
    with pytest.raises(InvalidArgument, match="schema: column payload does not exist; the columns are key, value"):
        columns_of(StructType([StructField("payload", StringType())]))
