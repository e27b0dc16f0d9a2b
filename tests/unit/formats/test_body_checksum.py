from __future__ import annotations

from random import Random

import pytest

from llog.errors import ChecksumMismatch
from llog.formats.body_checksum import BATCH_COMBINED_BYTES_MIN, body_crc32c
from llog.formats.buffers import Buffer, crc32c
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import CRC_START
from llog.formats.shared_blob import BlobGroup, build_shared_blob, parse_shared_blob


def batch_of(random: Random, value_bytes: int) -> bytearray:
    return bytearray(encode_records([random.randbytes(value_bytes)], timestamps_ms=1))


def summed(body: list[Buffer]) -> int:
    return crc32c(b"".join(body))


def test_a_body_s_checksum_follows_from_those_of_its_batches_whatever_their_lengths() -> None:
    random = Random(3)
    for _ in range(200):
        sizes = [random.choice((1, 40_000, 70_000, random.randrange(300_000))) for _ in range(random.randrange(1, 5))]
        body: list[Buffer] = [memoryview(batch_of(random, size)) for size in sizes]
        body.insert(random.randrange(len(body) + 1), random.randbytes(random.choice((0, 7, 50_000))))
        assert body_crc32c(body) == summed(body), sizes


def test_bytes_that_are_not_exactly_one_batch_are_summed() -> None:
    random = Random(4)
    batch = batch_of(random, BATCH_COMBINED_BYTES_MIN)
    old, small = bytearray(batch), bytes(batch[:CRC_START])
    old[16] = 1
    for body in (
        [batch[:-1]],
        [batch + b"x"],
        [batch + batch],
        [old],
        [small],
        [bytes(BATCH_COMBINED_BYTES_MIN)],
    ):
        assert body_crc32c(body) == crc32c(b"".join(bytes(buffer) for buffer in body))


def test_a_batch_that_changed_after_its_checksum_was_compared_makes_a_blob_that_readers_refuse() -> None:
    batch = batch_of(Random(5), 2 * BATCH_COMBINED_BYTES_MIN)
    batch[-9] ^= 1
    blob = build_shared_blob([BlobGroup("t", 0, 1, "kafka-v2", [batch])], created_at_ms=1, writer_id="w")
    with pytest.raises(ChecksumMismatch):
        parse_shared_blob(b"".join(bytes(buffer) for buffer in blob.buffers), "blob")
