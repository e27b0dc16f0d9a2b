"""Temporary views of topics, for Spark SQL. A topic cannot be a table of Spark's catalogue, because Spark passes no
options of such a table to a Python source.

Spark plans a view when it is first used and reuses that plan: a view shows the records up to its first use. Creating it
again makes it show the present ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from llog.errors import InvalidArgument
from llog.log.topics.admin import list_topics
from llog.pipeline.scan.pump import LoopThread
from llog.pipeline.scan.subscription import Subscription, find_logs
from llog.settings import Settings
from llog.spark.source.options import parse_options
from llog.wiring import opened_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_EACH_VIEW: Final = ("subscribe", "subscribePattern", "assign")


def create_views(spark: SparkSession, topics: Sequence[str], options: Mapping[str, str]) -> list[str]:
    """A view for each topic (none: for all). Raises before the first view is created; returns the names."""
    given = {name.lower() for name in options}
    for name in _OF_EACH_VIEW:
        if name.lower() in given:
            raise InvalidArgument(name, "each view reads one topic: name the topics as arguments")
    settings = parse_options({"subscribe": "any", **options}, "batch").settings_in_force()
    names = _topics(settings, topics)
    _check_distinct(spark, names)
    for name in names:
        frame = spark.read.format("llog").options(**options).option("subscribe", name).load()
        frame.createOrReplaceTempView(f"`{name}`")  # topic names may have dots and dashes
    return names


def _topics(settings: Settings, wanted: Sequence[str]) -> list[str]:
    async def find() -> list[str]:
        async with opened_log(settings) as opened:
            if not wanted:
                return sorted(topic.name for topic in await list_topics(opened.context, strict=True))
            await find_logs(opened.context, Subscription(tuple(wanted)))  # raises if one does not exist
            return list(dict.fromkeys(wanted))

    loop = LoopThread("llog-views")  # the caller's thread may run an event loop of its own
    try:
        return loop.run(find())
    finally:
        loop.stop()


def _check_distinct(spark: SparkSession, names: Sequence[str]) -> None:
    if spark.conf.get("spark.sql.caseSensitive", "false") == "true":
        return
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise InvalidArgument(
                "topics", f"the views of {other} and {name} would have the same name: name the topics that you need"
            )
