"""Every job at once, two or three of some, while everything goes wrong: nothing is lost, doubled, resurrected or stuck.

LLOG_SOAK=1 …                     many seeds
LLOG_SIM_SEED=17 …                that one alone
"""

from __future__ import annotations

import io
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from llog.errors import LogDeleted, PartitionNotInitialized, TopicNotFound
from llog.log.append.append import Appender
from llog.log.index import entry_of
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.read.view import view
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.job import COMPACT_SESSION_TIMEOUT_MS, compact
from llog.pipeline.compact.once import merge_once
from llog.pipeline.export.job import export
from llog.pipeline.export.parquet import ParquetTarget
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate
from llog.pipeline.key_compact.job import key_compact
from llog.pipeline.key_compact.tasks import REWRITE_KEYS
from llog.pipeline.retain import retain_logs
from llog.pipeline.runtime.log_choice import chosen_logs
from llog.pipeline.runtime.tasks import LocalTasks
from llog.pipeline.vacuum.job import vacuum
from llog.testing.history.recovery import resume
from llog.testing.log_scenarios import FAULTS, GRACE_MS, watch_changes
from llog.testing.sim import SimScenario, World, check_repeatable, run_seed
from tests.unit.pipeline.everything import (
    LOGS,
    NEIGHBOUR,
    ORDERS,
    PRICES,
    SALES,
    Asked,
    NeighbourLanded,
    Player,
    Row,
    acting,
    append_asked,
    begin,
    create_topics,
    drawn_roles,
    nothing_unforeseen,
    sink,
    without_threads,
)
from tests.unit.pipeline.everything_lost import check_restored
from tests.unit.pipeline.everything_model import Held, check_export, check_logs, check_sink, models_of
from tests.unit.pipeline.key_compact.key_stage import FAST

SEEDS: Final = 1_000 if os.environ.get("LLOG_SOAK") == "1" else 2
SEED_CHOSEN: Final = int(os.environ.get("LLOG_SIM_SEED", "-1"))
ALL: Final = (*LOGS, Log(SALES, 0))


def play(world: World) -> None:
    with without_threads(world.seed), nothing_unforeseen():
        watch_changes(world)
        _alone(world, "begin", begin)
        for name, role in drawn_roles(world.seed).items():
            world.actor(name, acting(role), restarts=1, restart_after_ms=200)
        world.run()
        world.calm()
        judge(world)


def judge(world: World) -> None:
    """As left, then after each job has run alone: the logs read as the model says, and the audit finds no damage."""
    _alone(world, "audit-left", audited)
    _alone(world, "resume", resumed)
    models = models_of(world.history)
    held = _alone(world, "look", looked)
    check_logs(models, held)
    for name, job in (("compact", compacted), ("key", cleaned_by_key), ("retain", retained), ("vacuum", vacuumed)):
        _alone(world, name, job)
        after = _alone(world, f"look-after-{name}", looked)
        check_logs(models, after)
        if name in ("compact", "vacuum"):
            assert after == held, name
        held = after
    check_export(models, held, _alone(world, "export", exported))
    _alone(world, "last-sink", sink)
    held = _alone(world, "last-look", looked)
    check_sink(world.history, held[Log(SALES, 0)])
    landed = [noted.event for noted in world.history if isinstance(noted.event, NeighbourLanded)]
    assert set(landed) <= _alone(world, "neighbour", neighbours_records)
    check_restored(world, held)


def _alone(world: World, name: str, step: Callable[[Player], Awaitable[Any]]) -> Any:
    return world.alone(name, acting(step), skew_ms=0)


async def audited(player: Player) -> None:
    report = await audit(player.context, player.runner())
    wrong = [finding for finding in report.findings if finding.severity == "damage"]
    assert not wrong, wrong
    assert report.complete, (report.unsettled, report.unchecked)


async def neighbours_records(player: Player) -> set[NeighbourLanded]:
    context, log = replace(player.context, keys=NEIGHBOUR), Log(ORDERS, 0)
    report = await audit(context, player.runner())
    assert not [finding for finding in report.findings if finding.severity == "damage"], report.findings
    try:
        start = (await view(context, log, strict=True)).control.log_start_offset
    except PartitionNotInitialized:
        return set()
    runs = iter_runs(context, log, start)
    return {NeighbourLanded(one.payload or b"", one.offset) async for run in runs for one in run.records()}


async def resumed(player: Player) -> None:
    # The claims of the dead end with their sessions.
    await player.context.sleep(1.1 * COMPACT_SESSION_TIMEOUT_MS / 1_000)
    for log in ALL:
        await resume(player.context, log)


async def looked(player: Player) -> dict[Log, Held | None]:
    held: dict[Log, Held | None] = {}
    for log in ALL:
        try:
            seen = (await view(player.context, log, strict=True)).control
        except (PartitionNotInitialized, LogDeleted, TopicNotFound):
            held[log] = None
            continue
        runs = iter_runs(player.context, log, seen.log_start_offset)
        records = tuple([record async for run in runs for record in run.records()])
        held[log] = Held(seen.log_start_offset, seen.sequence_counter, records)
        check = await check_log(player.context, log, deep=True)
        assert check.faults == (), (log, check.faults)
    return held


