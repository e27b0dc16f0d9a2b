"""Stamps are written into requests and found in answers."""

from __future__ import annotations

import numpy as np
import pytest

from llog.loadtest.client.stamp import STAMP_BYTES, parse_stamps, run_hash, stamp, stamp_places, write_stamps

RUN = run_hash("20260101T000000Z-smoke")
DUE_US = 1_750_000_000_123_456


def test_a_stamp_has_the_documented_layout() -> None:
    assert stamp("0a1b2c3d", 7, 2, 31, 5, DUE_US) == b"LLT1:0a1b2c3d:00007:0002:000031:000000000005:1750000000123456;"
    assert len(stamp(RUN, 7, 2, 31, 5, DUE_US)) == STAMP_BYTES


@pytest.mark.parametrize("sequence", [0, 9_998, 99_999_998, 999_999_999_997])
def test_written_stamps_equal_stamps_made_one_by_one(sequence: int) -> None:
    body = np.full(500, ord("x"), np.uint8)
    positions = np.array([3, 100, 300, 400], np.int64)
    write_stamps(body, stamp_places(positions), RUN, 12, 3, np.array([45, 123_456]), sequence, DUE_US)
    for position, (partition, number) in zip(positions, [(45, 0), (45, 1), (123_456, 0), (123_456, 1)], strict=True):
        written = body[position : position + STAMP_BYTES].tobytes()
        assert written == stamp(RUN, 12, 3, partition, sequence + number, DUE_US)
    assert body[2] == body[65] == body[99] == ord("x")


def test_all_stamps_of_a_buffer_are_found_in_order() -> None:
    noise = bytes(range(256))
    texts = [stamp(RUN, 99_999, 9_999, 999_999, 10**12 - 1, DUE_US), stamp(RUN, 0, 0, 0, 0, 0)]
    data = b";" + noise + texts[0] + noise + b"x" * 100 + texts[1] + texts[0][:-1]
    found = parse_stamps(memoryview(data), RUN)
    assert found.producer.tolist() == [99_999, 0]
    assert found.topic.tolist() == [9_999, 0]
    assert found.partition.tolist() == [999_999, 0]
    assert found.sequence.tolist() == [10**12 - 1, 0]
    assert found.due_us.tolist() == [DUE_US, 0]
    assert found.position.tolist() == [data.index(texts[0]), data.index(texts[1])]


@pytest.mark.parametrize("data", [b"", b";", b"LLT1:", b"LLT1:" + b"0" * 57, stamp(run_hash("other"), 1, 1, 1, 1, 1)])
def test_halves_and_stamps_of_other_runs_are_not_found(data: bytes) -> None:
    assert len(parse_stamps(data, RUN).sequence) == 0
