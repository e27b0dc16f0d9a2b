"""From the event loop, where splits are read, to a caller without one: Arrow batches, a few ahead, in order.

A `Pump` reads several splits at the same time and hands out the batches of the first, then those of the second: the
order is that of the splits, whatever came first. What must stay true: batches that wait are bounded per split, and so
are the splits being read; a caller that goes away leaves nothing running; an error comes where its batch would have.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, Final, TypeVar

import pyarrow as pa

from llog.errors import StoreClosed
from llog.pipeline.scan.splits import Split

SCAN_BATCHES_AHEAD_MAX: Final = 4


T = TypeVar("T")
Read = Callable[[Split], AsyncGenerator[pa.RecordBatch, None]]


class LoopThread:
    """An event loop in a thread of its own. Made in the process that uses it: a fork has no threads but one."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise StoreClosed("use", self._thread.name, "it was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _Ended:
    """Behind the last batch of a split; with why, if that was not its end."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


_Waiting = asyncio.Queue[pa.RecordBatch | _Ended]


def pumped(loop: LoopThread, read: Read, splits: Sequence[Split], *, at_once: int) -> Iterator[pa.RecordBatch]:
    """The batches of all splits, in order, read ahead on `loop`."""
    under_way: deque[tuple[_Waiting, asyncio.Task[None]]] = deque()
    left = iter(splits)
    try:
        for split in islice(left, at_once):
            under_way.append(loop.run(_begun(read, split)))
        while under_way:
            item = loop.run(under_way[0][0].get())
            if not isinstance(item, _Ended):
                yield item
                continue
            if item.error is not None:
                raise item.error
            under_way.popleft()
            for split in islice(left, 1):
                under_way.append(loop.run(_begun(read, split)))
    finally:
        loop.run(_ended([task for _, task in under_way]))


async def _begun(read: Read, split: Split) -> tuple[_Waiting, asyncio.Task[None]]:
    queue: _Waiting = asyncio.Queue(SCAN_BATCHES_AHEAD_MAX)
    return queue, asyncio.create_task(_fill(queue, read, split))


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Only when they are over may stores be closed."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _fill(queue: _Waiting, read: Read, split: Split) -> None:
    error: BaseException | None = None
    try:
        async with aclosing(read(split)) as batches:
            async for batch in batches:
                await queue.put(batch)
    except Exception as failed:
        error = failed
    await queue.put(_Ended(error))
