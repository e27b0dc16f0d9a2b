"""One partitioner for every front end: a key has one partition, whoever sends it."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llog
from llog.cli.records.produce import PartitionChoice
from llog.cli.records.record_text import ParsedRecord
from llog.errors import InvalidArgument
from llog.formats.partitioner import has_partition, murmur2_partitions, partition_of_key, partitions_of_keys
from llog.pipeline.sink.rows import RoundRobin, Router

# Kafka's own test vectors (UtilsTest.testMurmur2).
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def murmur2(key: bytes) -> int:
    """By hand, in Python."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize(("key", "hashed"), VECTORS.items())
def test_murmur2_is_kafkas(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF
    assert llog.partition_of_key(key, 1_000) == (hashed & 0x7FFFFFFF) % 1_000


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 100_000))
def test_many_keys_at_once_are_the_keys_one_by_one(keys: list[bytes], count: int) -> None:
    expected = [(murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    assert partitions_of_keys(keys, count).tolist() == expected
    assert [partition_of_key(key, count) for key in keys] == expected


def test_the_command_line_and_the_spark_sink_agree_on_every_key() -> None:
    rng = random.Random(3)
    keys = [f"user-{number}".encode() for number in range(300)] + [b"", b"\0", rng.randbytes(1_000)]
    choice = PartitionChoice(None, "murmur2")
    choice.partition_count = 6
    by_command = choice.of([ParsedRecord(key, b"v") for key in keys], 0)
    table = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())})
    by_sink = [-1] * len(keys)
    for log, rows in Router("t", {"t": 6}, RoundRobin()).split(table):
        for row in rows.tolist():
            by_sink[row] = log.partition
    assert by_command == by_sink == partitions_of_keys(keys, 6).tolist()


def test_only_crc32_takes_an_empty_key_for_none() -> None:
    assert has_partition(b"")
    assert not has_partition(b"", "crc32")
    assert not has_partition(None)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="partition_count"):
        partition_of_key(b"k", 0)
    with pytest.raises(InvalidArgument, match="row 0"):
        murmur2_partitions(np.array([0, 9], np.int32), np.zeros(3, np.uint8), np.ones(1, np.int64))
