from __future__ import annotations

import numpy as np
import pytest

from llog.errors import (
    BadMagic,
    ChecksumMismatch,
    FormatError,
    InvalidArgument,
    InvalidField,
    TruncatedInput,
    ValueTooLarge,
)
from llog.formats import segment as segment_module
from llog.formats.records.record_batch import walk
from llog.formats.segment import ENTRY, TAIL_BYTES_MIN, SegmentBuilder, footer_length, parse_footer, verify_data
from tests import samples

SOURCE = "s3://bucket/llog/orders/partitions/7/data/compacted/x"


def test_a_footer_comes_back_with_every_batch_and_the_extension() -> None:
    made = samples.segment()
    data = b"".join(bytes(b) for b in made.buffers)
    footer = parse_footer(data, len(data), SOURCE)
    assert footer.extension == made.extension
    assert (footer.footer_length, footer.data_length) == (made.footer_length, made.byte_length - made.footer_length)
    assert footer.entries["base_offset"].tolist() == [1, 11, 21]
    assert footer.entries["record_count"].tolist() == [10, 10, 10]
    assert made.record_count == 30
    assert made.max_timestamp_ms == samples.NOW_MS + 30
    verify_data([memoryview(data)[: footer.data_length]], footer, SOURCE)


def test_the_last_bytes_give_the_footer_length() -> None:
    made = samples.segment()
    data = samples.segment_bytes()
    assert footer_length(data[-TAIL_BYTES_MIN:], len(data), SOURCE) == made.footer_length
    footer = parse_footer(data[-made.footer_length :], len(data), SOURCE)
    assert footer.data_length == made.byte_length - made.footer_length
    with pytest.raises(TruncatedInput):
        parse_footer(data[-made.footer_length + 1 :], len(data), SOURCE)


def test_a_plain_object_without_our_extension_is_read() -> None:
    data = samples.plain_segment_bytes()
    footer = parse_footer(data, len(data), SOURCE)
    assert footer.extension is None
    assert footer.entries["base_offset"].tolist() == [1, 11, 21]


def test_a_reader_of_the_plain_format_finds_its_entries_in_ours() -> None:
    data = samples.segment_bytes()
    count = int.from_bytes(data[-8:-4], "big")
    assert (count, data[-4:]) == (3, b"KLIX")
    entries = data[-8 - 32 * count : -8]
    for i in range(count):
        entry = entries[32 * i : 32 * (i + 1)]
        position, length = int.from_bytes(entry[8:12], "big"), int.from_bytes(entry[12:16], "big")
        batch = data[position : position + length]
        assert batch[:8] == entry[:8]
        assert batch[16] == 2  # magic of a RecordBatch v2
        assert int.from_bytes(batch[8:12], "big") == length - 12
        assert batch[23:27] == entry[16:20]  # last offset delta
        assert batch[35:43] == entry[20:28]  # max timestamp
        assert batch[57:61] == entry[28:32]  # record count


def test_a_segment_without_records_still_tells_its_range() -> None:
    data = samples.empty_segment_bytes()
    footer = parse_footer(data, len(data), SOURCE)
    assert (footer.data_length, len(footer.entries)) == (0, 0)
    assert footer.extension is not None
    assert (footer.extension.start_offset, footer.extension.end_offset) == (1, 1)
    assert footer.byte_range(0, 100) == (0, 0)


def test_any_offset_is_found_by_byte_range() -> None:
    data = samples.segment_bytes()
    footer = parse_footer(data, len(data), SOURCE)
    for offset in range(1, 31):
        begin, length = footer.byte_range(offset, offset)
        columns = walk(data[begin : begin + length], SOURCE)
        assert len(columns.position) == 1
        base = int(columns.base_offset[0])
        assert base <= offset <= base + int(columns.last_offset_delta[0])
    assert footer.byte_range(31, 99) == (0, 0)
    assert footer.byte_range(0, 99) == (0, footer.data_length)


