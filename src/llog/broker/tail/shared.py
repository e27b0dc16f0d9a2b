"""A tail cache that several processes of one machine share through a directory (LLOG_TAIL_CACHE_DIR).

A write-only and a read-only broker on one machine use it. Each reading process keeps its own tail cache in memory,
filled from the files of the writing processes; the files have the same limit as the cache. The rules of `cache` hold: a
frame that arrives late or twice, or from an earlier incarnation, is treated like an append of this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from llog.broker.tail.cache import TAIL_FRESH_MS_DEFAULT, CommittedAppend, TailCache, TailMetrics, monotonic_ms
from llog.broker.tail.files import TAIL_FILES_STALE_MS, TailFileReader, TailFileWriter, remove_stale
from llog.broker.tail.frames import Frame, is_shareable

# How often a reader checks whether files grew.
TAIL_FILES_POLL_MS: Final = 5

_log = logging.getLogger(__name__)


class SharedTailCache(TailCache):
    """`writes`: this process appends. `reads`: it answers consumers; without it, memory holds only ends of logs."""

    def __init__(
        self,
        directory: Path,
        bytes_max: int,
        *,
        writes: bool = True,
        reads: bool = True,
        fresh_ms: float = TAIL_FRESH_MS_DEFAULT,
        clock: Callable[[], float] = monotonic_ms,
        metrics: TailMetrics | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(bytes_max if reads else 0, fresh_ms=fresh_ms, clock=clock, metrics=metrics)
        self._directory, self._sleep = directory, sleep
        self._writer = TailFileWriter(directory, bytes_max) if writes and bytes_max else None
        self._in_place = self._writer is None  # its thread reads the bytes of appends
        skip = self._writer.writer_id if self._writer is not None else ""
        self._reader = TailFileReader(directory, skip_writer=skip) if reads and bytes_max else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llog-tail-read")
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the files of the other processes until `close`."""
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
                    await self._add_frames(frames)
                if self.clock() - swept_at_ms > TAIL_FILES_STALE_MS:
                    swept_at_ms = self.clock()
                    await loop.run_in_executor(self._thread, remove_stale, self._directory)
                failing = False
            except OSError as error:
                # Without the files, consumers are answered from the stores.
                if not failing:
                    _log.warning(
                        "the shared tail cache in %s cannot be read; reading from the stores: %s",
                        self._directory,
                        error,
                    )
                failing = True
            await self._sleep(TAIL_FILES_POLL_MS / 1_000)

    async def _add_frames(self, frames: list[Frame]) -> None:
        for count, frame in enumerate(frames, start=1):
            super().add(
                frame,
                incarnation=frame.incarnation,
                created_at_ms=frame.created_at_ms,
                # A clock of another machine, or from before a restart, must not make a frame fresher than now.
                committed_at_ms=min(frame.committed_at_ms, self.clock()),
            )
            if count % 64 == 0:
                await asyncio.sleep(0)
