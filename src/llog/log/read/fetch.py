"""From index entries to bytes: which requests fetch them, and the object that makes a reader's requests.

A window fetches at most its budget of bytes, unless a single entry is larger. A `Fetcher` has at most
LOG_READ_GETS_IN_FLIGHT_MAX requests under way and keeps a bounded number and size of segment footers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import InvalidField
from llog.formats.buffers import Buffer
from llog.formats.segment import SegmentFooter, footer_length, parse_footer
from llog.limits import LOG_READ_COALESCE_BYTES_MAX, MIB, SEGMENT_FOOTER_PROBE_BYTES
from llog.log.context import FindObject
from llog.log.index import Entry
from llog.log.metrics import READ_BYTES, READ_GETS, LogMetrics, NoMetrics
from llog.stores.objects.port import ObjectRange, plan_object_fetches

LOG_READ_GETS_IN_FLIGHT_MAX: Final = 8
# A segment up to this size is fetched whole even for a single record: reading its footer costs another round trip.
LOG_READ_WHOLE_BYTES_MAX: Final = MIB
assert LOG_READ_WHOLE_BYTES_MAX <= LOG_READ_COALESCE_BYTES_MAX
# Segment footers that one fetcher keeps: the first limit reached counts.
LOG_FOOTERS_MAX: Final = 16
LOG_FOOTERS_BYTES_MAX: Final = 16 * MIB


class EntrySlice(NamedTuple):
    """A byte range that holds whole batches of one entry; without a length, the whole object.

    Records with the offsets `start_offset` … `end_offset` are in it, or key compaction removed them.
    """

    entry: Entry
    byte_offset: int
    byte_length: int | None
    start_offset: int
    end_offset: int
    record_count: int | None = None

    @property
    def range(self) -> ObjectRange:
        return ObjectRange(self.entry.value.data_key, self.byte_offset, self.byte_length)


def is_segment(entry: Entry) -> bool:
    """Whether the entry names an object with a footer. (Compacted entries of bare payloads have none.)"""
    return entry.value.type == "COMPACTED" and entry.value.encoding == "kafka-v2"


def is_fresh(entry: Entry) -> bool:
    """Whether its batches still lack offsets: a slice of a blob."""
    return entry.value.encoding == "kafka-v2" and entry.value.type != "COMPACTED"


def data_length(entry: Entry) -> int | None:
    """The bytes of a segment's batches, without its footer; None where the entry does not hold plausible lengths."""
    whole, footer = entry.value.byte_length, entry.value.footer_length
    return None if whole is None or footer is None or footer > whole else whole - footer


def whole_slice(entry: Entry) -> EntrySlice | None:
    """All batches of an entry; None for a segment if only its footer holds the length of its data."""
    value, start, end = entry.value, entry.start_offset, entry.end_offset
    if is_segment(entry):
        length = data_length(entry)
        return None if length is None else EntrySlice(entry, 0, length, start, end, value.record_count)
    if value.byte_offset is None or value.byte_length is None:
        return EntrySlice(entry, 0, None, start, end)
    return EntrySlice(entry, value.byte_offset, value.byte_length, start, end)


def plan_window(
    entries: Sequence[Entry], bytes_max: int, offset: int = 0, end_offset: int | None = None
) -> list[EntrySlice]:
    """The leading entries that are fetched together, at least one; none if the first is a segment to be streamed."""
    slices: list[EntrySlice] = []
    size = 0
    for entry in entries:
        wanted = whole_slice(entry)
        if wanted is None or (is_segment(entry) and not _fits(wanted, bytes_max, offset, end_offset)):
            break
        # An object of unknown length takes the whole budget.
        size += bytes_max if wanted.byte_length is None else wanted.byte_length
        if slices and size > bytes_max:
            break
        slices.append(wanted)
    return slices


def _fits(segment: EntrySlice, bytes_max: int, offset: int, end_offset: int | None) -> bool:
    """Whether to fetch a segment whole. That needs no footer, which saves a request also for a reader that begins in
    the middle and reads on. For a few records, only a small segment is fetched whole."""
    all_wanted = end_offset is None or (offset <= segment.start_offset and end_offset >= segment.end_offset)
    longest = bytes_max if all_wanted else min(bytes_max, LOG_READ_WHOLE_BYTES_MAX)
    return segment.byte_length is not None and segment.byte_length <= longest


class Fetcher:
    """Makes a reader's requests, counts them, and keeps the footers of the segments read last."""

    def __init__(self, find_object: FindObject, metrics: LogMetrics | None = None) -> None:
        self._find_object = find_object
        self.metrics: LogMetrics = NoMetrics() if metrics is None else metrics
        self._slots = asyncio.Semaphore(LOG_READ_GETS_IN_FLIGHT_MAX)
        self._footers: OrderedDict[str, SegmentFooter] = OrderedDict()

    async def get(self, uri: str, byte_offset: int = 0, byte_length: int | None = None) -> Buffer:
        """A range of an object, or the whole object."""
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

    async def window(self, slices: Sequence[EntrySlice], bytes_max: int) -> list[Buffer]:
        """The bytes of each slice, in order. Gaps between slices count against the budget too."""
        ranges = [wanted.range for wanted in slices]
        spare = max(0, bytes_max - sum(wanted.byte_length or 0 for wanted in ranges))
        fetches = plan_object_fetches(ranges, fetch_bytes_max=bytes_max, spare_bytes=spare)
        gets = [self.get(fetch.name, fetch.byte_offset, fetch.byte_length) for fetch in fetches]
        # Wait for all of them, so that none is left under way when one fails.
        answers = await asyncio.gather(*gets, return_exceptions=True) if len(gets) != 1 else [await gets[0]]
        buffers: list[Buffer] = [b""] * len(slices)
        for fetch, answer in zip(fetches, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            for i in fetch.members:
                buffers[i] = fetch.part(answer, ranges[i])
        return buffers

    async def footer(self, entry: Entry) -> SegmentFooter:
        """The footer of a segment: one request, or none if it is kept. Segments never change."""
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
