"""A segment's batches for key compaction, in order, a few megabytes at a time, at no more than a given speed.

Why it exists: both passes read whole segments, which may be larger than memory and must not take a store's bandwidth
away from consumers. What must stay true: checksums, the order of offsets and the count of records are compared with the
index entry before a batch counts; one request per KEY_COMPACT_READ_BYTES of data.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from llog.formats.buffers import Buffer
from llog.formats.records.record_batch import BatchColumns
from llog.formats.segment import SegmentFooter
from llog.limits import MIB
from llog.log.context import FindObject
from llog.log.index import Entry
from llog.log.inspect.check_objects import read_footer
from llog.log.read.fetch import data_length
from llog.log.read.segment_read import BatchStitcher, plan_ranges
from llog.log.read.slices import SegmentCheck

# One request of a task, and what one task scans (unless one segment is larger).
KEY_COMPACT_READ_BYTES: Final = 8 * MIB


class SegmentSource(msgspec.Struct, frozen=True, array_like=True):
    """What a task must know of one COMPACTED entry."""

    uri: str
    start_offset: int
    end_offset: int
    data_length: int | None
    """None: only the footer tells where the batches end."""
    footer_length: int | None
    record_count: int | None
    epoch: int

    @classmethod
    def of(cls, entry: Entry) -> SegmentSource:
        value = entry.value
        return cls(
            uri=value.data_key,
            start_offset=entry.start_offset,
            end_offset=entry.end_offset,
            data_length=data_length(entry),
            footer_length=value.footer_length,
            record_count=value.record_count,
            epoch=value.epoch,
        )


class Batches(NamedTuple):
    """Whole batches of one buffer."""

    data: Buffer
    columns: BatchColumns


class Pace:
    """Bytes per second, on average and without bursts: time that was not used is not made up for."""

    def __init__(
        self,
        bytes_per_second: float | None,
        *,
        now_seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._rate, self._now, self._sleep = bytes_per_second, now_seconds, sleep
        self._free_at = 0.0

    async def before(self, byte_length: int) -> None:
        """Returns when this many bytes may be read."""
        if not self._rate:
            return
        now = self._now()
        wait = self._free_at - now
        self._free_at = max(self._free_at, now) + byte_length / self._rate
        if wait > 0:
            await self._sleep(wait)


async def footer_of(find_object: FindObject, source: SegmentSource) -> SegmentFooter:
    store, name = await find_object(source.uri)
    footer, _ = await read_footer(store, name, source.footer_length, source.uri)
    return footer


async def read_batches(find_object: FindObject, source: SegmentSource, pace: Pace) -> AsyncGenerator[Batches, None]:
    """Raises `FormatError` for bytes that are not what the entry says, `ObjectNotFound` where they are gone."""
    store, name = await find_object(source.uri)
    length = source.data_length
    if length is None:
        length = (await footer_of(find_object, source)).data_length
    stitcher = BatchStitcher(source.uri)
    check = SegmentCheck(source.uri, source.start_offset, source.end_offset)
    for piece in plan_ranges(0, length, KEY_COMPACT_READ_BYTES):
        await pace.before(piece.byte_length)
        for data in stitcher.feed(await store.get_range(name, *piece)):
            yield Batches(data, check.batches(data))
    stitcher.finish()
    check.check_count(source.record_count)
