"""Work on bytes that would hold the event loop for too long goes to a few threads; the rest is done at once.

The kernels that check, copy and decode batches let go of the interpreter's lock or take about a millisecond per MiB,
so small work is cheaper where it is. Bounded: a fixed number of threads; who waits is bounded by who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from llog.limits import KIB

# More than this is decoded, checked or copied in a thread: it would hold the event loop for about a millisecond.
CONSUME_INLINE_BYTES_MAX: Final = 256 * KIB
CONSUME_THREADS: Final = 2


T = TypeVar("T")


class Offload:
    def __init__(self, name: str, threads: int = CONSUME_THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, byte_length: int, work: Callable[[], T]) -> T:
        if byte_length <= CONSUME_INLINE_BYTES_MAX:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class BytesGate:
    """So many bytes at a time; who asks for more than all of them gets in alone. First come, first served."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0
        self._changed = asyncio.Condition()
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def taking(self, byte_length: int) -> AsyncIterator[None]:
        size = min(byte_length, self._bytes_max)
        async with self._turn, self._changed:
            await self._changed.wait_for(lambda: self._used + size <= self._bytes_max)
            self._used += size
        try:
            yield
        finally:
            self._used -= size
            async with self._changed:
                self._changed.notify_all()
