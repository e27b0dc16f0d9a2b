"""One summary from what all generator processes left. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from llog.loadtest.artifacts import ClientSample, ClientSummary, Histogram, Loss, Percentiles, Phase, SearchStep
from llog.loadtest.client.histograms import encode, merge, percentiles
from llog.loadtest.client.ledger import total_loss
from llog.loadtest.client.orders import ConsumerResult, ProducerResult

BUSY_SHARE_MAX: Final = 0.9
"""Of the time that a process uses a core or waits for one. With more it has no time left to be punctual."""
LATE_SHARE_MAX: Final = 0.01
"""Of the requests: more of them decide the p99."""
LAG_MS_MIN: Final = 20.0
"""Shorter stalls of an event loop do not matter."""
EXPLAINS_SHARE: Final = 0.5
"""Of the p99 of the latency: a delay of the generator that reaches it explains the latency."""
LAGGING_SHARE_MAX: Final = 0.1
"""Of the intervals with such a stall; one alone may be chance."""
HISTOGRAMS: Final = ("latency", "service", "send_delay")


class Finished(NamedTuple):
    """What is known when all processes have ended."""

    run_id: str
    offered_mb_per_s: float
    measured_s: float
    samples: Sequence[ClientSample]
    producers: Sequence[ProducerResult]
    consumers: Sequence[ConsumerResult]
    losses: Mapping[str, Loss]
    search: tuple[SearchStep, ...]


def of_phase(samples: Iterable[ClientSample], kind: str, phase: Phase = "measured") -> list[ClientSample]:
    return [sample for sample in samples if sample.kind == kind and sample.phase == phase]


def summarise(finished: Finished) -> ClientSummary:
    produced, consumed = (of_phase(finished.samples, kind) for kind in ("producer", "consumer"))
    histograms = {name: _merged(getattr(sample, name) for sample in produced) for name in HISTOGRAMS} | {
        "consume": _merged(sample.latency for sample in consumed),
        "end_to_end": _merged(sample.end_to_end for sample in consumed),
    }
    figures = {name: percentiles(merge([text])) for name, text in histograms.items()}
    return ClientSummary(
        run_id=finished.run_id,
        measured_s=finished.measured_s,
        offered_mb_per_s=finished.offered_mb_per_s,
        produced_mb_per_s=_mb_per_s(produced, finished.measured_s),
        consumed_mb_per_s=_mb_per_s(consumed, _span_s(consumed)),
        due_requests=sum(sample.due_requests for sample in produced),
        requests=sum(sample.requests for sample in produced),
        failed=_counted(sample.failed for sample in (*produced, *consumed)),
        retried=_counted(sample.retried for sample in finished.samples),
        records_intended=sum(result.records_intended for result in finished.producers),
        records_acknowledged=sum(result.records_acknowledged for result in finished.producers),
        payload_bytes_acknowledged=sum(result.payload_bytes_acknowledged for result in finished.producers),
        records_received=sum(result.records_received for result in finished.consumers),
        payload_bytes_received=sum(result.payload_bytes_received for result in finished.consumers),
        latency=figures["latency"],
        service=figures["service"],
        send_delay=figures["send_delay"],
        consume=figures["consume"],
        end_to_end=figures["end_to_end"],
        histograms=histograms,
        loss=total_loss(finished.losses.values()),
        losses=finished.losses,
        limited_by_generator=limited_by_generator([*produced, *consumed]),
        search=finished.search,
        uncertain_records=sum(result.uncertain_records for result in finished.producers),
        partitions_unfinished=sum(result.partitions_unfinished for result in finished.consumers),
        records_misplaced=sum(result.records_misplaced for result in finished.consumers),
    )


def limited_by_generator(samples: Sequence[ClientSample]) -> str:
    """Why the figures describe the generator; empty if they do not."""
    processes = sorted({sample.process for sample in samples})
    reasons = [_limit_of(process, [s for s in samples if s.process == process]) for process in processes]
    return "; ".join(filter(None, reasons))


def _limit_of(process: str, samples: Sequence[ClientSample]) -> str:
    intervals = [sample for sample in samples if sample.generator.interval_s > 0]
    seconds = sum(sample.generator.interval_s for sample in intervals)
    cpu_s = sum(sample.generator.cpu_s for sample in intervals)
    waited_s = sum(sample.generator.waited_s for sample in intervals)
    late = sum(sample.generator.late_requests for sample in intervals)
    requests = sum(sample.requests for sample in samples)
    lag_ms = max((sample.generator.lag_ms_max for sample in intervals), default=0.0)
    lagging = [sample for sample in intervals if _lag_explains(sample)]
    if cpu_s + waited_s > BUSY_SHARE_MAX * seconds:
        waited = f" and waited {waited_s / seconds:.2f} of the time for one" if cpu_s < BUSY_SHARE_MAX * seconds else ""
        return f"{process} used {cpu_s / seconds:.2f} of a core{waited}"
    if late > LATE_SHARE_MAX * requests and lag_ms > EXPLAINS_SHARE * latency_of(samples).p99:
        return f"{process} sent {late} requests late although a client had room"
    if len(lagging) > max(1, LAGGING_SHARE_MAX * len(intervals)):
        worst_ms = max(sample.generator.lag_ms_max for sample in lagging)
        return f"the event loop of {process} woke up to {worst_ms:.0f} ms late"
    return ""


def latency_of(samples: Iterable[ClientSample]) -> Percentiles:
    return percentiles(merge(sample.latency for sample in samples))


def _lag_explains(sample: ClientSample) -> bool:
    lag_ms = sample.generator.lag_ms_max
    return lag_ms > LAG_MS_MIN and lag_ms > EXPLAINS_SHARE * latency_of([sample]).p99


def _merged(texts: Iterable[Histogram]) -> Histogram:
    histogram = merge(texts)
    return encode(histogram) if histogram.get_total_count() else ""


def _counted(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for some in counts:
        total.update(some)
    return dict(total)


def _mb_per_s(samples: Sequence[ClientSample], seconds: float) -> float:
    return sum(sample.payload_bytes for sample in samples) / 1e6 / seconds if seconds > 0 else 0.0


def _span_s(samples: Sequence[ClientSample]) -> float:
    return max(s.end_s for s in samples) - min(s.begin_s for s in samples) if samples else 0.0
