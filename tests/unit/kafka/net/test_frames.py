"""Frames out of a stream of bytes, however it is cut."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from llog.errors import InvalidField
from llog.kafka.net.frames import LITTLE_BYTES, SCRATCH_BYTES, Admit, Frame, FrameReader, scratch_buffer


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def all_admitted(size: int, key: int, arrived_bytes: int) -> int:
    return size


class Stream:
    """Feeds bytes to a reader as a socket does, at most as many as its buffer takes."""

    def __init__(self, data: bytes, admit: Admit = all_admitted, scratch: memoryview | None = None) -> None:
        self.data, self.at = data, 0
        self.frames: list[Frame] = []
        self.reader = FrameReader(scratch_buffer() if scratch is None else scratch, admit)

    def feed(self, byte_length: int) -> int:
        """How many bytes were read."""
        buffer = self.reader.buffer()
        size = min(len(buffer), byte_length, len(self.data) - self.at)
        buffer[:size] = self.data[self.at : self.at + size]
        self.at += size
        self.reader.received(size)
        self.cut()
        return size

    def cut(self) -> None:
        while (frame := self.reader.next()) is not None:
            self.frames.append(frame)
        self.reader.keep()

    def feed_all(self, byte_length: Callable[[], int]) -> list[bytes]:
        while self.at < len(self.data):
            self.feed(byte_length())
        return [bytes(frame) for frame in self.frames]


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 7, 64, 1_000, 10**9])
def test_frames_are_found_whatever_the_pieces(piece_bytes: int) -> None:
    bodies = [random.Random(size).randbytes(size) for size in (8, 9, 100, 8, 3_000, 70_000, 8, 200_000, 12)]
    assert Stream(framed(*bodies)).feed_all(lambda: piece_bytes) == bodies


def test_frames_are_found_in_random_pieces(rng: random.Random) -> None:
    for _ in range(50):
        bodies = [rng.randbytes(int(8 + rng.expovariate(1 / 20_000))) for _ in range(rng.randint(1, 20))]
        assert Stream(framed(*bodies)).feed_all(lambda: rng.randint(1, 2 * SCRATCH_BYTES)) == bodies


def test_connections_that_share_the_scratch_buffer_do_not_mix(rng: random.Random) -> None:
    scratch = scratch_buffer()
    bodies = [[rng.randbytes(rng.randint(8, 5_000)) for _ in range(30)] for _ in range(4)]
    streams = [Stream(framed(*own), scratch=scratch) for own in bodies]
    while any(stream.at < len(stream.data) for stream in streams):
        rng.choice(streams).feed(rng.randint(1, 9_000))
    assert [[bytes(frame) for frame in stream.frames] for stream in streams] == bodies


def test_a_frame_keeps_its_bytes_and_may_be_written_to() -> None:
    first, second, large = b"a" * 100, b"b" * 100, b"c" * 100_000
    stream = Stream(framed(first, second, large) * 3)
    stream.feed_all(lambda: 10**9)
    views = [memoryview(frame)[10:20] for frame in stream.frames]
    assert [bytes(view) for view in views] == [b"a" * 10, b"b" * 10, b"c" * 10] * 3
    for number, view in enumerate(views):
        view[:] = bytes([number]) * 10
    assert [view[0] for view in views] == list(range(9))


def test_a_large_frame_is_read_into_its_own_buffer() -> None:
    stream = Stream(framed(b"x" * 1_000_000, b"y" * 1_000_000))
    stream.feed(10**9)
    assert stream.reader.missing_bytes == len(stream.reader.buffer()) == 1_000_004 - SCRATCH_BYTES
    assert stream.feed(10**9) == 1_000_004 - SCRATCH_BYTES
    assert stream.feed(10**9) < SCRATCH_BYTES, "behind a large frame little is read into the scratch buffer"
    assert stream.feed(10**9) > 900_000


def test_little_is_read_ahead_on_request_and_frames_that_arrive_are_read_as_before() -> None:
    stream = Stream(framed(b"x" * 100_000))
    assert len(stream.reader.buffer(little=True)) == LITTLE_BYTES
    assert len(stream.reader.buffer()) == SCRATCH_BYTES
    stream.feed(LITTLE_BYTES)
    assert len(stream.reader.buffer(little=True)) == 100_004 - LITTLE_BYTES


@pytest.mark.parametrize("size", [0, 1, 7, -1, -(2**31)])
def test_a_size_that_no_request_has_is_refused(size: int) -> None:
    with pytest.raises(InvalidField, match=f"its size is {size}"):
        Stream(struct.pack(">i", size) + bytes(10)).feed(14)


def test_a_frame_that_is_not_admitted_is_asked_for_again_and_has_no_memory() -> None:
    asked: list[tuple[int, int, int]] = []
    room = False

    def admit(size: int, key: int, arrived_bytes: int) -> int:
        asked.append((size, key, arrived_bytes))
        return size if room else 0

    stream = Stream(framed(struct.pack(">h", 3) + bytes(98)), admit)
    stream.feed(50)
    assert not stream.frames
    assert not stream.reader.is_hungry
    assert stream.reader.missing_bytes == 0
    room = True
    stream.cut()
    assert asked == [(100, 3, 46)] * 2
    assert stream.reader.is_hungry
    assert stream.reader.missing_bytes == 54
    stream.feed(54)
    assert len(stream.frames) == 1


def test_no_more_of_a_frame_is_read_than_was_admitted() -> None:
    granted = 1_000

    def admit(size: int, key: int, arrived_bytes: int) -> int:
        return min(size, granted) if arrived_bytes < granted else 0

    stream = Stream(framed(bytes(5_000)), admit)
    stream.feed(10)
    assert stream.feed(10**9) == 994
    assert not stream.reader.is_hungry
    granted = 6_000
    stream.cut()
    assert stream.reader.is_hungry
    assert len(stream.reader.buffer()) == 4_000
    stream.feed(10**9)
    assert len(stream.frames) == 1
