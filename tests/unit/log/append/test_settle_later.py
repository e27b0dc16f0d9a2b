"""A timer clears the settled `pending` of an idle log."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

import pytest

from llog.formats.records.encode import encode_records
from llog.formats.values import ControlRecord, decode_value
from llog.limits import LOG_IDLE_CLEAR_MS
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.settle import LOG_IDLE_CLEAR_ATTEMPTS_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.memory import MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore

ORDERS = Log("orders", 0)


@dataclass
class Timer:
    """Sleeps of the timer end when the test says so; all others at once."""

    sleepers: list[asyncio.Future[None]] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        if seconds * 1_000 < LOG_IDLE_CLEAR_MS:
            return await asyncio.sleep(0)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleepers.append(future)
        await future

    async def tick(self) -> None:
        sleepers, self.sleepers = self.sleepers, []
        for future in sleepers:
            future.set_result(None)
        await settle_down()


async def settle_down() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


class Bench:
    def __init__(self, *, atomic: bool = False) -> None:
        self.timer = Timer()
        self.metadata = FaultyMetadataStore(MemoryStore(atomic_groups=atomic), random_source=random.Random(1))
        objects = MemoryObjectStore(f"memory://settle-{time.time_ns()}")

        async def find(uri: str) -> tuple[ObjectStore, str]:
            return objects, objects.name_of(uri)

        self.context = LogContext(
            metadata=self.metadata,
            wal=objects,
            find_object=find,
            now_ms=lambda: time.time_ns() // 1_000_000,
            random_bits=random.Random(1).getrandbits,
            sleep=self.timer.sleep,
        )
        self.appender = Appender(self.context)

    async def append(self) -> None:
        body = encode_records([b"a"], timestamps_ms=5)
        [outcome] = await self.appender.append([EncodedGroup(ORDERS, 1, "kafka-v2", [body])])
        assert isinstance(outcome, Appended)
        await settle_down()

    async def is_pending(self) -> bool:
        record = await self.metadata.inner.get(self.context.keys.control(ORDERS))
        assert record is not None
        return decode_value(ControlRecord, record.value, "control").pending is not None


async def test_an_idle_log_is_cleared_by_a_timer_that_then_ends() -> None:
    bench = Bench()
    await bench.append()
    assert await bench.is_pending(), "it is cleared lazily"
    await bench.timer.tick()
    assert await bench.is_pending(), "seen for the first time: it may be busy"
    await bench.timer.tick()
    assert not await bench.is_pending()
    assert bench.timer.sleepers == [], "nothing is left to clear"
    assert bench.appender.counters.cleared == 1
    await bench.append()
    assert len(bench.timer.sleepers) == 1, "the next append starts it again"
    assert bench.appender.counters.conflicts == 0, "what was cleared is known"
    await bench.appender.close()
    assert not await bench.is_pending()


async def test_a_busy_log_is_left_alone() -> None:
    bench = Bench()
    for _ in range(4):
        await bench.append()
        await bench.timer.tick()
    assert bench.appender.counters.cleared == 0
    assert (bench.appender.counters.appends, bench.appender.counters.cas_rounds) == (4, 4)
    assert bench.appender.counters.settles == 4
    await bench.appender.close()


async def test_a_log_that_another_writer_took_over_is_left_alone() -> None:
    bench = Bench()
    await bench.append()
    other = Appender(bench.context)
    body = encode_records([b"b"], timestamps_ms=5)
    await other.append([EncodedGroup(ORDERS, 1, "kafka-v2", [body])])
    for _ in range(3):
        await bench.timer.tick()
    await settle_down()
    assert not await bench.is_pending(), "each clears its own"
    assert bench.timer.sleepers == []
    assert (bench.appender.counters.cleared, other.counters.cleared) == (0, 1)
    await bench.appender.close()
    await other.close()


@pytest.mark.parametrize("rates", [FaultRates(unavailable=1), FaultRates(lost_reply=1), FaultRates(lost_request=1)])
async def test_the_timer_gives_up_on_a_store_that_does_not_answer(rates: FaultRates) -> None:
    bench = Bench()
    await bench.append()
    bench.metadata.rates = rates
    ticks = 0
    while bench.timer.sleepers:
        await bench.timer.tick()
        ticks += 1
        assert ticks <= LOG_IDLE_CLEAR_ATTEMPTS_MAX + 1
    bench.metadata.rates = FaultRates()
    await bench.append()
    await bench.appender.close()
    assert not await bench.is_pending()


async def test_an_atomic_store_needs_no_timer() -> None:
    bench = Bench(atomic=True)
    await bench.append()
    assert bench.timer.sleepers == []
    assert not await bench.is_pending()
    await bench.appender.close()


async def test_closing_ends_the_timer() -> None:
    bench = Bench()
    await bench.append()
    await bench.appender.close()
    assert not await bench.is_pending()
    assert all(sleeper.cancelled() for sleeper in bench.timer.sleepers)
