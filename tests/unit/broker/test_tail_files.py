"""The shared tail cache: two processes on one machine, through files that may end anywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llog.broker.produce.groups import CommittedBatch
from llog.broker.tail.cache import TailHit
from llog.broker.tail.files import TailFileReader, TailFileWriter, name_of, parse_name, remove_stale
from llog.broker.tail.frames import Frame, encode_frame, parse_frames
from llog.broker.tail.shared import SharedTailCache
from llog.errors import FormatError
from llog.formats.records.encode import encode_records
from llog.log.keys import Log
from tests.patience import until, wait_until
from tests.unit.broker.consuming import ORDERS

FRESH_MS = 60_000.0


def frame(number: int, *, size: int = 10, log: Log = ORDERS) -> Frame:
    body = [encode_records([bytes([number % 256]) * size], timestamps_ms=5)]
    return Frame(log, number, number, "kafka-v2", body, 0, 1, None, 1_000.0 + number)


def plain(found: Frame) -> tuple[object, ...]:
    return (*found[:4], b"".join(found.body), *found[5:])


def written(directory: Path, frames: list[Frame], max_bytes: int = 1 << 20) -> TailFileWriter:
    writer = TailFileWriter(directory, max_bytes)
    for each in frames:
        writer.offer(each)
    writer.close()
    return writer


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A writing process: appends one batch to `orders` 0 per line it reads, and prints a line after each."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


_WRITER = """
import sys
from pathlib import Path
from llog.broker.produce.groups import CommittedBatch
from llog.broker.tail.shared import SharedTailCache
from llog.formats.records.encode import encode_records
from llog.log.keys import Log

cache = SharedTailCache(Path(sys.argv[1]), 1 << 20, writes=True, reads=False)
print("ready", flush=True)
for number, line in enumerate(sys.stdin, start=1):
    body = [encode_records([line.strip().encode()], timestamps_ms=5)]
    cache.add(CommittedBatch(Log("orders", 0), number, number, "kafka-v2", body, 5), incarnation=1)
    print(number, flush=True)
