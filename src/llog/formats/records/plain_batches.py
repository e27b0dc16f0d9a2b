"""RecordBatches of bare payloads: no keys, no headers, one timestamp for all.

Most HTTP requests bring such records. Few of them are encoded in Python, from tables of varints, since columns or a
kernel call would cost more than the records; from `PLAIN_KERNEL_RECORDS_MIN` on kernels write all batches of a request
at once, without Python work per record. The bytes equal those of `encode_columns`; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

import numpy as np

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.buffers import Buffer, crc32c
from llog.formats.records.encode import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from llog.formats.records.record_batch import CRC_START, HEADER, HEADER_BYTES, LOG_APPEND_TIME, MAGIC, PREFIX_BYTES
from llog.formats.records.record_columns import Bytes, Longs
from llog.limits import RECORD_BATCH_BYTES_MAX

PLAIN_KERNEL_RECORDS_MIN: Final = 48
"""With this many records the kernels are faster."""

ProducerFields = tuple[int, int, int]
"""Id, epoch and first sequence."""
NO_PRODUCER: Final[ProducerFields] = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)


class Payloads(NamedTuple):
    """Byte strings inside one buffer: row i is data[starts[i] : starts[i] + sizes[i]]."""

    data: Bytes
    starts: Longs
    sizes: Longs


class PlainBatch(NamedTuple):
    data: Buffer
    payload_bytes_max: int
    """Length of its longest payload."""
    payload_bytes: int
    """Of all its payloads."""


def encode_plain_batches(
    batches: Sequence[Sequence[str]],
    *,
    timestamp_ms: int,
    log_append_time: bool = False,
    producers: Sequence[ProducerFields] | None = None,
) -> list[PlainBatch]:
    """One RecordBatch for each list of texts; batch i carries producers[i], if given."""
    rows = list(map(len, batches))
    if sum(rows) >= PLAIN_KERNEL_RECORDS_MIN:
        payloads = _payloads_of(list(chain.from_iterable(batches)))
        return encode_payloads(
            payloads, rows, timestamp_ms=timestamp_ms, log_append_time=log_append_time, producers=producers
        )
    owners = [NO_PRODUCER] * len(rows) if producers is None else producers
    encoded: list[PlainBatch] = []
    for texts, (producer_id, epoch, sequence) in zip(batches, owners, strict=True):
        values = list(map(str.encode, texts))
        batch = encode_plain_records(
            values,
            timestamp_ms=timestamp_ms,
            log_append_time=log_append_time,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        sizes = list(map(len, values))
        encoded.append(PlainBatch(batch, max(sizes), sum(sizes)))
    return encoded


def encode_payloads(
    payloads: Payloads,
    rows: Sequence[int],
    *,
    timestamp_ms: int,
    log_append_time: bool = False,
    producers: Sequence[ProducerFields] | None = None,
) -> list[PlainBatch]:
    """The same for payloads that are bytes already: batch k takes the next rows[k] payloads."""
    from llog.formats.records import encode_kernels as kernels

    if not all(rows):
        raise InvalidArgument("records", "a batch needs at least one")
    counts = np.array(rows, np.int64)
    byte_lengths, payload_bytes = np.empty(len(rows), np.int64), np.empty((2, len(rows)), np.int64)
    total = kernels.measure_plain(*payloads, counts, byte_lengths, payload_bytes)
    if total < 0:
        raise InvalidArgument("records", "payloads and their positions contradict each other")
    ends = [0, *accumulate(byte_lengths.tolist())]
    longest = max(end - begin for begin, end in pairwise(ends))
    if longest > RECORD_BATCH_BYTES_MAX:
        raise ValueTooLarge("records", longest, RECORD_BATCH_BYTES_MAX)
    owners = np.array([NO_PRODUCER] * len(rows) if producers is None else producers, np.int64)
    attributes = LOG_APPEND_TIME if log_append_time else 0
    output = np.empty(total, np.uint8)
    kernels.write_plain(output, *payloads, counts, byte_lengths, owners, timestamp_ms, attributes)
    _fill_checksums(output, byte_lengths, ends)
    view = output.data
    return [
        PlainBatch(view[begin:end], largest, together)
        for (begin, end), largest, together in zip(pairwise(ends), *payload_bytes.tolist(), strict=True)
    ]


def _payloads_of(texts: Sequence[str]) -> Payloads:
    """The texts as UTF-8. They are nearly always ASCII, which is encoded in one call."""
    text = "".join(texts)
    if text.isascii():
        data, lengths = text.encode("ascii"), map(len, texts)
    else:
        encoded = list(map(str.encode, texts))
        data, lengths = b"".join(encoded), map(len, encoded)
    sizes = np.fromiter(lengths, np.int64, len(texts))
    return Payloads(np.frombuffer(data, np.uint8), np.cumsum(sizes) - sizes, sizes)


def _fill_checksums(output: Bytes, byte_lengths: Longs, ends: Sequence[int]) -> None:
    from llog.formats.records import batch_kernels

    if batch_kernels.CRC_AVAILABLE:
        batch_kernels.fill_checksums(output, byte_lengths, batch_kernels.CRC_ZEROS)
        return
    view = output.data
    for begin, end in pairwise(ends):
        checksum = crc32c(view[begin + CRC_START : end])
        view[begin + CRC_START - 4 : begin + CRC_START] = checksum.to_bytes(4, "big")


# -- a few records, in Python ------------------------------------------------------------------------------------------

# A record without its payload and its two numbers: attributes, timestamp delta, key length (null), number of headers.
_FIXED_BYTES: Final = 4
_NO_LEADER_EPOCH: Final = -1
_KNOWN: Final = 4_096


def _varint(number: int) -> bytes:
    """A number that is not negative, as the zigzag varint of the record format."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# A record is: its length, the fixed fields with its delta, the payload's length, the payload, the header count 0.
# That last byte is written together with the beginning of the next record.
def _head(size: int, delta_bytes: int) -> bytes:
    return b"\0" + _varint(_FIXED_BYTES + delta_bytes + len(_varint(size)) + size)


def _delta(delta: int) -> bytes:
    return b"\0\0%b\x01" % _varint(delta)


_DELTAS: Final = [_delta(delta) for delta in range(_KNOWN)]
_LENGTHS: Final = [_varint(size) for size in range(_KNOWN)]
_HEADS: Final = {bytes_: [_head(size, bytes_) for size in range(_KNOWN)] for bytes_ in (1, 2)}
# Deltas below this take one byte.
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
    # The first prefix begins with the last byte of the batch header, in place of the end of a record before it.
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
    """The bytes before each payload; from tables, because computing them would cost more than all the rest."""
    if len(sizes) > _KNOWN or max(sizes) >= _KNOWN:
        deltas = map(_delta, range(len(sizes)))
        return [_head(size, len(delta) - 3) + delta + _varint(size) for size, delta in zip(sizes, deltas, strict=True)]
    prefixes: list[bytes] = []
    for first, last in ((0, _ONE_BYTE), (_ONE_BYTE, _KNOWN)):
        some, heads = sizes[first:last], _HEADS[1 if first == 0 else 2]
        rows = zip(some, _DELTAS[first : first + len(some)], strict=True)
        prefixes += [heads[size] + delta + _LENGTHS[size] for size, delta in rows]
    return prefixes