async def compacted(player: Player) -> None:
    report = await compact(player.context, player.runner(), merge=True)
    assert {log.outcome for log in report.logs} <= {"compacted", "resumed", "idle"}, report.logs


async def cleaned_by_key(player: Player) -> None:
    tools = player.tools()
    for _ in range(2):
        report = await key_compact(player.context, player.runner(), LocalKeyAggregate(tools), options=FAST)
        assert report.ok, report.logs
        await player.context.sleep(0.5)
    await compacted(player)
    await audited(player)


async def retained(player: Player) -> None:
    report = await retain_logs(player.context, await chosen_logs(player.context))
    assert report.failed == 0, report.logs


async def vacuumed(player: Player) -> None:
    """A segment is marked in one pass and goes a grace later, so it takes two; then nothing is left over."""
    await player.context.sleep(1.1 * GRACE_MS / 1_000)
    for _ in range(2):
        await vacuum(player.context, player.runner())
        await player.context.sleep(1.1 * GRACE_MS / 1_000)
    report = await audit(player.context, player.runner())
    assert report.findings == [], report.findings
    assert report.complete, (report.unsettled, report.unchecked)


async def exported(player: Player) -> list[tuple[int, int, Row]]:
    """The export is brought up to date, and every file of the directory is read, as by a reader without commits."""
    store = player.exports
    await export(player.context, player.runner(), ORDERS, ParquetTarget(store, ORDERS), allow_gaps=True)
    found = []
    async for meta in store.list(f"{ORDERS}/"):
        table = pq.read_table(io.BytesIO(bytes(await store.get(meta.name))))
        partition = int(meta.name.partition("/partition=")[2].partition("/")[0])
        for row in table.to_pylist():
            [header] = row["headers"]
            found.append((partition, row["offset"], Row(header["value"].decode(), row["key"], row["value"])))
    return found


MANY_FAULTS: Final = replace(FAULTS, budget=10, skew_ms_max=GRACE_MS // 10 - 5)
"""Clocks are as far from the stores' as vacuum lets them be."""
SCENARIOS: Final = {
    atomic: SimScenario(
        "everything", play, MANY_FAULTS, options={"atomic_groups": atomic, "shards": 1 if atomic else 2}
    )
    for atomic in (True, False)
}


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "compare-and-set"])
def test_nothing_is_lost_doubled_resurrected_or_stuck(atomic: bool) -> None:
    for seed in range(SEEDS) if SEED_CHOSEN < 0 else [SEED_CHOSEN]:
        run = run_seed(SCENARIOS[atomic], seed, keep_trace=False)
        assert run.ok, f"LLOG_SIM_SEED={seed}: {run.error!r}\n{run.printed[-4_000:]}"


def test_a_seed_replays_its_run() -> None:
    check_repeatable(SCENARIOS[False], 1)


class _MergeBeforePublish(LocalTasks):
    """Merges the first two segments of `prices` between the first rewrite of a key compaction and its publication."""

    def __init__(self, player: Player, merge_bytes: int) -> None:
        super().__init__(player.tools())
        self._context, self._merge_bytes, self.merged = player.context, merge_bytes, False

    async def run(self, task: Any, items: Any, on_done: Any = None, **parts: Any) -> Any:
        outcomes = await super().run(task, items, on_done, **parts)
        if task is REWRITE_KEYS and not self.merged:
            merged = await merge_once(self._context, Log(PRICES, 0), target_bytes=self._merge_bytes)
            self.merged = merged is not None
        return outcomes


async def key_compact_beside_a_merge(player: Player) -> None:
    """The key compaction rewrites the second and third segment together; the merge takes the first and second."""
    log, appender = Log(PRICES, 0), Appender(player.context)
    for number, keys in enumerate(([b"z"], [b"a", b"b"], [b"a", b"b"] * 3)):
        rows = tuple(Row(f"{number}/{i}", key, b"value") for i, key in enumerate(keys))
        await append_asked(player, appender, [Asked(player.op(), log, rows)])
        await compact(player.context, player.runner(), [log])
    await appender.close()
    index = player.context.metadata.scan_all(player.context.keys.index(log))
    sizes = [entry_of(item).value.byte_length or 0 async for item in index]
    tasks = _MergeBeforePublish(player, sizes[0] + sizes[1])
    await key_compact(player.context, tasks, LocalKeyAggregate(player.tools()), [log], options=FAST)
    assert tasks.merged


def play_merge_race(world: World) -> None:
    with without_threads(world.seed), nothing_unforeseen():
        watch_changes(world)
        world.calm()
        _alone(world, "begin", create_topics)
        _alone(world, "race", key_compact_beside_a_merge)
        judge(world)


async def _yes(*_: object) -> bool:
    return True


def test_the_runs_would_show_a_key_compaction_that_does_not_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the entries that it rewrote are still in the index. The race is scripted, because
    random runs meet it only once in hundreds of seeds."""
    scenario = SimScenario("merge-race", play_merge_race, options=SCENARIOS[False].options)
    run = run_seed(scenario, 0, keep_trace=False)
    assert run.ok, run.printed[-4_000:]
    monkeypatch.setattr("llog.pipeline.key_compact.key_pass._still_stand", _yes)
    error = str(run_seed(scenario, 0, keep_trace=False).error)
    assert "overlap" in error, error
    assert "prices" in error, error
