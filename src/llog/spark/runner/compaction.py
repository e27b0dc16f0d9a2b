"""Spark as a backend of the compactor service: the runner, its task sizes, its key aggregation and its health check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llog.compactor.backends import Backend, CheckSession
from llog.errors import SparkSessionFailed
from llog.settings import Settings
from llog.settings.urls import mask_url
from llog.spark.runner.key_aggregate import SparkKeyAggregate
from llog.spark.runner.tasks import SparkTasks
from llog.spark.sessions.launch import own_jvm_is_gone
from llog.spark.sessions.session import is_connect, master_of, resize_of, sizing_of
from llog.stores.metering import OnRequests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def join_session(settings: Settings, *, master: str | None = None) -> Backend:
    """This process's session, started if there is none. Raises `LlogError` if it cannot start."""
    return spark_backend(await SparkTasks.start(settings, master=master), settings)


def spark_backend(runner: SparkTasks, settings: Settings) -> Backend:
    spark = runner.spark

    def count_requests(on_requests: OnRequests) -> None:
        runner.on_requests = on_requests

    return Backend(
        runner,
        sizing_of(spark),
        make_aggregate=lambda tools: SparkKeyAggregate(spark, settings, tools, runner.on_requests),
        resize=resize_of(spark),
        check=check_of(spark),
        count_requests=count_requests,
    )


def check_of(spark: SparkSession) -> CheckSession | None:
    """Check from this process alone that the session exists, without waiting for a JVM that does not answer. The next
    job shows whether a cluster or a Connect server still accepts us."""
    if is_connect(spark):
        return None
    master = master_of(spark)

    async def check() -> None:
        if own_jvm_is_gone():
            raise SparkSessionFailed(mask_url(master), "its JVM is gone")
        if spark.sparkContext._jsc is None:
            raise SparkSessionFailed(mask_url(master), "it was stopped")

    return check
