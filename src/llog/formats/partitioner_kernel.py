"""Murmur2 of many keys in one call. Call it through `partitioner`."""

# Inside a kernel an int is whatever numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.records.kernel import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24


@inlined
def _hash(data: Bytes, at: int, end: int) -> int:
    mask = np.uint64(0xFFFFFFFF)
    m = np.uint64(_M)
    h = np.uint64(_SEED) ^ np.uint64(end - at)
    while end - at >= 4:
        k = (
            np.uint64(data[at])
            | (np.uint64(data[at + 1]) << np.uint64(8))
            | (np.uint64(data[at + 2]) << np.uint64(16))
            | (np.uint64(data[at + 3]) << np.uint64(24))
        )
        k = (k * m) & mask
        k ^= k >> np.uint64(_R)
        k = (k * m) & mask
        h = ((h * m) & mask) ^ k
        at += 4
    left = end - at
    if left == 3:
        h ^= np.uint64(data[at + 2]) << np.uint64(16)
    if left >= 2:
        h ^= np.uint64(data[at + 1]) << np.uint64(8)
    if left >= 1:
        h ^= np.uint64(data[at])
        h = (h * m) & mask
    h ^= h >> np.uint64(13)
    h = (h * m) & mask
    return h ^ (h >> np.uint64(15))


@kernel
def murmur2_partitions(offsets: Ints, data: Bytes, counts: Longs, output: Longs) -> int:
    """Fill `output` with the partition of each key among `counts[row]`; returns the first unsound row, or -1."""
    for row in range(output.size):
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if at < 0 or end < at or end > data.size or counts[row] < 1:
            return row
        output[row] = np.int64(_hash(data, at, end) & np.uint64(0x7FFFFFFF)) % counts[row]
    return -1
