"""Record batches: walking, checking and patching against bare CRC-32C; encoding and decoding against Python."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import crc32c

from llog.formats.arrow import columns_from_rows
from llog.formats.record_batch import patch_offsets, verify_crcs, walk
from llog.formats.records import decode_records, encode_columns, encode_records, warm_up
from tests.benchmarks.harness import Duel, benchmark
from tests.unit.formats.reference_records import Record, decode_batch, encode_batch

BUFFER_BYTES = 8 * 1024 * 1024
RECORD_BYTES = 1024
RECORDS = 8192
BASELINE_RECORDS = 1024
NOW_MS = 1_800_000_000_000


def values(count: int) -> list[bytes]:
    return [random.Random(i).randbytes(RECORD_BYTES) for i in range(count)]


def batches_of(byte_length: int) -> bytearray:
    """A buffer like a flush of the broker: batches of `byte_length`, base offsets 0."""
    rows = values(64)
    per_batch = max(1, byte_length // (RECORD_BYTES + 10))
    batch = encode_records(rows[:per_batch], timestamps_ms=NOW_MS)
    return bytearray(bytes(batch) * (BUFFER_BYTES // len(batch)))


def walk_crc_patch(buffer: bytearray) -> None:
    batches = walk(buffer, "benchmark")
    verify_crcs(buffer, batches, "benchmark")
    patch_offsets(buffer, batches, 1_000, 3)


@benchmark("batch_walk_crc_patch", against="one bare CRC-32C of the whole buffer", at_least=0.7, rounds=21)
@asynccontextmanager
async def batch_walk_crc_patch() -> AsyncIterator[Duel]:
    """16 KiB batches. The baseline is the harder one: a call per batch would be slower than a call for all."""
    warm_up()
    buffer = batches_of(16 * 1024)
    view = memoryview(buffer)
    repeat = 10

    def ours() -> None:
        for _ in range(repeat):
            walk_crc_patch(buffer)

    def baseline() -> None:
        for _ in range(repeat):
            crc32c.crc32c(view)

    yield Duel(ours, baseline, repeat * len(buffer) / 1e6, "MB")


@benchmark("records_encode", against="a Python loop", at_least=20, goal="≥ 1,000 MB/s")
@asynccontextmanager
async def records_encode() -> AsyncIterator[Duel]:
    """From rows of Python bytes, so that turning them into columns counts too."""
    warm_up()
    rows = values(RECORDS)
    records = [Record(i, NOW_MS, None, value, []) for i, value in enumerate(rows[:BASELINE_RECORDS])]
    yield Duel(
        lambda: encode_records(rows, timestamps_ms=NOW_MS),
        lambda: encode_batch(records),
        RECORDS * RECORD_BYTES / 1e6,
        "MB",
        baseline_work=BASELINE_RECORDS * RECORD_BYTES / 1e6,
    )


@benchmark("records_encode_columns", against="a Python loop", at_least=20, goal="≥ 1,000 MB/s")
@asynccontextmanager
async def records_encode_columns() -> AsyncIterator[Duel]:
    """From columns, as tables come."""
    warm_up()
    rows = values(RECORDS)
    columns = columns_from_rows(rows, timestamps_ms=NOW_MS)
    records = [Record(i, NOW_MS, None, value, []) for i, value in enumerate(rows[:BASELINE_RECORDS])]
    yield Duel(
        lambda: encode_columns(columns),
        lambda: encode_batch(records),
        RECORDS * RECORD_BYTES / 1e6,
        "MB",
        baseline_work=BASELINE_RECORDS * RECORD_BYTES / 1e6,
    )


@benchmark("records_decode", against="a Python loop", at_least=20, goal="≥ 1,000 MB/s")
@asynccontextmanager
async def records_decode() -> AsyncIterator[Duel]:
    """Walk, checksums and columns; the Python loop checks nothing."""
    warm_up()
    rows = values(RECORDS)
    buffer = b"".join(encode_records(rows[i : i + 16], timestamps_ms=NOW_MS) for i in range(0, RECORDS, 16))
    small = bytes(encode_records(rows[:BASELINE_RECORDS], timestamps_ms=NOW_MS))
    yield Duel(
        lambda: decode_records(buffer, "benchmark"),
        lambda: decode_batch(small),
        RECORDS * RECORD_BYTES / 1e6,
        "MB",
        baseline_work=BASELINE_RECORDS * RECORD_BYTES / 1e6,
    )
