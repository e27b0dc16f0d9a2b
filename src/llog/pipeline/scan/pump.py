"""Arrow batches from the event loop that reads splits to a caller without one: a few batches ahead, in order.

`pump` reads several splits at once and yields the batches of the first split, then those of the second, whichever
arrive first. The splits being read and the batches waiting per split are bounded. A caller that stops early leaves
nothing running. An error is raised where its batch would have come.
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

# Arrow batches of one split that wait for the caller.
SCAN_BATCHES_AHEAD_MAX: Final = 4

T = TypeVar("T")
Read = Callable[[Split], AsyncGenerator[pa.RecordBatch, None]]


class LoopThread:
    """An event loop in a thread of its own. Create it in the process that uses it: threads do not survive a fork."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise StoreClosed("use", self._thread.name, "it is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _SplitEnd:
    """Follows the last batch of a split; has the error if reading failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


_Queue = asyncio.Queue[pa.RecordBatch | _SplitEnd]


def pump(loop: LoopThread, read: Read, splits: Sequence[Split], *, at_once: int) -> Iterator[pa.RecordBatch]:
    """The batches of all splits, in order, read ahead on `loop`, `at_once` splits at a time."""
    under_way: deque[tuple[_Queue, asyncio.Task[None]]] = deque()
    left = iter(splits)
    try:
        for split in islice(left, at_once):
            under_way.append(loop.run(_start(read, split)))
        while under_way:
            item = loop.run(under_way[0][0].get())
            if not isinstance(item, _SplitEnd):
                yield item
                continue
            if item.error is not None:
                raise item.error
            under_way.popleft()
            for split in islice(left, 1):
                under_way.append(loop.run(_start(read, split)))
    finally:
        loop.run(_cancel([task for _, task in under_way]))


async def _start(read: Read, split: Split) -> tuple[_Queue, asyncio.Task[None]]:
    queue: _Queue = asyncio.Queue(SCAN_BATCHES_AHEAD_MAX)
    return queue, asyncio.create_task(_fill(queue, read, split))


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait for them, so that the caller may close the stores."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _fill(queue: _Queue, read: Read, split: Split) -> None:
    error: BaseException | None = None
    try:
        async with aclosing(read(split)) as batches:
            async for batch in batches:
                await queue.put(batch)
    except Exception as failed:
        error = failed
    await queue.put(_SplitEnd(error))
