"""Small things every format shares: buffers that are never joined, and JSON that is never trusted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from llog.errors import InvalidField
from llog.formats.records.crc import Buffer, crc32c

T = TypeVar("T")


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
    """Decode JSON from outside; anything wrong with it is an `InvalidField` that names the object and the field."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidField(source, f"{what}: {error}") from None
