"""How far compaction is behind, log by log, in a bounded number of rows.

Why it exists: a cluster may have a hundred thousand logs and a metrics page must not. The logs that are furthest behind
are shown by name; all others are one row, `other`, so that the sum over all rows is the whole lag.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from llog.broker.metric_families import OTHER
from llog.broker.object_metrics import gauge
from llog.limits import METRICS_LAG_LOGS_MAX, METRICS_LAG_ROWS_MAX

_OFFSET_BITS: Final = 64
_OFFSETS: Final = (1 << _OFFSET_BITS) - 1


class CompactionLag(Collector):
    def __init__(self, on_overflow: Callable[[], None]) -> None:
        # One number per log, bytes above offsets: finding the worst of very many must not hold the event loop for long.
        self._lags: dict[tuple[str, int], int] = {}
        self._offsets = self._bytes = 0
        self._on_overflow = on_overflow

    def set(self, topic: str, partition: int, offsets: int, byte_length: int) -> None:
        """A log without lag needs no place: with it set to zero, it is forgotten."""
        log, lag = (topic, partition), byte_length << _OFFSET_BITS | offsets
        if lag and log not in self._lags and len(self._lags) >= METRICS_LAG_LOGS_MAX:
            self._on_overflow()
            return
        before = self._lags.pop(log, 0)
        if lag:
            self._lags[log] = lag
        self._offsets += offsets - (before & _OFFSETS)
        self._bytes += byte_length - (before >> _OFFSET_BITS)

    def collect(self) -> Iterator[Metric]:
        in_offsets, in_bytes = gauge("llog_compaction_lag_offsets"), gauge("llog_compaction_lag_bytes")
        logs = gauge("llog_compaction_lagging_logs")
        lags, offsets_left, bytes_left = self._lags.copy(), self._offsets, self._bytes
        for log in heapq.nlargest(METRICS_LAG_ROWS_MAX, lags, key=lags.__getitem__):
            labels, offsets, byte_length = (log[0], str(log[1])), lags[log] & _OFFSETS, lags[log] >> _OFFSET_BITS
            in_offsets.add_metric(labels, offsets)
            in_bytes.add_metric(labels, byte_length)
            offsets_left -= offsets
            bytes_left -= byte_length
        in_offsets.add_metric((OTHER, OTHER), offsets_left)
        in_bytes.add_metric((OTHER, OTHER), bytes_left)
        logs.add_metric((), len(lags))
        yield from (in_offsets, in_bytes, logs)
