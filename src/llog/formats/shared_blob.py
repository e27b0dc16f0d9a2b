"""The shared blob `LLS1`: one immutable WAL object that holds slices of many logs.

    "LLS1" · u32 header length · JSON header · bodies back to back          (big-endian)

A flush needs one PUT for any number of partitions. Index entries point at the bodies (`byte_offset`, `byte_length` in
the object), so readers do not need the header; audit and vacuum read it to learn which logs a blob belongs to. Bodies
tile the space after the header without gap or overlap, one body per topic-partition. The header has the CRC-32C of each
body; its last field, `header_crc32c`, is the CRC-32C of all bytes of the object before that field's value. Headers
without it (other writers of the format, earlier releases) are read too.

`body_offset` in the header counts from the end of the header, so that the header is written in one pass;
`BlobSlice.byte_offset` is the position in the object.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from llog.errors import BadMagic, ChecksumMismatch, InvalidArgument, InvalidField, TruncatedInput, UnsupportedFormat
from llog.formats.body_checksum import body_crc32c
from llog.formats.buffers import Buffer, crc32c_of, json_decoder, json_value, total_length
from llog.limits import SHARED_BLOB_HEADER_BYTES_MAX

SHARED_BLOB_PARTITIONS_MAX: Final = 100_000

MAGIC: Final = b"LLS1"
VERSION: Final = 1
_PREFIX: Final = struct.Struct(">4sI")
PREFIX_BYTES: Final = _PREFIX.size
_CRC_DIGITS: Final = 10
"""Digits of a 32-bit number; JSON ignores the blanks before it."""
_CRC_NAME: Final = b',"header_crc32c":'

_Count = Annotated[int, msgspec.Meta(ge=0)]


class BlobGroup(NamedTuple):
    """The encoded records of one log, as buffers that are not joined."""

    topic: str
    partition: int
    msg_count: int
    encoding: str
    body: Sequence[Buffer]


class BlobPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One body in the header. `crc32c` is missing in blobs of other writers of the format."""

    topic: str
    partition: _Count
    msg_count: _Count
    encoding: str
    body_offset: _Count
    body_length: _Count
    crc32c: _Count | None = None


