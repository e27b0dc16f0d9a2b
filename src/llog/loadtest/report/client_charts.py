"""Charts of what the clients saw: throughput, latency over time, percentiles, and how the generator itself did."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from hdrh.codec import HdrCookieException, HdrHistogramSettingsException, HdrLengthException
from msgspec.structs import replace

from llog.loadtest.artifacts import ClientSample, ClientSummary
from llog.loadtest.client.histograms import decode
from llog.loadtest.report.charts import Chart, Series
from llog.loadtest.report.charts.model import Point
from llog.loadtest.report.increments import SHORT_SHARE, union
from llog.loadtest.report.ranking import SERIES_MAX, ranked
from llog.loadtest.report.run_data import RunData

INTERVALS_MAX: Final = 300
"""Longer runs are merged into so many intervals."""
OVER_TIME: Final = (50.0, 90.0, 99.0, 99.9)
COLOURS: Final = {"max": 7}
HDR_PERCENTILES: Final = tuple(
    sorted({100 - 100 / 10 ** (step / 8) for step in range(3, 41)} | {50.0, 90.0, 99.0, 99.9, 99.99, 99.999})
)
KINDS: Final[Mapping[str, tuple[str, Literal["producer", "consumer"]]]] = {
    "latency": ("produce latency", "producer"),
    "service": ("service time", "producer"),
    "send_delay": ("send delay", "producer"),
    "end_to_end": ("end to end", "consumer"),
}
BYTES_PER_MB: Final = 1_000_000
DAMAGES: Final = (
    ValueError,
    TypeError,
    IndexError,
    zlib.error,
    HdrCookieException,
    HdrHistogramSettingsException,
    HdrLengthException,
)
"""What decoding a damaged histogram raises."""


class Interval(msgspec.Struct, frozen=True):
    """Samples that cover about the same time. A process may have two: late answers to requests of the last phase stand
    beside those of the present one."""

    begin_s: float
    end_s: float
    samples: tuple[ClientSample, ...]

    @property
    def middle_s(self) -> float:
        return (self.begin_s + self.end_s) / 2

    def per_s(self, amount: Callable[[ClientSample], float]) -> float | None:
        """The rates of the processes, added up."""
        totals: dict[str, float] = {}
        spans: dict[str, list[tuple[float, float]]] = {}
        for sample in self.samples:
            totals[sample.process] = totals.get(sample.process, 0.0) + amount(sample)
            spans.setdefault(sample.process, []).append((sample.begin_s, sample.end_s))
        lengths = {process: union(listed) for process, listed in spans.items()}
        if not any(lengths.values()):
            return None
        return sum(total / lengths[process] for process, total in totals.items() if lengths[process] > 0)


def intervals(samples: Iterable[ClientSample]) -> list[Interval]:
    """A sample joins an interval that holds its middle; intervals too short for a rate join the one before."""
    groups: list[list[ClientSample]] = []
    for sample in sorted(samples, key=lambda each: (each.begin_s, each.process)):
        if groups and (sample.begin_s + sample.end_s) / 2 < groups[-1][0].end_s:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    lengths = sorted(group[0].end_s - group[0].begin_s for group in groups)
    length_min = SHORT_SHARE * lengths[len(lengths) // 2] if lengths else 0.0
    joined: list[list[ClientSample]] = []
    for group in groups:
        if joined and group[0].end_s - group[0].begin_s < length_min:
            joined[-1] += group
        else:
            joined.append(group)
    stride = -(-len(joined) // INTERVALS_MAX) or 1
    merged = [[each for group in joined[n : n + stride] for each in group] for n in range(0, len(joined), stride)]
    return [
        Interval(min(each.begin_s for each in group), max(each.end_s for each in group), tuple(group))
        for group in merged
    ]


def request_bytes(data: RunData) -> int:
    scenario = data.config.scenario
    return scenario.producers.records_per_request * scenario.records.bytes


def throughput(data: RunData) -> Chart:
    produced = intervals(sample for sample in data.clients if sample.kind == "producer")
    consumed = intervals(sample for sample in data.clients if sample.kind == "consumer")
    due = request_bytes(data) / BYTES_PER_MB
    series = []
    if produced:
        series.append(Series("offered", _rate(data, produced, lambda each: each.due_requests * due), True, 7))
        series.append(
            Series("acknowledged", _rate(data, produced, lambda each: each.payload_bytes / BYTES_PER_MB), False, 0)
        )
    if consumed:
        series.append(
            Series("received", _rate(data, consumed, lambda each: each.payload_bytes / BYTES_PER_MB), False, 1)
        )
    return Chart(
        "throughput",
        "Throughput",
        "Bytes of record values per second: due by the schedule, acknowledged to producers, received by consumers.",
        "lines",
        "MB/s",
        tuple(series),
        data.marks,
        missing="No client has written an interval.",
    )


def failures(data: RunData) -> Chart:
    series = _by_reason(data, lambda sample: sample.failed)
    about = "Requests without success per second, by error."
    none = "No request failed." if data.clients else "No client has written an interval."
    return Chart("failures", "Failed requests", about, "stacked", "requests/s", series, data.marks, missing=none)


def retries(data: RunData) -> Chart:
    series = _by_reason(data, lambda sample: sample.retried)
    about = "Requests sent again per second, by the reason; they may have succeeded then."
    none = "No request was sent again." if data.clients else "No client has written an interval."
    return Chart("retries", "Requests sent again", about, "stacked", "requests/s", series, data.marks, missing=none)


def _by_reason(data: RunData, counts: Callable[[ClientSample], Mapping[str, int]]) -> tuple[Series, ...]:
    listed = intervals(data.clients)

    def line(name: str) -> tuple[Point, ...]:
        return _rate(data, listed, lambda sample: counts(sample).get(name, 0))

    return ranked({name: line(name) for name in sorted({name for each in data.clients for name in counts(each)})})


def latency(data: RunData, field: str) -> Chart:
    """Percentiles over time of one kind of latency."""
    label, kind = KINDS[field]
    listed = intervals(sample for sample in data.clients if sample.kind == kind)
    points: dict[str, list[Point]] = {name: [] for name in (*(f"p{share:g}" for share in OVER_TIME), "max")}
    for interval in listed:
        x = interval.middle_s - data.zero_s
        histogram = _merged(getattr(sample, field) for sample in interval.samples)
        if histogram is None:
            values: list[float | None] = [None] * len(points)
        else:
            found = histogram.get_percentile_to_value_dict(list(OVER_TIME))
            values = [*(found[share] / 1_000 for share in OVER_TIME), histogram.get_max_value() / 1_000]
        for line, value in zip(points.values(), values, strict=True):
            line.append((x, value))
    about = {
        "latency": "Answer minus the time when the request was due.",
        "service": "Answer minus the time of sending.",
        "send_delay": "Time of sending minus the time when the request was due: how far the load falls behind.",
        "end_to_end": "A record's arrival at its consumer minus the time when its producer had it due.",
    }[field]
    series = tuple(Series(name, tuple(line), name == "max", COLOURS.get(name)) for name, line in points.items())
    title = f"{label[0].upper()}{label[1:]} over time"
    identifier = field.replace("_", "-")
    return Chart(
        f"{identifier}-over-time", title, about, "lines", "ms", series, data.marks, log=True, missing=_none(label)
    )


def hdr(data: RunData) -> Chart:
    """All latencies over a logarithmic axis of percentiles, of the measured phase."""
    series = []
    for position, (field, (label, kind)) in enumerate(KINDS.items()):
        texts = [data.client.histograms.get(field, "")] if data.client is not None else []
        if not any(texts):
            listed = (each for each in data.clients if each.kind == kind and each.phase == "measured")
            texts = [getattr(sample, field) for sample in listed]
        histogram = _merged(texts)
        if histogram is not None:
            series.append(Series(label, curve(histogram), colour=position))
    about = "Measured phase. A curve ends where less than one value lies above it."
    missing = _none("latency")
    return Chart("hdr", "Latency by percentile", about, "hdr", "ms", tuple(series), log=True, missing=missing)


def curve(histogram: Any) -> tuple[Point, ...]:
    count = int(histogram.get_total_count())
    shares = [share for share in HDR_PERCENTILES if share == 50.0 or count * (1 - share / 100) >= 1]
    found = histogram.get_percentile_to_value_dict(shares)
    return tuple((share, found[share] / 1_000) for share in shares if share >= 50)


def generator_lag(data: RunData) -> Chart:
    series = _by_process(data, lambda each: max(sample.generator.lag_ms_max for sample in each.samples))
    about = "How late the timer of a generator process woke at worst. A late generator measures itself."
    shown = Chart(
        "generator-lag", "Generator lag", about + _left_out(data), "lines", "ms", series, data.marks, log=True
    )
    return replace(shown, missing="No generator has reported its lag.")


def generator_cpu(data: RunData) -> Chart:
    def cores(interval: Interval) -> float | None:
        length_s = sum(sample.generator.interval_s for sample in interval.samples)
        return sum(sample.generator.cpu_s for sample in interval.samples) / length_s if length_s > 0 else None

    series = _by_process(data, cores)
    about = "CPU of each generator process. A process runs on one core: near 1 it limits the load."
    shown = Chart("generator-cpu", "Generator CPU", about + _left_out(data), "lines", "cores", series, data.marks)
    return replace(shown, missing="No generator has reported its CPU time.")


def search_steps(client: ClientSummary) -> Chart:
    """Of the search for the highest rate, in its order."""
    steps = client.search
    names = tuple(
        f"{n + 1}. {step.offered_mb_per_s:.4g}{'' if step.sustained else ' ✗'}" for n, step in enumerate(steps)
    )
    offered = tuple((float(n), step.offered_mb_per_s) for n, step in enumerate(steps))
    reached = tuple((float(n), step.reached_mb_per_s) for n, step in enumerate(steps))
    series = (Series("offered", offered, True, 7), Series("reached", reached, colour=0))
    about = "Each step of the search with its offered rate; ✗ marks rates that were not sustained."
    return Chart("search", "Search for the highest rate", about, "bars", "MB/s", series, categories=names)


def _rate(data: RunData, listed: Sequence[Interval], amount: Callable[[ClientSample], float]) -> tuple[Point, ...]:
    return tuple((each.middle_s - data.zero_s, each.per_s(amount)) for each in listed)


def _by_process(data: RunData, value: Callable[[Interval], float | None]) -> tuple[Series, ...]:
    lines: dict[str, tuple[Point, ...]] = {}
    for name in {sample.process for sample in data.clients}:
        listed = intervals(sample for sample in data.clients if sample.process == name)
        lines[name] = tuple((each.middle_s - data.zero_s, value(each)) for each in listed)
    highest = {name: max((y for _, y in line if y is not None), default=0.0) for name, line in lines.items()}
    names = sorted(lines, key=lambda name: (-highest[name], name))[:SERIES_MAX]
    return tuple(Series(name, lines[name]) for name in sorted(names))


def _left_out(data: RunData) -> str:
    count = len({sample.process for sample in data.clients})
    return f" The {SERIES_MAX} highest of {count} processes." if count > SERIES_MAX else ""


def _merged(texts: Iterable[str]) -> Any:
    """None without a value. A damaged histogram is left out."""
    merged = None
    for text in texts:
        try:
            histogram = decode(text) if text else None
        except DAMAGES:
            continue
        if histogram is None or not histogram.get_total_count():
            continue
        if merged is None:
            merged = histogram
        else:
            merged.add(histogram)
    return merged


def _none(what: str) -> str:
    return f"No client has recorded a {what}."
