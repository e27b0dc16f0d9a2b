from __future__ import annotations

from random import Random

import numpy as np
import pytest

from llog.formats import crc_kernel
from llog.formats.crc import crc32c


def test_the_checksum_of_the_standard_s_sample_is_known() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_a_checksum_can_be_continued_and_reads_any_buffer_in_place() -> None:
    data = bytearray(range(256))
    whole = crc32c(data)
    assert crc32c(memoryview(data)[100:], crc32c(memoryview(data)[:100])) == whole
    assert crc32c(bytes(data)) == whole


@pytest.mark.skipif(not crc_kernel.AVAILABLE, reason="no CRC-32C instruction here that the kernel knows")
def test_the_kernel_computes_what_the_library_computes() -> None:
    random = Random(7)
    lanes = [3 * lane for lane in crc_kernel.LANES]
    edges = [n + d for n in (*lanes, sum(lanes), 4 * lanes[0]) for d in (-9, -8, -1, 0, 1, 8)]
    for length in [*range(100), *edges, *(random.randrange(20_000) for _ in range(50))]:
        # A first byte left out, so that words are not aligned.
        data = np.frombuffer(random.randbytes(length + 1), np.uint8)[1:]
        assert crc_kernel.checksum(data, crc_kernel.ZEROS) == crc32c(data.tobytes()), length
