"""Produce requests of plain form, read by a kernel without an object per record.

Nearly every request is plain: topics, partitions, perhaps a producer, and records that are strings without escapes. The
kernel finds where the records lie in the body, another copies them into record batches, and Python only sees batches.
Every other body, and every wrong one, is left to `decode`, which explains errors. A body that is accepted here means
what `decode` would have made of it (a test compares them).

Measured: from body to record batches 4 × the bytes per second of msgspec and the encoder of records (benchmark
`json_produce`, 200 records of 1 KiB).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from llog.formats.records.plain_batches import Payloads
from llog.http.json import schemas
from llog.limits import HTTP_TOPIC_PARTITIONS_MAX
from llog.log.keys import PARTITION_MAX, TOPIC_NAME_LENGTH_MAX
from llog.log.producers import SEQUENCE_MODULUS, ProducerClaim

HTTP_SCAN_ROWS_MAX: Final = 2_000_000
"""Records in one plain body; each costs about 40 bytes while it is read."""

_ABSENT: Final = -1
_EPOCH_MAX: Final = 2**15 - 1
# No batch is shorter.
_BATCH_BYTES_MIN: Final = len('{"topic":"t","partition":0,"records":[""]}')
_RECORD_BYTES_GUESS: Final = 64
# In the order of the kernel's arguments.
_NAMES: Final = tuple(
    np.frombuffer(name.encode(), np.uint8)
    for name in (
        *schemas.ProduceRequest.__struct_fields__,
        "topic",
        "partition",
        "records",
        "producer_id",
        "epoch",
        "sequence",
    )
)


class ScannedRequest(NamedTuple):
    """A column for each field of the batches, in order."""

    topics: list[str]
    partitions: list[int]
    claims: list[ProducerClaim | None]
    msg_counts: list[int]
    payloads: Payloads
    """Of all batches, one behind another."""


def scan(body: bytes) -> ScannedRequest | None:
    """None when the body is not plain, or not acceptable."""
    from llog.http.json import plain_scan_kernel as kernel

    table = np.empty((min(len(body) // _BATCH_BYTES_MIN, HTTP_TOPIC_PARTITIONS_MAX), kernel.COLUMNS), np.int64)
    data, rows_max = np.frombuffer(body, np.uint8), len(body) // _RECORD_BYTES_GUESS
    starts, sizes, seen = np.empty(rows_max, np.int64), np.empty(rows_max, np.int64), np.zeros(1, np.uint8)
    count, rows = kernel.scan_request(data, table, starts, sizes, seen, *_NAMES)
    if count == kernel.NO_ROOM:
        rows_max = body.count(b'"') // 2  # counting takes longer than reading, so only where records are short
        if rows_max > HTTP_SCAN_ROWS_MAX:
            return None
        starts, sizes = np.empty(rows_max, np.int64), np.empty(rows_max, np.int64)
        count, rows = kernel.scan_request(data, table, starts, sizes, seen, *_NAMES)
    if count < 0 or (seen[0] and not _is_text(body)):
        return None
    begins, ends, partitions, producer_ids, epochs, sequences, msg_counts = table[:count].T.tolist()
    topics, claims = _topics(body, begins, ends), _claims(producer_ids, epochs, sequences, msg_counts)
    if topics is None or claims is None or max(partitions) > PARTITION_MAX:
        return None
    return ScannedRequest(topics, partitions, claims, msg_counts, Payloads(data, starts[:rows], sizes[:rows]))


def warm_up() -> None:
    """Compile or load the kernel before the first request needs it."""
    scan(b'{"topic_partitions":[{"topic":"warm","partition":0,"records":["up"]}]}')


def _topics(body: bytes, starts: Sequence[int], ends: Sequence[int]) -> list[str] | None:
    topics = [body[start:end] for start, end in zip(starts, ends, strict=True)]
    names: dict[bytes, str] = {}
    for topic in set(topics):
        if not 1 <= len(topic) <= TOPIC_NAME_LENGTH_MAX or not topic.isascii():
            return None
        names[topic] = topic.decode("ascii")
    return [names[topic] for topic in topics]


def _claims(
    producer_ids: Sequence[int], epochs: Sequence[int], sequences: Sequence[int], msg_counts: Sequence[int]
) -> list[ProducerClaim | None] | None:
    if max(max(producer_ids), max(epochs), max(sequences)) == _ABSENT:
        return [None] * len(msg_counts)
    claims: list[ProducerClaim | None] = []
    for producer_id, epoch, first, msg_count in zip(producer_ids, epochs, sequences, msg_counts, strict=True):
        if producer_id == epoch == first == _ABSENT:
            claims.append(None)
        elif _ABSENT in (producer_id, epoch, first) or epoch > _EPOCH_MAX or first >= SEQUENCE_MODULUS:
            return None
        else:
            claims.append(ProducerClaim(producer_id, epoch, first, (first + msg_count - 1) % SEQUENCE_MODULUS))
    return claims


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
