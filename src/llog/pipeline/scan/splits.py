"""Splits: what one task reads. Values, and the pure decision how the wanted offsets of many logs are divided.

A `Piece` is an index entry with the offsets that are wanted of it; a `Split` is pieces of about `split_bytes`. Whoever
reads a split needs no metadata.

- A segment longer than a split is cut by offsets into pieces of one length; each is a split of its own. Nobody looks
  into the segment to plan: the task finds its batches in the footer. A batch that stands across a cut is read by both.
- Shorter segments of a log stand together in splits, in order.
- Slices of shared blobs are grouped by blob, over all logs: a blob is read by one split wherever it fits, so scanning
  64 partitions does not take 64 requests per blob. A slice has no index to enter it by, so it is only cut where more
  splits are asked for than there would be: each part reads all of it.

What must stay true: the pieces of all splits tile the wanted offsets exactly, each offset in one piece; within a split
a log's pieces come in offset order; no split is longer than `split_bytes`, unless a single piece is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from llog.errors import InvalidArgument
from llog.formats.values import EntryType, IndexEntry
from llog.limits import SPLIT_BYTES_MAX, SPLIT_BYTES_MIN, SPLITS_MAX
from llog.log.index import Entry
from llog.log.keys import Log

# Pieces of one split: a log of tiny appends would make tasks of a few MiB of plan otherwise.
SPLIT_PIECES_MAX: Final = 4_096


Keep = Callable[[Entry], bool]


class LogRange(NamedTuple):
    """Offsets of one log: `stop_offset` is the first that is not wanted."""

    log: Log
    start_offset: int
    stop_offset: int
    incarnation: int | None = None
    """The life of the topic these offsets are of, where it is known."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some offsets of one index entry, with as much of the entry as a reader needs."""

    topic: str
    partition: int
    start_offset: int
    stop_offset: int
    """The first that is not wanted."""
    end_offset: int
    """The entry's own: its last offset."""
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
        """What `fetch.is_segment` says of its entry, without making one: a plan has many pieces."""
        return self.type == "COMPACTED" and self.encoding == "kafka-v2"

    @property
    def wants_all(self) -> bool:
        return self.start_offset <= self.end_offset - self.msg_count + 1 and self.stop_offset > self.end_offset

    def wanted_bytes(self) -> int:
        """About what reading it fetches. Of an object of unknown length: as much as a split may be."""
        if self.byte_length is None:
            return SPLIT_BYTES_MAX
        if not self.in_segment:
            return self.byte_length
        if self.footer_length is None or self.footer_length > self.byte_length:
            return SPLIT_BYTES_MAX
        length, wanted = self.byte_length - self.footer_length, self.stop_offset - self.start_offset
        return length if wanted >= self.msg_count else -(-length * wanted // self.msg_count)


class Split(msgspec.Struct, frozen=True, array_like=True):
    pieces: tuple[Piece, ...]
    byte_length: int
    """About what reading it fetches."""


def piece_of(log: Log, entry: Entry, start_offset: int, stop_offset: int) -> Piece:
    value = entry.value
    return Piece(
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


def pieces_of(wanted: LogRange, entries: Iterable[Entry], keep: Keep | None = None) -> Iterator[Piece]:
    """The wanted offsets of entries that tile the log, without entries that `keep` refuses.

    Where one begins below the end of the one before it (I5), it yields.
    """
    offset = wanted.start_offset
    for entry in entries:
        stop = min(entry.end_offset + 1, wanted.stop_offset)
        if stop > offset:
            if keep is None or keep(entry):
                yield piece_of(wanted.log, entry, offset, stop)
            offset = stop


def plan_splits(pieces: Sequence[Piece], split_bytes: int, *, splits_min: int = 1) -> list[Split]:
    """Divide the pieces. `splits_min` asks for as many splits at least; fewer come where single records are large."""
    if not SPLIT_BYTES_MIN <= split_bytes <= SPLIT_BYTES_MAX:
        raise InvalidArgument("split_bytes", f"{split_bytes} must be from {SPLIT_BYTES_MIN} to {SPLIT_BYTES_MAX}")
    total = sum(piece.wanted_bytes() for piece in pieces)
    # Of one length rather than full ones and a rest: the last task is waited for.
    count = max(splits_min, math.ceil(total / split_bytes), 1)
    target = max(1, math.ceil(total / count))
    # A segment that makes a split as it is stays whole: its parts would need the footer, and tasks cost too.
    more_asked = splits_min > 1 and count == splits_min
    longest = target if more_asked else split_bytes
    cut, whole = list[Piece](), list[Piece]()
    for piece in pieces:
        may_be_cut = piece.in_segment or more_asked
        (cut if piece.wanted_bytes() > longest and may_be_cut else whole).append(piece)
    splits = [_split([part]) for piece in cut for part in _parts(piece, target)]
    splits += _packed(whole, target)
    if len(splits) > SPLITS_MAX:
        raise InvalidArgument("split_bytes", f"{split_bytes} makes {len(splits)} splits, more than {SPLITS_MAX}")
    return sorted(splits, key=lambda split: _order(split.pieces[0]))


def _order(piece: Piece) -> tuple[str, int, int]:
    return piece.topic, piece.partition, piece.start_offset


def _split(pieces: Iterable[Piece]) -> Split:
    ordered = tuple(sorted(pieces, key=_order))
    return Split(ordered, sum(piece.wanted_bytes() for piece in ordered))


def _parts(piece: Piece, target: int) -> Iterator[Piece]:
    """A piece in parts of one length, as far as its records are."""
    offsets = piece.stop_offset - piece.start_offset
    count = min(offsets, math.ceil(piece.wanted_bytes() / target))
    cuts = [piece.start_offset + offsets * i // count for i in range(count + 1)]
    for start, stop in pairwise(cuts):
        yield replace(piece, start_offset=start, stop_offset=stop)


def _packed(pieces: Sequence[Piece], target: int) -> Iterator[Split]:
    gathered, size = list[Piece](), 0
    for unit in _units(pieces):
        unit_bytes = sum(piece.wanted_bytes() for piece in unit)
        # What is read together stays together, unless it is too much for one split anyway.
        if gathered and (size + unit_bytes > target or len(gathered) + len(unit) > SPLIT_PIECES_MAX):
            yield _split(gathered)
            gathered, size = [], 0
        for piece in unit:
            piece_bytes = piece.wanted_bytes()
            if gathered and (size + piece_bytes > target or len(gathered) >= SPLIT_PIECES_MAX):
                yield _split(gathered)
                gathered, size = [], 0
            gathered.append(piece)
            size += piece_bytes
    if gathered:
        yield _split(gathered)


def _units(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Segments one by one, in the order of their logs; slices blob by blob, as they lie there (names are by time)."""
    segments = [piece for piece in pieces if piece.in_segment]
    for piece in sorted(segments, key=_order):
        yield [piece]
    slices = sorted(
        (piece for piece in pieces if not piece.in_segment),
        key=lambda piece: (piece.data_key, piece.byte_offset or 0),
    )
    for _, of_blob in groupby(slices, key=lambda piece: piece.data_key):
        yield list(of_blob)
