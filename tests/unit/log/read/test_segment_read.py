"""Ranges of a segment, and batches that they cut."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import FormatError, InvalidField, TruncatedInput
from llog.formats.buffers import crc32c
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import BatchRule, patch_offsets, walk
from llog.formats.segment import Segment, SegmentBuilder
from llog.formats.values import IndexEntry
from llog.log.index import Entry
from llog.log.read.fetch import Fetcher
from llog.log.read.segment_read import BatchStitcher, plan_ranges, stream_segment
from llog.log.read.slices import decode_slices
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore


def batch(offset: int, *values: bytes, offsets: int | None = None) -> bytearray:
    """A batch at its final offset that stands for `offsets` of them: those behind its records were compacted away."""
    data = bytearray(encode_records(list(values), timestamps_ms=offset))
    patch_offsets(data, walk(data, "test"), offset, 0)
    if offsets is not None:
        data[23:27] = struct.pack(">i", offsets - 1)
        data[17:21] = struct.pack(">I", crc32c(data[21:]))
    return data


def built(batches: list[bytearray], end_offset: int) -> Segment:
    builder = SegmentBuilder(topic="t", partition=0, incarnation=1)
    for data in batches:
        builder.add(data, walk(data, "test", rule=BatchRule.COMPACTED))
    return builder.finish(start_offset=1, end_offset=end_offset, level=1, created_at_ms=0)


def entry_of(segment: Segment, uri: str, **changes: Any) -> Entry:
    end_offset = segment.extension.end_offset
    fields: dict[str, Any] = {
        "type": "COMPACTED",
        "msg_count": end_offset,
        "record_count": segment.record_count,
        "data_key": uri,
        "encoding": "kafka-v2",
        "byte_offset": 0,
        "byte_length": segment.byte_length,
        "footer_length": segment.footer_length,
        "created_at_ms": 0,
    }
    return Entry(end_offset, IndexEntry(**(fields | changes)), 1)


class Stored:
    """A segment in a store, and a reader of it."""

    def __init__(self, segment: Segment, **changes: Any) -> None:
        self.store = MemoryObjectStore(f"memory://segment-read-{id(self)}-{random.random()}")
        self.segment, self.entry = segment, entry_of(segment, self.store.uri("s"), **changes)
        self.fetcher = Fetcher(self._find)

    async def _find(self, uri: str) -> tuple[ObjectStore, str]:
        return self.store, self.store.name_of(uri)

    async def read(
        self, offset: int, end_offset: int | None = None, bytes_max: int = 1 << 20
    ) -> tuple[list[tuple[int, bytes | None]], int]:
        await self.store.put("s", self.segment.buffers)
        found, reached = [], offset
        async for run in stream_segment(self.fetcher, self.entry, offset, end_offset=end_offset, bytes_max=bytes_max):
            found += [(record.offset, record.payload) for record in run.records()]
            reached = run.next_offset
        return found, reached


def dense(rng: random.Random, batches: int, value_bytes: int) -> tuple[list[bytearray], list[tuple[int, bytes]]]:
    made, model, offset = [], [], 1
    for _ in range(batches):
        values = [rng.randbytes(rng.randrange(value_bytes)) for _ in range(rng.randrange(1, 4))]
        made.append(batch(offset, *values))
        model += list(enumerate(values, offset))
        offset += len(values)
    return made, model


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 30), st.integers(1, 1 << 28))
def test_ranges_tile_and_their_number_is_what_whole_budgets_fit(begin: int, length: int, bytes_max: int) -> None:
    bytes_max = max(bytes_max, length // 1_000, 1)
    pieces = plan_ranges(begin, length, bytes_max)
    at = begin
    for piece in pieces:
        assert piece.byte_offset == at
        assert piece.byte_length < 2 * bytes_max
        at += piece.byte_length
    assert at == begin + length
    assert len(pieces) <= max(1, length / bytes_max)


def test_sixty_four_mebibytes_and_a_little_take_eight_ranges() -> None:
    assert [len(plan_ranges(0, length << 20, 8 << 20)) for length in (0, 1, 8, 15, 16, 64, 65, 71, 72)] == [
        0, 1, 1, 1, 2, 8, 8, 8, 9,
    ]  # fmt: skip


@settings(deadline=None)  # the first example compiles kernels
@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 300))
def test_batches_cut_anywhere_come_out_whole(seed: int, step: int, value_bytes: int) -> None:
    rng = random.Random(seed)
    batches, _ = dense(rng, 6, value_bytes)
    data = b"".join(batches)
    stitcher, out, at = BatchStitcher("test"), [], 0
    while at < len(data):
        end = at + rng.randrange(1, step + 1)
        for ready in stitcher.feed(data[at:end]):
            walk(ready, "test", rule=BatchRule.COMPACTED)
            out.append(bytes(ready))
        at = end
    stitcher.finish()
    assert b"".join(out) == data


def test_an_end_within_a_batch_and_bytes_that_are_no_batch_are_errors() -> None:
    data = bytes(batch(1, b"a"))
    stitcher = BatchStitcher("test")
    assert stitcher.feed(data[:-1]) == []
    with pytest.raises(TruncatedInput):
        stitcher.finish()
    for wrong in (data[:8] + b"\xff\xff\xff\xff" + data[12:], data[:16] + b"\x01" + data[17:], bytes(100)):
        with pytest.raises(FormatError):
            BatchStitcher("test").feed(wrong)
        with pytest.raises(FormatError):
            stitched(wrong[:5], wrong[5:], bytes(200))


def stitched(*pieces: bytes) -> None:
    stitcher = BatchStitcher("test")
    for piece in pieces:
        for ready in stitcher.feed(piece):
            walk(ready, "test", rule=BatchRule.COMPACTED)


@pytest.mark.parametrize("bytes_max", [1, 100, 1_000, 1 << 20])
@pytest.mark.parametrize("known", [True, False])
def test_a_segment_reads_the_same_in_ranges_of_any_length(bytes_max: int, known: bool) -> None:
    batches, model = dense(random.Random(7), 12, 300)
    stored = Stored(built(batches, len(model)), **({} if known else {"byte_length": None, "footer_length": None}))
    for offset in (1, 2, 5, len(model)):
        found, reached = asyncio.run(stored.read(offset, bytes_max=bytes_max))
        assert found == model[offset - 1 :]
        assert reached == len(model) + 1


def test_where_key_compaction_left_nothing_the_next_record_comes_next() -> None:
    batches = [batch(3, b"c", offsets=4), batch(12, b"l"), batch(13, b"m", offsets=5)]
    stored = Stored(built(batches, 20))
    assert asyncio.run(stored.read(1)) == ([(3, b"c"), (12, b"l"), (13, b"m")], 21)
    assert asyncio.run(stored.read(1, 1)) == ([(3, b"c")], 7)
    assert asyncio.run(stored.read(4, 4)) == ([], 7), "its batch is there, the record is not"
    assert asyncio.run(stored.read(7, 7)) == ([(12, b"l")], 13)
    assert asyncio.run(stored.read(14, 14)) == ([], 21)
    assert asyncio.run(stored.read(19)) == ([], 21)
    assert asyncio.run(Stored(built([], 20)).read(5)) == ([], 21), "an empty segment"


def test_a_segment_that_is_not_what_its_entry_says_is_refused() -> None:
    batches, model = dense(random.Random(9), 5, 50)
    segment = built(batches, len(model))
    with pytest.raises(InvalidField, match="records"):
        asyncio.run(Stored(segment, record_count=segment.record_count + 1).read(1))
    with pytest.raises(InvalidField, match="overlap or leave"):
        asyncio.run(Stored(segment, msg_count=1).read(1))
    with pytest.raises(InvalidField, match="its index entry says"):
        asyncio.run(Stored(segment, byte_length=segment.byte_length - 1).read(2))
    with pytest.raises(FormatError):
        asyncio.run(Stored(segment, footer_length=segment.footer_length + 9).read(1))


def test_overlapping_slices_are_returned_once_and_a_wrong_slice_is_named() -> None:
    def slice_of(uri: str, start: int, *values: bytes, claims: int | None = None) -> tuple[Entry, bytes]:
        data = bytes(encode_records(list(values), timestamps_ms=1))
        count = len(values) if claims is None else claims
        value = IndexEntry(type="WAL", msg_count=count, data_key=uri, encoding="kafka-v2", created_at_ms=0)
        return Entry(start + count - 1, value, 1), data

    fine = [slice_of("a", 1, b"a", b"b"), slice_of("b", 3, b"c"), slice_of("c", 2, b"b", b"c", b"d")]
    runs = list(decode_slices(fine, 2))
    assert [(r.offset, r.payload) for run in runs for r in run.records()] == [(2, b"b"), (3, b"c"), (4, b"d")]
    assert runs[-1].next_offset == 5
    with pytest.raises(InvalidField, match=r"^b: holds 2 offsets, its index entry says 1"):
        list(decode_slices([fine[0], slice_of("b", 3, b"c", b"d", claims=1), slice_of("c", 4, b"e")], 1))
