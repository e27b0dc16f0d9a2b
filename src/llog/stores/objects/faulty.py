"""An object store that injects faults by seed, around any other store: slow answers, throttling, answers lost after
the work was done, and silence until the timeout.

One seed and one order of calls give one history, because each call draws the same number of random numbers. No fault
breaks a guarantee of the port: a lost answer is `ObjectStoreUncertain` for a write and `ObjectStoreTimeout` for a read,
and after `ObjectStoreThrottled` nothing has happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from llog.errors import (
    InvalidArgument,
    ObjectStoreError,
    ObjectStoreThrottled,
    ObjectStoreTimeout,
    ObjectStoreUncertain,
)
from llog.stores.metering import OBJECT_OPERATIONS
from llog.stores.objects.port import Buffer, ByteRange, ObjectMeta, ObjectStore
from llog.stores.objects.wrappers import ForwardingObjectStore

T = TypeVar("T")

# A listing may fail between pages of this many names.
LIST_FAULT_INTERVAL: Final = 100


@dataclass(frozen=True, slots=True)
class ObjectFaults:
    """Probabilities per call, and durations."""

    throttled: float = 0.0
    lost_answer: float = 0.0
    stalled: float = 0.0
    """No answer for `stall_ms`; a write has happened with probability 1/2."""
    delayed: float = 0.0
    delay_ms_max: float = 100.0
    stall_ms: float = 10_000.0

    def __post_init__(self) -> None:
        chances = (self.throttled, self.lost_answer, self.stalled, self.delayed)
        if min(chances) < 0 or sum(chances[:3]) > 1 or self.delayed > 1:
            raise InvalidArgument(
                "faults", f"{self}: each probability, and the sum of the three failures, must be from 0 to 1"
            )


NO_FAULTS: Final = ObjectFaults()


class FaultyObjectStore(ForwardingObjectStore):
    """`faults` for every operation, or by operation: put, get, range_get, head, list, delete."""

    def __init__(
        self,
        inner: ObjectStore,
        seed: int,
        faults: ObjectFaults | Mapping[str, ObjectFaults],
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`sleep` is in seconds."""
        super().__init__(inner)
        if isinstance(faults, ObjectFaults):
            faults = dict.fromkeys(OBJECT_OPERATIONS, faults)
        unknown = set(faults) - set(OBJECT_OPERATIONS)
        if unknown:
            raise InvalidArgument(
                "faults", f"unknown operations {sorted(unknown)}; there are {', '.join(OBJECT_OPERATIONS)}"
            )
        self.faults: dict[str, ObjectFaults] = dict(faults)
        """May be changed at any time; an empty mapping injects nothing."""
        self._rng = random.Random(seed)
        self._sleep = sleep

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self._write("put", self.uri(name), lambda: self.inner.put(name, buffers, if_absent=if_absent))

    async def delete_many(self, names: Sequence[str]) -> None:
        await self._write("delete", f"{len(names)} objects", lambda: self.inner.delete_many(names))

    async def get(self, name: str) -> Buffer:
        return await self._read("get", name, lambda: self.inner.get(name))

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return await self._read("range_get", name, lambda: self.inner.get_ranges(name, ranges))

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        return await self._read("range_get", name, lambda: self.inner.get_tail(name, byte_length))

    async def head(self, name: str) -> ObjectMeta:
        return await self._read("head", name, lambda: self.inner.head(name))

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        count = 0
        async for meta in self.inner.list(prefix, start_after=start_after):
            if count % LIST_FAULT_INTERVAL == 0:
                await self._read("list", prefix, _nothing)
            count += 1
            yield meta
        if count == 0:
            await self._read("list", prefix, _nothing)

    async def _read(self, operation: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        fate = self._draw(operation)
        await self._wait(fate)
        if fate.throttled:
            raise ObjectStoreThrottled(operation, name, "injected: slow down")
        if fate.lost or fate.stalled:
            raise ObjectStoreTimeout(operation, name, "injected: the answer was lost")
        return await call()

    async def _write(self, operation: str, subject: str, call: Callable[[], Awaitable[None]]) -> None:
        fate = self._draw(operation)
        await self._wait(fate)
        if fate.throttled:
            raise ObjectStoreThrottled(operation, subject, "injected: slow down")
        if not (fate.lost or fate.stalled):
            return await call()
        if fate.lost or fate.happens:
            # An answer that refuses the write can be lost too.
            with contextlib.suppress(ObjectStoreError):
                await call()
        raise ObjectStoreUncertain(operation, subject, "injected: the answer was lost")

    async def _wait(self, fate: _Fate) -> None:
        if fate.delay_ms:
            await self._sleep(fate.delay_ms / 1000)

    def _draw(self, operation: str) -> _Fate:
        faults = self.faults.get(operation, NO_FAULTS)
        # Always four draws, so that changing a probability does not shift later calls.
        failure, delayed, delay, happens = (self._rng.random() for _ in range(4))
        throttled = failure < faults.throttled
        failure -= faults.throttled
        lost = not throttled and failure < faults.lost_answer
        failure -= faults.lost_answer
        stalled = not (throttled or lost) and failure < faults.stalled
        delay_ms = faults.delay_ms_max * delay if delayed < faults.delayed else 0.0
        if stalled:
            delay_ms = faults.stall_ms
        return _Fate(throttled, lost, stalled, happens < 0.5, delay_ms)


@dataclass(frozen=True, slots=True)
class _Fate:
    throttled: bool
    lost: bool
    stalled: bool
    happens: bool
    delay_ms: float


async def _nothing() -> None:
    return None
