"""The sink on the simulator: drivers crash, stall and race, stores lose answers and lie about the past, compaction and
vacuum run beside them; afterwards every row of every batch is in the logs once.

Hazards h24 and h24b are the scripted half of this (`llog.testing.hazards`).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from llog.errors import LlogError, SinkBatchOver, SinkPlanLost
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.log.context import LogContext, LogOptions
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.read.read import iter_runs, view
from llog.log.topics.create import initialize
from llog.pipeline.compact.once import compact_once
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.sink.commit import commit_batch
from llog.pipeline.sink.plan import UploadedSlice
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.sink.rows import SinkGroup
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import put_blob
from llog.pipeline.vacuum.job import vacuum
from llog.pipeline.vacuum.references import PlannedBlobs
from llog.testing.sim import HOUR_MS, MANY, ActorContext, World
from llog.testing.sim.actor import log_context
from llog.testing.sim.chooser import SeededChooser

SOAK = os.environ.get("LLOG_SOAK") == "1"
SEEDS = range(2_000) if SOAK else range(10)
BATCHES, ROWS = 3, 8
LOGS = [Log("sales", 0), Log("sales", 1)]
FAULTS = replace(MANY, budget=10, rate=0.04, skew_ms_max=40)


def context_of(ctx: ActorContext, grace_ms: int) -> LogContext:
    return log_context(ctx, options=LogOptions(writer_id=ctx.name, vacuum_grace_ms=grace_ms))


async def upload(context: LogContext, ctx: ActorContext, batch: int) -> list[UploadedSlice]:
    """The rows of a batch, cut into tasks and spread over logs as chance has it."""
    await initialize(context, LOGS[-1])  # the topic has all partitions; the sink's driver finishes the other logs
    order = await sink_order(context, topic="sales")
    rows = [b"%d-%d" % (batch, row) for row in range(ROWS)]
    slices: list[UploadedSlice] = []
    while rows:
        count = ctx.random.randint(1, 3)
        task, rows = rows[:count], rows[count:]
        log = ctx.random.choice(LOGS)
        groups = [SinkGroup(log, len(task), encode_bytes_batch(task), -1)]
        assert context.wal is not None
        tools = tools_of(context)
        slices += await put_blob(tools, order, context.wal, groups, context.random_bits, encoding="bytes-batch-v1")
    return slices


async def drive(ctx: ActorContext, grace_ms: int) -> None:
    """All batches in order, each until it is written, or another driver has gone on."""
    context = context_of(ctx, grace_ms)
    for batch in range(BATCHES):
        while True:
            try:
                await commit_batch(context, SinkBatch("q", batch), await upload(context, ctx, batch))
                break
            except SinkBatchOver:
                break
            except SinkPlanLost as error:
                ctx.record(error)
                return
            except LlogError:
                await ctx.sleep_ms(100)


async def tend(ctx: ActorContext, grace_ms: int) -> None:
    context = context_of(ctx, grace_ms)
    for _ in range(6):
        try:
            for log in LOGS:
                await compact_once(context, log)
            await vacuum(context, LocalTasks(tools_of(context)))
        except LlogError:
            pass
        await ctx.sleep_ms(500)


async def read_all(ctx: ActorContext) -> list[bytes]:
    context = context_of(ctx, HOUR_MS)
    found: list[bytes] = []
    for log in LOGS:
        if await context.metadata.get(context.keys.control(log), strict=True) is None:
            continue
        assert (await check_log(context, log)).faults == ()
        start = (await view(context, log, strict=True)).control.log_start_offset
        found += [r.payload or b"" async for run in iter_runs(context, log, start) for r in run.records()]
    return found


def run(seed: int, *, atomic: bool, grace_ms: int) -> tuple[Counter[bytes], bool]:
    """How often each row is in the logs, and whether vacuum removed the blobs of a plan."""
    with World(SeededChooser(seed), faults=FAULTS, seed=seed, atomic_groups=atomic) as world:
        for name in ("driver-a", "driver-b"):
            world.actor(name, lambda ctx: drive(ctx, grace_ms), restarts=4)
        world.actor("tender", lambda ctx: tend(ctx, grace_ms), restarts=4)
        world.run()
        world.calm()
        world.alone("last-driver", lambda ctx: drive(ctx, grace_ms))
        found = Counter(world.alone("reader", read_all))
        lost = any(isinstance(noted.event, SinkPlanLost) for noted in world.history)
    return found, lost


@pytest.mark.parametrize("grace_ms", [24 * HOUR_MS, 1_000], ids=["patient", "hurried"])
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "compare-and-set"])
def test_every_row_is_there_once_whatever_goes_wrong(atomic: bool, grace_ms: int) -> None:
    """Also where vacuum's grace is shorter than a driver's sleep: blobs of a plan stay until it is done."""
    wanted = Counter(b"%d-%d" % (batch, row) for batch in range(BATCHES) for row in range(ROWS))
    for seed in SEEDS:
        found, lost = run(seed, atomic=atomic, grace_ms=grace_ms)
        assert not lost, f"seed {seed}: a plan was lost to vacuum"
        assert found == wanted, f"seed {seed}"


def test_the_runs_would_show_a_vacuum_that_knows_no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none_at_all(context: LogContext, *, now_ms: int) -> PlannedBlobs:
        return PlannedBlobs(frozenset())

    monkeypatch.setattr("llog.pipeline.vacuum.job.planned_blobs", none_at_all)
    assert any(run(seed, atomic=False, grace_ms=1_000)[1] for seed in range(200))
