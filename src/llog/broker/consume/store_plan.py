"""Which bytes a fetch needs: from index entries to pieces, from the pieces of many logs to requests. Pure.

What must stay true: a shared blob is asked for once per request however many logs it holds, as long as one answer does
not grow beyond CONSUME_GET_BYTES_MAX; pieces hold whole batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from llog.broker.consume.chunks import Chunk, bare_chunk, fresh_chunk, segment_chunk
from llog.errors import UnsupportedFormat
from llog.formats.buffers import Buffer
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.segment import SegmentFooter
from llog.limits import MIB
from llog.log.index import Entry
from llog.log.read.fetch import data_length, is_segment
from llog.log.read.segment_read import plan_rows

# Ranges of one object are one request as long as it does not grow beyond this; blobs are smaller by default.
CONSUME_GET_BYTES_MAX: Final = 16 * MIB


class Piece(NamedTuple):
    """Batches of one entry that stand in a row; without a length, the whole object."""

    entry: Entry
    byte_offset: int
    byte_length: int | None
    start_offset: int
    end_offset: int
    record_count: int | None = None
    """Of a part of a segment."""


class Request(NamedTuple):
    data_key: str
    byte_offset: int
    byte_length: int | None
    members: tuple[int, ...]
    """Which of the pieces it answers."""


def plan_piece(entry: Entry, bytes_max: int) -> Piece | None:
    """The whole of an entry; None for a segment that is too long, or does not tell how long it is: see its footer."""
    value, start, end = entry.value, entry.start_offset, entry.end_offset
    if is_segment(entry):
        length = data_length(entry)
        if length is None or length > bytes_max:
            return None
        return Piece(entry, 0, length, start, end, value.record_count)
    if value.byte_offset is None or value.byte_length is None:
        return Piece(entry, 0, None, start, end)
    return Piece(entry, value.byte_offset, value.byte_length, start, end)


def plan_part(footer: SegmentFooter, entry: Entry, offset: int, bytes_max: int) -> Piece:
    """The batches of a segment from the one that holds `offset` on: as many as fit, at least one if any is left."""
    rows = footer.entries
    first = stop = footer.batches_from(offset)
    start = offset
    if first < len(rows):
        ends = rows["byte_position"][first:].astype(np.int64) + rows["batch_length"][first:]
        fit = int(np.searchsorted(ends, int(rows["byte_position"][first]) + bytes_max, side="right"))
        stop = first + max(1, fit)
        start = min(offset, int(rows["base_offset"][first]))
    wanted = plan_rows(footer, entry, first, stop)
    return Piece(entry, wanted.byte_offset, wanted.byte_length, start, wanted.end_offset, wanted.record_count)


def plan_requests(pieces: Sequence[Piece]) -> list[Request]:
    """Pieces of one object are one request; parts of it that nobody asked for are read along."""
    requests: list[Request] = []
    wanted = [i for i, piece in enumerate(pieces) if piece.byte_length != 0]
    for i in sorted(wanted, key=lambda i: (pieces[i].entry.value.data_key, pieces[i].byte_offset)):
        uri, begin, length = pieces[i].entry.value.data_key, pieces[i].byte_offset, pieces[i].byte_length
        last = requests[-1] if requests else None
        if last is not None and last.data_key == uri and last.byte_length is not None and length is not None:
            span = max(begin + length, last.byte_offset + last.byte_length) - last.byte_offset
            if span <= CONSUME_GET_BYTES_MAX:
                requests[-1] = Request(uri, last.byte_offset, span, (*last.members, i))
                continue
        requests.append(Request(uri, begin, length, (i,)))
    return requests


def build_chunks(pieces: Sequence[Piece], buffers: Sequence[Buffer]) -> list[Chunk]:
    """Checked against their entries. Appends in a row become one chunk: a log of small appends has many."""
    chunks: list[Chunk] = []
    row: list[tuple[Piece, Buffer]] = []
    for piece, data in zip(pieces, buffers, strict=True):
        if row and not _follows(piece, row[-1][0]):
            chunks.append(_build(row))
            row = []
        row.append((piece, data))
    if row:
        chunks.append(_build(row))
    return chunks


def _is_fresh(entry: Entry) -> bool:
    return entry.value.encoding == "kafka-v2" and not is_segment(entry)


def _follows(piece: Piece, before: Piece) -> bool:
    fresh = _is_fresh(piece.entry) and _is_fresh(before.entry)
    same_epoch = piece.entry.value.epoch == before.entry.value.epoch
    return fresh and same_epoch and piece.start_offset == before.end_offset + 1


def _build(row: Sequence[tuple[Piece, Buffer]]) -> Chunk:
    piece, data = row[0]
    entry, value = piece.entry, piece.entry.value
    source = value.data_key
    if is_segment(entry):
        return segment_chunk(data, piece.start_offset, piece.end_offset, entry.start_offset, piece.record_count, source)
    if value.encoding == "kafka-v2":
        # What a store returns may be shared, and is never written to: a view is copied, a bytearray would not be.
        slices = [(memoryview(data), piece.entry.value.msg_count) for piece, data in row]
        return fresh_chunk(slices, piece.start_offset, value.epoch, source, verify=True)
    if value.encoding == BYTES_BATCH:
        return bare_chunk(data, value.msg_count, piece.start_offset, value.epoch, value.created_at_ms, source)
    raise UnsupportedFormat(source, f"encoding {value.encoding!r}")
