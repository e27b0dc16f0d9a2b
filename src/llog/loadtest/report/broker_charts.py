"""Charts of what happens inside brokers and compactors, from their metrics pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

from llog.loadtest.report import buckets
from llog.loadtest.report.charts import Chart, Series
from llog.loadtest.report.charts.model import Point
from llog.loadtest.report.increments import Growth, all_growths, amounts, by_interval, leaves, rates
from llog.loadtest.report.model import Table
from llog.loadtest.report.ranking import ranked
from llog.loadtest.report.run_data import RunData

NO_PAGES: Final = "No metrics page was sampled twice."
STAGES: Final[Mapping[str, tuple[str, str]]] = {
    "batching.queue_wait_seconds": ("queue", "waiting for more records"),
    "batching.upload_seconds": ("upload", "uploading the blob"),
    "batching.commit_seconds": ("commit", "committing its record groups"),
}
SOURCES: Final = {"cache": "tail cache", "store": "object store", "empty": "nothing new"}


def growth_of(data: RunData, path: str) -> list[Growth]:
    """Of all numbers at or below a path of the metrics page, in all processes."""
    return all_growths(data.metrics, lambda page: leaves(page, path))


def flushes(data: RunData) -> Chart:
    series = ranked(rates(growth_of(data, "batching.flushes"), data.grid))
    about = "Flushes of all brokers per second, by what triggered them."
    return Chart("flushes", "Flushes", about, "stacked", "flushes/s", series, data.marks, missing=NO_PAGES)


def blob_bytes(data: RunData) -> Chart:
    series = _spread(data, "batching.blob_bytes", 1 / 1_000)
    about = "Bytes of the blob that a flush uploads. Percentiles are interpolated from buckets."
    return Chart("blob-bytes", "Blob size", about, "lines", "kB", series, data.marks, missing=NO_PAGES)


def flush_groups(data: RunData) -> Chart:
    series = _spread(data, "batching.flush_groups", whole=True)
    about = "Logs that have records in a flush: one upload serves them all."
    return Chart("flush-groups", "Logs per flush", about, "lines", "logs", series, data.marks, missing=NO_PAGES)


def stages(data: RunData) -> Chart:
    """Means over time, all stages in one chart."""
    series = tuple(Series(label, _means(data, growth_of(data, path), 1_000)) for path, (label, _) in STAGES.items())
    about = "Mean time of a flush in each stage: " + ", ".join(f"{name} ({doc})" for name, doc in STAGES.values()) + "."
    return Chart("stages", "Stage times", about, "lines", "ms", series, data.marks, missing=NO_PAGES)


def stage_tails(data: RunData) -> Chart:
    series = tuple(
        Series(label, _shares(data, growth_of(data, path), 0.99, 1_000)) for path, (label, _) in STAGES.items()
    )
    about = "The slowest of a hundred flushes in each stage, interpolated from buckets."
    return Chart("stage-tails", "Stage times, p99", about, "lines", "ms", series, data.marks, missing=NO_PAGES)


def stage_table(data: RunData) -> Table:
    """Of the measured phase."""
    rows = []
    for path, (label, doc) in STAGES.items():
        growth = amounts(growth_of(data, path), *data.measured) or {}
        spread = [buckets.percentile(growth, share) for share in (0.5, 0.9, 0.99)]
        mean = buckets.mean(growth)
        rows.append((label, doc, growth.get("count"), *(None if v is None else v * 1_000 for v in (mean, *spread))))
    columns = ("stage", "time of", "flushes", "mean ms", "p50 ms", "p90 ms", "p99 ms")
    about = "Measured phase, all brokers. Percentiles are interpolated from the buckets of the metrics page."
    return Table("stage-table", "Stages of a flush", columns, tuple(rows), about)


def served_from(data: RunData) -> Chart:
    lines = rates(growth_of(data, "consume.bytes"), data.grid, 1 / 1_000_000)
    named = {SOURCES.get(name, name): points for name, points in lines.items()}
    about = "Bytes of batches returned to consumers, by where they came from."
    missing = "No broker has served a consumer." if data.metrics else NO_PAGES
    return Chart("served-from", "Bytes served", about, "stacked", "MB/s", ranked(named), data.marks, missing=missing)


def cache_hits(data: RunData) -> Chart:
    points: list[Point] = []
    for x, _, growth in by_interval(growth_of(data, "tail_cache.events"), data.grid):
        looked_up = 0.0 if growth is None else growth.get("hit", 0.0) + growth.get("miss", 0.0)
        points.append((x, growth["hit"] / looked_up * 100 if growth and looked_up and "hit" in growth else None))
    about = "Lookups in the tail cache that found their records; lookups at the end of a log do not count."
    series = (Series("hits", tuple(points)),)
    missing = "Nobody has looked up records." if data.metrics else NO_PAGES
    return Chart("cache-hits", "Tail cache hits", about, "lines", "%", series, data.marks, missing=missing)


def compaction_lag(data: RunData) -> Chart:
    """The worst log of any compactor."""
    series = (Series("oldest append", _gauge(data, "compaction.lag.seconds", max)),)
    about = "Age of the oldest append that is not compacted yet, over all logs."
    missing = "No compactor has reported a lag."
    return Chart("compaction-lag", "Compaction lag", about, "lines", "s", series, data.marks, missing=missing)


def compaction_left(data: RunData) -> Chart:
    scaled = tuple((x, None if y is None else y / 1_000_000) for x, y in _gauge(data, "compaction.lag.bytes", _total))
    about = "Bytes not compacted yet; of each log at most as many as one run takes."
    missing = "No compactor has reported a lag."
    series = (Series("waiting", scaled),)
    return Chart("compaction-left", "Waiting for compaction", about, "lines", "MB", series, data.marks, missing=missing)


def _total(values: Sequence[float]) -> float:
    return sum(values)


def _gauge(data: RunData, path: str, join: Any) -> tuple[Point, ...]:
    """Of one page the values joined, of several pages the largest: all compactors see the same logs."""
    points: list[Point] = []
    for sample in data.metrics:
        pages = [list(leaves(page.page, path).values()) for page in sample.pages if page.ok]
        found = [join(values) for values in pages if values]
        points.append((sample.at_s - data.zero_s, max(found) if found else None))
    return tuple(points)


def _spread(data: RunData, path: str, scale: float = 1.0, *, whole: bool = False) -> tuple[Series, ...]:
    """`whole`: of counts, which have no fractions."""
    growths = growth_of(data, path)
    lines = {f"p{share * 100:g}": _shares(data, growths, share, scale) for share in (0.5, 0.9, 0.99)}
    if whole:
        lines = {
            name: tuple((x, None if y is None else float(ceil(y))) for x, y in line) for name, line in lines.items()
        }
    return (Series("mean", _means(data, growths, scale)), *(Series(name, line) for name, line in lines.items()))


def _means(data: RunData, growths: list[Growth], scale: float) -> tuple[Point, ...]:
    found = ((x, buckets.mean(growth or {})) for x, _, growth in by_interval(growths, data.grid))
    return tuple((x, None if value is None else value * scale) for x, value in found)


def _shares(data: RunData, growths: list[Growth], share: float, scale: float) -> tuple[Point, ...]:
    found = ((x, buckets.percentile(growth or {}, share)) for x, _, growth in by_interval(growths, data.grid))
    return tuple((x, None if value is None else value * scale) for x, value in found)
