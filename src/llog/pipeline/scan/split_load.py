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

from llog.formats.records.crc import Buffer
from llog.limits import MIB
from llog.log.read.fetch import Fetcher, Part, plan_fetches
from llog.log.read.segment_read import Wanted, plan_all, plan_batches, plan_pieces
from llog.pipeline.scan.splits import Piece

# A segment is fetched in ranges of this length, several at once.
SPLIT_GET_BYTES: Final = 8 * MIB


class Loaded(NamedTuple):
    buffers: list[Buffer]
    """One per piece of a group of slices; of a segment: ranges that stand in a row."""
    wanted: Wanted | None
    """Of a segment: what these batches hold."""


class SplitLoad:
    """Starts when first asked. Not for two tasks at once."""

    def __init__(self, fetcher: Fetcher, groups: Sequence[Sequence[Piece]]) -> None:
        self._fetcher, self._groups = fetcher, groups
        self._segments: dict[int, asyncio.Task[Loaded]] = {}
        self._slices: dict[tuple[int, int], tuple[asyncio.Task[Buffer], int, int | None]] = {}
        """By group and place in it: the request, and where in its answer the slice lies."""
        self._started = False

    async def bytes_of(self, number: int) -> Loaded:
        """The bytes of a group; they are not kept."""
        if not self._started:
            self._start()
        if number in self._segments:
            return await self._segments.pop(number)
        buffers: list[Buffer] = []
        for place in range(len(self._groups[number])):
            task, begin, length = self._slices.pop((number, place))
            answer = await task
            buffers.append(answer if length is None else memoryview(answer)[begin : begin + length])
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
        parts: list[Part] = []
        for number, group in enumerate(self._groups):
            for place, piece in enumerate(group):
                if piece.in_segment:
                    self._segments[number] = asyncio.create_task(self._segment(piece))
                    continue
                ranged = piece.byte_offset is not None and piece.byte_length is not None
                places.append((number, place))
                parts.append(Part(piece.entry, (piece.byte_offset or 0) if ranged else 0, piece.byte_length))
        # What lies between is read along, as long as it is not more than what is wanted.
        for fetch in plan_fetches(parts, 2 * sum(part.byte_length or 0 for part in parts)):
            task = asyncio.create_task(self._fetcher.get(fetch.data_key, fetch.byte_offset, fetch.byte_length))
            for member in fetch.members:
                begin, length = parts[member].byte_offset - fetch.byte_offset, parts[member].byte_length
                self._slices[places[member]] = task, begin, length

    async def _segment(self, piece: Piece) -> Loaded:
        entry = piece.entry
        wanted = plan_all(entry) if piece.wants_all else None
        if wanted is None:
            footer = await self._fetcher.footer(entry)
            wanted = plan_batches(footer, entry, piece.start_offset, piece.stop_offset - 1)
        ranges = plan_pieces(wanted.byte_offset, wanted.byte_length, SPLIT_GET_BYTES)
        gets = [self._fetcher.get(entry.value.data_key, *part) for part in ranges]
        # All are waited for, so that none is left under way when one fails.
        answers = await asyncio.gather(*gets, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return Loaded([answer for answer in answers if not isinstance(answer, BaseException)], wanted)
