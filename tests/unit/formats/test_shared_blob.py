from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.errors import BadMagic, ChecksumMismatch, FormatError, InvalidArgument, InvalidField, UnsupportedFormat
from llog.formats.buffers import Buffer
from llog.formats.shared_blob import (
    BlobGroup,
    build_shared_blob,
    header_length,
    parse_header,
    parse_shared_blob,
    slices_of,
)

SOURCE = "s3://bucket/llog/wal-shared/x"
bodies = st.lists(st.binary(max_size=40), max_size=4)


def blob_of(*groups: BlobGroup) -> bytes:
    return b"".join(bytes(b) for b in build_shared_blob(groups, created_at_ms=5, writer_id="w").buffers)


def two_groups() -> bytes:
    return blob_of(
        BlobGroup("orders", 0, 2, "kafka-v2", [b"alpha", b"beta"]), BlobGroup("orders", 1, 1, "kafka-v2", [b"x"])
    )


@given(st.lists(bodies, min_size=1, max_size=8), st.integers(0, 2**40), st.text(max_size=20))
def test_every_group_comes_back_at_its_slice(parts: list[list[bytes]], created_at_ms: int, writer_id: str) -> None:
    groups = [BlobGroup("t", i, len(body), "kafka-v2", body) for i, body in enumerate(parts)]
    blob = build_shared_blob(groups, created_at_ms=created_at_ms, writer_id=writer_id)
    data = b"".join(bytes(b) for b in blob.buffers)
    header, slices = parse_shared_blob(data, SOURCE)
    assert (header.created_at_ms, header.writer_id, blob.byte_length) == (created_at_ms, writer_id, len(data))
    assert slices == blob.slices
    assert [data[s.byte_offset : s.byte_offset + s.byte_length] for s in slices] == [b"".join(p) for p in parts]


def test_bodies_are_passed_on_and_not_copied() -> None:
    body: list[Buffer] = [memoryview(b"alpha"), bytearray(b"beta")]
    blob = build_shared_blob([BlobGroup("t", 0, 2, "kafka-v2", body)], created_at_ms=1, writer_id="w")
    assert blob.buffers[1] is body[0]
    assert blob.buffers[2] is body[1]


def test_the_header_is_read_from_a_prefix_of_the_object() -> None:
    data = two_groups()
    end = header_length(data[:8], SOURCE)
    header = parse_header(data[:end], SOURCE)
    assert [p.topic for p in header.partitions] == ["orders", "orders"]
    [first, second] = slices_of(header, end)
    assert data[first.byte_offset : first.byte_offset + first.byte_length] == b"alphabeta"
    assert data[second.byte_offset :] == b"x"


def test_a_blob_of_another_writer_without_checksums_is_read() -> None:
    header = (
        b'{"version":1,"created_at_ms":5,"partitions":[{"topic":"t","partition":0,"msg_count":1,'
        b'"encoding":"bytes-batch-v1","body_offset":0,"body_length":3}]}'
    )
    data = b"LLS1" + len(header).to_bytes(4, "big") + header + b"abc"
    _, [part] = parse_shared_blob(data, SOURCE)
    assert (part.crc32c, part.encoding) == (None, "bytes-batch-v1")


def test_truncation_at_every_byte_is_a_format_error_that_names_the_object() -> None:
    data = two_groups()
    for cut in range(len(data)):
        with pytest.raises(FormatError, match=SOURCE):
            parse_shared_blob(data[:cut], SOURCE)


def test_every_flipped_bit_in_a_body_is_found() -> None:
    data = two_groups()
    start = header_length(data, SOURCE)
    for bit in range(8 * start, 8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumMismatch):
            parse_shared_blob(broken, SOURCE)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, UnsupportedFormat),
        ({"partitions": [{"topic": "t"}]}, InvalidField),
        ({"partitions": "many"}, InvalidField),
        ({"created_at_ms": -1}, InvalidField),
        ({"created_at_ms": True}, InvalidField),
    ],
)
def test_a_contradicting_header_has_its_error_type(change: dict[str, object], error: type[FormatError]) -> None:
    data = two_groups()
    end = header_length(data, SOURCE)
    header = msgspec.json.encode({**msgspec.json.decode(data[8:end]), **change})
    with pytest.raises(error, match=SOURCE):
        parse_header(b"LLS1" + len(header).to_bytes(4, "big") + header, SOURCE)


def test_bodies_that_overlap_or_leave_a_gap_are_refused() -> None:
    data = two_groups()
    end = header_length(data, SOURCE)
    for body_offset in (0, 8, 10):
        value = msgspec.json.decode(data[8:end])
        value["partitions"][1]["body_offset"] = body_offset
        header = msgspec.json.encode(value)
        with pytest.raises(InvalidField, match="not at 9"):
            parse_header(b"LLS1" + len(header).to_bytes(4, "big") + header, SOURCE)


def test_other_objects_and_huge_headers_are_refused_before_anything_is_read() -> None:
    with pytest.raises(BadMagic):
        header_length(b"LLB1\0\0\0\1", SOURCE)
    with pytest.raises(InvalidField, match="limit"):
        header_length(b"LLS1\xff\xff\xff\xff", SOURCE)


def test_deeply_nested_json_is_a_format_error() -> None:
    header = b'{"version":1,"created_at_ms":1,"partitions":[],"x":' + b"[" * 200_000 + b"}"
    with pytest.raises(InvalidField):
        parse_header(b"LLS1" + len(header).to_bytes(4, "big") + header, SOURCE)


def test_a_builder_refuses_nothing_and_duplicates() -> None:
    with pytest.raises(InvalidArgument, match="at least one"):
        build_shared_blob([], created_at_ms=1, writer_id="w")
    group = BlobGroup("t", 0, 1, "kafka-v2", [b"x"])
    with pytest.raises(InvalidArgument, match="twice"):
        build_shared_blob([group, group], created_at_ms=1, writer_id="w")


def test_no_bit_of_a_blob_changes_unseen() -> None:
    data = bytearray(two_groups())
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            parse_shared_blob(bytes(data), SOURCE)
        data[bit // 8] ^= 1 << bit % 8
    parse_shared_blob(bytes(data), SOURCE)


def test_a_header_without_a_checksum_is_read() -> None:
    data = two_groups()
    end = header_length(data, SOURCE)
    value = msgspec.json.decode(data[8:end])
    del value["header_crc32c"]
    header = msgspec.json.encode(value)
    assert parse_header(b"LLS1" + len(header).to_bytes(4, "big") + header, SOURCE).header_crc32c is None
