"""The files of the shared tail cache: one set per writing process, followed by readers.

    {pid}-{random}.lock               locked (flock) as long as the writer lives
    {pid}-{random}.{number:08d}.tail  frames, in the order of commits

A writer appends to its newest file and deletes its oldest ones whole. It touches only its own files; any process
deletes the files of a writer that has been gone for a minute. All files together stay within the limit: each writer
keeps to the limit divided by the number of live writers. A full queue or disk drops frames, never an append: losing a
frame only costs a read from the stores.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from llog.broker.tail.frames import Frame, encode_frame, parse_frames
from llog.errors import FormatError
from llog.formats.buffers import Buffer, total_length
from llog.limits import KIB, MIB, OBJECT_WRITE_VECTOR_MAX

# A writer divides its share of the limit into this many files.
TAIL_FILES_PER_WRITER: Final = 8
TAIL_FILE_BYTES_MIN: Final = 4 * KIB
TAIL_FILE_BYTES_MAX: Final = 64 * MIB
# Bytes that wait for the writing thread; further frames are dropped.
TAIL_FILES_QUEUE_BYTES_MAX: Final = 64 * MIB
TAIL_FILES_READ_BYTES: Final = 4 * MIB
# Attempts to read a complete frame with a wrong checksum, before the file is given up.
TAIL_FILES_TORN_READS_MAX: Final = 20
TAIL_FILES_CLOSE_WAIT_MS: Final = 5_000
# Age at which files of a writer that has ended are removed.
TAIL_FILES_STALE_MS: Final = 60_000
assert TAIL_FILE_BYTES_MIN <= TAIL_FILE_BYTES_MAX

_log = logging.getLogger(__name__)
_LOCK: Final = ".lock"
_TAIL: Final = ".tail"
_TICK_NS: Final = 50_000_000


class TailName(NamedTuple):
    writer_id: str
    number: int


def name_of(writer_id: str, number: int) -> str:
    return f"{writer_id}.{number:08d}{_TAIL}"


def parse_name(name: str) -> TailName | None:
    writer_id, _, rest = name.partition(".")
    digits = rest.removesuffix(_TAIL)
    return TailName(writer_id, int(digits)) if rest.endswith(_TAIL) and digits.isdigit() else None


def remove_stale(directory: Path, *, age_ms: float = TAIL_FILES_STALE_MS) -> int:
    """Remove the files of writers that are gone and wrote nothing for `age_ms`; returns the number of writers."""
    removed = 0
    newest: dict[str, float] = {}
    names = os.listdir(directory)
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            modified = (directory / name).stat().st_mtime
            writer_id = name.partition(".")[0]
            newest[writer_id] = max(newest.get(writer_id, 0.0), modified)
    for writer_id, modified in newest.items():
        if (time.time() - modified) * 1_000 < age_ms or _is_held(directory / (writer_id + _LOCK)):
            continue
        removed += 1
        for name in names:
            if name.startswith(writer_id + "."):
                (directory / name).unlink(missing_ok=True)
    return removed


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


class TailFileWriter:
    """Appends frames in a thread of its own; `offer` never waits."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.writer_id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.dropped = 0
        """Frames not shared: the queue was full, they were too large, or the disk failed."""
        self._directory, self._bytes_max = directory, bytes_max
        self._lock_file = os.open(directory / (self.writer_id + _LOCK), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock_file, fcntl.LOCK_EX)
        self._own: deque[tuple[int, int]] = deque()
        """Number and size of each file; the last is being written."""
        self._file, self._file_bytes, self._number = -1, 0, 0
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="llog-tail-files", daemon=True)
        self._thread.start()

    def offer(self, frame: Frame) -> None:
        size = total_length(frame.body)
        with self._changed:
            if self._closing or self._queued_bytes + size > TAIL_FILES_QUEUE_BYTES_MAX:
                self.dropped += 1
                return
            self._queue.append(frame)
            self._queued_bytes += size
            self._changed.notify()

    def close(self) -> None:
        """Write the queued frames; blocks for a short while. The files stay for readers."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(TAIL_FILES_CLOSE_WAIT_MS / 1_000)

    # -- the thread ----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._queue) or self._closing)
                    frames = list(self._queue)
                    self._queue.clear()
                    self._queued_bytes = 0
                if not frames:
                    return
                for frame in frames:
                    self._write(encode_frame(frame))
        finally:
            if self._file >= 0:
                os.close(self._file)
            os.close(self._lock_file)

    def _write(self, buffers: list[Buffer]) -> None:
        size = total_length(buffers)
        try:
            full = self._file < 0 or self._own[-1][1] + size > self._file_bytes
            if full and not self._roll(size):
                self.dropped += 1
                return
            _write_all(self._file, buffers, size)
        except OSError as error:
            if self.dropped == 0:
                _log.warning("the shared tail cache in %s cannot be written: %s", self._directory, error)
            self.dropped += 1
            self._abandon()
            return
        number, before = self._own[-1]
        self._own[-1] = number, before + size

    def _roll(self, size: int) -> bool:
        """Begin a new file, deleting the oldest ones as needed. False if the frame is too large to share."""
        remove_stale(self._directory)
        share = self._share()
        self._file_bytes = min(max(share // TAIL_FILES_PER_WRITER, TAIL_FILE_BYTES_MIN), TAIL_FILE_BYTES_MAX)
        room = max(size, self._file_bytes)
        if room > share:
            return False
        self._abandon()
        while self._own and sum(length for _, length in self._own) + room > share:
            number, _ = self._own.popleft()
            (self._directory / name_of(self.writer_id, number)).unlink(missing_ok=True)
        self._number += 1
        path = self._directory / name_of(self.writer_id, self._number)
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        self._own.append((self._number, 0))
        return True

    def _abandon(self) -> None:
        """Close the current file for good: it may end within a frame."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _share(self) -> int:
        writers = sum(1 for name in os.listdir(self._directory) if name.endswith(_LOCK))
        return self._bytes_max // max(1, writers)


