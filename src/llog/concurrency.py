"""Bounded concurrency on one event loop, and bounded retry with exponential back-off and full jitter.

Time, sleep and randomness of a retry come in as arguments, because the log also runs under simulation. The loop stays
with the caller, which knows what to decide again in each round:

    async for round_number in Rounds(ROUNDS_MAX, pause):
        try:
            return await attempt(strict=round_number > 0)
        except VersionConflict:
            continue
    raise Busy(...)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

# Larger work runs in a thread: kernels take about a millisecond per MiB and release the interpreter lock.
OFFLOAD_INLINE_BYTES_MAX: Final = 256 * 1_024
OFFLOAD_THREADS: Final = 2

T = TypeVar("T")
R = TypeVar("R")


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, at most `size` at a time."""
    return (items[first : first + size] for first in range(0, len(items), size))


async def gather_bounded(items: Iterable[T], work: Callable[[T], Awaitable[R]], *, limit: int) -> list[R]:
    """`work(item)` for every item, at most `limit` at a time; the results in the order of the items.

    The first error is raised as it is, not in a group, after the other calls were cancelled and have ended: none is
    left running. A caller that wants every result handles errors inside `work`.
    """
    items = list(items)
    if len(items) == 1:
        return [await work(items[0])]
    slots = asyncio.Semaphore(limit)

    async def bounded(item: T) -> R:
        async with slots:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bounded(item)) for item in items]
        return [task.result() for task in tasks]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    raise first  # outside of the handler, so that the error keeps its own cause and context


class ByteBudget:
    """A limit on bytes held at a time, granted in the order of asking. A holder that alone exceeds the limit gets its
    turn when nothing else is held, so none waits forever."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._held = bytes_max, 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, byte_length: int) -> AsyncIterator[None]:
        await self._acquire(byte_length)
        try:
            yield
        finally:
            self._release(byte_length)

    async def _acquire(self, byte_length: int) -> None:
        if not self._waiting and self._fits(byte_length):
            self._held += byte_length
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((byte_length, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(byte_length)  # granted just now
            raise

    def _fits(self, byte_length: int) -> bool:
        return not self._held or self._held + byte_length <= self._bytes_max

    def _release(self, byte_length: int) -> None:
        self._held -= byte_length
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # cancelled
                self._waiting.popleft()
                continue
            if not self._fits(wanted):
                return
            self._waiting.popleft()
            self._held += wanted
            turn.set_result(None)


class Offload:
    """Runs work on many bytes in a few threads, so that it does not block the event loop; small work runs at once."""

    def __init__(self, name: str, threads: int = OFFLOAD_THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, byte_length: int, work: Callable[[], R]) -> R:
        if byte_length <= OFFLOAD_INLINE_BYTES_MAX:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


# -- retry -------------------------------------------------------------------------------------------------------------


RandomBits = Callable[[int], int]
"""An integer of that many random bits, as `random.getrandbits` returns it."""
Sleep = Callable[[float], Awaitable[object]]
"""Wait for that many seconds."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt: drawn evenly from zero to a ceiling that doubles up to `max_ms`."""

    first_ms: int
    max_ms: int

    def ceiling_ms(self, round_number: int) -> int:
        """The longest wait after round `round_number`, which counts from 0."""
        # The exponent is capped before it is used: many rounds must not build a huge number.
        return min(self.max_ms, self.first_ms << min(round_number, 30))

    def seconds(self, round_number: int, random_bits: RandomBits) -> float:
        return random_bits(16) / 65_536 * self.ceiling_ms(round_number) / 1_000


class Rounds:
    """Asynchronous iterator over round numbers from 0 to `rounds_max` - 1, with a pause after each round."""

    __slots__ = ("_pause", "_round", "_rounds_max")

    def __init__(self, rounds_max: int, pause: Callable[[int], Awaitable[object]]) -> None:
        """`pause` waits after the round of that number."""
        self._rounds_max, self._pause, self._round = rounds_max, pause, 0

    def __aiter__(self) -> Rounds:
        return self

    async def __anext__(self) -> int:
        # Not an async generator: leaving the loop early must not leave a generator for the event loop to close.
        if self._round:
            await self._pause(self._round - 1)
        if self._round >= self._rounds_max:
            raise StopAsyncIteration
        self._round += 1
        return self._round - 1
