"""Compaction on Spark: the runner, how large its tasks are made, and the aggregation of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llog.compactor.tasks import TaskRunner
from llog.limits import COMPACT_CORES_UNKNOWN
from llog.pipeline.compact_plan import Sizing
from llog.settings import Settings
from llog.spark.key_aggregate import SparkKeyAggregate
from llog.spark.runner import SparkRunner
from llog.spark.warm_session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def join_session(settings: Settings, *, master: str | None = None) -> TaskRunner:
    """This process's session, started if there is none. Raises `LlogError` where it cannot be had."""
    return task_runner(await SparkRunner.start(settings, master=master), settings)


def task_runner(runner: SparkRunner, settings: Settings) -> TaskRunner:
    spark = runner.spark
    return TaskRunner(runner, sizing_of(spark), lambda tools: SparkKeyAggregate(spark, settings, tools))


def sizing_of(spark: SparkSession) -> Sizing:
    """Windows for as many cores as the session has; a Connect server does not tell how many that is."""
    return Sizing(COMPACT_CORES_UNKNOWN if is_connect(spark) else spark.sparkContext.defaultParallelism)
