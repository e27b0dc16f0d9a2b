from __future__ import annotations

from random import Random

import numpy as np
import pytest

from llog.formats.buffers import crc32c
from llog.formats.records import batch_kernels
from llog.formats.records.record_batch import CRC_START


def test_the_checksum_of_the_standard_s_sample_is_known() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_a_checksum_can_be_continued_and_reads_any_buffer_in_place() -> None:
    data = bytearray(range(256))
    whole = crc32c(data)
    assert crc32c(memoryview(data)[100:], crc32c(memoryview(data)[:100])) == whole
    assert crc32c(bytes(data)) == whole


@pytest.mark.skipif(not batch_kernels.CRC_AVAILABLE, reason="no CRC-32C instruction here that the kernel knows")
def test_the_kernel_computes_what_the_library_computes() -> None:
    random = Random(7)
    lanes = [3 * lane for lane in batch_kernels.CRC_LANES]
    edges = [n + d for n in (*lanes, sum(lanes), 4 * lanes[0]) for d in (-9, -8, -1, 0, 1, 8)]
    for length in [*range(100), *edges, *(random.randrange(20_000) for _ in range(50))]:
        data = random.randbytes(CRC_START + length)
        fields = np.zeros((13, 1), np.int64)
        fields[1], fields[4] = len(data), -1  # the batch's length, and a checksum that nothing has
        found = batch_kernels.first_mismatch(np.frombuffer(data, np.uint8), fields, batch_kernels.CRC_ZEROS)
        assert found == (0, crc32c(data[CRC_START:])), length
