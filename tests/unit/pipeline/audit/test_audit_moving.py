"""A log that everybody works on is accused of nothing; what is really wrong with it is found all the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from llog.errors import CompactionFailed, LogBusy, OffsetOutOfRange
from llog.log.append.append import Appender
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogContext
from llog.log.read.view import view
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.vacuum.job import vacuum
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.objects.wrappers import ForwardingObjectStore
from tests.unit.pipeline.audit.auditing import CLICKS, ORDERS, Stage, group

RUNS = 12 if os.environ.get("LLOG_SOAK") == "1" else 1
AUDITS = 2
"""In each run: the log grows with every request of the audit, so a third would take as long as ten runs."""
WRITE_PAUSES = 10
"""Turns of the event loop between two appends. A compaction job takes dozens of turns per run, because it plans, reads
and publishes in tasks of its own. A writer without pauses would outrun it: compaction would never reach the blobs that
the audit reads, vacuum would delete none of them, and the test would show nothing."""


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything computes on the event loop: turns of the loop decide how fast each side works, not the machine."""

    async def on_the_loop(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    monkeypatch.setattr(asyncio, "to_thread", on_the_loop)


class Slow(ForwardingObjectStore):
    """Lets everybody else work before each read."""

    async def get(self, name: str) -> bytes | bytearray | memoryview:
        await let_others_work(0)
        return await self.inner.get(name)


async def let_others_work(_: float) -> None:
    for _ in range(25):
        await asyncio.sleep(0)


def slowed(stage: Stage, seed: int) -> LogContext:
    """The log as a process sees it that is slow in everything."""
    rates, source = FaultRates(delay=1.0), random.Random(seed)
    metadata = FaultyMetadataStore(stage.metadata, random_source=source, rates=rates, sleep=let_others_work)
    return replace(stage.context_on(Slow(stage.objects)), metadata=metadata, sleep=let_others_work)


@asynccontextmanager
async def at_work(stage: Stage, *expected: type[Exception]) -> AsyncIterator[None]:
    """Writers, compaction, merges, retention and vacuum, without a pause; time goes by."""
    working, context = True, stage.context

    async def again_and_again(act: Callable[[], Awaitable[object]], pauses: int) -> None:
        while working:
            with contextlib.suppress(LogBusy, OffsetOutOfRange, *expected):
                await act()
            for _ in range(pauses):
                await asyncio.sleep(0)

    appender = Appender(context)

    async def write() -> None:
        stage.now_ms += 50
        await appender.append([group(ORDERS, 2, stage.rng), group(CLICKS, 1, stage.rng)])

    async def compact() -> None:
        for log in (ORDERS, CLICKS):
            await compact_once(context, log, max_offsets=70)

    async def merge() -> None:
        await merge_once(context, ORDERS)

    async def trim() -> None:
        seen = await view(context, ORDERS)
        await delete_records(context, ORDERS, (seen.log_start_offset + seen.next_offset) // 2)

    async def clean() -> None:
        stage.now_ms += 400_000
        await vacuum(context, stage.runner)

    acts = ((write, WRITE_PAUSES), (compact, 3), (merge, 40), (trim, 60), (clean, 30))
    tasks = [asyncio.create_task(again_and_again(act, pauses)) for act, pauses in acts]
    try:
        yield
    finally:
        working = False
        await asyncio.gather(*tasks)
        await appender.close()


@pytest.mark.parametrize("seed", range(RUNS))
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "compare-and-set"])
async def test_a_log_that_everybody_works_on_is_accused_of_nothing(atomic: bool, seed: int) -> None:
    stage = Stage(atomic=atomic, seed=seed)
    await stage.fill()
    looked_at = moved_on = 0
    async with at_work(stage):
        for number in range(AUDITS):
            context = slowed(stage, number)
            report = await audit(context, LocalTasks(tools_of(context)))
            assert [finding for finding in report.findings if finding.severity == "damage"] == []
            assert report.unchecked == []
            looked_at, moved_on = looked_at + report.entries, moved_on + report.moved_on
    assert looked_at > 10 * AUDITS
    assert moved_on > 0, "objects went while the audit was about to read them: else this test shows nothing"
    report = await audit(stage.context, stage.runner)
    assert report.clean, report.findings


async def test_what_is_wrong_is_found_while_everybody_works() -> None:
    stage = Stage()
    await stage.fill()
    uri = await stage.append(CLICKS)
    await stage.change_object(uri, lambda data: data[:-1])
    async with at_work(stage, CompactionFailed):  # compaction of clicks gets no further than this blob
        context = slowed(stage, 1)
        report = await audit(context, LocalTasks(tools_of(context)))
    assert [finding.object for finding in report.findings if finding.severity == "damage"] == [uri]
