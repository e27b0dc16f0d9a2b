"""Read a segment: any offset by two requests, a long segment by at most one request per budget of bytes.

Reading a segment from its first batch needs no footer: the entry gives the length of the data and each batch its own
length. So requests may cut a batch; the next one completes it (`BatchStitcher`). A read that begins in the middle, or
wants a few records only, finds its batches in the footer, which the fetcher keeps.

The data is divided into floor(length / budget) ranges of equal length, at least one. Each is at least as long as the
budget and less than twice as long, unless there is only one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise

import numpy as np

from llog.errors import InvalidField, TruncatedInput
from llog.formats.buffers import Buffer
from llog.formats.records.record_batch import HEADER_BYTES, PREFIX_BYTES, BatchRule, parse_header
from llog.formats.segment import SegmentFooter
from llog.limits import RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX
from llog.log.index import Entry
from llog.log.read.fetch import EntrySlice, Fetcher, whole_slice
from llog.log.read.records import RecordRun
from llog.log.read.slices import SegmentCheck, runs_of
from llog.stores.objects.port import ByteRange


def plan_batches(footer: SegmentFooter, entry: Entry, offset: int, end_offset: int | None) -> EntrySlice:
    """The batches from `offset` to `end_offset`. At least one, if any lies behind `offset`: where key compaction
    removed everything up to `end_offset`, the reader gets the next record that is left."""
    bases = footer.entries["base_offset"].astype(np.int64)
    first = footer.batches_from(offset)
    stop = len(bases) if end_offset is None else int(np.searchsorted(bases, end_offset, side="right"))
    return plan_rows(footer, entry, first, max(stop, first + 1))


def plan_rows(footer: SegmentFooter, entry: Entry, first: int, stop: int) -> EntrySlice:
    """The batches in rows `first` … `stop - 1` of the footer."""
    rows = footer.entries[first:stop]
    if len(rows) == 0:
        return EntrySlice(entry, 0, 0, entry.end_offset + 1, entry.end_offset, 0)
    last = rows[-1]
    begin = int(rows[0]["byte_position"])
    length = int(last["byte_position"]) + int(last["batch_length"]) - begin
    end_offset = int(last["base_offset"]) + int(last["last_offset_delta"])
    if stop >= len(footer.entries):
        end_offset = entry.end_offset
    records = int(rows["record_count"].sum(dtype=np.int64))
    return EntrySlice(entry, begin, length, int(rows[0]["base_offset"]), end_offset, records)


def plan_ranges(byte_offset: int, byte_length: int, bytes_max: int) -> list[ByteRange]:
    """Ranges of equal length, as many as whole budgets fit in, at least one; none for no bytes."""
    count = max(1, byte_length // bytes_max) if byte_length else 0
    ends = [byte_offset + byte_length * i // count for i in range(count + 1)] if count else []
    return [ByteRange(begin, end - begin) for begin, end in pairwise(ends)]


class BatchStitcher:
    """Makes whole batches of byte ranges that cut batches anywhere. Keeps at most one incomplete batch."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._cut = bytearray()

    def feed(self, data: Buffer) -> list[Buffer]:
        """The batches that are whole now, several per buffer; only a batch that was cut is copied."""
        view = memoryview(data).cast("B")
        ready: list[Buffer] = []
        while self._cut and len(view):
            taken = self._missing_bytes(len(view))
            self._cut += view[:taken]
            view = view[taken:]
            if len(self._cut) == self._cut_length():
                ready.append(self._cut)
                self._cut = bytearray()
        whole = _whole_bytes(view, self._source)
        if whole:
            ready.append(view[:whole])
        self._cut += view[whole:]
        return ready

    def finish(self) -> None:
        if self._cut:
            raise TruncatedInput(self._source, f"ends within a batch, after {len(self._cut)} bytes of it")

    def _cut_length(self) -> int:
        """Length of the cut batch; -1 while its length field is incomplete."""
        if len(self._cut) < PREFIX_BYTES:
            return -1
        return _batch_length(self._cut, 0)

    def _missing_bytes(self, available: int) -> int:
        length = self._cut_length()
        if length > RECORD_BATCH_BYTES_MAX or -1 < length < HEADER_BYTES:
            raise InvalidField(self._source, f"a batch of {length} bytes")
        return min(available, (PREFIX_BYTES if length < 0 else length) - len(self._cut))


def _batch_length(view: Buffer, position: int) -> int:
    return PREFIX_BYTES + int.from_bytes(view[position + 8 : position + PREFIX_BYTES], "big", signed=True)


def _whole_bytes(view: memoryview, source: str) -> int:
    """How many leading bytes are whole, valid batches; the rest must be the beginning of another one."""
    from llog.formats.records import batch_kernels

    limits = RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX
    _, stop = batch_kernels.count_batches(np.frombuffer(view.toreadonly(), np.uint8), False, *limits)
    if stop < 0:
        return len(view)
    rest = len(view) - stop
    if rest >= PREFIX_BYTES and not rest < _batch_length(view, stop) <= RECORD_BATCH_BYTES_MAX:
        parse_header(view, stop, source, rule=BatchRule.COMPACTED)  # raises an error that says what is wrong
        raise InvalidField(source, f"batch at byte {stop}: not a RecordBatch")
    return int(stop)


async def stream_segment(
    fetcher: Fetcher, entry: Entry, offset: int, *, end_offset: int | None, bytes_max: int
) -> AsyncGenerator[RecordRun, None]:
    """Runs of the records from `offset` to `end_offset`; whole batches, so the last may reach beyond."""
    all_wanted = offset <= entry.start_offset and (end_offset is None or end_offset >= entry.end_offset)
    wanted = whole_slice(entry) if all_wanted else None
    if wanted is None:
        wanted = plan_batches(await fetcher.footer(entry), entry, offset, end_offset)
    async with aclosing(stream_batches(fetcher, wanted, offset, bytes_max)) as runs:
        async for run in runs:
            yield run


async def stream_batches(
    fetcher: Fetcher, wanted: EntrySlice, offset: int, bytes_max: int
) -> AsyncGenerator[RecordRun, None]:
    """Runs of the records from `offset` on in these batches of a segment."""
    entry, source = wanted.entry, wanted.entry.value.data_key
    stitcher, check = BatchStitcher(source), SegmentCheck(source, entry.start_offset, entry.end_offset)
    reached = offset
    for part in plan_ranges(wanted.byte_offset, wanted.byte_length or 0, bytes_max):
        for batches in stitcher.feed(await fetcher.get(source, *part)):
            for run in runs_of(check.decode(batches), reached, reached):
                reached = run.next_offset
                yield run
    stitcher.finish()
    check.check_count(wanted.record_count)
    for run in runs_of((), reached, wanted.end_offset + 1):
        yield run
