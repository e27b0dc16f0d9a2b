"""Compaction on Spark: the runner, and how large its tasks are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llog.compactor.tasks import TaskRunner
from llog.limits import COMPACT_CORES_UNKNOWN
from llog.pipeline.compact_plan import Sizing
from llog.settings import Settings
from llog.spark.runner import SparkRunner
from llog.spark.warm_session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def join_session(settings: Settings, *, master: str | None = None) -> TaskRunner:
    """This process's session, started if there is none. Raises `LlogError` where it cannot be had."""
    runner = await SparkRunner.start(settings, master=master)
    return TaskRunner(runner, sizing_of(runner.spark))


def sizing_of(spark: SparkSession) -> Sizing:
    """Windows for as many cores as the session has; a Connect server does not tell how many that is."""
    return Sizing(COMPACT_CORES_UNKNOWN if is_connect(spark) else spark.sparkContext.defaultParallelism)
