"""How far compaction is behind, log by log, in a bounded number of rows.

Why it exists: a cluster may have a hundred thousand logs and a metrics page must not. The logs that are furthest behind
are shown by name; all others are one row, `other`, so that the sum over all rows is the whole lag, and the largest age
the largest there is.

What must stay true: age goes on by itself. A service that no longer gets round to its logs tells nothing new, and that
is when the age matters.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from llog.telemetry.families import OTHER
from llog.telemetry.object_metrics import gauge

# Logs whose compaction lag is told one by one, the worst first; the others are one row, "other".
METRICS_LAG_ROWS_MAX: Final = 100
# Logs whose lag is known at all; the rest are only counted as not known.
METRICS_LAG_LOGS_MAX: Final = 100_000


_OFFSET_BITS: Final = 64
_OFFSETS: Final = (1 << _OFFSET_BITS) - 1


class CompactionLag(Collector):
    def __init__(self, on_overflow: Callable[[], None], now_ms: Callable[[], int]) -> None:
        # One number per log, bytes above offsets: the worst of very many are found fast.
        self._lags: dict[tuple[str, int], int] = {}
        self._oldest_ms: dict[tuple[str, int], int] = {}
        self._on_overflow, self._now_ms = on_overflow, now_ms

    def set(self, topic: str, partition: int, offsets: int, byte_length: int, oldest_ms: int | None) -> None:
        """A log without lag needs no place: with it set to zero, it is forgotten."""
        log, lag = (topic, partition), byte_length << _OFFSET_BITS | offsets
        if lag and log not in self._lags and len(self._lags) >= METRICS_LAG_LOGS_MAX:
            self._on_overflow()
            return
        self._lags.pop(log, None)
        self._oldest_ms.pop(log, None)
        if lag:
            self._lags[log] = lag
            if oldest_ms is not None:
                self._oldest_ms[log] = oldest_ms

    def collect(self) -> Iterator[Metric]:
        in_offsets, in_bytes = gauge("llog_compaction_lag_offsets"), gauge("llog_compaction_lag_bytes")
        in_seconds, logs = gauge("llog_compaction_lag_seconds"), gauge("llog_compaction_lagging_logs")
        # Totals are made of the copies: a page is made in another thread, and one kept beside may be ahead of them.
        lags, oldest_ms, now_ms = self._lags.copy(), self._oldest_ms.copy(), self._now_ms()
        logs.add_metric((), len(lags))
        for log in heapq.nlargest(METRICS_LAG_ROWS_MAX, lags, key=lags.__getitem__):
            labels, lag = (log[0], str(log[1])), lags.pop(log)
            in_offsets.add_metric(labels, lag & _OFFSETS)
            in_bytes.add_metric(labels, lag >> _OFFSET_BITS)
            in_seconds.add_metric(labels, max(0, now_ms - oldest_ms.pop(log, now_ms)) / 1_000)
        in_offsets.add_metric((OTHER, OTHER), sum(lag & _OFFSETS for lag in lags.values()))
        in_bytes.add_metric((OTHER, OTHER), sum(lag >> _OFFSET_BITS for lag in lags.values()))
        in_seconds.add_metric((OTHER, OTHER), max(0, now_ms - min(oldest_ms.values(), default=now_ms)) / 1_000)
        yield from (in_offsets, in_bytes, in_seconds, logs)
