"""Helpers that all formats share: CRC-32C, lists of buffers that are never joined, and JSON from outside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from crc32c import crc32c as _crc32c

from llog.errors import InvalidField

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview


def crc32c(buffer: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of a contiguous buffer, continued from `value`, the checksum of the bytes before it."""
    return int(_crc32c(buffer, value))


def crc32c_of(buffers: Iterable[Buffer]) -> int:
    """CRC-32C of the concatenation of buffers."""
    value = 0
    for data in buffers:
        value = crc32c(data, value)
    return value


def total_length(buffers: Iterable[Buffer]) -> int:
    return sum([b.nbytes if isinstance(b, memoryview) else len(b) for b in buffers])


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind, strict=True)


def json_value(decoder: msgspec.json.Decoder[T], data: Buffer, source: str, what: str) -> T:
    """Decode untrusted JSON. Raises `InvalidField`, which names the object and the field."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidField(source, f"{what}: {error}") from None
