"""When a store is in trouble, when it is not, and what a broker makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from llog.broker.health import APPEND_TROUBLE_FORGET_MS, APPEND_TROUBLE_MS, AppendTroubles, StoreTroubles
from llog.errors import (
    AppendNotCommitted,
    BackPressureRejected,
    ObjectNotFound,
    ObjectStoreThrottled,
    ObjectStoreTimeout,
    StoreClosed,
    VersionConflict,
)
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import Key
from llog.stores.metadata.wrappers import MeteredMetadataStore
from llog.stores.metering import STORE_TROUBLE_MS, StorePulse
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import Buffer
from llog.stores.objects.wrappers import MeteredObjectStore

SLOW_DOWN = ObjectStoreThrottled("put", "memory://x/name", "slow down")


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_one_failure_is_no_trouble_and_a_while_without_success_is() -> None:
    clock = Clock()
    pulse = StorePulse(5_000, clock=clock)
    pulse.record(SLOW_DOWN, 10.0, writing=True)
    assert pulse.trouble() is None
    clock.seconds += 5
    trouble = pulse.trouble()
    assert trouble is not None
    assert "slow down" in str(trouble)
    pulse.record(None, 10.0, writing=True)
    assert pulse.trouble() is None


def test_a_call_that_failed_after_a_long_silence_is_trouble_at_once() -> None:
    pulse = StorePulse(5_000, clock=Clock())
    pulse.record(ObjectStoreTimeout("put", "x"), 10_000.0, writing=True)
    assert pulse.trouble() is not None


def test_reading_and_writing_are_judged_separately() -> None:
    pulse = StorePulse(0, clock=Clock())
    pulse.record(SLOW_DOWN, 0.0, writing=True)
    pulse.record(None, 0.0, writing=False)
    assert pulse.trouble(writing=True) is not None
    assert pulse.trouble(writing=False) is None
    assert pulse.trouble() is not None


@pytest.mark.parametrize("awake", [ObjectNotFound("get", "x"), VersionConflict("put", "x", 1)])
def test_a_refusal_proves_the_store_awake(awake: Exception) -> None:
    pulse = StorePulse(0, clock=Clock())
    pulse.record(SLOW_DOWN, 0.0, writing=True)
    pulse.record(awake, 0.0, writing=True)
    assert pulse.trouble() is None


@pytest.mark.parametrize("silent", [StoreClosed("put", "x"), asyncio.CancelledError(), ValueError("bug")])
def test_an_error_unrelated_to_the_store_changes_nothing(silent: BaseException) -> None:
    pulse = StorePulse(0, clock=Clock())
    pulse.record(silent, 60_000.0, writing=True)
    assert pulse.trouble() is None
    pulse.record(SLOW_DOWN, 0.0, writing=True)
    pulse.record(silent, 0.0, writing=True)
    assert pulse.trouble() is not None


# -- a broker's stores -----------------------------------------------------------------------------------------------


class Sick(MemoryObjectStore):
    sick = True

    async def check(self, *, writing: bool = True) -> None:
        if self.sick:
            raise SLOW_DOWN

    async def get(self, name: str) -> Buffer:
        raise SLOW_DOWN if self.sick else ObjectNotFound("get", name)


class Bench:
    def __init__(self) -> None:
        self.inner = Sick("memory://troubles")
        self.objects = MeteredObjectStore(self.inner)
        self.objects.pulse = StorePulse(0)
        self.metadata = MeteredMetadataStore(MemoryStore(MemoryBacking()))
        self.metadata.pulse = StorePulse(0)
        self.refusals: list[str] = []
        self.naps = 0
        self.troubles = StoreTroubles(
            self.metadata,
            {"the object store": self.objects},
            wal="the object store",
            probe_key=Key("llog/@cluster"),
            on_refusing=self.refusals.append,
            sleep=self.nap,
        )

    async def nap(self, seconds: float) -> None:
        self.naps += 1
        await asyncio.sleep(0)

    async def run_until(self, done: Callable[[], bool]) -> None:
        task = asyncio.create_task(self.troubles.run())
        while not done():
            assert self.naps < 1_000
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_trouble_with_writing_keeps_producers_out_and_trouble_with_reading_does_not() -> None:
    bench = Bench()
    assert bench.troubles.refusal() == ""
    bench.objects.pulse.record(SLOW_DOWN, 0.0, writing=False)
    assert bench.troubles.refusal() == ""
    assert "the object store is failing" in bench.troubles.reasons()[0]
    bench.objects.pulse.record(SLOW_DOWN, 0.0, writing=True)
    assert "the object store is failing" in bench.troubles.refusal()


async def test_a_broker_probes_whether_its_store_works_again() -> None:
    bench = Bench()
    bench.objects.pulse.record(SLOW_DOWN, 0.0, writing=True)
    await bench.run_until(lambda: len(bench.refusals) > 3)
    assert bench.troubles.reasons()
    bench.inner.sick = False
    await bench.run_until(lambda: not bench.troubles.reasons())
    assert bench.troubles.refusal() == ""


async def test_a_metadata_store_in_trouble_keeps_producers_out_until_it_answers() -> None:
    bench = Bench()
    bench.metadata.pulse.record(SLOW_DOWN, 0.0, writing=True)
    assert "the metadata store is failing" in bench.troubles.refusal()
    await bench.run_until(lambda: not bench.troubles.refusal())


async def test_calls_of_a_metered_store_update_its_pulse() -> None:
    bench = Bench()
    with pytest.raises(ObjectStoreThrottled):
        await bench.objects.get("name")
    assert bench.objects.pulse.trouble(writing=False) is not None
    bench.inner.sick = False
    with pytest.raises(ObjectNotFound):
        await bench.objects.get("name")
    assert bench.objects.pulse.trouble() is None


async def test_a_session_that_was_only_promised_does_not_prove_the_store_awake() -> None:
    bench = Bench()
    bench.metadata.pulse.record(SLOW_DOWN, 0.0, writing=True)
    session = await bench.metadata.open_session(timeout_ms=2_000)
    assert bench.metadata.pulse.trouble() is not None
    await session.close()


def test_the_patience_is_the_named_one() -> None:
    clock = Clock()
    pulse = StorePulse(clock=clock)
    pulse.record(SLOW_DOWN, 0.0, writing=True)
    clock.seconds += STORE_TROUBLE_MS / 1_000 - 0.1
    assert pulse.trouble() is None
    clock.seconds += 0.2
    assert pulse.trouble() is not None


def test_appends_that_fail_for_a_while_are_trouble_until_one_succeeds_or_none_is_tried() -> None:
    now_ms = [0.0]
    troubles = AppendTroubles(lambda: now_ms[0])
    failed = AppendNotCommitted("orders", 0, "no space left")

    def fail_for_a_while() -> None:
        troubles.note([failed])
        now_ms[0] += APPEND_TROUBLE_MS
        troubles.note([failed])

    troubles.note([failed])
    assert troubles.reason() == "", "one failure is no trouble"
    fail_for_a_while()
    assert "no space left" in troubles.reason()
    troubles.note([failed, object()])
    assert troubles.reason() == "", "one of the two succeeded"
    fail_for_a_while()
    now_ms[0] += APPEND_TROUBLE_FORGET_MS + 1
    assert troubles.reason() == "", "nobody has tried since"
    troubles.note([object()])
    for _ in range(2):
        troubles.note([BackPressureRejected("orders", 0, "full")])
        now_ms[0] += APPEND_TROUBLE_MS
    assert troubles.reason() == "", "back-pressure is no failure of an append"
