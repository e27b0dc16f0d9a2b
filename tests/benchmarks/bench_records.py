"""Record batches: walking, checking and patching against bare CRC-32C; encoding and decoding against Python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import crc32c

from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_columns, encode_records
from llog.formats.records.record_batch import HEADER_BYTES, patch_offsets, verify_crcs, walk
from llog.formats.records.record_columns import columns_from_rows
from llog.formats.warm_up import warm_up
from tests.benchmarks.harness import Duel, benchmark
from tests.unit.formats.reference_records import Record, decode_batch, encode_batch

BUFFER_BYTES = 8 * 1024 * 1024
KEY_BYTES = 16
VALUE_BYTES = 1008
RECORDS = 2048
ROUND_BATCHES = 16
NOW_MS = 1_800_000_000_000


def rows_of(count: int) -> list[Record]:
    """Records of 1 KiB: a key of 16 bytes and a value, no headers."""
    random = Random(1)
    return [Record(i, NOW_MS + i, random.randbytes(KEY_BYTES), random.randbytes(VALUE_BYTES), []) for i in range(count)]


def batches_of(byte_length: int) -> bytearray:
    """A buffer like a flush of the broker: batches of `byte_length`, base offsets 0."""
    value = Random(2).randbytes(byte_length - HEADER_BYTES - 12)
    batch = encode_records([value], timestamps_ms=NOW_MS)
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


@benchmark("records_encode", against="a Python loop", at_least=20, rounds=21, goal="≥ 1,000 MB/s")
@asynccontextmanager
async def records_encode() -> AsyncIterator[Duel]:
    """Columns to a batch of 2 MiB, checksum included on both sides."""
    warm_up()
    rows = rows_of(RECORDS)
    columns = columns_from_rows(
        [row.value for row in rows],
        keys=[row.key for row in rows],
        timestamps_ms=[row.timestamp_ms for row in rows],
    )
    assert bytes(encode_columns(columns)) == encode_batch(rows)
    yield _duel(lambda: encode_columns(columns), lambda: encode_batch(rows))


@benchmark("records_encode_rows", against="a Python loop", at_least=5, rounds=21, goal="≥ 1,000 MB/s")
@asynccontextmanager
async def records_encode_rows() -> AsyncIterator[Duel]:
    """The same from lists of Python bytes, which have to be gathered first."""
    warm_up()
    rows = rows_of(RECORDS)
    values, keys, timestamps = [r.value for r in rows], [r.key for r in rows], [r.timestamp_ms for r in rows]
    yield _duel(lambda: encode_records(values, keys=keys, timestamps_ms=timestamps), lambda: encode_batch(rows))


@benchmark("records_decode", against="a Python loop", at_least=20, rounds=21, goal="≥ 1,000 MB/s")
@asynccontextmanager
async def records_decode() -> AsyncIterator[Duel]:
    """A batch of 2 MiB to columns; both sides check the checksum and every length."""
    warm_up()
    batch = encode_batch(rows_of(RECORDS))
    yield _duel(lambda: decode_records(batch, "benchmark"), lambda: decode_batch(batch))


def _duel(ours: Callable[[], object], baseline: Callable[[], object]) -> Duel:
    """The slow side does one batch per call, the fast side enough for the clock."""

    def many() -> None:
        for _ in range(ROUND_BATCHES):
            ours()

    megabytes = RECORDS * (KEY_BYTES + VALUE_BYTES) / 1e6
    return Duel(many, baseline, ROUND_BATCHES * megabytes, "MB", baseline_work=megabytes)
