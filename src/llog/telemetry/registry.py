"""The registry behind the metrics pages: families made from the table, their series, the JSON page.

Nothing here is global, so several brokers in one process do not mix. A family never has more than
METRICS_LABEL_SETS_MAX combinations of label values (beside those it starts with): the rest is counted as `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from llog.limits import METRICS_LABEL_CHARS_MAX
from llog.telemetry.families import FAMILIES, OTHER, Family, family

METRICS_LABEL_SETS_MAX: Final = 200
"""Combinations of label values that one family may have."""

M = TypeVar("M", bound=MetricWrapperBase)
Own = Counter | Gauge | Histogram | Info


class Children(dict[tuple[object, ...], M]):
    """The series of one family by label values: the first METRICS_LABEL_SETS_MAX, then `other`.

    A dictionary, so that finding a known series costs no call: `children[route, method].inc()`, `children[kind,].inc()`
    """

    def __init__(self, metric: M, on_overflow: Callable[[], None]) -> None:
        super().__init__()
        self._metric: M = metric
        self._on_overflow = on_overflow
        self._other: M | None = None

    def __missing__(self, values: tuple[object, ...]) -> M:
        if len(self) < METRICS_LABEL_SETS_MAX:
            texts = (str(value)[:METRICS_LABEL_CHARS_MAX] for value in values)
            child = self[values] = self._metric.labels(*texts)
            return child
        self._on_overflow()
        if self._other is None:
            self._other = self._metric.labels(*[OTHER] * len(values))
        return self._other


class _Registry(CollectorRegistry):
    """Without the `_created` series, which would double the page, and without information rows that are empty (a
    compactor is no broker)."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            if metric.type == "info":
                metric.samples = [sample for sample in metric.samples if any(sample.labels.values())]
            else:
                metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Families:
    """A registry with every family of the table that is written as things happen; collectors bring the others."""

    def __init__(self) -> None:
        self._registry: Final = _Registry()
        self._own = {row.name: _make(row, self._registry) for row in FAMILIES if not row.collected}
        self._overflows = self.counter("llog_metrics_overflow_total")
        ProcessCollector(registry=self._registry)  # collects nothing where the system has no /proc

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
        """Call it for each observation that is counted as `other`. The series starts at zero here, because an increase
        from nothing is invisible to Prometheus."""
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


# -- the JSON page -----------------------------------------------------------------------------------------------------


_EXPORTED_SUFFIX: Final = {"counter": "_total", "info": "_info"}


def json_page(metrics: Iterable[Metric]) -> dict[str, Any]:
    """The families of the Prometheus page as a tree, at the paths that the table gives them."""
    page: dict[str, Any] = {}
    for metric in metrics:
        row = family(metric.name + _EXPORTED_SUFFIX.get(metric.type, ""))
        for path in row.at:
            steps = path.split(".")
            _branch(page, steps[0])
            for sample in metric.samples:
                _put(page, row, steps, sample)
    return page


def _put(page: dict[str, Any], row: Family, steps: list[str], sample: Sample) -> None:
    at = [sample.labels[step[1:-1]] if step.startswith("{") else step for step in steps]
    if row.kind == "info":
        _branch(page, *at).update({name: text for name, text in sample.labels.items() if f"{{{name}}}" not in steps})
    elif row.kind != "histogram":
        _add(_branch(page, *at[:-1]), at[-1], sample.value)
    elif sample.name.endswith("_bucket"):
        _add(_branch(page, *at, "buckets"), sample.labels["le"], sample.value)
    else:
        _add(_branch(page, *at), sample.name[len(row.name) + 1 :], sample.value)


def _branch(page: dict[str, Any], *steps: str) -> dict[str, Any]:
    for step in steps:
        page = page.setdefault(step, {})
    return page


def _add(branch: dict[str, Any], leaf: str, value: float) -> None:
    """Whole numbers are shown as such."""
    total = branch.get(leaf, 0) + value
    branch[leaf] = int(total) if float(total).is_integer() else total
