"""Spark: the session, the runner of pipeline tasks, and the data source `llog`.

    spark = llog.spark.session()
    spark.read.format("llog").option("subscribe", "orders").load()

Importing this package needs no pyspark; using it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llog.spark.sessions.quiet import quieten_this_process

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from llog.settings import Settings

__all__ = ["lag_listener", "register", "session", "views"]

quieten_this_process()  # every import of llog by a Spark worker runs this line


def session(
    settings: Settings | None = None,
    *,
    master: str | None = None,
    app_name: str = "llog",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """This process's session, started if there is none, with the data source `llog`; see `llog.spark.sessions.session`.

    Only the master of `settings` counts. Options and the environment name the stores of a read or a write.
    """
    from llog.spark.sessions.session import running_or_new

    return register(running_or_new(settings, master=master, app_name=app_name, config=config))


def register(spark: SparkSession) -> SparkSession:
    """Make the data source `llog` known to a session, also one that the caller made; returns that session.

    A session whose driver has llog installed finds it by itself (`pyspark_llog`); a Connect server may not, and neither
    does a write from a thread in which the session is not active: call this function in that thread.
    """
    try:
        from llog.spark.sessions.session import make_active, own_interpreter
        from llog.spark.source.source import LlogDataSource
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pyspark"):
            raise
        from llog.errors import SparkNotInstalled

        raise SparkNotInstalled(str(error)) from error
    make_active(spark)
    with own_interpreter(spark):
        spark.dataSource.register(LlogDataSource)
    return spark


def views(spark: SparkSession, *topics: str, options: Mapping[str, str] | None = None) -> list[str]:
    """Create a temporary view for every topic, or for those named, and return their names, which are those of the
    topics; a view of that name is replaced. `options` are options of the reads.

    A view shows the records up to its first use: call this function again to see later ones.
    """
    from llog.spark.source.topic_views import create_views

    return create_views(register(spark), topics, options or {})


def lag_listener(registry: CollectorRegistry | None = None) -> StreamingQueryListener:
    """A listener that shows the lag of running streams as Prometheus gauges in `registry` (default: that of
    `prometheus_client`); add it by `spark.streams.addListener`. See `llog.spark.source.lag`."""
    from prometheus_client import REGISTRY

    from llog.spark.source.lag import LagListener

    return LagListener(REGISTRY if registry is None else registry)
