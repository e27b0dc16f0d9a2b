"""The files of the shared tail cache: one set per writing process, appended to and dropped whole, tailed by readers.

    {pid}-{random}.lock               held (flock) as long as the writer lives
    {pid}-{random}.{number:08d}.tail  frames (tail_frames), in the order of commits

Why it exists: a write-only and a read-only broker on one machine share what was just appended, without a connection
between them. What must stay true
- a writer touches its own files only, and anybody removes those of a writer that is gone for a minute;
- all files together stay within the bound: each writer keeps to its part of it, the bound divided by live writers;
- losing a frame costs nothing but a read from the stores: a full queue or disk drops frames and never an append.
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
from llog.limits import KIB, MIB, OBJECT_WRITE_VECTOR_MAX, TAIL_FILES_STALE_MS

# The shared tail cache is written in files of a part of its size; whole files are dropped.
TAIL_FILES_PER_WRITER: Final = 8
TAIL_FILE_BYTES_MIN: Final = 4 * KIB
TAIL_FILE_BYTES_MAX: Final = 64 * MIB
# Bytes that wait for the thread that writes files; what comes on top is not shared.
TAIL_FILES_QUEUE_BYTES_MAX: Final = 64 * MIB
TAIL_FILES_READ_BYTES: Final = 4 * MIB
# A whole frame whose checksum does not fit is looked at again so often, then the file is left alone.
TAIL_FILES_TORN_LOOKS_MAX: Final = 20
TAIL_FILES_CLOSE_WAIT_MS: Final = 5_000


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
    """Remove the files of writers that are gone and wrote nothing for `age_ms`. How many writers that were."""
    removed = 0
    newest: dict[str, float] = {}
    names = os.listdir(directory)
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
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
    """Appends frames from a thread of its own; `offer` never waits."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.writer_id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.dropped = 0
        """Frames that were not shared: the queue was full, they were too large, or the disk refused them."""
        self._directory, self._max_bytes = directory, max_bytes
        self._lock_file = os.open(directory / (self.writer_id + _LOCK), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock_file, fcntl.LOCK_EX)
        self._own: deque[tuple[int, int]] = deque()
        """Number and size of each file, the one being written last."""
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
        """Write what was offered. Blocks for a short while. The files stay, for those who have not read them."""
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
                _log.warning("the tail cache in %s cannot be written: %s", self._directory, error)
            self.dropped += 1
            self._abandon()
            return
        number, before = self._own[-1]
        self._own[-1] = number, before + size

    def _roll(self, size: int) -> bool:
        """Begin a file, after dropping as many of the oldest as it takes. False: the frame is too large to share."""
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
        """Write no more into the file there is: it may end within a frame."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _share(self) -> int:
        writers = sum(1 for name in os.listdir(self._directory) if name.endswith(_LOCK))
        return self._max_bytes // max(1, writers)


def _write_all(descriptor: int, buffers: list[Buffer], size: int) -> None:
    """One call where the system takes it all; what is cut short is written on."""
    if len(buffers) <= OBJECT_WRITE_VECTOR_MAX:
        written = os.writev(descriptor, buffers)
    else:
        written = os.write(descriptor, b"".join(buffers))
    if written < size:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


class _Tailed:
    """A file that is being read."""

    __slots__ = ("descriptor", "looks", "name", "position", "size_seen")

    def __init__(self, name: TailName, descriptor: int) -> None:
        self.name, self.descriptor = name, descriptor
        self.position = 0
        self.size_seen = 0
        """At the last look; what lies between `position` and it is no whole frame yet."""
        self.looks = 0
        """At a frame whose checksum does not fit."""


class TailFileReader:
    """Reads what writers append, each file from its beginning. Used by one thread at a time."""

    def __init__(self, directory: Path, *, skip_writer: str = "") -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._skip = directory, skip_writer
        self._files: dict[TailName, _Tailed] = {}
        self._done: set[TailName] = set()
        """Read to their end, or not readable."""
        self._listed_at = -1

    def has_news(self) -> bool:
        """Cheap: a stat of the directory and of each file that is still written."""
        if self._modified() != self._listed_at:
            return True
        return any(file.looks or os.fstat(file.descriptor).st_size > file.size_seen for file in self._files.values())

    def read(self, bytes_max: int = TAIL_FILES_READ_BYTES) -> list[Frame]:
        """What is new, up to about so many bytes; call again until nothing is."""
        self._list()
        frames: list[Frame] = []
        for name in sorted(self._files):
            file = self._files[name]
            found, byte_length = self._read_file(file, bytes_max)
            frames += found
            bytes_max -= byte_length
            if bytes_max <= 0:
                break
            if not found and any(other.writer_id == name.writer_id and other > name for other in self._files):
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
            with contextlib.suppress(FileNotFoundError):  # dropped by its writer just now
                descriptor = os.open(self._directory / name_of(*name), os.O_RDONLY)
                self._files[name] = _Tailed(name, descriptor)
        # What its writer dropped is read to the end all the same, unless that was long ago.
        for name in set(self._files) - names:
            if os.fstat(self._files[name].descriptor).st_size <= self._files[name].position:
                self._leave(self._files[name])
        # Two changes within one tick of the file system's clock look like one: listed again until that is over.
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
                # One frame larger than the step.
                data = os.pread(file.descriptor, len(data) + parsed.missing_bytes, file.position)
                parsed = parse_frames(data, source)
        except FormatError as error:
            file.looks += 1
            if file.looks >= TAIL_FILES_TORN_LOOKS_MAX:
                _log.warning("a file of the tail cache is left alone from byte %d on: %s", file.position, error)
                self._leave(file)
            return [], 0
        file.looks = 0
        file.position += parsed.byte_length
        file.size_seen = size if wanted < bytes_max or not parsed.frames else file.position
        return parsed.frames, parsed.byte_length

    def _leave(self, file: _Tailed) -> None:
        os.close(file.descriptor)
        del self._files[file.name]
        self._done.add(file.name)