def _write_all(descriptor: int, buffers: list[Buffer], size: int) -> None:
    """Write all buffers, in one call if possible."""
    if len(buffers) <= OBJECT_WRITE_VECTOR_MAX:
        written = os.writev(descriptor, buffers)
    else:
        written = os.write(descriptor, b"".join(buffers))
    if written < size:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


class _Tailed:
    """A file that a reader follows."""

    __slots__ = ("descriptor", "name", "position", "size_seen", "torn_reads")

    def __init__(self, name: TailName, descriptor: int) -> None:
        self.name, self.descriptor = name, descriptor
        self.position = 0
        self.size_seen = 0
        """File size at the last read; the bytes from `position` to here are not a complete frame yet."""
        self.torn_reads = 0
        """Reads of a frame with a wrong checksum."""


class TailFileReader:
    """Follows the files of other writers, each from its beginning. Used by one thread at a time."""

    def __init__(self, directory: Path, *, skip_writer: str = "") -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._skip = directory, skip_writer
        self._files: dict[TailName, _Tailed] = {}
        self._done: set[TailName] = set()
        """Files read to their end, or unreadable."""
        self._listed_at = -1

    def has_news(self) -> bool:
        """Whether there may be new frames: stats the directory and each file that is being written."""
        if self._modified() != self._listed_at:
            return True
        return any(
            file.torn_reads or os.fstat(file.descriptor).st_size > file.size_seen for file in self._files.values()
        )

    def read(self, bytes_max: int = TAIL_FILES_READ_BYTES) -> list[Frame]:
        """New frames, about `bytes_max` of them; call again until there are none."""
        self._list()
        frames: list[Frame] = []
        for name in sorted(self._files):
            file = self._files[name]
            new_frames, byte_length = self._read_file(file, bytes_max)
            frames += new_frames
            bytes_max -= byte_length
            if bytes_max <= 0:
                break
            if not new_frames and any(other.writer_id == name.writer_id and other > name for other in self._files):
                self._leave(file)
        return frames

    def close(self) -> None:
        for file in list(self._files.values()):
            self._leave(file)

    def _modified(self) -> int:
        return os.stat(self._directory).st_mtime_ns

    def _list(self) -> None:
        modified = self._modified()
        if modified == self._listed_at:
            return
        names = {name for name in map(parse_name, os.listdir(self._directory)) if name is not None}
        self._done &= names
        for name in names - self._done - set(self._files):
            if name.writer_id == self._skip:
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted by its writer just now
                descriptor = os.open(self._directory / name_of(*name), os.O_RDONLY)
                self._files[name] = _Tailed(name, descriptor)
        # A file that its writer deleted is still read to its end.
        for name in set(self._files) - names:
            if os.fstat(self._files[name].descriptor).st_size <= self._files[name].position:
                self._leave(self._files[name])
        # Two changes within one tick of the file system's clock look like one: list again until the tick is over.
        self._listed_at = modified if time.time_ns() - modified > _TICK_NS else -1

    def _read_file(self, file: _Tailed, bytes_max: int) -> tuple[list[Frame], int]:
        size = os.fstat(file.descriptor).st_size
        wanted = min(bytes_max, size - file.position)
        if wanted <= 0:
            return [], 0
        source = name_of(*file.name)
        data = os.pread(file.descriptor, wanted, file.position)
        try:
            parsed = parse_frames(data, source)
            if not parsed.frames and parsed.missing_bytes and wanted == bytes_max:
                # One frame is larger than `bytes_max`.
                data = os.pread(file.descriptor, len(data) + parsed.missing_bytes, file.position)
                parsed = parse_frames(data, source)
        except FormatError as error:
            file.torn_reads += 1
            if file.torn_reads >= TAIL_FILES_TORN_READS_MAX:
                _log.warning("tail cache file %s is skipped from byte %d on: %s", source, file.position, error)
                self._leave(file)
            return [], 0
        file.torn_reads = 0
        file.position += parsed.byte_length
        file.size_seen = size if wanted < bytes_max or not parsed.frames else file.position
        return parsed.frames, parsed.byte_length

    def _leave(self, file: _Tailed) -> None:
        os.close(file.descriptor)
        del self._files[file.name]
        self._done.add(file.name)
