from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.errors import BadMagic, ChecksumMismatch, FormatError, InvalidArgument, InvalidField, TruncatedInput
from llog.formats.buffers import crc32c
from llog.formats.records.bytes_batch import decode_bytes_batch, encode_bytes_batch

SOURCE = "s3://bucket/llog/wal-shared/x"


def joined(payloads: list[bytes]) -> bytes:
    return b"".join(bytes(b) for b in encode_bytes_batch(payloads))


def with_right_checksum(data: bytearray) -> bytes:
    data[-4:] = crc32c(data[:-4]).to_bytes(4, "big")
    return bytes(data)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=50))
def test_every_list_of_payloads_comes_back(payloads: list[bytes]) -> None:
    batch = decode_bytes_batch(joined(payloads), SOURCE)
    assert batch.to_list() == payloads
    assert batch.record_count() == len(payloads)
    assert [bytes(batch.payload(i)) for i in range(len(payloads))] == payloads


def test_the_layout_is_the_documented_one() -> None:
    data = joined([b"ab", b"", b"c"])
    expected = b"LLB1" + bytes.fromhex("00000003 00000002 00000002 00000003".replace(" ", "")) + b"abc"
    assert data == expected + crc32c(expected).to_bytes(4, "big")


def test_truncation_at_every_byte_is_a_format_error_that_names_the_object() -> None:
    data = joined([b"alpha", b"beta"])
    for cut in range(len(data)):
        with pytest.raises(FormatError, match=SOURCE):
            decode_bytes_batch(data[:cut], SOURCE)


def test_every_flipped_bit_is_found() -> None:
    data = joined([b"alpha", b"beta"])
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            decode_bytes_batch(broken, SOURCE)


def test_each_fault_has_its_error_type() -> None:
    data = bytearray(joined([b"alpha", b"beta"]))
    with pytest.raises(BadMagic):
        decode_bytes_batch(b"XXXX" + data[4:], SOURCE)
    with pytest.raises(ChecksumMismatch):
        decode_bytes_batch(data[:-1] + bytes([data[-1] ^ 1]), SOURCE)
    lying_count = bytearray(data)
    lying_count[4:8] = b"\xff\xff\xff\xff"
    with pytest.raises(TruncatedInput, match="4294967295 records"):
        decode_bytes_batch(with_right_checksum(lying_count), SOURCE)
    falling = bytearray(data)
    falling[8:12] = (200).to_bytes(4, "big")
    with pytest.raises(InvalidField, match="lower than the one before"):
        decode_bytes_batch(with_right_checksum(falling), SOURCE)
    short = bytearray(data)
    short[12:16] = (8).to_bytes(4, "big")
    with pytest.raises(InvalidField, match="not the end of the payloads"):
        decode_bytes_batch(with_right_checksum(short), SOURCE)


def test_an_empty_batch_is_refused_when_writing() -> None:
    with pytest.raises(InvalidArgument, match="at least one"):
        encode_bytes_batch([])


def test_a_record_outside_the_batch_is_an_index_error() -> None:
    batch = decode_bytes_batch(joined([b"a"]), SOURCE)
    for index in (-1, 1):
        with pytest.raises(IndexError):
            batch.payload(index)
