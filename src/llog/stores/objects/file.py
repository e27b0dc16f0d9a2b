"""Objects as files in a local or shared directory: `file:///dir`.

`file_tree` implements durable writes and ordered listings; this module has the port, the threads and the table of
errors.
- File calls run in a small thread pool of the store, so the event loop does not wait for the disk. A put whose caller
  is cancelled still finishes: the object may appear.
- A name cannot be both an object and the directory of others (`a` and `a/b`); such a put is refused.
- Deletes are not synced: vacuum deletes an object again that reappears after a power cut.
- The path in the URL is used without percent-decoding.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from llog.errors import (
    InvalidArgument,
    LlogError,
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectRangeInvalid,
    ObjectStoreDenied,
    ObjectStoreError,
    ObjectStoreFull,
    ObjectStoreMisconfigured,
    ObjectStoreUnavailable,
    ObjectStoreUncertain,
    StoreClosed,
)
from llog.limits import OBJECT_FILE_THREADS, OBJECT_LIST_PAGE_MAX
from llog.stores.objects.file_tree import TEMPORARY_DIRECTORY, DurableTree, NotKnownDurable, walk
from llog.stores.objects.port import (
    Buffer,
    ByteRange,
    ObjectMeta,
    ObjectStore,
    check_name,
    check_range,
    check_ranges,
    flat_views,
    total_bytes,
)

P = ParamSpec("P")
T = TypeVar("T")

# Inside the class, `list` is the method of the port.
Parts = list[Buffer]
Views = list[memoryview | bytes]

# errno → our error for a read and for a write. Any other errno becomes a plain ObjectStoreError.
ERRORS: Final[dict[int, tuple[type[LlogError], type[LlogError]]]] = {
    errno.ENOENT: (ObjectNotFound, ObjectStoreMisconfigured),  # a put creates its directories, so the root is missing
    errno.ENOTDIR: (ObjectNotFound, InvalidArgument),  # `a` is an object, so `a/b` cannot be
    errno.EISDIR: (ObjectNotFound, InvalidArgument),
    errno.ENOTEMPTY: (ObjectStoreError, InvalidArgument),
    errno.ENAMETOOLONG: (ObjectNotFound, InvalidArgument),
    errno.EEXIST: (ObjectStoreError, ObjectAlreadyExists),
    errno.ENOSPC: (ObjectStoreFull, ObjectStoreFull),
    errno.EDQUOT: (ObjectStoreFull, ObjectStoreFull),
    errno.EFBIG: (ObjectStoreFull, ObjectStoreFull),
    errno.EACCES: (ObjectStoreDenied, ObjectStoreDenied),
    errno.EPERM: (ObjectStoreDenied, ObjectStoreDenied),
    errno.EROFS: (ObjectStoreDenied, ObjectStoreDenied),
    errno.EXDEV: (ObjectStoreMisconfigured, ObjectStoreMisconfigured),
    errno.ENOTSUP: (ObjectStoreMisconfigured, ObjectStoreMisconfigured),
    errno.EMFILE: (ObjectStoreUnavailable, ObjectStoreUnavailable),
    errno.ENFILE: (ObjectStoreUnavailable, ObjectStoreUnavailable),
    errno.ENOMEM: (ObjectStoreUnavailable, ObjectStoreUnavailable),
    errno.EAGAIN: (ObjectStoreUnavailable, ObjectStoreUnavailable),
    errno.EBUSY: (ObjectStoreUnavailable, ObjectStoreUnavailable),
    errno.ESTALE: (ObjectStoreUnavailable, ObjectStoreUnavailable),
}


def translate(error: OSError, operation: str, subject: str, *, writing: bool) -> LlogError:
    reason = f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror or error}"
    ours = ERRORS.get(error.errno or 0, (ObjectStoreError, ObjectStoreError))[writing]
    if issubclass(ours, InvalidArgument):
        return InvalidArgument("name", f"no file can have the name {subject!r} ({reason})")
    assert issubclass(ours, ObjectStoreError)
    return ours(operation, subject, reason)


async def open_from_url(url: str, settings: object = None) -> ObjectStore:
    """`file:///dir`; `check` creates the directory if it is missing. Uses no setting."""
    return FileObjectStore(url)


class FileObjectStore(ObjectStore):
    def __init__(self, url: str) -> None:
        self.root = _path_of(url)
        self.url = f"file://{self.root.rstrip('/')}"
        self._tree = DurableTree(self.root)
        self._pool = ThreadPoolExecutor(OBJECT_FILE_THREADS, thread_name_prefix="llog-files")
        self._closed = False

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self._check_open("put", name)
        _check_file_name(name)
        total_bytes(name, buffers)
        views = flat_views(buffers)
        try:
            await self._run(self._publish, name, views, if_absent)
        except NotKnownDurable as error:
            raise ObjectStoreUncertain("put", self.uri(name), f"placed, but not synced: {error.__cause__}") from error
        except OSError as error:
            raise translate(error, "put", self.uri(name), writing=True) from error

    async def get(self, name: str) -> Buffer:
        return (await self._read("get", name, lambda length: [ByteRange(0, length)]))[0][0]

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        check_ranges(name, ranges)
        return (await self._read("get_ranges", name, lambda length: ranges))[0]

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        check_range(0, byte_length)
        parts, length = await self._read(
            "get_tail", name, lambda length: [ByteRange(max(0, length - byte_length), min(length, byte_length))]
        )
        return parts[0], length

    async def head(self, name: str) -> ObjectMeta:
        byte_length, modified_ms = await self._reading("head", name, _stat, self._path(name))
        return ObjectMeta(name, byte_length, modified_ms)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        names = walk(self.root, prefix, start_after)
        while page := await self._reading("list", prefix, _next_page, names):
            for meta in page:
                yield meta

    async def delete_many(self, names: Sequence[str]) -> None:
        self._check_open("delete", self.url)
        paths = [self._path(name) for name in names]
        try:
            await self._run(_unlink_all, paths)
        except OSError as error:
            raise translate(error, "delete", str(error.filename or self.url), writing=True) from error

    async def tidy(self, directory: str) -> None:
        """Directories that are not empty, or in use, stay."""
        self._check_open("tidy", self.url)
        _check_file_name(directory)
        await self._run(self._tree.prune, directory)

    async def check(self, *, writing: bool = True) -> None:
        """Create the directory and write, link and delete a file in it; or only list it."""
        self._check_open("check", self.url)
        if not writing:
            return await self._check_readable()
        try:
            await self._run(self._prove_usable)
        except (OSError, NotKnownDurable) as error:
            reason = f"{error.__cause__ or error}; give llog a directory it may create, write, link and delete files in"
            raise ObjectStoreMisconfigured("check", self.url, reason) from error

    async def _check_readable(self) -> None:
        try:
            await self._run(_look_into, self.root)
        except OSError as error:
            reason = f"{error}; is its file system mounted, and may llog read it?"
            raise ObjectStoreMisconfigured("check", self.url, reason) from error

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._pool.shutdown)

    def _publish(self, name: str, views: Views, if_absent: bool) -> None:
        try:
            self._tree.publish(name, views, if_absent=if_absent)
        finally:
            # The thread may keep its last job for a moment; the caller's buffers must be free when put returns.
            for view in views:
                if isinstance(view, memoryview):
                    view.release()

    def _prove_usable(self) -> None:
        self._tree.prepare()
        probe = f"{TEMPORARY_DIRECTORY}/check-{os.getpid()}-{os.urandom(8).hex()}"
        self._tree.publish(probe, [], if_absent=True)
        os.unlink(os.path.join(self.root, probe))

    async def _read(self, operation: str, name: str, choose: Callable[[int], Sequence[ByteRange]]) -> tuple[Parts, int]:
        path = self._path(name)
        parts, length = await self._reading(operation, name, _read_parts, path, choose)
        if parts is None:
            raise ObjectRangeInvalid(operation, self.uri(name), f"a range reaches beyond the object's {length} bytes")
        return parts, length

    async def _reading(
        self, operation: str, subject: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._check_open(operation, subject)
        try:
            return await self._run(call, *args, **kwargs)
        except OSError as error:
            raise translate(error, operation, f"{self.url}/{subject}", writing=False) from error

    async def _run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        # Each caller waits for its job, so the queue is no longer than the bounded number of callers.
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args, **kwargs))

    def _path(self, name: str) -> str:
        _check_file_name(name)
        return os.path.join(self.root, name)

    def _check_open(self, operation: str, subject: str) -> None:
        if self._closed:
            raise StoreClosed(operation, subject, "this store was closed")


def _read_parts(path: str, choose: Callable[[int], Sequence[ByteRange]]) -> tuple[list[Buffer] | None, int]:
    """The ranges and the length of the file; None for the ranges if one reaches past the end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length, _ = _length_and_modified_ms(os.fstat(descriptor), path)
        parts: list[Buffer] = []
        for byte_offset, byte_length in choose(length):
            if byte_offset + byte_length > length:
                return None, length
            parts.append(os.pread(descriptor, byte_length, byte_offset))
            if len(parts[-1]) != byte_length:
                raise OSError(errno.EIO, "the file ended early: it was changed in place", path)
        return parts, length
    finally:
        os.close(descriptor)


def _look_into(path: str) -> None:
    with os.scandir(path) as entries:
        next(entries, None)


def _stat(path: str) -> tuple[int, int]:
    return _length_and_modified_ms(os.stat(path), path)


def _length_and_modified_ms(status: os.stat_result, path: str) -> tuple[int, int]:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return status.st_size, status.st_mtime_ns // 1_000_000


def _next_page(names: Iterator[ObjectMeta]) -> list[ObjectMeta]:
    return list(itertools.islice(names, OBJECT_LIST_PAGE_MAX))


def _unlink_all(paths: Sequence[str]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except OSError as error:
            # No file has such a long name.
            if error.errno != errno.ENAMETOOLONG:
                raise


def _check_file_name(name: str) -> None:
    check_name(name)
    if name.partition("/")[0] == TEMPORARY_DIRECTORY:
        raise InvalidArgument("name", f"{name!r}: {TEMPORARY_DIRECTORY}/ is kept for temporary files")


def _path_of(url: str) -> str:
    scheme, separator, path = url.partition("://")
    if scheme != "file" or not separator or not path.startswith("/"):
        raise InvalidArgument("url", f"{url!r} is not of the form file:///directory (three slashes, an absolute path)")
    return os.path.normpath("/" + path.lstrip("/"))
