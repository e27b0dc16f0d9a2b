"""Metrics that are read from plain numbers when a page is asked for: stores, billing, appends, compaction lag.

The stores and the log count in plain numbers and know no metrics library; collectors turn those into families. Every
family of the table that is marked `collected` comes from here, also while nothing is attached. A page may be made in
another thread, so nothing here iterates over a dictionary that the event loop may grow meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isinf
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from llog.log.metrics import AppendCounters
from llog.settings.urls import OXIA_SCHEMES, scheme_of
from llog.stores.metering import MetadataStoreStats, OperationStats
from llog.stores.objects.pricing import Prices
from llog.telemetry.billing import ASSUMPTIONS, BilledStore
from llog.telemetry.families import OTHER, family

METRICS_LAG_ROWS_MAX: Final = 100
"""Logs whose compaction lag is shown one by one, the largest first; the others are one row, `other`."""
METRICS_LAG_LOGS_MAX: Final = 100_000
"""Logs whose lag is remembered; more are counted as an overflow."""


def kind_of(url: str) -> str:
    """The kind of a store, without anything of its address: `s3`, `file`, `lmdb`, `oxia`, `postgresql`, …"""
    scheme = scheme_of(url)
    if scheme in OXIA_SCHEMES:
        return "oxia"
    return "postgresql" if scheme == "postgres" else scheme


def counter(name: str) -> CounterMetricFamily:
    row = family(name)
    return CounterMetricFamily(row.name, row.doc, labels=row.labels)


def gauge(name: str) -> GaugeMetricFamily:
    row = family(name)
    return GaugeMetricFamily(row.name, row.doc, labels=row.labels)


def histogram(name: str) -> HistogramMetricFamily:
    row = family(name)
    return HistogramMetricFamily(row.name, row.doc, labels=row.labels)


def info(name: str) -> InfoMetricFamily:
    row = family(name)
    return InfoMetricFamily(row.name.removesuffix("_info"), row.doc)


def _add_latencies(into: HistogramMetricFamily, labels: Sequence[str], counted: OperationStats) -> None:
    """Stores count milliseconds; Prometheus asks for seconds."""
    counts = counted.latency_ms_buckets().items()
    buckets = [("+Inf" if isinf(bound_ms) else str(bound_ms / 1_000), count) for bound_ms, count in counts]
    into.add_metric(labels, buckets, sum_value=counted.latency_ms_sum / 1_000)


class MetadataCollector(Collector):
    def __init__(self) -> None:
        self._stores: list[tuple[str, MetadataStoreStats]] = []

    @property
    def is_oxia(self) -> bool:
        return any(kind == "oxia" for kind, _ in self._stores)

    def attach(self, url: str, stats: MetadataStoreStats) -> None:
        self._stores.append((kind_of(url), stats))

    def collect(self) -> Iterator[Metric]:
        about, calls, items = info("llog_metadata_info"), *map(counter, _METADATA_COUNTERS)
        errors, lost = counter("llog_metadata_errors_total"), counter("llog_metadata_sessions_lost_total")
        seconds = histogram("llog_metadata_call_seconds")
        for kind, stats in self._stores:
            about.add_metric((), {"store": kind})
            lost.add_metric((kind,), stats.sessions_lost)
            for operation, counted in stats.operations.items():
                labels = (kind, operation)
                calls.add_metric(labels, counted.call_count)
                items.add_metric(labels, counted.item_count)
                if counted.call_count:  # an operation that was never called has neither latencies nor errors
                    _add_latencies(seconds, labels, counted)
                    for name, count in counted.outcomes.items():
                        errors.add_metric((*labels, name), count)
        yield from (about, calls, items, errors, seconds, lost)


_METADATA_COUNTERS: Final = ("llog_metadata_calls_total", "llog_metadata_items_total")


class ObjectCollector(Collector):
    """The object stores of this process, and their cost."""

    def __init__(self) -> None:
        self._stores: list[BilledStore] = []

    def attach(self, stores: Iterable[BilledStore]) -> None:
        self._stores.extend(stores)

    def collect(self) -> Iterator[Metric]:
        yield from self._operations()
        yield from self._billing()

    def _operations(self) -> Iterator[Metric]:
        about, calls = info("llog_s3_info"), counter("llog_s3_calls_total")
        requests, carried = counter("llog_s3_requests_total"), counter("llog_s3_bytes_total")
        seconds = histogram("llog_s3_call_seconds")
        for billed in self._stores:
            about.add_metric((), {"tier": billed.tier, "store": billed.kind})
            for operation, counted in billed.stats.operations.items():
                labels = (billed.tier, billed.kind, operation)
                requests.add_metric(labels, counted.request_count)
                carried.add_metric(labels, counted.byte_count)
                shown = counted.outcomes if counted.call_count else {"ok": 0}
                for outcome, count in shown.items():
                    calls.add_metric((*labels, outcome), count)
                if counted.call_count:
                    _add_latencies(seconds, labels, counted)
        yield from (about, calls, requests, carried, seconds)

    def _billing(self) -> Iterator[Metric]:
        about, prices = info("llog_s3_billing_info"), gauge("llog_s3_billing_price_usd")
        cost, failures = counter("llog_s3_billing_requests_usd_total"), counter("llog_s3_billing_list_failures_total")
        objects, stored, stored_gb, monthly, listed = map(gauge, _FOOTPRINT_GAUGES)
        if self._stores:
            kinds = "+".join(sorted({billed.kind for billed in self._stores}))
            about.add_metric((), {"store": kinds, "assumptions": ASSUMPTIONS})
            for item, price in _price_list(self._stores[0].prices).items():
                prices.add_metric((item,), price)
        for billed in self._stores:
            labels = (billed.tier, billed.kind)
            cost.add_metric(labels, billed.requests_usd)
            failures.add_metric(labels, billed.list_failures)
            listed.add_metric(labels, billed.listed_at_ms / 1_000)
            if (footprint := billed.footprint) is not None:  # unknown is not zero
                objects.add_metric(labels, footprint.object_count)
                stored.add_metric(labels, footprint.stored_bytes)
                stored_gb.add_metric(labels, footprint.stored_bytes / 2**30)
                monthly.add_metric(labels, billed.storage_usd_per_month)
        yield from (about, prices, cost, objects, stored, stored_gb, monthly, listed, failures)


_FOOTPRINT_GAUGES: Final = (
    "llog_s3_billing_objects",
    "llog_s3_billing_stored_bytes",
    "llog_s3_billing_stored_gb",
    "llog_s3_billing_storage_usd_per_month",
    "llog_s3_billing_listed_timestamp_seconds",
)


def _price_list(prices: Prices) -> dict[str, float]:
    return {
        "gb_month": prices.storage_per_gib_month,
        "per_1000_put_copy_post_list": prices.per_1000_puts_and_lists,
        "per_10000_get_and_other": prices.per_10000_gets_and_others,
    }


class AppendCollector(Collector):
    """The counters of the append path (`llog.log.metrics`), summed over all appenders of this process."""

    def __init__(self) -> None:
        self._counters: list[AppendCounters] = []

    def attach(self, counters: AppendCounters) -> None:
        self._counters.append(counters)

    def collect(self) -> Iterator[Metric]:
        for name, field in _APPEND_FIELDS.items():
            metric = counter(name)
            metric.add_metric((), sum(getattr(counters, field) for counters in self._counters))
            yield metric


_APPEND_FIELDS: Final = {
    "llog_append_runs_total": "appends",
    "llog_append_cas_rounds_total": "cas_rounds",
    "llog_append_conflicts_total": "conflicts",
    "llog_append_uncertain_total": "uncertain",
    "llog_append_resolved_total": "resolved",
    "llog_append_settles_total": "settles",
    "llog_append_cleared_total": "cleared",
    "llog_append_yields_total": "yields",
}

_OFFSET_BITS: Final = 64
_OFFSETS: Final = (1 << _OFFSET_BITS) - 1


class CompactionLag(Collector):
    """How far compaction is behind, log by log, in a bounded number of rows.

    The logs furthest behind are shown by name; all others are one row, `other`, so that the sum over the rows is the
    whole lag and the largest age is the largest there is. Age grows by itself: a compactor that no longer reaches its
    logs reports nothing new, and that is when the age matters.
    """

    def __init__(self, on_overflow: Callable[[], None], now_ms: Callable[[], int]) -> None:
        # One number per log, bytes above offsets, so that the largest of very many are found fast.
        self._lags: dict[tuple[str, int], int] = {}
        self._oldest_ms: dict[tuple[str, int], int] = {}
        self._on_overflow, self._now_ms = on_overflow, now_ms

    def set(self, topic: str, partition: int, offsets: int, byte_length: int, oldest_ms: int | None) -> None:
        """A lag of zero removes the log."""
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
        # Totals come from the copies: the page is made in another thread, while the event loop changes the originals.
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
