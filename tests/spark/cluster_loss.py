"""A compaction on two executors, one of which is lost in the middle of its task; `test_cluster` starts it.

On Spark's own cluster it is killed -9; of a standalone one, the worker process that looks after it, and another worker
takes its place.

That it is the middle is no matter of luck: executors reach S3 through a proxy, which after the first run that was
published holds back all answers. So both executors sit in a task then, and stay there until one of them is dead.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import llog.spark
from llog.log.keys import Log
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.job import compact
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.spark.runner.tasks import SparkTasks
from llog.testing.proxy import TcpProxy
from tests.patience import until
from tests.spark.cluster_jobs import OPTIONS
from tests.spark.cluster_stage import ENDPOINT, Books, fill, opened_here, settings_here
from tests.spark.clusters import EXECUTORS, Cluster, cluster_here
from tests.unit.pipeline.compact.compact_stage import entries_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS: Final = [*(Log("orders", n) for n in range(4)), Log("visits", 0)]
HELD_SECONDS: Final = 1.5
GONE_SECONDS_MAX: Final = 120.0


class Loss:
    def __init__(self, proxy: TcpProxy, cluster: Cluster) -> None:
        self._proxy, self._cluster = proxy, cluster
        self.published = 0
        self._first = asyncio.Event()
        self.facts: dict[str, object] = {}

    def on_run(self, _: object) -> None:
        self.published += 1
        if not self._first.is_set():
            self._proxy.stall_replies = True
            self._first.set()

    async def strike(self) -> None:
        await self._first.wait()
        before = -1
        while self.published != before:  # what came back earlier is still being published
            before = self.published
            await asyncio.sleep(HELD_SECONDS)
        cluster = self._cluster
        assert len(cluster.executors()) == EXECUTORS, cluster.executors()
        victim = min(cluster.executors())
        await asyncio.to_thread(cluster.lose, victim)
        await _until(lambda: victim not in cluster.executors())
        self._proxy.heal()
        self.facts["published before"] = before
        await _until(lambda: len(cluster.executors()) == EXECUTORS)
        self.facts["replaced"] = victim not in cluster.executors()


async def main(directory: Path) -> dict[str, object]:
    with cluster_here() as cluster:
        return await loss_on(cluster, directory)


async def loss_on(cluster: Cluster, directory: Path) -> dict[str, object]:
    host, _, port = os.environ[ENDPOINT].removeprefix("http://").partition(":")
    books, direct = Books(), settings_here(directory)
    await fill(direct, books, LOGS, seed=7, appends=12, age_ms={})
    async with TcpProxy(host, int(port)) as proxy, opened_here(direct) as opened:
        through = settings_here(directory, endpoint=f"http://{host}:{proxy.port}")
        config = {"spark.executor.memory": "512m"}
        spark = await asyncio.to_thread(llog.spark.session, direct, master=cluster.master, config=config)
        await books.check(opened, "as written")
        runner, loss = SparkTasks(spark, through), Loss(proxy, cluster)
        job = compact(opened.context, runner, options=OPTIONS, merge=True, on_run=loss.on_run)
        report, _ = await asyncio.gather(job, loss.strike())
        assert not report.failed, report.failed
        assert report.count("compacted") == len(LOGS), report.logs
        assert report.tasks > 4, "several for each executor"
        await books.check(opened, "after the loss")
        await books.check_deep(opened)
        for log in LOGS:
            assert {entry.value.type for entry in await entries_of(opened.context, log)} == {"COMPACTED"}
        again = await compact(opened.context, runner, options=OPTIONS, merge=True)
        assert {log.outcome for log in again.logs} == {"idle"}
        found = await audit(opened.context, LocalTasks(tools_of(opened.context)))
        assert found.clean, found
        loss.facts["lost tasks"] = lost_tasks(spark)
        await runner.close()
        await asyncio.to_thread(spark.stop)
        return loss.facts


def lost_tasks(spark: SparkSession) -> int:
    """How many attempts Spark counted as failed, in all."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(None)]
    stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
    return sum(stage.numFailedTasks for stage in stages if stage is not None)


async def _until(true: Callable[[], bool]) -> None:
    await until(lambda: asyncio.to_thread(true), seconds=GONE_SECONDS_MAX, pause_seconds=0.1)


if __name__ == "__main__":
    print("FACTS " + json.dumps(asyncio.run(main(Path(sys.argv[1])))), flush=True)
    os._exit(0)
