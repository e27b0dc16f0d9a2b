"""Chunks: whole RecordBatches of one log with their final offsets, which is what caches keep and answers are cut from.

Why it exists: a fetch hands out bytes (a Kafka front end sends them as they are) or records (decoded once, at the
edge). Both begin with the same bytes, wherever they came from: an append of this process, a slice of a blob, a part of
a segment. What must stay true
- the offsets from `start_offset` to `end_offset` are in the chunk or nowhere;
- whoever built the chunk has compared it with what its index entry (or its append) says, before anyone sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from llog.formats.buffers import Buffer
from llog.formats.records.decode import decode_batches, decode_in_chunks
from llog.formats.records.record_batch import (
    CODEC_MASK,
    CRC_START,
    BatchColumns,
    BatchRule,
    walk,
)
from llog.formats.records.record_columns import RecordColumns
from llog.limits import CONSUME_DECODED_BYTES_MAX, CONSUME_RECORD_BYTES, RECORDS_CHUNK_BYTES
from llog.log.read.records import RecordRun
from llog.log.read.slices import SegmentCheck, encode_payloads, patch_slices, runs_of

_ATTRIBUTES_LOW: Final = CRC_START + 1
"""The byte of a batch that names its codec."""
_INFLATION: Final = 16


class Chunk(NamedTuple):
    start_offset: int
    end_offset: int
    data: Buffer
    batches: BatchColumns


class Clip(NamedTuple):
    """What an answer takes of a chunk; no bytes where no record is left from the offset on."""

    data: Buffer
    next_offset: int
    more: bool
    """The chunk has batches behind these."""


def clip(chunk: Chunk, offset: int, bytes_max: int, *, at_least_one: bool) -> Clip | None:
    """Whole batches from the one that holds `offset` on, as many as fit; None when not even the first does."""
    batches, view = chunk.batches, memoryview(chunk.data)
    if len(batches) == 1:
        if int(batches.last_offset[0]) < offset:
            return Clip(b"", chunk.end_offset + 1, more=False)
        fits = at_least_one or len(view) <= bytes_max
        return Clip(view, chunk.end_offset + 1, more=False) if fits else None
    last_offsets, ends = batches.last_offset, batches.position + batches.length
    first = int(np.searchsorted(last_offsets, offset))
    if first == len(batches):
        return Clip(b"", chunk.end_offset + 1, more=False)
    begin = int(batches.position[first])
    stop = int(np.searchsorted(ends, begin + bytes_max, side="right"))
    if stop <= first:
        if not at_least_one:
            return None
        stop = first + 1
    more = stop < len(batches)
    return Clip(
        view[begin : int(ends[stop - 1])], int(last_offsets[stop - 1]) + 1 if more else chunk.end_offset + 1, more
    )


# -- making them ---------------------------------------------------------------------------------------------------


def fresh_chunk(
    slices: Sequence[tuple[Buffer, int]], start_offset: int, epoch: int, source: str, *, verify: bool
) -> Chunk:
    """From appends that stand in a row, each with the number of its offsets: batches that have no offsets yet.

    A copy, unless the one slice is a bytearray: its batches are given their offsets in place.
    """
    [(first, _), *others] = slices
    writable = first if isinstance(first, bytearray) and not others else bytearray().join([data for data, _ in slices])
    lengths, counts = [len(data) for data, _ in slices], [count for _, count in slices]
    patched = patch_slices(writable, lengths, counts, start_offset, epoch, source, verify=verify)
    return Chunk(start_offset, start_offset + sum(counts) - 1, memoryview(writable).toreadonly(), patched)


def bare_chunk(data: Buffer, msg_count: int, start_offset: int, epoch: int, created_at_ms: int, source: str) -> Chunk:
    """From bare payloads: one RecordBatch, whose time is the log's: the instant their blob was made."""
    batch = encode_payloads(data, msg_count, start_offset, epoch, created_at_ms, source)
    return Chunk(start_offset, start_offset + msg_count - 1, batch, walk(batch, source, rule=BatchRule.COMPACTED))


def segment_chunk(
    data: Buffer, start_offset: int, end_offset: int, first_offset: int, record_count: int | None, source: str
) -> Chunk:
    """From batches of a segment that stand in a row and have their offsets, none below `first_offset`."""
    check = SegmentCheck(source, first_offset, end_offset)
    batches = check.batches(data)
    check.check_count(record_count)
    return Chunk(start_offset, end_offset, memoryview(data).toreadonly(), batches)


# -- records -------------------------------------------------------------------------------------------------------


class Decoded(NamedTuple):
    runs: list[RecordRun]
    record_count: int
    next_offset: int
    """Behind what was decoded; lower than what the bytes reach when they inflate to too much."""


def decoding_bytes(pieces: Sequence[Buffer]) -> int:
    """A guess at how much there is to decode: a compressed batch inflates."""
    return sum(len(data) * (_INFLATION if data[_ATTRIBUTES_LOW] & CODEC_MASK else 1) for data in pieces)


def decode(pieces: Sequence[Buffer], offset: int, next_offset: int, source: str) -> Decoded:
    """The records from `offset` on of batches that were checked before. Many small pieces are decoded in one pass."""
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    batches = walk(data, source, rule=BatchRule.COMPACTED)
    runs: list[RecordRun] = []
    size = records = 0
    for run in runs_of(_columns(data, batches, source), offset, next_offset):
        if len(run.columns) == 0:
            continue
        runs.append(run)
        records += len(run.columns)
        size += run.columns.values.data.nbytes + run.columns.keys.data.nbytes
        size += len(run.columns) * CONSUME_RECORD_BYTES
        if size >= CONSUME_DECODED_BYTES_MAX:
            return Decoded(runs, records, run.next_offset)
    return Decoded(runs, records, next_offset)


def _columns(data: Buffer, batches: BatchColumns, source: str) -> Iterable[RecordColumns]:
    if len(data) <= RECORDS_CHUNK_BYTES and not batches.codec.any():
        return (decode_batches(data, batches, source, rule=BatchRule.COMPACTED),)
    return decode_in_chunks(data, batches, source, rule=BatchRule.COMPACTED)
