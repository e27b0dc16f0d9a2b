"""A directory tree in which a file appears complete and durable, or not at all. All calls block.

An object must survive a power cut once `put` has returned, and no reader may see a part of it. Both depend on the order
of system calls in `publish`:

    write a temporary file → fsync it → rename (or link) it into place → fsync the directory

The bytes are on disk before the name exists, so the name never shows a partial file; the directory is on disk before
the caller learns of success, so the name does not disappear. A directory is used only after its own entry in its parent
is on disk (`_ensure_directory`), also if another process or thread created it.

Temporary files are in `.llog-tmp/` below the root (same file system, not listed). Opening the tree removes those older
than `OBJECT_FILE_TEMPORARY_AGE_MS_MAX`; younger ones may belong to a running process. Directories are removed only by
`prune`: a put that remembers a directory as durable would not sync it again after it was recreated.

Listings are in byte order of full names, which is not the order of a simple walk: `a-b` sorts before `a/b`. `walk`
sorts a directory as its name followed by a slash and skips subtrees that hold no wanted name. A file or directory that
is removed during the walk is skipped; files that no put can have written (unprintable names, links, temporary files)
are not listed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from llog.limits import MIB, OBJECT_WRITE_VECTOR_MAX
from llog.stores.objects.port import ObjectMeta, is_name

# Files this large are allocated before they are written.
OBJECT_FILE_RESERVE_BYTES_MIN: Final = MIB
# Directories known to be on disk in their parent; the set is cleared when it is full.
OBJECT_FILE_DIRECTORIES_MAX: Final = 65_536
# Temporary files not modified for this long belong to a process that has ended.
OBJECT_FILE_TEMPORARY_AGE_MS_MAX: Final = 3_600_000
# How often a put recreates its directory after another process removed it as empty.
OBJECT_FILE_PLACE_TRIES_MAX: Final = 8

TEMPORARY_DIRECTORY: Final = ".llog-tmp"


class NotKnownDurable(Exception):
    """The file was put in place, but its directory could not be synced; `__cause__` is the reason."""


class DurableTree:
    """Files below `root`, by path relative to it. Safe for concurrent use by threads and processes."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._temporary = os.path.join(root, TEMPORARY_DIRECTORY)
        # Unique among all processes of all hosts that share the directory.
        self._writer = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._count = itertools.count()
        self._durable_directories: set[str] = set()

    def prepare(self, now_ms: int | None = None) -> None:
        """Create the root and its parents durably, and remove temporary files of crashed writers."""
        _make_directories(self.root)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._temporary)
        self.sweep(time.time_ns() // 1_000_000 if now_ms is None else now_ms)

    def sweep(self, now_ms: int) -> int:
        """Remove old temporary files; returns their number."""
        removed = 0
        with os.scandir(self._temporary) as entries:
            for entry in entries:
                # Another process removed the file, or finished its put, at the same time.
                with contextlib.suppress(FileNotFoundError):
                    age_ms = now_ms - entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000
                    if age_ms > OBJECT_FILE_TEMPORARY_AGE_MS_MAX:
                        os.unlink(entry.path)
                        removed += 1
        return removed

    def publish(self, name: str, views: Sequence[memoryview | bytes], *, if_absent: bool) -> None:
        """Make `name` a file of these bytes, atomically and durably. `if_absent` raises `FileExistsError`.

        Safety depends on the order of the steps; see the docstring of the module.
        """
        path = os.path.join(self.root, name)
        temporary = os.path.join(self._temporary, f"{self._writer}-{next(self._count)}")
        is_left = True
        try:
            _write_synced(temporary, views)
            self._place(temporary, path, if_absent)
            is_left = if_absent  # a rename has removed it; after a link it is a second name of the file
            try:
                _sync_directory(os.path.dirname(path))
            except OSError as error:
                if if_absent:
                    # A later attempt would take the file for its own successful put.
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                raise NotKnownDurable(name) from error
        finally:
            if is_left:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    def prune(self, directory: str) -> None:
        """Remove the directory and those below it if they are empty."""
        for path, _, _ in os.walk(os.path.join(self.root, directory), topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
                self._durable_directories.discard(path)

    def _place(self, temporary: str, path: str, if_absent: bool) -> None:
        # link refuses to replace, rename replaces: both in one step.
        place = os.link if if_absent else os.rename
        for tries_left in reversed(range(OBJECT_FILE_PLACE_TRIES_MAX)):
            try:
                self._ensure_directory(os.path.dirname(path))
                return place(temporary, path)
            except FileExistsError:
                if os.path.isdir(path):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
                raise
            except FileNotFoundError:
                # Another process removed a directory that we remember or have just created: create it again.
                self._durable_directories.clear()
                if not tries_left:
                    raise

    def _ensure_directory(self, directory: str) -> None:
        if directory == self.root or directory in self._durable_directories:
            return
        parent = os.path.dirname(directory)
        self._ensure_directory(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
        # Also if it existed: its creator may not have synced the parent yet.
        _sync_directory(parent)
        if len(self._durable_directories) >= OBJECT_FILE_DIRECTORIES_MAX:
            self._durable_directories.clear()
        self._durable_directories.add(directory)


def _make_directories(path: str) -> None:
    """`mkdir -p`, syncing the parent of each directory made."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_directories(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    _sync_directory(parent)


def _write_synced(path: str, views: Sequence[memoryview | bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _reserve(descriptor, sum(map(len, views)))
        write_vectors(descriptor, views)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, byte_length: int) -> None:
    """Allocate a large file at once: a tenth faster than growing it, and a full disk is detected early."""
    if byte_length < OBJECT_FILE_RESERVE_BYTES_MIN:
        return
    try:
        os.posix_fallocate(descriptor, 0, byte_length)
    except OSError as error:
        # Not every file system supports it; the write does not need it.
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_vectors(descriptor: int, views: Sequence[memoryview | bytes]) -> None:
    """Write all buffers in order; a system call takes a limited number of them and may write less."""
    first = 0
    rest: memoryview | bytes | None = None
    while first < len(views):
        window = list(views[first : first + OBJECT_WRITE_VECTOR_MAX])
        if rest is not None:
            window[0] = rest
        written = os.writev(descriptor, window)
        rest = None
        for view in window:
            if written < len(view):
                rest = memoryview(view)[written:]
                break
            written -= len(view)
            first += 1


# -- listing -----------------------------------------------------------------------------------------------------------


def walk(root: str, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
    """Files below `root` whose name begins with `prefix` and sorts after `start_after`, in order."""
    directory, slash, _ = prefix.rpartition("/")
    if slash and not _is_name(directory):
        return
    yield from _walk(root, directory + slash, prefix, start_after)


def _walk(root: str, directory: str, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
    for name in _sorted_names(root, directory, prefix, start_after):
        if name.endswith("/"):
            yield from _walk(root, name, prefix, start_after)
            continue
        try:
            status = os.stat(os.path.join(root, name), follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield ObjectMeta(name, status.st_size, status.st_mtime_ns // 1_000_000)


def _sorted_names(root: str, directory: str, prefix: str, start_after: str) -> list[str]:
    """Full names in one directory that may hold or be a wanted object; a directory's name ends with a slash."""
    names = []
    try:
        with os.scandir(os.path.join(root, directory)) as entries:
            for entry in entries:
                name = directory + entry.name
                if entry.is_dir(follow_symlinks=False):
                    below = name + "/"
                    wanted = below.startswith(prefix) or prefix.startswith(below)
                    if wanted and (below > start_after or start_after.startswith(below)) and _is_name(name):
                        names.append(below)
                    continue
                wanted = name.startswith(prefix) and name > start_after
                if wanted and entry.is_file(follow_symlinks=False) and _is_name(name):
                    names.append(name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # Code point order is the byte order of UTF-8.
    names.sort()
    return names


def _is_name(name: str) -> bool:
    return is_name(name) and name.partition("/")[0] != TEMPORARY_DIRECTORY
