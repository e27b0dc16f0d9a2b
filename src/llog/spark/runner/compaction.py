"""Compaction on Spark: the runner, how large its tasks are made, and the aggregation of keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llog.compactor.backends import Backend, CheckSession
from llog.errors import SparkSessionFailed
from llog.pipeline.compact.plan import Resize, Sizing
from llog.settings import Settings
from llog.settings.urls import mask_url
from llog.spark.runner.key_aggregate import SparkKeyAggregate
from llog.spark.runner.tasks import SparkTasks
from llog.spark.sessions.launch import own_jvm_is_gone
from llog.spark.sessions.session import count_of, is_connect, master_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from typing import Final

# Where nobody tells how many there are.
COMPACT_CORES_UNKNOWN: Final = 4


async def join_session(settings: Settings, *, master: str | None = None) -> Backend:
    """This process's session, started if there is none. Raises `LlogError` where it cannot be had."""
    return spark_backend(await SparkTasks.start(settings, master=master), settings)


def spark_backend(runner: SparkTasks, settings: Settings) -> Backend:
    spark = runner.spark
    return Backend(
        runner,
        sizing_of(spark),
        make_aggregate=lambda tools: SparkKeyAggregate(spark, settings, tools),
        resize=resize_of(spark),
        check=check_of(spark),
    )


def check_of(spark: SparkSession) -> CheckSession | None:
    """Is the session still there? Seen from this process alone: nothing here waits for a JVM that does not answer, and
    whether a cluster or a Connect server still wants us, the next job tells."""
    if is_connect(spark):
        return None
    master = master_of(spark)

    async def check() -> None:
        if own_jvm_is_gone():
            raise SparkSessionFailed(mask_url(master), "its JVM is gone")
        if spark.sparkContext._jsc is None:
            raise SparkSessionFailed(mask_url(master), "it was stopped")

    return check


def sizing_of(spark: SparkSession) -> Sizing:
    """Windows for as many cores as the session has now; a Connect server does not tell how many that is, and a cluster
    may have given us none yet."""
    if is_connect(spark):
        return Sizing(COMPACT_CORES_UNKNOWN)
    cores = int(spark.sparkContext.defaultParallelism)
    return Sizing(max(cores, COMPACT_CORES_UNKNOWN) if count_of(spark) is not None else cores)


def resize_of(spark: SparkSession) -> Resize | None:
    """Executors of a cluster come after the session, and may come and go; a machine's cores stay."""
    if count_of(spark) is None:
        return None

    async def resize() -> Sizing:
        try:
            return await asyncio.to_thread(sizing_of, spark)
        except Exception:  # a session that is gone: the job fails, and says why
            return Sizing(COMPACT_CORES_UNKNOWN)

    return resize
