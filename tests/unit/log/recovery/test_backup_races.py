"""A slow backup beside busy writers, compaction and retention: whole, never torn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from dataclasses import replace

import pytest

from llog.errors import LogBusy, OffsetOutOfRange
from llog.log.append.append import Appender
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogContext
from llog.log.inspect.invariants import check_log
from llog.log.read.view import view
from llog.log.recovery.restore import inspect_backup, restore_backup
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.contract.backup_suite import backed_up, memory_context
from tests.contract.log_suite import ORDERS, contents, context_on, group

SEEDS = 100 if os.environ.get("LLOG_SOAK") == "1" else 6


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Busy:
    """A log that others work on, each call to its store taking a few turns of the event loop."""

    def __init__(self, seed: int, *, atomic: bool) -> None:
        self.objects = MemoryObjectStore(f"memory://race-{seed}-{atomic}-{time.time_ns()}")
        self._backing = MemoryBacking(shards=1 if atomic else 4, atomic_groups=atomic)
        self._random = random.Random(seed)
        self.working = True
        self._rests = 0
        self.writer = self.client(3)
        self.appender = Appender(self.writer)

    def client(self, turns_max: int) -> LogContext:
        async def take_turns(_: float) -> None:
            await turns(self._random.randrange(turns_max + 1))

        store = FaultyMetadataStore(
            MemoryStore(self._backing), random_source=self._random, rates=FaultRates(delay=1.0), sleep=take_turns
        )
        return replace(context_on(store, self.objects, self._random.randrange(2**32)), sleep=take_turns)

    async def rest(self) -> None:
        """Longer every time, so that sooner or later a copy finds the log at rest."""
        self._rests += 1
        await turns(self._random.randrange(25 * self._rests))

    async def write(self) -> None:
        while self.working:
            await self.appender.append([group(ORDERS, b"more")])
            await turns(self._random.randrange(20))

    async def compact(self) -> None:
        context = self.client(3)
        while self.working:
            with contextlib.suppress(LogBusy):  # the writer was faster too often
                await compact_once(context, ORDERS, max_offsets=6)
            await self.rest()

    async def trim(self) -> None:
        context, start = self.client(3), 2
        while self.working:
            await self.rest()
            with contextlib.suppress(OffsetOutOfRange):
                await delete_records(context, ORDERS, start)
                start += 3


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "compare-and-set"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_slow_backup_of_a_busy_log_is_whole(seed: int, atomic: bool) -> None:
    busy = Busy(seed, atomic=atomic)
    for number in range(10):
        await busy.appender.append([group(ORDERS, b"%d" % number, b"y")])
    tasks = [asyncio.create_task(work()) for work in (busy.write, busy.compact, busy.trim)]
    await turns(seed * 7)
    try:
        place = await backed_up(busy.client(30), busy.objects)
    finally:
        busy.working = False
        await asyncio.gather(*tasks)
    await busy.appender.close()
    target = memory_context(busy.objects, atomic=atomic)
    found = await inspect_backup(target, place)
    await restore_backup(target, place, found)
    # Objects may be gone: retention went on after the copy. The index must be whole all the same.
    checked = await check_log(target, ORDERS)
    assert [fault for fault in checked.faults if fault.kind != "missing object"] == []
    start = (await contents(busy.writer, ORDERS) or [(0, b"")])[0][0]
    await delete_records(target, ORDERS, min(start, await _counter(target)))
    while await compact_once(target, ORDERS) is not None:
        pass
    assert (await check_log(target, ORDERS, deep=True)).faults == ()
    left = dict(await contents(busy.writer, ORDERS))
    assert all(left.get(offset) == payload for offset, payload in await contents(target, ORDERS))


async def _counter(context: LogContext) -> int:
    return (await view(context, ORDERS, strict=True)).next_offset
