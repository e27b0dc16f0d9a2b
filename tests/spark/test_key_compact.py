"""Key compaction in Spark: tasks in its workers, survivors by a DataFrame aggregation, the same result as anywhere."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llog.errors import InvalidArgument
from llog.log.keys import Log
from llog.pipeline.key_compact.job import key_compact
from llog.pipeline.runtime.tasks import TaskTools, tools_of
from llog.settings import Settings
from llog.stores.objects.wrappers import ObjectMeter
from llog.wiring import Use, opened_log
from tests.unit.pipeline.key_compact.key_stage import FAST, HOUR, START_MS, Row, Stage, at_a_time, random_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
LOGS = [Log("prices", 0), Log("stock", 0)]


async def test_a_pass_in_spark_ends_like_the_reference(spark: SparkSession, tmp_path: Path) -> None:
    from llog.spark.runner.key_aggregate import SparkKeyAggregate
    from llog.spark.runner.tasks import SparkTasks

    settings = Settings.from_env(
        {}, metadata_url=f"lmdb://{tmp_path}/metadata", objects_url=f"file://{tmp_path}/objects"
    )
    rng = random.Random(3)
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as stores:
        context = at_a_time(stores.context, START_MS)
        stages = [await Stage.open({"delete.retention.ms": str(HOUR)}, log=log, context=context) for log in LOGS]
        keys = [b"k%d" % number for number in range(30)] + [b"", None]
        meter, runner = ObjectMeter(), SparkTasks(spark, settings)
        aggregate = SparkKeyAggregate(spark, settings, tools_of(context), meter.add)
        try:
            tombstones = 0
            for _ in range(2):
                for stage in stages:
                    for _ in range(8):
                        await stage.write(*random_rows(rng, keys, stage.now[0]))
                    # The same bytes are a key of each log, and nothing of theirs is shared.
                    await stage.write(Row(b"only once", b"in " + stage.log.topic.encode()))
                    await stage.compact(max_offsets=10)
                report = await key_compact(context, runner, aggregate, options=FAST)
                states = [(one.log, one.state, one.error) for one in report.logs]
                assert states == [(log, "compacted", "") for log in LOGS]
                tombstones += sum(one.tombstones for one in report.logs)
                for stage in stages:
                    await stage.clean_model()
                    await stage.check()
                stages[0].now[0] += 2 * HOUR
            assert tombstones > 0, "none had its time: the test proved less than it says"
            assert meter.requests().keys() == {"get", "put"}
        finally:
            await runner.close()
        assert not [name for name in await stages[0].names() if "@scratch" in name]


def test_stores_that_no_worker_could_open_are_refused(spark: SparkSession) -> None:
    from llog.spark.runner.key_aggregate import SparkKeyAggregate

    settings = Settings.from_env({}, metadata_url="memory://", objects_url="memory://x")
    with pytest.raises(InvalidArgument, match="memory://"):
        SparkKeyAggregate(spark, settings, TaskTools(None, None))  # type: ignore[arg-type]
