"""The streaming reader as Spark calls it, without a JVM: what becomes of a stream whose topics come and go."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llog.errors import RecordsLost, TopicNotFound
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.log.topics.delete import delete_topic
from llog.settings import Settings
from llog.wiring import OpenedLog
from tests.unit.pipeline.mixed_log import append, opened_for_writing, random_group

pytest.importorskip("pyspark")

from llog.spark.source.options import parse_options
from llog.spark.source.stream_reader import LlogStreamReader

ORDERS, VISITS = Log("orders", 0), Log("visits", 0)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OpenedLog]:
    log = await opened_for_writing(Settings.from_env({}, data_dir=str(tmp_path)))
    for topic in ("orders", "visits"):
        await create_topic(log.context, topic, partitions=1)
    yield log
    await log.close()


async def written(opened: OpenedLog, *logs: Log) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in logs])


def reader(directory: Path, **options: str) -> LlogStreamReader:
    asked = {"startingOffsets": "earliest", "llog.data.dir": str(directory), **options}
    return LlogStreamReader(parse_options(asked, "stream"), ["topic"])


def batch(stream: LlogStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """How far it goes, and the topics of its rows."""
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    batches = [read for part in stream.partitions(start, end) for read in stream.read(part)]
    return end, {topic for read in batches for topic in read["topic"].to_pylist()}


@pytest.mark.parametrize("wanted", [{"subscribe": "orders,visits"}, {"assign": '{"orders": [0], "visits": [0]}'}])
async def test_a_stream_that_may_lose_records_goes_on_without_a_topic_that_was_deleted(
    opened: OpenedLog, tmp_path: Path, wanted: dict[str, str]
) -> None:
    await written(opened, ORDERS, VISITS)
    stream = reader(tmp_path, **wanted)
    end, topics = batch(stream, stream.initialOffset())
    assert topics == {"orders", "visits"}
    stream.stop()
    await written(opened, ORDERS, VISITS)
    await delete_topic(opened.context, "visits")
    careful, careless = reader(tmp_path, **wanted), reader(tmp_path, **wanted, failOnDataLoss="false")
    with pytest.raises(TopicNotFound, match="visits"):
        batch(careful, end)
    later, topics = batch(careless, end)
    assert topics == {"orders"}
    with pytest.raises(TopicNotFound, match="visits"):
        careless.initialOffset()
    await create_topic(opened.context, "visits", partitions=1)
    await written(opened, VISITS)
    with pytest.raises(RecordsLost, match="created again"):
        batch(careful, end)
    assert batch(careless, later)[1] == {"visits"}
    careful.stop()
    careless.stop()


async def test_the_reported_offset_has_the_lag_of_the_next_batch(opened: OpenedLog, tmp_path: Path) -> None:
    await written(opened, ORDERS, VISITS)
    stream = reader(tmp_path, subscribe="orders,visits", maxOffsetsPerTrigger="2")
    start = stream.initialOffset()
    assert "@lag" not in (stream.reportLatestOffset() or {}), "no batch is planned"
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    reported = stream.reportLatestOffset() or {}
    behind = [reported[topic]["0"] - end[topic]["0"] for topic in ("orders", "visits")]
    assert reported["@lag"] == {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / 2,
    }
    assert min(behind) > 0
    assert "@lag" not in end, "a checkpoint keeps offsets only"
    stream.stop()
