"""How far a stream is behind the ends of its logs, in the progress of its query and as Prometheus metrics.

Spark 4.3 gives a Python source no place among the metrics of a source in the progress (`sources[].metrics`). It shows
the latest offset that the source reports (`sources[].latestOffset`), so the lag is a part of that value, under `@lag`,
with the names of Spark's Kafka source. `LagListener` sets gauges from it in the process of the driver.
"""

from __future__ import annotations

import json
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from llog.pipeline.scan.stream_offsets import LAG, LAG_STATISTICS

# Sources of running queries that a listener shows; further ones are left out.
STREAM_LAG_SOURCES_MAX: Final = 1_000


def lag_in(latest_offset: str | None) -> dict[str, float]:
    """The lag in a source's latest offset as the progress has it; empty for sources of other kinds."""
    try:
        value: Any = json.loads(latest_offset or "null")
    except ValueError:
        return {}
    lag = value.get(LAG) if isinstance(value, dict) else None
    return lag if isinstance(lag, dict) else {}


class LagListener(StreamingQueryListener):
    """Shows `llog_stream_min|max|avg_offsets_behind_latest` of each running query and source (its number in the query).

    A query is named by its name, else by its id, which its checkpoint keeps. Its rows end with the query.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        labels = ("query", "source")
        self._gauges = {
            statistic: Gauge(
                f"llog_stream_{name}_offsets_behind_latest",
                f"{name} over the logs: offsets between the end of the last batch and the end of the log",
                labels,
                registry=registry,
            )
            for name, statistic in LAG_STATISTICS.items()
        }
        self._rows: dict[str, list[tuple[str, str]]] = {}
        """Of each run of a query."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        rows = self._rows.setdefault(str(progress.runId), [])
        for number, source in enumerate(progress.sources):
            row = (progress.name or str(progress.id), str(number))
            lag = lag_in(source.latestOffset)
            if not lag or (row not in rows and sum(map(len, self._rows.values())) >= STREAM_LAG_SOURCES_MAX):
                continue
            if row not in rows:
                rows.append(row)
            for statistic, value in lag.items():
                self._gauges[statistic].labels(*row).set(value)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """The last progress still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        for row in self._rows.pop(str(event.runId), ()):
            for gauge in self._gauges.values():
                gauge.remove(*row)
