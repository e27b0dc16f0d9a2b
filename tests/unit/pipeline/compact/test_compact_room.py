"""The room of a window: slices of many blobs, side by side, become the same segments as one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llog.errors import ChecksumMismatch, InvalidField, LlogError, ObjectNotFound, ObjectRangeInvalid
from llog.formats.records.encode import encode_records
from llog.formats.segment import Segment
from llog.pipeline.compact.plan import Slice, SourceObject, Window, WindowRun
from llog.pipeline.compact.room import Room, has_room
from llog.pipeline.compact.task import _build as build_by_itself


class Blob:
    """Slices of some logs, with bytes of other logs between them where asked."""

    def __init__(self, number: int) -> None:
        self.uri = f"memory://x/llog/wal-shared/{number:032x}"
        self.data = bytearray(b"the header")

    def append(self, body: bytes) -> int:
        at = len(self.data)
        self.data += body
        return at


def furnished(window: Window) -> Room:
    room = Room(window)
    room.furnish(np.full(room.byte_length, 0xEE, np.uint8))
    return room


class Stage(NamedTuple):
    window: Window
    buffers: dict[int, bytes]

    def placed(self, buffers: dict[int, bytes] | None = None) -> Room:
        room = furnished(self.window)
        for number, data in (self.buffers if buffers is None else buffers).items():
            room.place(number, data)
        return room


def stage(blobs: int, logs: int, *, gaps: bool = False, epochs: Sequence[int] = (0,), seed: int = 1) -> Stage:
    """A window in which each log has a slice of one to three batches in each blob."""
    rng = random.Random(seed)
    made = [Blob(number) for number in range(blobs)]
    slices: dict[int, list[Slice]] = {log: [] for log in range(logs)}
    offsets = dict.fromkeys(range(logs), 1)
    for source, blob in enumerate(made):
        for log in rng.sample(range(logs), logs):
            if gaps and rng.random() < 0.4:
                blob.append(rng.randbytes(30))
            counts = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
            body = b"".join(
                bytes(encode_records([rng.randbytes(rng.randint(0, 60)) for _ in range(count)], timestamps_ms=1))
                for count in counts
            )
            count = sum(counts)
            at, end = blob.append(body), offsets[log] + count - 1
            offsets[log] = end + 1
            epoch = epochs[source * len(epochs) // blobs]
            slices[log].append(Slice(source, end, count, count, at, len(body), "kafka-v2", epoch, 7))
    objects, buffers = [], {}
    for source, blob in enumerate(made):
        begin = min(piece.byte_offset or 0 for log in slices.values() for piece in log if piece.source == source)
        objects.append(SourceObject(blob.uri, begin, len(blob.data) - begin))
        buffers[source] = bytes(blob.data[begin:])
    runs = tuple(WindowRun("t", log, 1, 1, 99, f"segment-{log}", tuple(slices[log])) for log in slices)
    return Stage(Window(store_url="memory://x", objects=tuple(objects), runs=runs), buffers)


def bytes_of(segment: Segment) -> bytes:
    return b"".join(map(bytes, segment.buffers))


@settings(deadline=None, max_examples=30)
@given(
    blobs=st.integers(1, 6),
    logs=st.integers(1, 6),
    gaps=st.booleans(),
    epochs=st.sampled_from([(0,), (3, 4), (1, 2, 1)]),
    seed=st.integers(0, 10_000),
)
def test_a_segment_from_the_room_is_byte_for_byte_the_one_built_by_itself(
    blobs: int, logs: int, gaps: bool, epochs: tuple[int, ...], seed: int
) -> None:
    made = stage(blobs, logs, gaps=gaps, epochs=epochs, seed=seed)
    room = made.placed()
    for number, run in enumerate(made.window.runs):
        segment, expected = room.build(number), build_by_itself(made.window, run, dict(made.buffers))
        assert bytes_of(segment) == bytes_of(expected)
        assert segment[1:] == expected[1:]


def test_offsets_that_nobody_wrote_stay_free() -> None:
    """Runs have no gaps; one that had would not be closed up quietly."""
    made = stage(3, 2)
    first = made.window.runs[0]
    later = tuple(replace(piece, end_offset=piece.end_offset + 5) for piece in first.slices[1:])
    runs = (replace(first, slices=(first.slices[0], *later)), made.window.runs[1])
    changed = Stage(replace(made.window, runs=runs), made.buffers)
    segment = changed.placed().build(0)
    assert bytes_of(segment) == bytes_of(build_by_itself(changed.window, runs[0], dict(made.buffers)))


def test_blobs_may_be_placed_in_any_order() -> None:
    made = stage(5, 3)
    room = made.placed({number: made.buffers[number] for number in (3, 0, 4, 2, 1)})
    for number, run in enumerate(made.window.runs):
        assert bytes_of(room.build(number)) == bytes_of(build_by_itself(made.window, run, dict(made.buffers)))


def test_what_was_read_is_not_needed_once_it_is_placed() -> None:
    made = stage(2, 2)
    buffers = {number: bytearray(data) for number, data in made.buffers.items()}
    expected = [bytes_of(build_by_itself(made.window, run, dict(made.buffers))) for run in made.window.runs]
    room = furnished(made.window)
    for number, data in buffers.items():
        room.place(number, data)
        data[:] = bytes(len(data))
    assert [bytes_of(room.build(number)) for number in range(2)] == expected


def outcomes(room: Room, window: Window) -> list[type[LlogError] | None]:
    found: list[type[LlogError] | None] = []
    for number in range(len(window.runs)):
        try:
            room.build(number)
            found.append(None)
        except LlogError as error:
            found.append(type(error))
    return found


def test_a_flipped_bit_in_a_slice_fails_its_run_and_no_other() -> None:
    made = stage(3, 4)
    piece, source = made.window.runs[2].slices[1], made.window.objects[1]
    damaged = bytearray(made.buffers[1])
    damaged[(piece.byte_offset or 0) - (source.byte_offset or 0) + 70] ^= 1
    room = made.placed({**made.buffers, 1: bytes(damaged)})
    assert outcomes(room, made.window) == [None, None, ChecksumMismatch, None]
    with pytest.raises(ChecksumMismatch, match=source.uri):
        room.build(2)


def test_a_slice_of_another_count_than_its_entry_says_fails_its_run_and_no_other() -> None:
    made = stage(2, 3)
    first = made.window.runs[0]
    wrong = replace(first.slices[0], msg_count=first.slices[0].msg_count + 1)
    runs = (replace(first, slices=(wrong, *first.slices[1:])), *made.window.runs[1:])
    changed = Stage(replace(made.window, runs=runs), made.buffers)
    assert outcomes(changed.placed(), changed.window) == [InvalidField, None, None]


def test_an_object_shorter_than_its_entries_say_fails_the_runs_that_reach_behind_its_end() -> None:
    made = stage(2, 3)
    last = max(made.window.runs, key=lambda run: run.slices[0].byte_offset or 0)
    room = made.placed({**made.buffers, 0: made.buffers[0][:-1]})
    expected = [ObjectRangeInvalid if run is last else None for run in made.window.runs]
    assert outcomes(room, made.window) == expected


def test_an_object_that_could_not_be_read_fails_every_run_in_it_with_its_first_failure() -> None:
    made = stage(3, 2)
    room = furnished(made.window)
    gone = ObjectNotFound("memory://x", "blob")
    room.fail(2, InvalidField("later", "another"))
    room.fail(1, gone)
    room.place(0, made.buffers[0])
    for number in range(2):
        with pytest.raises(ObjectNotFound):
            room.build(number)


@pytest.mark.parametrize(
    "change",
    [
        {"type": "COMPACTED"},
        {"encoding": "bytes-batch-v1"},
        {"byte_length": None},
        {"byte_length": 0},
        {"byte_offset": None},
    ],
)
def test_only_fresh_batches_of_known_length_have_a_room(change: dict[str, object]) -> None:
    run = stage(2, 1).window.runs[0]
    assert has_room(run)
    assert not has_room(replace(run, slices=(run.slices[0], replace(run.slices[1], **change))))
