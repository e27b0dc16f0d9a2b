"""From entries to bytes: which requests fetch them, and the one object that makes a reader's requests.

Entries that lie near each other in one blob are one request, different objects are asked at once; all of it within
a byte budget. What must stay true: what one window fetches is at most the budget, unless a single entry is larger; no
more than LOG_READ_GETS_IN_FLIGHT_MAX requests of a reader are under way; kept footers are bounded in number and bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import InvalidField
from llog.formats.records.crc import Buffer
from llog.formats.segment import SegmentFooter, footer_length, parse_footer
from llog.limits import MIB, OBJECT_RANGE_GAP_BYTES_MAX, SEGMENT_FOOTER_PROBE_BYTES
from llog.log.context import FindObject
from llog.log.index import Entry
from llog.log.metrics import READ_BYTES, READ_GETS, LogMetrics, NoMetrics

LOG_READ_GETS_IN_FLIGHT_MAX: Final = 8
# A segment up to this size is fetched whole for a single record: its footer would cost another round trip.
LOG_READ_WHOLE_BYTES_MAX: Final = MIB
# Segment footers that one reader keeps: whichever bound is met first.
LOG_FOOTERS_MAX: Final = 16
LOG_FOOTERS_BYTES_MAX: Final = 16 * MIB


class Part(NamedTuple):
    """An entry that is fetched whole; without a length its object is, however long."""

    entry: Entry
    byte_offset: int
    byte_length: int | None


class Fetch(NamedTuple):
    """One request, and which of the parts it answers."""

    data_key: str
    byte_offset: int
    byte_length: int | None
    members: tuple[int, ...]


def is_segment(entry: Entry) -> bool:
    """Does it name an object with a footer? (Compacted entries of bare payloads have none.)"""
    return entry.value.type == "COMPACTED" and entry.value.encoding == "kafka-v2"


def plan_window(entries: Sequence[Entry], bytes_max: int, offset: int = 0, end_offset: int | None = None) -> list[Part]:
    """The leading entries that are fetched together, at least one; none when the first is a segment to be streamed."""
    parts: list[Part] = []
    size = 0
    for entry in entries:
        part = _part_of(entry, bytes_max, offset, end_offset)
        if part is None:
            break
        # An object of unknown length takes the whole budget.
        size += bytes_max if part.byte_length is None else part.byte_length
        if parts and size > bytes_max:
            break
        parts.append(part)
    return parts


def _part_of(entry: Entry, bytes_max: int, offset: int, end_offset: int | None) -> Part | None:
    value = entry.value
    if not is_segment(entry):
        ranged = value.byte_offset is not None and value.byte_length is not None
        return Part(entry, value.byte_offset or 0, value.byte_length) if ranged else Part(entry, 0, None)
    length = data_length(entry)
    if length is None:
        return None
    # Nothing of the footer is needed where all batches are fetched: also by who begins in the middle and goes on, for
    # that is one request less. Where few are wanted, only a small segment is fetched whole.
    all_wanted = end_offset is None or (offset <= entry.start_offset and end_offset >= entry.end_offset)
    longest = bytes_max if all_wanted else min(bytes_max, LOG_READ_WHOLE_BYTES_MAX)
    return Part(entry, 0, length) if length <= longest else None


def data_length(entry: Entry) -> int | None:
    """Where a segment's batches end, if its entry tells (and makes sense)."""
    whole, footer = entry.value.byte_length, entry.value.footer_length
    return None if whole is None or footer is None or footer > whole else whole - footer


