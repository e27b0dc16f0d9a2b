"""The families that are written as things happen, made from the table: one registry per instance.

What must stay true: nothing here is global, so several brokers in one process do not mix; a family never has more than
METRICS_LABEL_SETS_MAX combinations of label values (and those it began with): the rest is `other`, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from llog.limits import METRICS_LABEL_CHARS_MAX
from llog.telemetry.families import FAMILIES, OTHER, Family, family

# Combinations of label values that one family may have; what comes later is counted under "other".
METRICS_LABEL_SETS_MAX: Final = 200


__all__ = ["Children", "Families"]

M = TypeVar("M", bound=MetricWrapperBase)
Own = Counter | Gauge | Histogram | Info


class Children(Generic[M]):
    """One family's children by label values, remembered; the first METRICS_LABEL_SETS_MAX, then `other`."""

    __slots__ = ("_known", "_metric", "_on_overflow", "_other")

    def __init__(self, metric: M, on_overflow: Callable[[], None]) -> None:
        self._metric: M = metric
        self._on_overflow = on_overflow
        self._known: dict[tuple[object, ...], M] = {}
        self._other: M | None = None

    def at(self, *values: object) -> M:
        child = self._known.get(values)
        return self._new(values) if child is None else child

    def _new(self, values: tuple[object, ...]) -> M:
        if len(self._known) < METRICS_LABEL_SETS_MAX:
            texts = (str(value)[:METRICS_LABEL_CHARS_MAX] for value in values)
            child = self._known[values] = self._metric.labels(*texts)
            return child
        self._on_overflow()
        if self._other is None:
            self._other = self._metric.labels(*[OTHER] * len(values))
        return self._other


class _Registry(CollectorRegistry):
    """Without the `_created` series, which would double the page to say when the process began, and without the
    information rows that nobody filled in: a compaction service is no broker."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            if metric.type == "info":
                metric.samples = [sample for sample in metric.samples if any(sample.labels.values())]
            else:
                metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Families:
    """A registry with every family of the table that is not collected; the collectors of the others are registered."""

    def __init__(self) -> None:
        self._registry: Final = _Registry()
        self._own = {row.name: _make(row, self._registry) for row in FAMILIES if not row.collected}
        self._overflows = self.counter("llog_metrics_overflow_total")

    def register(self, *collectors: Collector) -> None:
        for collector in collectors:
            self._registry.register(collector)

    def collect(self) -> Iterator[Metric]:
        return self._registry.collect()

    def prometheus(self) -> bytes:
        return generate_latest(self._registry)

    def counter(self, name: str) -> Counter:
        metric = self._own[name]
        assert isinstance(metric, Counter), name
        return metric

    def gauge(self, name: str) -> Gauge:
        metric = self._own[name]
        assert isinstance(metric, Gauge), name
        return metric

    def histogram(self, name: str) -> Histogram:
        metric = self._own[name]
        assert isinstance(metric, Histogram), name
        return metric

    def info(self, name: str) -> Info:
        metric = self._own[name]
        assert isinstance(metric, Info), name
        return metric

    def counters(self, name: str) -> Children[Counter]:
        return Children(self.counter(name), self.overflow_of(name))

    def histograms(self, name: str) -> Children[Histogram]:
        return Children(self.histogram(name), self.overflow_of(name))

    def counters_by_name(self) -> dict[str, Counter]:
        """Counters without labels: `llog_x_total` as `x`."""
        plain = (name for name in self._own if family(name).kind == "counter" and not family(name).labels)
        return {name.removeprefix("llog_").removesuffix("_total"): self.counter(name) for name in plain}

    def overflow_of(self, name: str) -> Callable[[], None]:
        """To be called for each observation of the family that had to go under `other`. It begins at zero here: an
        increase from nothing would go unseen."""
        child = self._overflows.labels(name)
        return lambda: child.inc()


def _make(row: Family, registry: CollectorRegistry) -> Own:
    metric: Counter | Gauge | Histogram
    if row.kind == "counter":
        metric = Counter(row.name, row.doc, row.labels, registry=registry)
    elif row.kind == "gauge":
        metric = Gauge(row.name, row.doc, row.labels, registry=registry)
    elif row.kind == "histogram":
        metric = Histogram(row.name, row.doc, row.labels, registry=registry, buckets=row.buckets)
    else:
        return Info(row.name.removesuffix("_info"), row.doc, registry=registry)
    for values in row.starts:
        metric.labels(*values)
    return metric
