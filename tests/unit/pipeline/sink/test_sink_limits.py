"""Rows that name a partition which their topic lacks, or a timestamp outside its window: nothing of their batch is
planned, and the topic keeps its partitions. A batch with a plan is finished whatever the limits say by then."""

from __future__ import annotations

import pyarrow as pa
import pytest

from llog.errors import LogError, PartitionOutOfRange, TimestampOutOfWindow
from llog.log.keys import Log
from llog.log.topics.admin import alter_topic, create_topic
from llog.log.topics.create import load_topic
from llog.pipeline.runtime.tasks import tools_of
from llog.pipeline.sink.commit import commit_batch
from llog.pipeline.sink.plan import UploadedSlice, plan_key
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import upload
from tests.unit.pipeline.sink.sink_stage import Stage, rows

FIRST = SinkBatch("q", 0)
LOG = Log("orders", 0)


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(atomic=request.param)


async def uploaded(stage: Stage, table: pa.Table, topic: str | None = None) -> list[UploadedSlice]:
    order = await sink_order(stage.context, topic=topic)
    return list((await upload(tools_of(stage.context), order, table.to_batches())).slices)


async def refused(stage: Stage, table: pa.Table, topic: str | None = None) -> LogError:
    uploads = await uploaded(stage, table, topic)
    with pytest.raises(LogError) as caught:
        await commit_batch(stage.context, FIRST, uploads)
    assert await stage.context.metadata.get(plan_key(stage.context.keys, "q", 0)) is None
    return caught.value


async def count(stage: Stage, topic: str = "orders") -> int | None:
    found = await load_topic(stage.context, topic, strict=True)
    return None if found is None else found[0].partition_count


def stamped(*timestamps_ms: int | None) -> pa.Table:
    return pa.table(
        {
            "value": pa.array(["x"] * len(timestamps_ms), pa.string()),
            "timestamp": pa.array(timestamps_ms, pa.timestamp("ms", "UTC")),
        }
    )


# -- partitions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["orders", None])
async def test_a_row_never_adds_a_partition(stage: Stage, topic: str | None) -> None:
    await create_topic(stage.context, "orders", partitions=3)
    error = await refused(stage, rows("a", partition=50, topic=None if topic else "orders"), topic)
    assert isinstance(error, PartitionOutOfRange)
    assert "orders:50: the topic has 3 partitions" in str(error)
    assert await count(stage) == 3


async def test_a_row_adds_no_partition_to_a_topic_of_a_first_write_either(stage: Stage) -> None:
    await stage.commit(FIRST, rows("a"), topic="orders")
    error = await refused_second(stage, rows("b", partition=1))
    assert "has 1 partition," in str(error)
    assert "only HTTP produce adds partitions" in str(error)
    assert await count(stage) == 1


async def refused_second(stage: Stage, table: pa.Table) -> LogError:
    uploads = await uploaded(stage, table, "orders")
    with pytest.raises(PartitionOutOfRange) as caught:
        await commit_batch(stage.context, SinkBatch("q", 1), uploads)
    return caught.value


async def test_a_missing_topic_gets_one_partition_and_a_row_beyond_it_is_refused(stage: Stage) -> None:
    error = await refused(stage, rows("a", topic="fresh", partition=7))
    assert "no such topic, and this write would create it with 1 partition;" in str(error)
    assert "llog topic create fresh --partitions 8" in str(error)
    assert await count(stage, "fresh") is None
    await stage.commit(FIRST, rows("a", topic="fresh", key="k"))
    assert await count(stage, "fresh") == 1


# -- timestamps --------------------------------------------------------------------------------------------------------


async def test_a_row_outside_the_window_of_its_topic_is_refused_before_the_plan(stage: Stage) -> None:
    await create_topic(stage.context, "orders", config={"message.timestamp.before.max.ms": "60000"})
    now_ms = stage.clock_ms
    error = await refused(stage, stamped(now_ms, None, now_ms - 120_000), "orders")
    assert isinstance(error, TimestampOutOfWindow)
    assert (error.topic, error.timestamp_ms, error.before_max_ms) == ("orders", now_ms - 120_000, 60_000)
    ahead = await refused(stage, stamped(now_ms + 7_200_000), "orders")
    assert isinstance(ahead, TimestampOutOfWindow)
    assert ahead.after_max_ms == 3_600_000
    await stage.commit(FIRST, stamped(now_ms, None, now_ms - 30_000), topic="orders")
    assert len(await stage.values(LOG)) == 3


async def test_rows_without_a_timestamp_are_inside_any_window_however_long_their_batch_takes(stage: Stage) -> None:
    narrow = {"message.timestamp.before.max.ms": "0", "message.timestamp.after.max.ms": "0"}
    await create_topic(stage.context, "orders", config=narrow)
    uploads = await uploaded(stage, stamped(None, None), "orders")
    stage.clock_ms += 600_000
    assert (await commit_batch(stage.context, FIRST, uploads)).records == 2


async def test_a_replay_of_a_planned_batch_is_not_refused_for_timestamps_that_grew_old(stage: Stage) -> None:
    await create_topic(stage.context, "orders")
    table = stamped(stage.clock_ms - 30_000)
    await stage.commit(FIRST, table, topic="orders")
    await alter_topic(stage.context, "orders", put={"message.timestamp.before.max.ms": "60000"})
    stage.clock_ms += 600_000
    again = await commit_batch(stage.context, FIRST, await uploaded(stage, table, "orders"))
    assert not again.ours
    assert len(await stage.values(LOG)) == 1


@pytest.mark.parametrize("topic", ["orders", None])
async def test_rows_of_a_topic_with_log_append_time_get_the_clock_of_their_task(
    stage: Stage, topic: str | None
) -> None:
    window = {"message.timestamp.before.max.ms": "1", "message.timestamp.type": "LogAppendTime"}
    await create_topic(stage.context, "orders", config=window)
    table = stamped(5, None, stage.clock_ms + 10**9)
    if topic is None:
        table = table.append_column("topic", pa.array(["orders"] * 3))
    uploads = await uploaded(stage, table, topic)
    stage.clock_ms += 600_000
    await commit_batch(stage.context, FIRST, uploads)
    times = [record.timestamp_ms for record in await stage.records(LOG)]
    assert times == [uploads[0].clock_ms] * 3
    assert uploads[0].max_timestamp_ms == uploads[0].clock_ms
