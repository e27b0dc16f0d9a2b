"""The bytes of a split, on their way: every request is made at once, and waited for in the order of reading.

Slices that lie near each other in one blob are one request, whichever logs they are of. A segment comes in ranges of
one length, side by side; where a piece begins or ends within it, its footer tells which batches are wanted, and the
fetcher keeps that footer for the next piece. What must stay true: no more than the fetcher's own bound of requests is
under way; what nobody waits for any more is cancelled, and gone before `close` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.formats.buffers import Buffer
from llog.limits import MIB
from llog.log.read.fetch import EntrySlice, Fetcher, whole_slice
from llog.log.read.segment_read import plan_batches, plan_ranges
from llog.pipeline.scan.splits import Piece
from llog.stores.objects.ranges import ObjectFetch, ObjectRange, plan_object_fetches

# A segment is fetched in ranges of this length, several at once.
SPLIT_GET_BYTES: Final = 8 * MIB


class Loaded(NamedTuple):
    buffers: list[Buffer]
    """One per piece of a group of slices; of a segment: ranges that stand in a row."""
    wanted: EntrySlice | None
    """Of a segment: what these batches hold."""


class SplitLoad:
    """Starts when first asked. Not for two tasks at once."""

    def __init__(self, fetcher: Fetcher, groups: Sequence[Sequence[Piece]]) -> None:
        self._fetcher, self._groups = fetcher, groups
        self._segments: dict[int, asyncio.Task[Loaded]] = {}
        self._slices: dict[tuple[int, int], tuple[asyncio.Task[Buffer], ObjectFetch, ObjectRange]] = {}
        """By group and place in it: the request, and which range of its answer the slice is."""
        self._started = False

    async def bytes_of(self, number: int) -> Loaded:
        """The bytes of a group; they are not kept."""
        if not self._started:
            self._start()
        if number in self._segments:
            return await self._segments.pop(number)
        buffers: list[Buffer] = []
        for place in range(len(self._groups[number])):
            task, fetch, wanted = self._slices.pop((number, place))
            buffers.append(fetch.part(await task, wanted))
        return Loaded(buffers, None)

    async def close(self) -> None:
        tasks = {*self._segments.values(), *(task for task, _, _ in self._slices.values())}
        self._segments, self._slices = {}, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        self._started = True
        places: list[tuple[int, int]] = []
        wanted: list[ObjectRange] = []
        for number, group in enumerate(self._groups):
            for place, piece in enumerate(group):
                if piece.in_segment:
                    self._segments[number] = asyncio.create_task(self._segment(piece))
                    continue
                places.append((number, place))
                length = None if piece.byte_offset is None else piece.byte_length
                wanted.append(ObjectRange(piece.data_key, piece.byte_offset or 0, length))
        # Gaps are read too, as long as they are not more than the wanted bytes.
        for fetch in plan_object_fetches(wanted, spare_bytes=sum(part.byte_length or 0 for part in wanted)):
            task = asyncio.create_task(self._fetcher.get(fetch.name, fetch.byte_offset, fetch.byte_length))
            for member in fetch.members:
                self._slices[places[member]] = task, fetch, wanted[member]

    async def _segment(self, piece: Piece) -> Loaded:
        entry = piece.entry
        wanted = whole_slice(entry) if piece.wants_all else None
        if wanted is None:
            footer = await self._fetcher.footer(entry)
            wanted = plan_batches(footer, entry, piece.start_offset, piece.stop_offset - 1)
        ranges = plan_ranges(wanted.byte_offset, wanted.byte_length or 0, SPLIT_GET_BYTES)
        gets = [self._fetcher.get(entry.value.data_key, *part) for part in ranges]
        # All are waited for, so that none is left under way when one fails.
        answers = await asyncio.gather(*gets, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return Loaded([answer for answer in answers if not isinstance(answer, BaseException)], wanted)
