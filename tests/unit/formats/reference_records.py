"""RecordBatch v2 in plain Python, written from the format's description: the model our kernels are held to.

It checks what any reader of foreign bytes has to check (checksum, lengths, that a record is consumed exactly) and
raises ValueError. It is also the baseline of the benchmarks, so it is written as a Python programmer would who cares
for speed: one buffer, local names, no objects per field.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def put_varint(output: bytearray, value: int) -> None:
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        output.append((raw & 0x7F) | 0x80)
        raw >>= 7
    output.append(raw)


def get_varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    raw, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), at


def put_bytes(output: bytearray, value: bytes | None) -> None:
    if value is None:
        output.append(1)
    else:
        put_varint(output, len(value))
        output += value


def get_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = get_varint(data, at)
    if length == -1:
        return None, at
    stop = at + length
    if not at <= stop <= end:
        raise ValueError(f"{length} bytes at {at}")
    return data[at:stop], stop


def encode_section(records: Sequence[Record], base_offset: int = 0) -> bytes:
    output = bytearray()
    base_timestamp = records[0].timestamp_ms
    for record in records:
        body = bytearray(1)
        put_varint(body, record.timestamp_ms - base_timestamp)
        put_varint(body, record.offset - base_offset)
        put_bytes(body, record.key)
        put_bytes(body, record.value)
        put_varint(body, len(record.headers))
        for key, value in record.headers:
            put_bytes(body, key.encode())
            put_bytes(body, value)
        put_varint(output, len(body))
        output += body
    return bytes(output)


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    section: bytes | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    max_timestamp: int | None = None,
) -> bytes:
    """`section` replaces the records' bytes, say by compressed ones."""
    if section is None:
        section = encode_section(records, base_offset)
    last = records[-1].offset - base_offset if last_offset_delta is None else last_offset_delta
    newest = max(r.timestamp_ms for r in records) if max_timestamp is None else max_timestamp
    batch = bytearray(
        HEADER.pack(
            base_offset, 49 + len(section), -1, 2, 0, attributes, last, records[0].timestamp_ms, newest, *producer,
            len(records),
        )
    )  # fmt: skip
    batch += section
    return fix_crc(batch)


def fix_crc(batch: bytes | bytearray) -> bytes:
    """The batch with the checksum its bytes deserve."""
    fixed = bytearray(batch)
    fixed[17:21] = crc32c(memoryview(fixed)[21:]).to_bytes(4, "big")
    return bytes(fixed)


def decode_batch(batch: bytes) -> list[Record]:
    """The records of one uncompressed batch."""
    fields = HEADER.unpack_from(batch)
    (base_offset, length, _, _, crc, attributes, _, base_timestamp, max_timestamp, _, _, _, count) = fields
    if length + 12 != len(batch) or crc32c(memoryview(batch)[21:]) != crc:
        raise ValueError("length or checksum")
    at = HEADER.size
    records = []
    for _ in range(count):
        length, at = get_varint(batch, at)
        end = at + length
        if not at < end <= len(batch):
            raise ValueError(f"record of {length} bytes at {at}")
        timestamp_delta, at = get_varint(batch, at + 1)
        offset_delta, at = get_varint(batch, at)
        key, at = get_bytes(batch, at, end)
        value, at = get_bytes(batch, at, end)
        header_count, at = get_varint(batch, at)
        headers = []
        for _ in range(header_count):
            header_key, at = get_bytes(batch, at, end)
            header_value, at = get_bytes(batch, at, end)
            headers.append(((header_key or b"").decode(), header_value))
        if at != end:
            raise ValueError(f"record ends at {at}, not at {end}")
        timestamp = max_timestamp if attributes & 0x08 else base_timestamp + timestamp_delta
        records.append(Record(base_offset + offset_delta, timestamp, key, value, headers))
    if at != len(batch):
        raise ValueError("bytes behind the last record")
    return records
