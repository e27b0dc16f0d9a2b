"""summary.json: what a run cost, what its counters say of each other, and whether its targets were met.

A run that ended early is summarised from the files it left; `complete` is false then, and each missing file is a
warning. The exit code is 1 when records are missing, duplicated or reordered, or when brokers accepted fewer than were
acknowledged. A missed target is a verdict, not a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from llog.errors import RunNotFound
from llog.loadtest.artifacts import ClientSummary, Reconciled, StackRecord, Summary
from llog.loadtest.collect.evidence import Evidence
from llog.loadtest.collect.money import money_of, requests_of
from llog.loadtest.collect.outcome import broker_totals, costs_of, metadata_operations, verdicts_of
from llog.loadtest.collect.reconcile import is_short_of_records, reconcile
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import Scenario

SUMMARY_FILE: Final = "summary.json"
MEASURED_SHARE_MIN: Final = 0.95
"""Of the duration, for a load that ran to its end."""
ARTIFACTS: Final = (
    "resolved-config.json", "stack.json", "routing-manifest.json", "git.json", "environment.json", "logs",
    "metrics-30s.jsonl", "client-30s.jsonl", "client-summary.json", "remap-events.jsonl",
)  # fmt: skip
MAY_BE_EMPTY: Final = frozenset({"remap-events.jsonl", "tail-cache"})

Line = TypeVar("Line")


def summarise(run: RunDirectory) -> Summary:
    """Write summary.json. Raises `RunNotFound` without resolved-config.json."""
    config, damaged = run.config(), list[str]()
    evidence = Evidence.of(
        config.scenario,
        stack=_single(run, "stack.json", StackRecord, damaged),
        client=_single(run, "client-summary.json", ClientSummary, damaged),
        client_samples=_lines("client-30s.jsonl", run.client_samples(), damaged),
        samples=_lines("metrics-30s.jsonl", run.metrics_samples(), damaged),
        faults=_lines("fault-events.jsonl", run.faults(), damaged),
        artifacts=artifacts_of(run, config.scenario),
    )
    summary = summary_of(evidence, config.run_id, damaged)
    run.write(SUMMARY_FILE, summary)
    return summary


def summary_of(evidence: Evidence, run_id: str, damaged: Sequence[str] = ()) -> Summary:
    """Pure. `damaged`: warnings about files that could not be read."""
    reconciled, money = reconcile(evidence), money_of(evidence)
    began_s, ended_s = _stretch(evidence)
    return Summary(
        run_id=run_id,
        scenario=evidence.scenario.name,
        description=evidence.scenario.description,
        began_s=began_s,
        ended_s=ended_s,
        complete=_is_complete(evidence),
        client=evidence.client,
        costs=costs_of(evidence),
        money=money,
        brokers=broker_totals(evidence),
        metadata_operations=metadata_operations(evidence),
        s3_operations={name: float(count) for name, count in requests_of(evidence.services).items()},
        reconciled=tuple(reconciled),
        warnings=(*damaged, *(row.warning for row in reconciled if row.warning)),
        verdicts=verdicts_of(evidence, money),
        artifacts=evidence.artifacts,
        exit_code=exit_code_of(evidence.client, reconciled),
    )


def exit_code_of(client: ClientSummary | None, reconciled: Iterable[Reconciled]) -> int:
    """1 for records that are missing, repeated or out of order, and for partitions where nobody looked for them."""
    loss = None if client is None else client.loss
    wrong = loss is not None and (loss.missing or loss.duplicates or loss.reordered)
    wrong = wrong or (client is not None and client.partitions_unfinished)
    return 1 if wrong or is_short_of_records(reconciled) else 0


def artifacts_of(run: RunDirectory, scenario: Scenario) -> dict[str, bool]:
    """Whether each file that a run leaves is there, with content where it must have some."""
    names = (*ARTIFACTS, "tail-cache") if scenario.stack.share_tail_cache else ARTIFACTS
    return {name: _is_present(run, name) for name in names}


def _is_present(run: RunDirectory, name: str) -> bool:
    path = run.path / name
    if name in MAY_BE_EMPTY:
        return path.exists()
    return any(path.iterdir()) if path.is_dir() else path.is_file() and path.stat().st_size > 0


def _single(run: RunDirectory, name: str, kind: type[Line], damaged: list[str]) -> Line | None:
    try:
        return run.read(name, kind)
    except RunNotFound as error:
        damaged.append(str(error))
        return None


def _lines(name: str, lines: Iterable[Line], damaged: list[str]) -> tuple[Line, ...]:
    """The lines before a damaged one."""
    read: list[Line] = []
    try:
        read.extend(lines)
    except msgspec.DecodeError as error:
        damaged.append(f"{name} is damaged after line {len(read)}, the rest of it is left out: {error}")
    return tuple(read)


def _stretch(evidence: Evidence) -> tuple[float, float]:
    times = [sample.at_s for sample in evidence.samples]
    for sample in evidence.client_samples:
        times += [sample.begin_s, sample.end_s]
    return min(times, default=0.0), max(times, default=0.0)


def _is_complete(evidence: Evidence) -> bool:
    """The measured phase was as long as wanted, and the collector took its last sample."""
    client, load = evidence.client, evidence.scenario.load
    if client is None or not any(sample.final for sample in evidence.samples):
        return False
    return load.search is not None or client.measured_s >= MEASURED_SHARE_MIN * load.duration_s