def test_a_byte_budget_takes_whole_batches_and_at_least_one() -> None:
    data = samples.segment_bytes()
    footer = parse_footer(data, len(data), SOURCE)
    lengths = footer.entries["batch_length"].tolist()
    assert footer.byte_range(1, 30, bytes_max=1) == (0, lengths[0])
    assert footer.byte_range(1, 30, bytes_max=lengths[0] + lengths[1]) == (0, lengths[0] + lengths[1])
    assert footer.byte_range(1, 30, bytes_max=lengths[0] + lengths[1] - 1) == (0, lengths[0])


def test_truncation_at_every_byte_is_a_format_error_that_names_the_object() -> None:
    data = samples.segment_bytes()
    for cut in range(len(data)):
        with pytest.raises(FormatError, match=SOURCE):
            parse_footer(data[:cut], cut, SOURCE)


def parse_and_verify(data: bytearray) -> None:
    footer = parse_footer(data, len(data), SOURCE)
    verify_data([memoryview(data)[: footer.data_length]], footer, SOURCE)


def test_every_flipped_bit_of_index_and_data_is_found() -> None:
    data = samples.segment_bytes()
    footer = parse_footer(data, len(data), SOURCE)
    index_at = len(data) - 8 - 3 * ENTRY.itemsize
    places = [*range(0, footer.data_length, 7), *range(index_at, len(data))]
    for place in places:
        for bit in range(8):
            broken = bytearray(data)
            broken[place] ^= 1 << bit
            with pytest.raises(FormatError):
                parse_and_verify(broken)


def test_each_fault_has_its_error_type() -> None:
    data = samples.plain_segment_bytes()
    with pytest.raises(BadMagic):
        parse_footer(data[:-1] + b"Y", len(data), SOURCE)
    with pytest.raises(InvalidField, match="4294967295 entries"):
        parse_footer(data[:-8] + b"\xff\xff\xff\xffKLIX", len(data), SOURCE)
    ours = bytearray(samples.segment_bytes())
    ours[-8 - 32] ^= 0x40  # the base offset of the last entry
    with pytest.raises((InvalidField, ChecksumMismatch)):
        parse_footer(ours, len(ours), SOURCE)


def test_hostile_offsets_at_the_edge_of_64_bits_do_not_wrap() -> None:
    data = bytearray(samples.plain_segment_bytes())
    last = len(data) - 8 - 32
    data[last : last + 8] = (2**63 - 3).to_bytes(8, "big")
    with pytest.raises(InvalidField, match="64 bits"):
        parse_footer(data, len(data), SOURCE)


def test_a_builder_refuses_offsets_that_do_not_rise_or_leave_the_range() -> None:
    builder = SegmentBuilder(topic="orders", partition=7, incarnation=1)
    data = samples.batch_bytes(10, 5)
    builder.add(data, walk(data, SOURCE))
    with pytest.raises(InvalidArgument, match="must increase"):
        builder.add(data, walk(data, SOURCE))
    with pytest.raises(InvalidArgument, match="outside"):
        builder.finish(start_offset=11, end_offset=14, level=1, created_at_ms=1)
    with pytest.raises(InvalidArgument, match="outside"):
        builder.finish(start_offset=10, end_offset=13, level=1, created_at_ms=1)


def test_a_segment_never_outgrows_its_32_bit_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = SegmentBuilder(topic="orders", partition=7, incarnation=1)
    data = samples.batch_bytes(0, 5)
    monkeypatch.setattr(segment_module, "SEGMENT_DATA_BYTES_MAX", 2 * len(data) - 1)
    builder.add(data, walk(data, SOURCE))
    more = samples.batch_bytes(5, 5)
    with pytest.raises(ValueTooLarge, match="segment"):
        builder.add(more, walk(more, SOURCE))


def test_entries_are_32_bytes_big_endian() -> None:
    row = np.array([(1, 2, 3, 4, 5, 6)], dtype=ENTRY).tobytes()
    assert row.hex() == "0000000000000001000000020000000300000004000000000000000500000006"
