"""Which partition a key goes to. Every front end asks here, because a key that two of them send to different partitions
has two latest values.

`murmur2` is what Kafka's Java clients compute, and the default everywhere. `crc32` is what librdkafka computes unless
told otherwise; it treats an empty key like none.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from llog.errors import InvalidArgument
from llog.formats.records.record_columns import Bytes, Ints, Longs, binary_column

Partitioner = Literal["murmur2", "crc32"]
MURMUR2: Final[Partitioner] = "murmur2"
CRC32: Final[Partitioner] = "crc32"


def has_partition(key: bytes | None, partitioner: Partitioner = MURMUR2) -> bool:
    """Whether the key chooses a partition; a record without one may go to any."""
    return key is not None and (key != b"" or partitioner != CRC32)


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of one key in a topic with so many partitions."""
    return int(partitions_of_keys([key], partition_count)[0])


def partitions_of_keys(keys: Sequence[bytes], partition_count: int, partitioner: Partitioner = MURMUR2) -> Longs:
    """The partition of each key in a topic with so many partitions."""
    if partition_count < 1:
        raise InvalidArgument("partition_count", f"must be at least 1, got {partition_count}")
    if partitioner == CRC32:
        return np.fromiter((zlib.crc32(key) % partition_count for key in keys), np.int64, len(keys))
    column = binary_column("keys", keys)
    return murmur2_partitions(column.offsets, column.data, np.full(len(keys), partition_count, np.int64))


def murmur2_partitions(offsets: Ints, data: Bytes, counts: Longs) -> Longs:
    """The partition of the key data[offsets[row] : offsets[row + 1]] among `counts[row]`, for every row."""
    from llog.formats import partitioner_kernel as kernel

    partitions = np.empty(len(counts), np.int64)
    bad = kernel.murmur2_partitions(offsets, data, counts, partitions)
    if bad >= 0:
        raise InvalidArgument("key", f"row {bad}: the positions of the keys contradict each other")
    return partitions