def plan_fetches(parts: Sequence[Part], bytes_max: int) -> list[Fetch]:
    """One request per run of neighbours in one object. Gaps are read along where they are small and fit the budget."""
    spare = bytes_max - sum(part.byte_length or 0 for part in parts)
    fetches: list[Fetch] = []
    for i in sorted(range(len(parts)), key=lambda i: (parts[i].entry.value.data_key, parts[i].byte_offset)):
        uri, (_, begin, length) = parts[i].entry.value.data_key, parts[i]
        last = fetches[-1] if fetches else None
        if last is not None and last.data_key == uri and last.byte_length is not None and length is not None:
            gap = begin - last.byte_offset - last.byte_length
            if gap <= min(OBJECT_RANGE_GAP_BYTES_MAX, max(spare, 0)):
                spare -= max(gap, 0)
                reach = max(begin + length, last.byte_offset + last.byte_length)
                fetches[-1] = Fetch(uri, last.byte_offset, reach - last.byte_offset, (*last.members, i))
                continue
        fetches.append(Fetch(uri, begin, length, (i,)))
    return fetches


class Fetcher:
    """Makes a reader's requests, counts them, and keeps the footers of the segments it was in last."""

    def __init__(self, find_object: FindObject, metrics: LogMetrics | None = None) -> None:
        self._find_object = find_object
        self.metrics: LogMetrics = NoMetrics() if metrics is None else metrics
        self._slots = asyncio.Semaphore(LOG_READ_GETS_IN_FLIGHT_MAX)
        self._footers: OrderedDict[str, SegmentFooter] = OrderedDict()

    async def get(self, uri: str, byte_offset: int = 0, byte_length: int | None = None) -> Buffer:
        """A range of an object, or the whole of it."""
        if byte_length == 0:
            return b""
        store, name = await self._find_object(uri)
        async with self._slots:
            if byte_length is None:
                data = await store.get(name)
            else:
                data = await store.get_range(name, byte_offset, byte_length)
        self._count(data)
        return data

    async def window(self, parts: Sequence[Part], bytes_max: int) -> list[Buffer]:
        """The bytes of each part, in order."""
        fetches = plan_fetches(parts, bytes_max)
        jobs = [self.get(fetch.data_key, fetch.byte_offset, fetch.byte_length) for fetch in fetches]
        # All are waited for, so that none is left under way when one fails.
        answers = await asyncio.gather(*jobs, return_exceptions=True) if len(jobs) > 1 else [await jobs[0]]
        buffers: list[Buffer] = [b""] * len(parts)
        for fetch, answer in zip(fetches, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            for i in fetch.members:
                begin, length = parts[i].byte_offset - fetch.byte_offset, parts[i].byte_length
                buffers[i] = answer if length is None else memoryview(answer)[begin : begin + length]
        return buffers

    async def footer(self, entry: Entry) -> SegmentFooter:
        """The footer of a segment: one request, none where it is known. Segments are immutable, names never reused."""
        uri = entry.value.data_key
        kept = self._footers.get(uri)
        if kept is not None:
            self._footers.move_to_end(uri)
            return kept
        store, name = await self._find_object(uri)
        wanted = entry.value.footer_length or SEGMENT_FOOTER_PROBE_BYTES
        async with self._slots:
            tail, length = await store.get_tail(name, wanted)
            self._count(tail)
            needed = footer_length(tail, length, uri)
            if needed > len(tail):
                tail, length = await store.get_tail(name, needed)
                self._count(tail)
        if entry.value.byte_length is not None and entry.value.byte_length != length:
            raise InvalidField(uri, f"has {length} bytes, its index entry says {entry.value.byte_length}")
        footer = parse_footer(tail, length, uri)
        self._keep(uri, footer)
        return footer

    def _keep(self, uri: str, footer: SegmentFooter) -> None:
        if footer.footer_length > LOG_FOOTERS_BYTES_MAX:
            return
        self._footers[uri] = footer
        size = sum(kept.footer_length for kept in self._footers.values())
        while len(self._footers) > LOG_FOOTERS_MAX or size > LOG_FOOTERS_BYTES_MAX:
            _, dropped = self._footers.popitem(last=False)
            size -= dropped.footer_length

    def _count(self, data: Buffer) -> None:
        self.metrics.count(READ_GETS)
        self.metrics.count(READ_BYTES, len(data))
