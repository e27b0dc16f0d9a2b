"""What the collector may have missed: pages that were not read, samples that were not taken, processes that ended.

A page that cannot be read is expected only where the scenario says so: of a broker that a fault killed or paused, until
FAULT_SETTLE_S after its end, and of brokers that start again before consumers begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from llog.loadtest.artifacts import FaultEvent, PageSample, Reconciled
from llog.loadtest.collect.evidence import Evidence
from llog.loadtest.collect.scrape import SCRAPE_S_MAX

FAULT_SETTLE_S: Final = 30.0
"""For a broker to start again after a fault; a scrape of a paused one also ends late."""
LATE_INTERVALS: Final = 1.0
"""A sample may be late by this many intervals, and by one scrape that gets no answer."""


def coverage(evidence: Evidence) -> list[Reconciled]:
    return [
        *(_scrapes(evidence, name) for name in evidence.service_names),
        _cadence(evidence),
        _final_sample(evidence),
        *_ended(evidence),
    ]


def _scrapes(evidence: Evidence, name: str) -> Reconciled:
    """Every sample has a page of every process in stack.json."""
    missed = []
    for sample in evidence.samples:
        page = next((page for page in sample.pages if page.name == name), PageSample(name, False, "it was not scraped"))
        if not page.ok and not _is_excused(evidence, name, sample.at_s, sample.phase):
            missed.append((sample.at_s, page.error))
    expected, found = len(evidence.samples), len(evidence.samples) - len(missed)
    if not missed:
        return Reconciled(f"scrapes of {name}", expected, found, expected > 0, "" if expected else _none_of(name))
    at_s, error = missed[0]
    warning = (
        f"metrics-30s.jsonl has {found} pages of {name} in {expected} samples, although stack.json names it;"
        f" the first was missed {_after(evidence, at_s)}: {error}"
    )
    return Reconciled(f"scrapes of {name}", expected, found, False, warning)


def _none_of(name: str) -> str:
    return f"stack.json names {name}, and metrics-30s.jsonl has no sample"


def _cadence(evidence: Evidence) -> Reconciled:
    """Samples follow each other within the interval."""
    interval_s, times = evidence.scenario.collect.interval_s, [sample.at_s for sample in evidence.samples]
    limit_s = interval_s * (1 + LATE_INTERVALS) + SCRAPE_S_MAX
    longest_s = max((after - before for before, after in pairwise(times)), default=0.0)
    warning = ""
    if longest_s > limit_s:
        warning = (
            f"the collector took no sample for {longest_s:.1f} s, although collect.interval_s is {interval_s:g}:"
            " counters of that time are spread evenly over it"
        )
    return Reconciled("longest time between samples", interval_s, longest_s, not warning, warning)


def _final_sample(evidence: Evidence) -> Reconciled:
    found = sum(sample.final for sample in evidence.samples)
    warning = "" if found else "metrics-30s.jsonl has no final sample: totals of brokers end with the last one before"
    return Reconciled("final sample", 1, found, bool(found), warning)


def _ended(evidence: Evidence) -> Iterable[Reconciled]:
    """Processes that were to run until the end and did not."""
    dead: dict[str, float] = {}
    for sample in evidence.samples:
        for process in sample.processes:
            may_end = process.kind in ("producer", "consumer", "collector", "other") and sample.phase == "after"
            if not process.alive and not may_end and not _is_excused(evidence, process.name, sample.at_s, sample.phase):
                dead.setdefault(process.name, sample.at_s)
    for name, at_s in dead.items():
        warning = (
            f"stack.json names the process {name}, which did not run {_after(evidence, at_s)}; see logs/{name}.log"
        )
        yield Reconciled(f"process {name}", 1, 0, False, warning)


def _is_excused(evidence: Evidence, name: str, at_s: float, phase: str) -> bool:
    if phase == "after" and evidence.scenario.consumers.restart_brokers and name in evidence.broker_names:
        return True
    return any(begin <= at_s <= end for begin, end in fault_times(evidence.faults, name))


def fault_times(faults: Iterable[FaultEvent], name: str) -> list[tuple[float, float]]:
    """When a process is expected to be away: from shortly before a fault, as a scrape takes a while, until it has
    settled."""
    times: list[tuple[float, float]] = []
    begun: FaultEvent | None = None
    for fault in faults:
        if fault.target != name or not fault.kind.endswith("_broker"):
            continue
        if fault.phase == "begin":
            begun = fault
        elif begun is not None:
            times.append((begun.at_s - SCRAPE_S_MAX, fault.at_s + FAULT_SETTLE_S))
            begun = None
    if begun is not None:
        times.append((begun.at_s - SCRAPE_S_MAX, float("inf")))
    return times


def _after(evidence: Evidence, at_s: float) -> str:
    return f"{at_s - evidence.samples[0].at_s:.0f} s after the first sample"
