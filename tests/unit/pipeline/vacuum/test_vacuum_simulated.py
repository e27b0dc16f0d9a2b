"""Vacuum and audit as jobs while everything goes wrong: real code of every part, crashes, stalls past the grace, lost
answers, clocks that differ; an independent checker judges what is left. A seed replays its run exactly.

    (6)  vacuum never takes what is or could be named, and leaves no orphan older than the grace
    (7)  audit reports no damage while other jobs run, and nothing at all when they are done
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import pytest

from llog.log.cluster import join_cluster
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.pipeline.audit.job import audit
from llog.pipeline.retain import retain_logs
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.vacuum import job as vacuum_job
from llog.testing import log_scenarios
from llog.testing.history import Broken, Checker, Client, Phase
from llog.testing.history.operators import vacuum_chore
from llog.testing.history.workload import tend
from llog.testing.log_scenarios import (
    FAULTS,
    GRACE_MS,
    KEYS,
    LOGS,
    PAUSES_MS,
    ROLES,
    Role,
    alone,
    client,
    dump_of,
    operations_in,
    watch_changes,
)
from llog.testing.sim import SimScenario, World, run_seed

SEEDS: Final = 400 if os.environ.get("LLOG_SOAK") == "1" else 5
SEED_CHOSEN: Final = int(os.environ.get("LLOG_SIM_SEED", "-1"))


def runner_of(context: LogContext) -> LocalTasks:
    return LocalTasks(tools_of(context))


async def audit_chore(context: LogContext, log: Log) -> None:
    report = await audit(context, runner_of(context), fast=bool(context.random_bits(1)))
    wrong = [finding for finding in report.findings if finding.severity == "damage"]
    assert not wrong, wrong


HERE: Final[Mapping[str, Role]] = {
    **ROLES,
    "vacuum": lambda c, n, logs: tend(c, logs, 3 * n, [vacuum_chore]),
    "vacuum-2": lambda c, n, logs: tend(c, logs, 3 * n, [vacuum_chore]),
    "auditor": lambda c, n, logs: tend(c, logs, 4 * n, [audit_chore]),
}
PAUSES: Final = {**PAUSES_MS, "vacuum": 700, "vacuum-2": 500, "auditor": 200}
ALWAYS: Final = ("writer-1", "writer-2", "compactor", "vacuum")
SOMETIMES: Final = ("producer", "merger", "retention", "deleter", "vacuum-2", "auditor", "reader")


def play(world: World) -> None:
    watch_changes(world)
    alone(world, "first", found_cluster)
    draw = random.Random(f"{world.seed}/roles")
    for name in (*ALWAYS, *draw.sample(SOMETIMES, 3)):
        acting = client(partial(_act, HERE[name], 2), pause_ms=PAUSES.get(name, 120))
        world.actor(name, acting, restarts=1, restart_after_ms=200)
    world.run()
    judge(world)


async def _act(role: Role, amount: int, client: Client) -> None:
    await role(client, amount, LOGS)


def judge(world: World) -> None:
    """As left, after a recovery, after a lone compactor, and after retain and vacuum: then nothing is left over."""
    log_scenarios.judge(world)
    alone(world, "clean", clean)
    Checker(KEYS, grace_ms=GRACE_MS).check(operations_in(world), dump_of(world), Phase.CLEANED)
    alone(world, "audit", audit_at_last)


async def found_cluster(context: LogContext) -> None:
    await join_cluster(context)


async def clean(context: LogContext) -> None:
    """A segment is marked in one pass and goes a grace later, so it takes two."""
    await context.sleep(1.1 * GRACE_MS / 1_000)
    report = await retain_logs(context, LOGS)
    assert report.failed == 0, report.logs
    for _ in range(2):
        await vacuum_job.vacuum(context, runner_of(context))
        await context.sleep(1.1 * GRACE_MS / 1_000)
    dry = await vacuum_job.vacuum(context, runner_of(context), dry_run=True)
    assert (dry.blobs_deleted, dry.segments_deleted, dry.segments_marked) == (0, 0, 0), dry


async def audit_at_last(context: LogContext) -> None:
    report = await audit(context, runner_of(context))
    assert report.findings == []
    assert report.complete


SCENARIOS: Final = {
    atomic: SimScenario("vacuum-job", play, FAULTS, options={"atomic_groups": atomic, "shards": 1 if atomic else 2})
    for atomic in (True, False)
}


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "compare-and-set"])
def test_vacuum_takes_nothing_that_is_named_and_leaves_no_orphan(atomic: bool) -> None:
    for seed in range(SEEDS) if SEED_CHOSEN < 0 else [SEED_CHOSEN]:
        run = run_seed(SCENARIOS[atomic], seed, keep_trace=False)
        assert run.ok, f"LLOG_SIM_SEED={seed}: {run.error!r}\n{run.printed[-4_000:]}"


async def _ask_no_log(context: LogContext, candidates: Sequence[Any], *_: Any) -> list[Any]:
    """Vacuum without its questions: no horizon is raised, and the plain pass decides."""
    return list(candidates)


def test_the_runs_fail_for_a_vacuum_that_asks_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.log.cleanup.vacuum.unnamed_by_logs", _ask_no_log)
    for seed in range(13, 200):  # about every fifth does; 13 is the first
        error = run_seed(SCENARIOS[False], seed, keep_trace=False).error
        # (A log that is not asked is not tidied either, so audit finds leftovers in other runs.)
        if isinstance(error, Broken) and "I8" in str(error):
            return
    pytest.fail("no run noticed")
