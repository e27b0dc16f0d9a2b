"""Jobs, single compactors and writers on the same logs at once, on a metadata store that fails now and then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from llog.errors import LlogError, MetadataUnavailable
from llog.log.context import LogContext
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.compact.plan import SegmentRules, Sizing
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import GroupOutcome, Write
from tests.unit.pipeline.compact.compact_stage import Stage, cursor_and_counter, entries_of, records_of

LOGS = [Log("orders", partition) for partition in range(5)]
APPENDS = 50
RATES = FaultRates(delay=0.2, delay_ms_max=2, unavailable=0.01, lost_reply=0.02, lost_request=0.02)
SMALL = CompactOptions(
    rules=SegmentRules(target_bytes=1_500), sizing=Sizing(2, window_bytes_min=2_000, window_bytes_max=4_000)
)


async def repeat_until(done: asyncio.Event, work: Callable[[], Awaitable[object]]) -> int:
    """Repeat the work, also after one of our errors; returns how often it had a result."""
    finished = 0
    while not done.is_set():
        try:
            finished += await work() is not None
        except LlogError:
            pass
        await asyncio.sleep(0.002)
    return finished


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "compare-and-set"])
async def test_nothing_is_lost_or_doubled_while_everybody_works_on_the_same_logs(atomic: bool) -> None:
    stage = Stage(atomic=atomic)
    await stage.append(*LOGS)
    rng = random.Random(11)

    def faulty(seed: int) -> LogContext:
        inner = MemoryStore(stage.backing)
        return stage.open(FaultyMetadataStore(inner, random_source=random.Random(seed), rates=RATES))

    async def job(context: LogContext, owner: str, merge: bool) -> object:
        runner = LocalTasks(tools_of(context), at_once=1 if merge else 4)
        return await compact(context, runner, options=SMALL, merge=merge, owner=owner)

    async def zombie(context: LogContext) -> object:
        """A compactor that does not ask for claims."""
        log = rng.choice(LOGS)
        return await (compact_once(context, log, max_offsets=4) if rng.random() < 0.7 else merge_once(context, log))

    first, second, third = faulty(1), faulty(2), faulty(3)
    done = asyncio.Event()
    workers = [
        asyncio.create_task(repeat_until(done, lambda: job(first, "first", True))),
        asyncio.create_task(repeat_until(done, lambda: job(second, "second", False))),
        asyncio.create_task(repeat_until(done, lambda: zombie(third))),
    ]
    for _ in range(APPENDS):
        await stage.append(*rng.sample(LOGS, 3), records=2, size=150)
        for log in rng.sample(LOGS, 1):
            await records_of(stage.context, log)  # which finds no gap
    done.set()
    finished = await asyncio.gather(*workers)
    assert finished[0] > 0
    assert finished[2] > 0

    before = {log: await records_of(stage.context, log) for log in LOGS}
    assert {log: [record.payload for record in records] for log, records in before.items()} == stage.appended
    report = await compact(stage.context, LocalTasks(tools_of(stage.context)), options=SMALL, merge=True)
    assert not report.failed
    assert report.count("claimed_elsewhere") == 0
    assert {log: await records_of(stage.context, log) for log in LOGS} == before
    for log in LOGS:
        assert (await check_log(stage.context, log, deep=True)).faults == ()
        assert len(set(await cursor_and_counter(stage.context, log))) == 1
        assert {entry.value.type for entry in await entries_of(stage.context, log)} == {"COMPACTED"}


class NoClaim(FaultyMetadataStore):
    """Takes no claim on one log."""

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        outcomes = await super().write(groups)
        return [
            MetadataUnavailable("put", group[0].key.path, "away")
            if group[0].key.path.endswith("orders/partitions/2/meta/compactor-claim")
            else outcome
            for group, outcome in zip(groups, outcomes, strict=True)
        ]


async def test_a_log_whose_claim_gets_no_answer_fails_alone() -> None:
    stage = Stage()
    await stage.append(*LOGS)
    context = stage.open(NoClaim(MemoryStore(stage.backing), random_source=random.Random(1)))
    report = await compact(context, LocalTasks(tools_of(context)))
    outcomes = {log.partition: (log.outcome, log.error_type) for log in report.logs}
    assert outcomes.pop(2) == ("failed", "MetadataUnavailable")
    assert set(outcomes.values()) == {("compacted", "")}