class BlobHeader(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    created_at_ms: _Count
    writer_id: str = ""
    partitions: tuple[BlobPartition, ...]
    header_crc32c: _Count | None = None


class BlobSlice(NamedTuple):
    """One body and its position in the object."""

    topic: str
    partition: int
    msg_count: int
    encoding: str
    byte_offset: int
    byte_length: int
    crc32c: int | None


class SharedBlob(NamedTuple):
    """A blob ready for `ObjectStore.put`: one header buffer, then the caller's own buffers."""

    buffers: list[Buffer]
    slices: list[BlobSlice]
    byte_length: int


def build_shared_blob(groups: Sequence[BlobGroup], *, created_at_ms: int, writer_id: str) -> SharedBlob:
    """A blob of one header and the bodies of the groups, which are neither copied nor joined."""
    if not groups:
        raise InvalidArgument("groups", "a shared blob holds at least one group")
    if len(groups) > SHARED_BLOB_PARTITIONS_MAX:
        raise InvalidArgument("groups", f"{len(groups)} groups; at most {SHARED_BLOB_PARTITIONS_MAX} in one blob")
    if len({(g.topic, g.partition) for g in groups}) != len(groups):
        raise InvalidArgument("groups", "a topic-partition occurs twice; a blob holds one body for each")
    partitions = []
    position = 0
    for group in groups:
        length = total_length(group.body)
        partitions.append(
            BlobPartition(
                topic=group.topic,
                partition=group.partition,
                msg_count=group.msg_count,
                encoding=group.encoding,
                body_offset=position,
                body_length=length,
                crc32c=body_crc32c(group.body),
            )
        )
        position += length
    header = BlobHeader(version=VERSION, created_at_ms=created_at_ms, writer_id=writer_id, partitions=tuple(partitions))
    first = _encoded(header)
    if len(first) > PREFIX_BYTES + SHARED_BLOB_HEADER_BYTES_MAX:
        reason = f"the header has {len(first) - PREFIX_BYTES} bytes; at most {SHARED_BLOB_HEADER_BYTES_MAX}"
        raise InvalidArgument("groups", reason)
    buffers: list[Buffer] = [first]
    for group in groups:
        buffers.extend(group.body)
    return SharedBlob(buffers, slices_of(header, len(first)), len(first) + position)


def _encoded(header: BlobHeader) -> bytes:
    """The prefix and the header with its checksum, which has a fixed width, so that the prefix can hold the length."""
    fields = msgspec.json.encode(header)
    assert fields.endswith(_CRC_NAME + b"null}"), "the checksum is the last field"
    before = fields[: -len(b"null}")]
    covered = _PREFIX.pack(MAGIC, len(before) + _CRC_DIGITS + 1) + before
    return covered + _crc_text(crc32c_of([covered]))


def _crc_text(crc32c: int) -> bytes:
    return b"%*d}" % (_CRC_DIGITS, crc32c)


def _check_header_crc(data: memoryview, stored: int | None, source: str) -> None:
    """Check the header's checksum, if it has one. A checksum field with a changed name counts as damage."""
    covered, text = data[: -_CRC_DIGITS - 1], data[-_CRC_DIGITS - 1 :]
    if stored is None:
        name = bytes(covered[-len(_CRC_NAME) :])
        alike = sum(ours == theirs for ours, theirs in zip(_CRC_NAME, name, strict=False))
        if alike > len(_CRC_NAME) // 2:
            raise InvalidField(source, f"the header ends with a field {name!r}")
        return
    computed = crc32c_of([covered])
    if bytes(text) != _crc_text(computed):
        raise ChecksumMismatch(source, "header", stored, computed)


def header_length(prefix: Buffer, source: str) -> int:
    """Bytes that prefix and header take, computed from the first PREFIX_BYTES: the range to fetch."""
    if len(prefix) < PREFIX_BYTES:
        raise TruncatedInput(source, f"{len(prefix)} bytes are too few for a shared blob")
    magic, length = _PREFIX.unpack_from(prefix)
    if magic != MAGIC:
        raise BadMagic(source, f"begins with {magic!r}, a shared blob begins with {MAGIC!r}")
    if length > SHARED_BLOB_HEADER_BYTES_MAX:
        raise InvalidField(source, f"header length {length}, more than the limit of {SHARED_BLOB_HEADER_BYTES_MAX}")
    return PREFIX_BYTES + int(length)


def parse_header(data: Buffer, source: str, *, object_length: int | None = None) -> BlobHeader:
    """Read and check the header from the beginning of the object.

    With `object_length` the bodies must also end exactly where the object ends.
    """
    end = header_length(data, source)
    if len(data) < end:
        raise TruncatedInput(source, f"the header needs {end} bytes, only {len(data)} were read")
    header = json_value(_HEADER, memoryview(data)[PREFIX_BYTES:end], source, "header")
    if header.version != VERSION:
        raise UnsupportedFormat(source, f"shared blob version {header.version}; this release reads {VERSION}")
    position = 0
    seen = set()
    for part in header.partitions:
        if part.body_offset != position:
            log = f"{part.topic}:{part.partition}"
            raise InvalidField(source, f"body of {log} at {part.body_offset}, not at {position}")
        position += part.body_length
        seen.add((part.topic, part.partition))
    if len(seen) != len(header.partitions):
        raise InvalidField(source, "a topic-partition occurs twice")
    if object_length is not None and end + position != object_length:
        raise InvalidField(source, f"header describes {end + position} bytes, the object has {object_length}")
    _check_header_crc(memoryview(data)[:end], header.header_crc32c, source)
    return header


def slices_of(header: BlobHeader, bodies_at: int) -> list[BlobSlice]:
    """The position of each body in an object whose bodies begin at `bodies_at` (its `header_length`)."""
    return [
        BlobSlice(p.topic, p.partition, p.msg_count, p.encoding, bodies_at + p.body_offset, p.body_length, p.crc32c)
        for p in header.partitions
    ]


def parse_shared_blob(data: Buffer, source: str) -> tuple[BlobHeader, list[BlobSlice]]:
    """Check a whole blob, every body's checksum included; returns its header and slices."""
    header = parse_header(data, source, object_length=len(data))
    slices = slices_of(header, header_length(data, source))
    view = memoryview(data)
    for part in slices:
        verify_body(view[part.byte_offset : part.byte_offset + part.byte_length], part, source)
    return header, slices


def verify_body(body: Buffer, part: BlobSlice, source: str) -> None:
    """Compare a body with its length and checksum in the header."""
    what = f"body of {part.topic}:{part.partition}"
    if len(body) != part.byte_length:
        raise TruncatedInput(source, f"{what} has {len(body)} of {part.byte_length} bytes")
    if part.crc32c is not None:
        computed = crc32c_of([body])
        if computed != part.crc32c:
            raise ChecksumMismatch(source, what, part.crc32c, computed)


_HEADER: Final = json_decoder(BlobHeader)
