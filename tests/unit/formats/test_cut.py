"""Batches cut to a limit: exactly the records that fit, however they are divided into batches and compressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llog.errors import FormatError
from llog.formats.records.cut import Cut, CutEnd, cut, sum_records
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import BatchRule, Codec, TimestampType, patch_offsets, verify_crcs, walk
from llog.formats.records.record_columns import Header, columns_from_rows

SOURCE = "memory://cut"


class Row(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()

    @property
    def size(self) -> int:
        own = len(self.value or b"") + len(self.key or b"")
        return own + sum(len(name.encode()) + len(value or b"") for name, value in self.headers)


class StoredBatch(NamedTuple):
    rows: list[Row]
    codec: Codec = Codec.NONE
    removed: frozenset[int] = frozenset()
    """Numbers of the records that key compaction removed."""


def stored(batches: Sequence[StoredBatch], start_offset: int = 1) -> tuple[bytes, list[tuple[int, Row]]]:
    """The bytes of the batches, and the records in them by offset."""
    data, left, offset = bytearray(), [], start_offset
    for batch in batches:
        kept = [number for number in range(len(batch.rows)) if number not in batch.removed]
        columns = columns_from_rows(
            [row.value for row in batch.rows],
            keys=[row.key for row in batch.rows],
            headers=[row.headers for row in batch.rows],
            timestamps_ms=list(range(len(batch.rows))),
        )
        columns = replace(columns, offsets=columns.offsets + offset)
        last_delta = len(batch.rows) - 1
        if kept:
            data += encode_columns(
                columns, rows=np.array(kept), base_offset=offset, last_offset_delta=last_delta, codec=batch.codec
            )
        left += [(offset + number, batch.rows[number]) for number in kept]
        offset += len(batch.rows)
    return bytes(data), left


BYTES = st.none() | st.binary(max_size=30)
ROW = st.builds(Row, BYTES, BYTES, st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2).map(tuple))
BATCH = st.builds(
    StoredBatch,
    st.lists(ROW, min_size=1, max_size=8),
    st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, *Codec]),
    st.frozensets(st.integers(0, 8), max_size=6),
)


def cut_of(data: bytes, from_offset: int, **limits: Any) -> Cut:
    batches = walk(data, SOURCE, rule=BatchRule.COMPACTED)
    taken = cut(data, batches, from_offset, SOURCE, **limits)
    summed = cut(data, batches, from_offset, SOURCE, sums=sum_records(data, batches), **limits)
    assert list(map(bytes, summed.batches)) == list(map(bytes, taken.batches))
    assert summed[1:3] == taken[1:3]
    assert summed.end is CutEnd.ALL or summed.next_offset == taken.next_offset
    return taken


def rows_of(taken: Cut) -> list[tuple[int, Row]]:
    data = b"".join(taken.batches)
    batches = walk(data, SOURCE, rule=BatchRule.COMPACTED)
    verify_crcs(data, batches, SOURCE)
    assert not batches.codec.any(), "decompressed once, not again by the decoder"
    columns = decode_records(data, SOURCE, rule=BatchRule.COMPACTED)
    keys, values = columns.keys.tolist(), columns.values.tolist()
    return [
        (offset, Row(values[row], keys[row], tuple(columns.headers[row])))
        for row, offset in enumerate(columns.offsets.tolist())
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(BATCH, min_size=1, max_size=6), st.integers(0, 60), st.integers(0, 200), st.booleans(), st.integers(1, 90)
)
def test_a_cut_is_the_longest_prefix_that_fits(
    batches: list[StoredBatch], skip: int, limit: int, at_least_one: bool, start_offset: int
) -> None:
    data, rows = stored(batches, start_offset)
    from_offset = start_offset + skip
    wanted = [row for row in rows if row[0] >= from_offset]
    expected: list[tuple[int, Row]] = []
    size = 0
    for offset, row in wanted:
        first = at_least_one and not expected
        if not first and (size >= limit or size + row.size > limit):
            break
        expected.append((offset, row))
        size += row.size
    taken = cut_of(data, from_offset, record_bytes_max=limit, at_least_one=at_least_one)
    assert rows_of(taken) == expected
    assert taken.records == (len(expected), size)
    if len(expected) == len(wanted):
        assert taken.end is CutEnd.ALL
    else:
        assert taken.end is CutEnd.LIMIT
        last, following = expected[-1][0] if expected else from_offset - 1, wanted[len(expected)][0]
        assert last < taken.next_offset <= following


@settings(max_examples=60, deadline=None)
@given(st.lists(BATCH, min_size=1, max_size=6), st.integers(1, 100))
def test_cuts_one_behind_another_hold_every_record_once(batches: list[StoredBatch], limit: int) -> None:
    data, rows = stored(batches)
    found: list[tuple[int, Row]] = []
    offset, end = 1, CutEnd.LIMIT
    while end is not CutEnd.ALL:
        taken = cut_of(data, offset, record_bytes_max=limit, at_least_one=True)
        found += rows_of(taken)
        offset, end = taken.next_offset, taken.end
    assert found == rows


def test_whole_batches_are_not_copied() -> None:
    data, _ = stored([StoredBatch([Row(b"a" * 10)] * 4)] * 3)
    first, whole, last = cut_of(data, 3, record_bytes_max=70).batches
    assert isinstance(whole, memoryview)
    assert whole.obj is data
    assert len(whole) == len(data) // 3 > len(first) > len(last)


def test_a_limit_of_batch_bytes_ends_records_that_have_no_bytes() -> None:
    data, rows = stored([StoredBatch([Row(None)] * 50)] * 4)
    assert len(rows_of(cut_of(data, 1, record_bytes_max=1))) == 200
    taken = cut_of(data, 1, record_bytes_max=1, batch_bytes_max=500)
    assert taken.end is CutEnd.TOO_LONG
    found = rows_of(taken)
    assert found == rows[: len(found)]
    assert 0 < len(found) < 72


def test_the_sum_of_records_counts_keys_values_and_headers() -> None:
    data, _ = stored(
        [StoredBatch([Row(b"value", b"key", (("name", b"v"),)), Row(None, None)]), StoredBatch([Row(b"x")])]
    )
    sums = sum_records(data, walk(data, SOURCE, rule=BatchRule.COMPACTED))
    assert sums is not None
    assert (sums.records, sums.sizes.tolist()) == ((3, 5 + 3 + 4 + 1 + 1), [5 + 3 + 4 + 1, 1])
    packed, _ = stored([StoredBatch([Row(b"x")]), StoredBatch([Row(b"y")], Codec.ZSTD)])
    assert sum_records(packed, walk(packed, SOURCE, rule=BatchRule.COMPACTED)) is None


def broken(codec: Codec) -> bytes:
    """A batch whose header is fine, with records that are not."""
    data, _ = stored([StoredBatch([Row(b"abc")] * 3, codec)])
    harmed = bytearray(data)
    harmed[61:] = b"\xff" * (len(harmed) - 61)
    return bytes(harmed)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_an_unsound_batch_is_left_to_the_decoder(codec: Codec) -> None:
    good, _ = stored([StoredBatch([Row(b"good")] * 2)])
    bad = bytearray(broken(codec))
    patch_offsets(bad, walk(bad, SOURCE), 3, 0)
    taken = cut_of(good + bytes(bad), 1, record_bytes_max=100)
    assert (taken.records, taken.next_offset, taken.end) == ((2, 8), 3, CutEnd.UNSOUND)
    taken = cut_of(good + bytes(bad), 3, record_bytes_max=100)
    assert (taken.records, taken.next_offset, taken.end) == ((0, 0), 6, CutEnd.UNSOUND)
    with pytest.raises(FormatError):
        decode_records(b"".join(taken.batches), SOURCE, rule=BatchRule.COMPACTED, verify=False)


def test_a_divided_batch_keeps_its_timestamps() -> None:
    columns = columns_from_rows([b"a", b"b", b"c"], timestamps_ms=77)
    data = bytes(encode_columns(columns, timestamp_type=TimestampType.LOG_APPEND_TIME))
    decoded = decode_records(b"".join(cut_of(data, 1, record_bytes_max=1).batches), SOURCE, rule=BatchRule.COMPACTED)
    assert decoded.offsets.tolist() == [1]
    assert decoded.timestamps_ms.tolist() == [77]
    assert decoded.timestamp_types.tolist() == [TimestampType.LOG_APPEND_TIME]
