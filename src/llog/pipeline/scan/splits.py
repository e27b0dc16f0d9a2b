"""Splits: the unit that one task reads. Values, and the pure decision how to divide the wanted offsets of many logs.

A `SplitPart` is an index entry with the offsets wanted of it; a `Split` is parts of about `split_bytes`. Reading a
split needs no metadata.

- A segment longer than a split is cut by offsets into parts of equal length; each is a split of its own. Planning does
  not read the segment: the task finds its batches in the footer. Both tasks read a batch that spans a cut.
- Shorter segments of a log share splits, in order.
- Slices of shared blobs are grouped by blob, over all logs: one split reads a blob if it fits, so scanning 64
  partitions does not take 64 requests per blob. A slice has no index, so it is cut only to reach `splits_min`: each
  task then reads the whole slice.

The parts of all splits tile the wanted offsets: each offset is in exactly one part. In a split, the parts of a log are
in offset order. No split is longer than `split_bytes`, unless a single part is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from llog.errors import InvalidArgument
from llog.formats.values import EntryType, IndexEntry
from llog.limits import SPLIT_BYTES_MAX, SPLIT_BYTES_MIN, SPLITS_MAX
from llog.log.index import Entry
from llog.log.keys import Log

# Parts of one split: bounds the size of a task's plan when a log has many tiny appends.
SPLIT_PARTS_MAX: Final = 4_096


class ScanRange(NamedTuple):
    """Offsets of one log to read; `stop_offset` is excluded."""

    log: Log
    start_offset: int
    stop_offset: int
    incarnation: int | None = None
    """Of the topic these offsets belong to; None: unknown."""


class SplitPart(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of one index entry to read, with the fields of the entry that a reader needs."""

    topic: str
    partition: int
    start_offset: int
    stop_offset: int
    """Excluded."""
    end_offset: int
    """The last offset of the entry."""
    msg_count: int
    type: EntryType
    encoding: str
    data_key: str
    byte_offset: int | None
    byte_length: int | None
    footer_length: int | None
    record_count: int | None
    epoch: int
    incarnation: int
    created_at_ms: int

    @property
    def log(self) -> Log:
        return Log(self.topic, self.partition)

    @property
    def entry(self) -> Entry:
        value = IndexEntry(
            type=self.type,
            msg_count=self.msg_count,
            record_count=self.record_count,
            data_key=self.data_key,
            encoding=self.encoding,
            byte_offset=self.byte_offset,
            byte_length=self.byte_length,
            footer_length=self.footer_length,
            epoch=self.epoch,
            incarnation=self.incarnation,
            created_at_ms=self.created_at_ms,
        )
        return Entry(self.end_offset, value, -1)

    @property
    def in_segment(self) -> bool:
        """`fetch.is_segment` of the entry, without building the entry: a plan has many parts."""
        return self.type == "COMPACTED" and self.encoding == "kafka-v2"

    @property
    def wants_all(self) -> bool:
        return self.start_offset <= self.end_offset - self.msg_count + 1 and self.stop_offset > self.end_offset

    def wanted_bytes(self) -> int:
        """About how many bytes reading it fetches; the size of a split if the object's length is unknown."""
        if self.byte_length is None:
            return SPLIT_BYTES_MAX
        if not self.in_segment:
            return self.byte_length
        if self.footer_length is None or self.footer_length > self.byte_length:
            return SPLIT_BYTES_MAX
        length, wanted = self.byte_length - self.footer_length, self.stop_offset - self.start_offset
        return length if wanted >= self.msg_count else -(-length * wanted // self.msg_count)


class Split(msgspec.Struct, frozen=True, array_like=True):
    parts: tuple[SplitPart, ...]
    byte_length: int
    """About how many bytes reading it fetches."""


def part_of(log: Log, entry: Entry, start_offset: int, stop_offset: int) -> SplitPart:
    value = entry.value
    return SplitPart(
        topic=log.topic,
        partition=log.partition,
        start_offset=start_offset,
        stop_offset=stop_offset,
        end_offset=entry.end_offset,
        msg_count=value.msg_count,
        type=value.type,
        encoding=value.encoding,
        data_key=value.data_key,
        byte_offset=value.byte_offset,
        byte_length=value.byte_length,
        footer_length=value.footer_length,
        record_count=value.record_count,
        epoch=value.epoch,
        incarnation=value.incarnation,
        created_at_ms=value.created_at_ms,
    )


def parts_of(wanted: ScanRange, entries: Iterable[Entry]) -> Iterator[SplitPart]:
    """The wanted offsets of each entry. An entry that overlaps an earlier one (I5) adds only the offsets after it."""
    offset = wanted.start_offset
    for entry in entries:
        stop = min(entry.end_offset + 1, wanted.stop_offset)
        if stop > offset:
            yield part_of(wanted.log, entry, offset, stop)
            offset = stop


def plan_splits(parts: Sequence[SplitPart], split_bytes: int, *, splits_min: int = 1) -> list[Split]:
    """Divide the parts into at least `splits_min` splits, or fewer if single records are too large for that."""
    if not SPLIT_BYTES_MIN <= split_bytes <= SPLIT_BYTES_MAX:
        raise InvalidArgument("split_bytes", f"{split_bytes} must be from {SPLIT_BYTES_MIN} to {SPLIT_BYTES_MAX}")
    total = sum(part.wanted_bytes() for part in parts)
    # Splits of equal length instead of full ones and a rest: a job waits for its longest task.
    count = max(splits_min, math.ceil(total / split_bytes), 1)
    target = max(1, math.ceil(total / count))
    # A segment that fits into a split stays whole: its parts would need the footer, and each task has a cost.
    more_asked = splits_min > 1 and count == splits_min
    longest = target if more_asked else split_bytes
    cut, whole = list[SplitPart](), list[SplitPart]()
    for part in parts:
        may_be_cut = part.in_segment or more_asked
        (cut if part.wanted_bytes() > longest and may_be_cut else whole).append(part)
    splits = [_split([cut_part]) for part in cut for cut_part in _cut(part, target)]
    splits += _packed(whole, target)
    if len(splits) > SPLITS_MAX:
        raise InvalidArgument("split_bytes", f"{split_bytes} makes {len(splits)} splits, more than {SPLITS_MAX}")
    return sorted(splits, key=lambda split: _order(split.parts[0]))


def _order(part: SplitPart) -> tuple[str, int, int]:
    return part.topic, part.partition, part.start_offset


def _split(parts: Iterable[SplitPart]) -> Split:
    ordered = tuple(sorted(parts, key=_order))
    return Split(ordered, sum(part.wanted_bytes() for part in ordered))


def _cut(part: SplitPart, target: int) -> Iterator[SplitPart]:
    """The part in parts of equal length, if its records are of equal length."""
    offsets = part.stop_offset - part.start_offset
    count = min(offsets, math.ceil(part.wanted_bytes() / target))
    cuts = [part.start_offset + offsets * i // count for i in range(count + 1)]
    for start, stop in pairwise(cuts):
        yield replace(part, start_offset=start, stop_offset=stop)


def _packed(parts: Sequence[SplitPart], target: int) -> Iterator[Split]:
    gathered, size = list[SplitPart](), 0
    for unit in _units(parts):
        unit_bytes = sum(part.wanted_bytes() for part in unit)
        # Parts of one blob stay in one split, unless they exceed a split anyway.
        if gathered and (size + unit_bytes > target or len(gathered) + len(unit) > SPLIT_PARTS_MAX):
            yield _split(gathered)
            gathered, size = [], 0
        for part in unit:
            part_bytes = part.wanted_bytes()
            if gathered and (size + part_bytes > target or len(gathered) >= SPLIT_PARTS_MAX):
                yield _split(gathered)
                gathered, size = [], 0
            gathered.append(part)
            size += part_bytes
    if gathered:
        yield _split(gathered)


def _units(parts: Sequence[SplitPart]) -> Iterator[list[SplitPart]]:
    """Segments one by one in log order, then the slices of each blob together. Blob names sort by time."""
    segments = [part for part in parts if part.in_segment]
    for part in sorted(segments, key=_order):
        yield [part]
    slices = sorted(
        (part for part in parts if not part.in_segment),
        key=lambda part: (part.data_key, part.byte_offset or 0),
    )
    for _, of_blob in groupby(slices, key=lambda part: part.data_key):
        yield list(of_blob)
