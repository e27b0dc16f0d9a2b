"""A load test reduced to the figures that docs/performance.md shows.

What the run directory says about the run itself (scenario with its changes, machine, commit, prices) goes with the
figures, so that they can be repeated and judged. Only complete runs are reduced: the figures of others say little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from llog.errors import RunNotFound
from llog.loadtest.artifacts import Loss, ProcessCost, Verdict
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import Scenario
from llog.loadtest.stack.snapshots import ENVIRONMENT, GIT, EnvironmentSnapshot, GitSnapshot
from llog.stores.objects.pricing import S3_STANDARD_US_EAST_1, Prices
from tests.benchmarks.history import Machine, Origin, read_entries, utc, write_entries


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p99: float
    p999: float
    max: float


class Cpu(msgspec.Struct, frozen=True):
    name: str
    kind: str
    cpu_s_per_gb: float
    rss_mb_max: int


class ScenarioFigures(msgspec.Struct, frozen=True):
    scenario: str
    run_id: str
    description: str
    changes: tuple[str, ...]
    """`--set` arguments: what differs from the shipped scenario."""
    stack: str
    """Protocol, brokers, stores, partitions."""
    measured_s: float
    offered_mb_per_s: float
    produced_mb_per_s: float
    consumed_mb_per_s: float
    failed_requests: int
    produce: Latency | None
    """None if the run measured none."""
    end_to_end: Latency | None
    cpu: tuple[Cpu, ...]
    dollars_per_hour: float
    """Of requests."""
    dollars_per_gb: float
    kafka_dollars_per_hour: float
    prices: Mapping[str, float]
    loss: Loss
    missed: tuple[Verdict, ...]
    warnings: tuple[str, ...]
    origin: Origin


def reduce_run(run: RunDirectory, prices: Prices = S3_STANDARD_US_EAST_1) -> ScenarioFigures:
    """Raises `RunNotFound` for a run without a summary, without clients, or that did not run to its end."""
    summary, config = run.summary(), run.config()
    if summary is None or summary.client is None or not summary.complete:
        raise RunNotFound(run.run_id, "it did not run to its end, so its figures are not stored")
    client, money = summary.client, summary.money
    # A run that only read has no producers, one that only wrote no consumers.
    latencies = {"produce": client.latency, "end_to_end": client.end_to_end}
    figures = {
        name: Latency(found.p50, found.p99, found.p999, found.max) if found.count else None
        for name, found in latencies.items()
    }
    return ScenarioFigures(
        scenario=summary.scenario,
        run_id=run.run_id,
        description=summary.description,
        changes=config.changes,
        stack=_stack_text(config.scenario),
        measured_s=client.measured_s,
        offered_mb_per_s=client.offered_mb_per_s,
        produced_mb_per_s=client.produced_mb_per_s,
        consumed_mb_per_s=client.consumed_mb_per_s,
        failed_requests=sum(client.failed.values()),
        produce=figures["produce"],
        end_to_end=figures["end_to_end"],
        cpu=tuple(map(_cpu, summary.costs)),
        dollars_per_hour=money.requests_per_hour,
        dollars_per_gb=money.per_gb,
        kafka_dollars_per_hour=money.kafka_cross_zone_per_hour,
        prices={
            "per 1,000 PUTs and LISTs": prices.per_1000_puts_and_lists,
            "per 10,000 GETs": prices.per_10000_gets_and_others,
        },
        loss=client.loss,
        missed=tuple(verdict for verdict in summary.verdicts if not verdict.ok),
        warnings=summary.warnings,
        origin=_origin(run, summary.began_s),
    )


def add_runs(path: Path, runs: Iterable[Path]) -> list[ScenarioFigures]:
    """Reduce the runs; each replaces the stored one of its scenario. Nothing is stored if one of them cannot be."""
    added = [reduce_run(RunDirectory(run)) for run in runs]
    stored = {figures.scenario: figures for figures in [*read_entries(path, ScenarioFigures), *added]}
    write_entries(path, [stored[name] for name in sorted(stored)])
    return added


def _cpu(cost: ProcessCost) -> Cpu:
    return Cpu(cost.name, cost.kind, round(cost.cpu_s_per_gb, 2), round(cost.rss_bytes_max / 1e6))


def _stack_text(scenario: Scenario) -> str:
    load, stack = scenario.load, scenario.stack
    protocol = "HTTP" if load.protocol == "http" else f"Kafka ({load.engine})"
    brokers = f"{stack.brokers} broker{'s' if stack.brokers > 1 else ''}"
    return f"{protocol}, {brokers}, {stack.metadata} and {stack.objects}, {scenario.partitions:,} partitions"


def _origin(run: RunDirectory, began_s: float) -> Origin:
    environment, git = run.read(ENVIRONMENT, EnvironmentSnapshot), run.read(GIT, GitSnapshot)
    if environment is None:
        raise RunNotFound(run.run_id, f"it has no {ENVIRONMENT}, so its machine is not known")
    at = utc(began_s)
    return Origin(at, git.commit if git else "", git is not None and git.dirty, Machine.of(environment))