"""


def say(child: subprocess.Popen[str], *lines: str) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    for line in lines:
        child.stdin.write(line + "\n")
        child.stdin.flush()
        child.stdout.readline()


async def eventually(cache: SharedTailCache, end_offset: int) -> TailHit:
    def hit() -> TailHit | None:
        found = cache.lookup(ORDERS, 1, 1 << 20)
        return found if isinstance(found, TailHit) and found.next_offset > end_offset else None

    found: TailHit = await until(hit, f"offset {end_offset} in the cache")
    return found


# -- two processes -----------------------------------------------------------------------------------------------------


async def test_a_process_reads_what_another_commits_from_its_files(
    tmp_path: Path, child: subprocess.Popen[str]
) -> None:
    cache = SharedTailCache(tmp_path, 1 << 20, writes=False, fresh_ms=FRESH_MS)
    moved: list[Log] = []
    cache.on_moved = moved.append
    cache.start()
    say(child, "a", "b")
    found = await eventually(cache, 2)
    assert [batch.prepare().start_offset for batch in found.batches] == [1, 2]
    assert found.high_watermark == 2
    assert moved == [ORDERS, ORDERS]
    await cache.close()


async def test_a_killed_writer_leaves_what_it_committed_and_is_cleaned_up_later(
    tmp_path: Path, child: subprocess.Popen[str]
) -> None:
    say(child, *(str(i) for i in range(50)))
    reader = SharedTailCache(tmp_path, 1 << 20, writes=False, fresh_ms=FRESH_MS)
    reader.start()
    await eventually(reader, 50)
    await reader.close()
    assert remove_stale(tmp_path, age_ms=0) == 0, "its writer is alive"
    child.send_signal(signal.SIGKILL)
    child.wait()
    late = SharedTailCache(tmp_path, 1 << 20, writes=False, fresh_ms=FRESH_MS)
    late.start()
    assert len((await eventually(late, 50)).batches) == 50
    await late.close()
    assert remove_stale(tmp_path) == 0, "not for a minute"
    assert remove_stale(tmp_path, age_ms=0) == 1
    assert os.listdir(tmp_path) == []


async def test_both_roles_share_in_both_directions(tmp_path: Path) -> None:
    one, two = (SharedTailCache(tmp_path, 1 << 20, fresh_ms=FRESH_MS) for _ in range(2))
    one.start()
    two.start()
    for number in range(1, 11):
        cache = one if number % 2 else two
        body = [encode_records([b"%d" % number], timestamps_ms=5)]
        cache.add(CommittedBatch(ORDERS, number, number, "kafka-v2", body, 5), incarnation=1)
    for cache in (one, two):
        assert len((await eventually(cache, 10)).batches) == 10, "holes are filled by the other's appends"
    await one.close()
    await two.close()


# -- files -------------------------------------------------------------------------------------------------------------


def test_frames_read_as_they_were_written(tmp_path: Path) -> None:
    frames = [frame(i, size=i * 7 + 1) for i in range(1, 40)]
    written(tmp_path, frames)
    reader = TailFileReader(tmp_path)
    assert list(map(plain, reader.read())) == list(map(plain, frames))
    assert reader.read() == []
    reader.close()


def test_a_read_smaller_than_a_frame_still_advances(tmp_path: Path) -> None:
    frames = [frame(i, size=1_000) for i in range(1, 6)]
    written(tmp_path, frames)
    reader = TailFileReader(tmp_path)
    found: list[Frame] = []
    while fresh := reader.read(bytes_max=100):
        found += fresh
    assert list(map(plain, found)) == list(map(plain, frames))
    reader.close()


def test_a_file_cut_anywhere_yields_its_whole_frames_and_the_rest_when_it_comes(tmp_path: Path) -> None:
    frames = [frame(i) for i in range(1, 4)]
    data = b"".join(buffer for each in frames for buffer in encode_frame(each))
    ends = [sum(len(b) for each in frames[:n] for b in encode_frame(each)) for n in range(4)]
    for cut in range(0, len(data) + 1, 5):
        path = tmp_path / name_of(f"9-{cut}", 1)
        path.write_bytes(data[:cut])
        reader = TailFileReader(tmp_path)
        whole = sum(1 for end in ends[1:] if end <= cut)
        assert len(reader.read()) == whole
        assert reader.read() == []
        path.write_bytes(data)
        assert len(reader.read()) == 3 - whole
        reader.close()
        path.unlink()


def test_changed_bytes_are_never_returned(tmp_path: Path) -> None:
    frames = [frame(i) for i in range(1, 4)]
    data = b"".join(buffer for each in frames for buffer in encode_frame(each))
    sound = [plain(each) for each in frames]
    for position in range(0, len(data), 3):
        broken = bytearray(data)
        broken[position] ^= 0x40
        try:
            found = [plain(each) for each in parse_frames(bytes(broken), "test").frames]
        except FormatError:
            found = []
        assert found == sound[: len(found)]
        assert len(found) < 3


def test_a_file_with_changed_bytes_is_given_up_in_the_end(tmp_path: Path) -> None:
    data = bytearray(b"".join(buffer for each in (frame(1), frame(2)) for buffer in encode_frame(each)))
    data[-1] ^= 1
    (tmp_path / name_of("9-a", 1)).write_bytes(data)
    reader = TailFileReader(tmp_path)
    assert len(reader.read()) == 1
    for _ in range(30):
        assert reader.read() == []
    descriptors = len(os.listdir("/proc/self/fd"))
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors, "the reader had closed the file before"


def test_a_writer_keeps_to_its_part_of_the_bound(tmp_path: Path) -> None:
    bound = 64 * 1_024
    other = TailFileWriter(tmp_path, bound)
    written(tmp_path, [frame(i, size=500) for i in range(1, 1_000)], bound)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound // 2
    reader = TailFileReader(tmp_path)
    found = reader.read()
    assert len(found) > 20
    assert found[-1].end_offset == 999, "the newest are there"
    reader.close()
    other.close()


def test_a_frame_larger_than_the_bound_is_dropped_and_others_are_not(tmp_path: Path) -> None:
    writer = written(tmp_path, [frame(1, size=100_000), frame(2)], 32 * 1_024)
    assert writer.dropped == 1
    reader = TailFileReader(tmp_path)
    assert [each.start_offset for each in reader.read()] == [2]
    reader.close()


def test_a_directory_that_cannot_be_written_costs_frames_and_nothing_else(tmp_path: Path) -> None:
    writer = TailFileWriter(tmp_path / "tail", 1 << 20)
    for path in (tmp_path / "tail").iterdir():
        path.unlink()
    os.rmdir(tmp_path / "tail")
    writer.offer(frame(1))
    writer.close()
    assert writer.dropped == 1


def read_to_the_end(reader: TailFileReader) -> None:
    """A reader lists a directory again until its last change is one tick of the file system's clock old."""

    def has_no_news() -> bool:
        assert reader.read() == []
        return not reader.has_news()

    wait_until(has_no_news, "a reader at the end of all files")


def test_a_reader_at_the_end_has_no_news(tmp_path: Path) -> None:
    writer = TailFileWriter(tmp_path, 1 << 20)
    reader = TailFileReader(tmp_path)
    read_to_the_end(reader)
    writer.offer(frame(1))
    writer.close()
    assert reader.has_news()
    assert len(reader.read()) == 1
    read_to_the_end(reader)
    with (tmp_path / name_of(writer.writer_id, 1)).open("ab") as file:
        file.write(b"LLT1 half a frame")
    reader.read()
    assert not reader.has_news(), "a frame that never gets whole is not looked at again and again"
    reader.close()


@pytest.mark.parametrize("name", ["1-a.00000001.tail", "1-a.lock", "x", "1-a.b.tail", ".tail"])
def test_only_files_of_the_cache_are_read(name: str) -> None:
    parsed = parse_name(name)
    assert (parsed is not None) == (name == "1-a.00000001.tail")
    assert parsed is None or name_of(*parsed) == name
