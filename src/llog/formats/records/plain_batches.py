"""RecordBatches of bare payloads, many at a time: no keys, no headers, one timestamp for all.

Why it exists: an HTTP request brings hundreds of such records for a dozen logs. Two calls of a kernel write all its
batches, and a third their checksums; nothing runs in Python per record. The bytes are those of `encode_columns`; a test
compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

import numpy as np

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.records.crc import Buffer, crc32c
from llog.formats.records.encode import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from llog.formats.records.plain_batch import encode_plain_records
from llog.formats.records.record_batch import CRC_START, LOG_APPEND_TIME
from llog.formats.records.record_columns import Bytes, Longs
from llog.limits import RECORD_BATCH_BYTES_MAX

PLAIN_KERNEL_RECORDS_MIN: Final = 48
"""From so many on the kernels win."""

ProducerFields = tuple[int, int, int]
"""Id, epoch and first sequence."""
NO_PRODUCER: Final[ProducerFields] = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)


class Payloads(NamedTuple):
    """Byte strings, wherever they lie: row i is data[starts[i] : starts[i] + sizes[i]]."""

    data: Bytes
    starts: Longs
    sizes: Longs


class PlainBatch(NamedTuple):
    data: Buffer
    payload_bytes_max: int
    """Of its longest payload."""


def encode_plain_batches(
    batches: Sequence[Sequence[str]],
    *,
    timestamp_ms: int,
    log_append_time: bool = False,
    producers: Sequence[ProducerFields] | None = None,
) -> list[PlainBatch]:
    """One RecordBatch for each list of texts; each has the producer at its place, where `producers` are given."""
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
        encoded.append(PlainBatch(batch, max(map(len, values))))
    return encoded


def encode_payloads(
    payloads: Payloads,
    rows: Sequence[int],
    *,
    timestamp_ms: int,
    log_append_time: bool = False,
    producers: Sequence[ProducerFields] | None = None,
) -> list[PlainBatch]:
    """The same for payloads that are bytes already: the first batch takes rows[0] of them, and so on."""
    from llog.formats.records import plain_kernels as kernels

    if not all(rows):
        raise InvalidArgument("records", "a batch needs at least one")
    counts = np.array(rows, np.int64)
    byte_lengths, largest = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    total = kernels.measure_plain(*payloads, counts, byte_lengths, largest)
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
        PlainBatch(view[begin:end], payload_bytes)
        for (begin, end), payload_bytes in zip(pairwise(ends), largest.tolist(), strict=True)
    ]


def _payloads_of(texts: Sequence[str]) -> Payloads:
    """As UTF-8. Nearly always all is ASCII, and is encoded as one."""
    text = "".join(texts)
    if text.isascii():
        data, lengths = text.encode("ascii"), map(len, texts)
    else:
        encoded = list(map(str.encode, texts))
        data, lengths = b"".join(encoded), map(len, encoded)
    sizes = np.fromiter(lengths, np.int64, len(texts))
    return Payloads(np.frombuffer(data, np.uint8), np.cumsum(sizes) - sizes, sizes)


def _fill_checksums(output: Bytes, byte_lengths: Longs, ends: Sequence[int]) -> None:
    from llog.formats.records import crc_kernel

    if crc_kernel.AVAILABLE:
        crc_kernel.fill_checksums(output, byte_lengths, crc_kernel.ZEROS)
        return
    view = output.data
    for begin, end in pairwise(ends):
        checksum = crc32c(view[begin + CRC_START : end])
        view[begin + CRC_START - 4 : begin + CRC_START] = checksum.to_bytes(4, "big")
