"""Read a segment: any offset by two requests, a long one by no more than one request per budget of bytes.

Whoever reads a segment from its first batch on needs no footer: the entry tells where the data ends, and batches tell
their own length, so pieces may cut a batch, which is completed from the next piece. Whoever begins in the middle, or
wants a few records only, looks up the batches in the footer, once: the fetcher keeps it.

The data is divided into floor(length / budget) pieces of one length, at least one: each is at least the budget (and
less than twice as long), unless there is only one. So a log of segments that are not smaller than the budget takes at
most one request per budget of bytes; a smaller segment takes one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from llog.formats.segment import SegmentFooter
from llog.log.index import Entry
from llog.log.read.decode import BatchStitcher, SegmentReading, runs_of
from llog.log.read.fetch import Fetcher, data_length
from llog.log.read.records import RecordRun
from llog.stores.objects.port import ByteRange


class Wanted(NamedTuple):
    """Batches of a segment that stand in a row."""

    byte_offset: int
    byte_length: int
    record_count: int | None
    next_offset: int
    """Everything below it, from where the batches begin, is in them or nowhere."""


def plan_all(entry: Entry) -> Wanted | None:
    """All batches, without a look into the footer; None where the entry does not tell how long the data is."""
    length = data_length(entry)
    return None if length is None else Wanted(0, length, entry.value.record_count, entry.end_offset + 1)


def plan_batches(footer: SegmentFooter, entry: Entry, offset: int, end_offset: int | None) -> Wanted:
    """The batches from `offset` to `end_offset`. At least one, if any lies behind `offset`: where key compaction took
    everything up to `end_offset`, the reader wants the next record that is left."""
    bases = footer.entries["base_offset"].astype(np.int64)
    first = footer.batches_from(offset)
    stop = len(bases) if end_offset is None else int(np.searchsorted(bases, end_offset, side="right"))
    return plan_rows(footer, entry, first, max(stop, first + 1))


def plan_rows(footer: SegmentFooter, entry: Entry, first: int, stop: int) -> Wanted:
    """The batches in rows `first` … `stop - 1` of the footer."""
    rows = footer.entries[first:stop]
    if len(rows) == 0:
        return Wanted(0, 0, 0, entry.end_offset + 1)
    last = rows[-1]
    begin = int(rows[0]["byte_position"])
    length = int(last["byte_position"]) + int(last["batch_length"]) - begin
    behind = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
    at_the_end = stop >= len(footer.entries)
    records = int(rows["record_count"].sum(dtype=np.int64))
    return Wanted(begin, length, records, entry.end_offset + 1 if at_the_end else behind)


def plan_pieces(byte_offset: int, byte_length: int, bytes_max: int) -> list[ByteRange]:
    """Pieces of one length, as many as whole budgets fit in, at least one; none for no bytes."""
    count = max(1, byte_length // bytes_max) if byte_length else 0
    ends = [byte_offset + byte_length * i // count for i in range(count + 1)] if count else []
    return [ByteRange(begin, end - begin) for begin, end in pairwise(ends)]


async def stream_segment(
    fetcher: Fetcher, entry: Entry, offset: int, *, end_offset: int | None, bytes_max: int
) -> AsyncGenerator[RecordRun, None]:
    """The records from `offset` to `end_offset` (whole batches: some lie behind), in runs."""
    all_wanted = offset <= entry.start_offset and (end_offset is None or end_offset >= entry.end_offset)
    wanted = plan_all(entry) if all_wanted else None
    if wanted is None:
        wanted = plan_batches(await fetcher.footer(entry), entry, offset, end_offset)
    async with aclosing(stream_batches(fetcher, entry, wanted, offset, bytes_max)) as runs:
        async for run in runs:
            yield run


async def stream_batches(
    fetcher: Fetcher, entry: Entry, wanted: Wanted, offset: int, bytes_max: int
) -> AsyncGenerator[RecordRun, None]:
    source = entry.value.data_key
    stitcher, reading = BatchStitcher(source), SegmentReading(entry)
    reached = offset
    for piece in plan_pieces(wanted.byte_offset, wanted.byte_length, bytes_max):
        for batches in stitcher.feed(await fetcher.get(source, *piece)):
            for run in runs_of(reading.decode(batches), reached, reached):
                reached = run.next_offset
                yield run
    stitcher.finish()
    reading.check_count(wanted.record_count)
    for run in runs_of((), reached, wanted.next_offset):
        yield run
