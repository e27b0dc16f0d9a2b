"""One RecordBatch of a few bare payloads: no keys, no headers, one timestamp for all.

Why it exists: many HTTP requests bring a dozen such records, and columns, or calling a kernel, cost more than the
records then (many of them: `plain_batches`). The bytes are those of `encode_columns`; a test compares them. Only
lengths are worked out per record, from a table; the payloads are copied once, by one join.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.records.crc import crc32c
from llog.formats.records.encode import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from llog.formats.records.record_batch import CRC_START, HEADER, HEADER_BYTES, LOG_APPEND_TIME, MAGIC, PREFIX_BYTES
from llog.limits import RECORD_BATCH_BYTES_MAX

# A record but for its payload and its two numbers: attributes, timestamp delta, key length (null), number of headers.
_FIXED_BYTES: Final = 4
_NO_LEADER_EPOCH: Final = -1
_KNOWN: Final = 4_096


def _varint(number: int) -> bytes:
    """A number from 0 on as the zigzag varint that records hold."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# A record is: its length, what is fixed with its place in the batch, the payload's length, the payload, no headers.
# That last byte, 0, is written with the beginning of whatever comes next.
def _head(size: int, place_bytes: int) -> bytes:
    return b"\0" + _varint(_FIXED_BYTES + place_bytes + len(_varint(size)) + size)


def _place(delta: int) -> bytes:
    return b"\0\0%b\x01" % _varint(delta)


_PLACES: Final = [_place(delta) for delta in range(_KNOWN)]
_LENGTHS: Final = [_varint(size) for size in range(_KNOWN)]
_HEADS: Final = {bytes_: [_head(size, bytes_) for size in range(_KNOWN)] for bytes_ in (1, 2)}
# Up to here the place of a record in its batch takes one byte.
_ONE_BYTE: Final = 64


def encode_plain_records(
    values: Sequence[bytes],
    *,
    timestamp_ms: int,
    log_append_time: bool = False,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """One batch, base offset 0, checksum filled in."""
    if not values:
        raise InvalidArgument("records", "a batch needs at least one")
    sizes = list(map(len, values))
    # The first record's head begins with an end that there is no record for: the header's last byte stands there.
    parts: list[bytes] = [b""] * (2 * len(values) + 2)
    parts[0], parts[-1] = bytes(HEADER_BYTES - 1), b"\0"
    parts[1:-1:2], parts[2:-1:2] = _prefixes(sizes), values
    byte_length = sum(map(len, parts))
    if byte_length > RECORD_BATCH_BYTES_MAX:
        raise ValueTooLarge("records", byte_length, RECORD_BATCH_BYTES_MAX)
    attributes = LOG_APPEND_TIME if log_append_time else 0
    fields = [
        0, byte_length - PREFIX_BYTES, _NO_LEADER_EPOCH, MAGIC, 0, attributes, len(values) - 1,
        timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence, len(values),
    ]  # fmt: skip
    batch = bytearray().join(parts)
    HEADER.pack_into(batch, 0, *fields)
    with memoryview(batch) as view, view[CRC_START:] as checked:
        fields[4] = crc32c(checked)
    HEADER.pack_into(batch, 0, *fields)
    return batch


def _prefixes(sizes: list[int]) -> list[bytes]:
    """What stands before each payload; from tables, because working it out would cost more than all the rest."""
    if len(sizes) > _KNOWN or max(sizes) >= _KNOWN:
        places = map(_place, range(len(sizes)))
        return [_head(size, len(place) - 3) + place + _varint(size) for size, place in zip(sizes, places, strict=True)]
    prefixes: list[bytes] = []
    for first, last in ((0, _ONE_BYTE), (_ONE_BYTE, _KNOWN)):
        some, heads = sizes[first:last], _HEADS[1 if first == 0 else 2]
        rows = zip(some, _PLACES[first : first + len(some)], strict=True)
        prefixes += [heads[size] + place + _LENGTHS[size] for size, place in rows]
    return prefixes
