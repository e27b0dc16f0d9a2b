"""The tail cache of processes that share a directory: what one commits, the others have in memory a moment later.

Why it exists: a write-only and a read-only broker on one machine (LLOG_TAIL_CACHE_DIR). Each process that reads keeps
a tail cache of its own, filled from the others' files; the files are the way there, bounded like the cache itself.
What must stay true: everything said of `tail_cache`. A frame that comes late or twice, or from an earlier life of its
topic, is judged by the same rules as an append of this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from llog.broker.tail.cache import CommittedAppend, TailCache, TailMetrics, monotonic_ms
from llog.broker.tail.files import TailFileReader, TailFileWriter, remove_stale
from llog.broker.tail.frames import Frame, is_shareable
from llog.limits import TAIL_FILES_STALE_MS, TAIL_FRESH_MS_DEFAULT

# How often a reader looks whether files grew, and how much it takes in at a time.
TAIL_FILES_POLL_MS: Final = 5


_log = logging.getLogger(__name__)


class SharedTailCache(TailCache):
    """`writes`: this process appends. `reads`: it answers consumers; else nothing is kept in its memory but ends."""

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        *,
        writes: bool = True,
        reads: bool = True,
        fresh_ms: float = TAIL_FRESH_MS_DEFAULT,
        clock: Callable[[], float] = monotonic_ms,
        metrics: TailMetrics | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(max_bytes if reads else 0, fresh_ms=fresh_ms, clock=clock, metrics=metrics)
        self._directory, self._sleep = directory, sleep
        self._writer = TailFileWriter(directory, max_bytes) if writes and max_bytes else None
        skip = self._writer.writer_id if self._writer is not None else ""
        self._reader = TailFileReader(directory, skip_writer=skip) if reads and max_bytes else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llog-tail-read")
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the other processes' files, from now to `close`."""
        if self._reader is not None and self._following is None:
            self._following = asyncio.create_task(self._follow(self._reader))

    def add(
        self,
        batch: CommittedAppend,
        *,
        incarnation: int | None = None,
        epoch: int | None = None,
        created_at_ms: int | None = None,
        committed_at_ms: float | None = None,
    ) -> None:
        now = self.clock() if committed_at_ms is None else committed_at_ms
        super().add(batch, incarnation=incarnation, epoch=epoch, created_at_ms=created_at_ms, committed_at_ms=now)
        if self._writer is not None and is_shareable(batch.encoding):
            self._writer.offer(
                Frame(
                    batch.log,
                    batch.start_offset,
                    batch.end_offset,
                    batch.encoding,
                    batch.body,
                    batch.epoch if epoch is None else epoch,
                    incarnation,
                    created_at_ms,
                    now,
                )
            )

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        self._thread.shutdown(wait=True)
        if self._reader is not None:
            self._reader.close()

    # -- inside --------------------------------------------------------------------------------------------------
    async def _follow(self, reader: TailFileReader) -> None:
        loop = asyncio.get_running_loop()
        swept_at_ms = self.clock()
        failing = False
        while True:
            try:
                while reader.has_news():
                    frames = await loop.run_in_executor(self._thread, reader.read)
                    if not frames:
                        break
                    await self._take(frames)
                if self.clock() - swept_at_ms > TAIL_FILES_STALE_MS:
                    swept_at_ms = self.clock()
                    await loop.run_in_executor(self._thread, remove_stale, self._directory)
                failing = False
            except OSError as error:
                # Without the files this process reads from the stores.
                if not failing:
                    _log.warning("the tail cache in %s cannot be read: %s", self._directory, error)
                failing = True
            await self._sleep(TAIL_FILES_POLL_MS / 1_000)

    async def _take(self, frames: list[Frame]) -> None:
        for count, frame in enumerate(frames, start=1):
            super().add(
                frame,
                incarnation=frame.incarnation,
                created_at_ms=frame.created_at_ms,
                # Another machine's clock, or one before a restart, must not make a frame younger than it is.
                committed_at_ms=min(frame.committed_at_ms, self.clock()),
            )
            if count % 64 == 0:
                await asyncio.sleep(0)
