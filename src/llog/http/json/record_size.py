"""How many bytes a record takes as a batch of its own: what a topic's `max.message.bytes` is compared with.

The number is exact, and the same as a Kafka producer's that sends this record alone and uncompressed; a test compares
it with what the encoder writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from llog.formats.records.record_batch import HEADER_BYTES
from llog.formats.records.record_columns import Header

# Payload sizes whose record size is remembered; working it out takes longer than finding it.
HTTP_RECORD_SIZES_KNOWN: Final = 4_096


# Attributes, and the deltas of time and offset, which are 0.
_FIXED_BYTES: Final = 3


def largest_record_bytes(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[Header]] | None = None,
) -> int:
    """Of the largest among the records, given as columns."""
    if keys is None and headers is None:  # nothing but the payload differs
        longest = max((0 if value is None else len(value) for value in values), default=0)
        return bare_record_bytes(longest)
    rows = len(values)
    keys = [None] * rows if keys is None else keys
    headers = [()] * rows if headers is None else headers
    return max(
        _record_bytes(_sized(key) + _sized(value) + _headers_bytes(own))
        for key, value, own in zip(keys, values, headers, strict=True)
    )


@lru_cache(maxsize=HTTP_RECORD_SIZES_KNOWN)
def bare_record_bytes(payload_bytes: int) -> int:
    """Of a record that is nothing but a payload."""
    return _record_bytes(_with_length(payload_bytes) + 2)


def _record_bytes(content_bytes: int) -> int:
    """Around key, value and headers: the batch's header, the record's length, what every record has."""
    return HEADER_BYTES + _with_length(_FIXED_BYTES + content_bytes)


def _headers_bytes(headers: Sequence[Header]) -> int:
    size = _varint_bytes(len(headers))
    for name, value in headers:
        size += _with_length(len(name.encode())) + _sized(value)
    return size


def _sized(value: bytes | None) -> int:
    return 1 if value is None else _with_length(len(value))  # null is the length -1


def _with_length(size: int) -> int:
    return _varint_bytes(size) + size


def _varint_bytes(number: int) -> int:
    """Of a number from 0 on, as a zigzag varint."""
    return ((number << 1).bit_length() + 6) // 7 or 1
