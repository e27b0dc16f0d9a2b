"""Figures of a summary that are not comparisons: processor time per process, totals of the brokers, verdicts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from llog.loadtest.artifacts import MoneyRates, ProcessCost, ProcessSample, Verdict
from llog.loadtest.collect.evidence import BYTES_PER_GB, Evidence
from llog.loadtest.collect.lives import below, sum_of
from llog.loadtest.collect.money import rates_mb_per_s
from llog.stores.metering import METADATA_OPERATIONS

_BROKER_TOTALS: Final = {
    "records": ("log.append_records",),
    "payload_bytes": ("log.append_payload_bytes",),
    "encoded_bytes": ("log.append_bytes",),
    "record_groups": ("log.append_groups",),
    "append_failures": ("log.append_failures",),
    "append_runs": ("append.runs",),
    "append_attempts": ("append.cas_rounds",),
    "append_conflicts": ("append.conflicts",),
    "append_uncertain": ("append.uncertain",),
    "flush_failures": ("batching.flush_failures",),
    "rejections": ("batching.rejections",),
    "records_returned": ("consume.records.cache", "consume.records.store"),
    "payload_bytes_returned": ("consume.payload_bytes.cache", "consume.payload_bytes.store"),
    "encoded_bytes_returned": ("consume.bytes.cache", "consume.bytes.store"),
    "consume_requests": ("consume.requests.cache", "consume.requests.store", "consume.requests.empty"),
    "cache_hits": ("tail_cache.events.hit",),
    "cache_empty": ("tail_cache.events.empty",),
    "cache_misses": ("tail_cache.events.miss",),
    "cache_evictions": ("tail_cache.events.evicted",),
    "store_reads": ("log.read_gets",),
    "store_read_bytes": ("log.read_bytes",),
}


def broker_totals(evidence: Evidence) -> dict[str, float]:
    """Over the run and all lives of the brokers."""
    brokers = evidence.brokers
    totals = {name: sum(sum_of(brokers, path) for path in paths) for name, paths in _BROKER_TOTALS.items()}
    totals["flushes"] = sum(sum(below(broker.totals, "batching.flushes").values()) for broker in brokers)
    totals["restarts"] = sum(len(broker.gaps) for broker in brokers)
    return totals


def metadata_operations(evidence: Evidence) -> dict[str, float]:
    """Calls of brokers and compactors over the run."""
    services = evidence.services
    return {name: sum_of(services, f"metadata.operations.{name}.calls") for name in METADATA_OPERATIONS}


# -- processor time ----------------------------------------------------------------------------------------------------


def costs_of(evidence: Evidence) -> tuple[ProcessCost, ...]:
    produced, consumed = rates_mb_per_s(evidence)
    gigabytes = (produced or consumed) * 1e6 * evidence.measured.seconds / BYTES_PER_GB
    names = dict.fromkeys(process.name for sample in evidence.samples for process in sample.processes)
    return tuple(_cost(evidence, name, gigabytes) for name in names)


def _cost(evidence: Evidence, name: str, gigabytes: float) -> ProcessCost:
    window = evidence.measured
    seen = [
        (sample.at_s, process)
        for sample in evidence.samples
        for process in sample.processes
        if process.name == name and process.alive
    ]
    inside = [(at_s, process) for at_s, process in seen if window.begin_s <= at_s <= window.end_s]
    cpu_s = sum(_between(before, after) for (_, before), (_, after) in pairwise(inside))
    if inside:  # a process that began inside the window brings all its time
        at_s, first = inside[0]
        cpu_s += first.cpu_s if first.started_s > window.begin_s and at_s > window.begin_s else 0.0
    kind = next(process.kind for sample in evidence.samples for process in sample.processes if process.name == name)
    rss_bytes_max = max((process.rss_bytes for _, process in seen), default=0)
    return ProcessCost(name, kind, cpu_s, cpu_s / gigabytes if gigabytes else 0.0, rss_bytes_max)


def _between(before: ProcessSample, after: ProcessSample) -> float:
    """A process that started again counts from 0."""
    restarted = after.started_s != before.started_s or after.cpu_s < before.cpu_s
    return after.cpu_s if restarted else after.cpu_s - before.cpu_s


# -- verdicts ----------------------------------------------------------------------------------------------------------


def verdicts_of(evidence: Evidence, money: MoneyRates) -> tuple[Verdict, ...]:
    """One per target that is set; none without the clients' summary."""
    client, targets = evidence.client, evidence.scenario.targets
    if client is None:
        return ()
    lowest = (
        ("produce_mb_per_s_min", targets.produce_mb_per_s_min, client.produced_mb_per_s),
        ("consume_mb_per_s_min", targets.consume_mb_per_s_min, client.consumed_mb_per_s),
    )
    highest = (
        ("produce_p99_ms_max", targets.produce_p99_ms_max, client.latency.p99),
        ("end_to_end_p99_ms_max", targets.end_to_end_p99_ms_max, client.end_to_end.p99),
        ("dollars_per_hour_max", targets.dollars_per_hour_max, money.requests_per_hour),
        ("failed_requests_max", targets.failed_requests_max, float(sum(client.failed.values()))),
    )
    return (*_verdicts(lowest, is_lowest=True), *_verdicts(highest, is_lowest=False))


def _verdicts(rows: Iterable[tuple[str, float | None, float]], *, is_lowest: bool) -> Iterable[Verdict]:
    for target, limit, value in rows:
        if limit is not None:
            yield Verdict(target, limit, value, value >= limit if is_lowest else value <= limit)
