"""Objects in this process's memory: `memory://name`.

The simplest implementation of the port: the reference for the contract suite and for tests of the wrappers, and the
store of a broker without a disk. All stores of one name in a process share their objects, until the process ends or
`forget` is called. It holds `bytes`, not the caller's buffers, so later changes of a buffer do not change an object.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence

from llog.errors import InvalidArgument, ObjectAlreadyExists, ObjectNotFound, ObjectRangeInvalid, StoreClosed
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

_Objects = dict[str, tuple[bytes, int]]

_places: dict[str, _Objects] = {}
"""Objects of the whole process by URL; each value maps a name to its bytes and time of last modification."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def forget(url: str) -> None:
    """Drop every object of a memory store, as if the bucket were deleted."""
    _places.pop(_checked_url(url), None)


async def open_from_url(url: str, settings: object = None) -> ObjectStore:
    """Open `memory://name`. Uses no setting."""
    store = MemoryObjectStore(url)
    await store.check()
    return store


class MemoryObjectStore(ObjectStore):
    def __init__(self, url: str, *, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.url = _checked_url(url)
        self._objects = _places.setdefault(self.url, {})
        self._clock_ms = clock_ms
        self._closed = False

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self._check_open("put", name)
        check_name(name)
        total_bytes(name, buffers)
        if if_absent and name in self._objects:
            raise ObjectAlreadyExists("put", self.uri(name))
        self._objects[name] = (b"".join(flat_views(buffers)), self._clock_ms())

    async def get(self, name: str) -> Buffer:
        return self._find("get", name)[0]

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        check_ranges(name, ranges)
        stored = memoryview(self._find("get_ranges", name)[0])
        answer: list[Buffer] = []
        for byte_offset, byte_length in ranges:
            end = byte_offset + byte_length
            if end > stored.nbytes:
                reason = f"bytes {byte_offset} to {end} of {stored.nbytes}"
                raise ObjectRangeInvalid("get_ranges", self.uri(name), reason)
            answer.append(stored[byte_offset:end])
        return answer

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        check_range(0, byte_length)
        stored = self._find("get_tail", name)[0]
        return memoryview(stored)[max(0, len(stored) - byte_length) :], len(stored)

    async def head(self, name: str) -> ObjectMeta:
        stored, modified_ms = self._find("head", name)
        return ObjectMeta(name, len(stored), modified_ms)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self._check_open("list", prefix)
        # Code point order is the byte order of UTF-8, so strings compare as the port requires.
        for name in sorted(n for n in self._objects if n.startswith(prefix) and n > start_after):
            found = self._objects.get(name)
            if found is not None:
                yield ObjectMeta(name, len(found[0]), found[1])

    async def delete_many(self, names: Sequence[str]) -> None:
        self._check_open("delete", self.url)
        for name in names:
            check_name(name)
        for name in names:
            self._objects.pop(name, None)

    async def check(self, *, writing: bool = True) -> None:
        self._check_open("check", self.url)

    async def close(self) -> None:
        self._closed = True

    def _find(self, operation: str, name: str) -> tuple[bytes, int]:
        self._check_open(operation, name)
        check_name(name)
        found = self._objects.get(name)
        if found is None:
            raise ObjectNotFound(operation, self.uri(name), "no such object")
        return found

    def _check_open(self, operation: str, subject: str) -> None:
        if self._closed:
            raise StoreClosed(operation, subject, "this store was closed")


def _checked_url(url: str) -> str:
    scheme, separator, name = url.partition("://")
    name = name.rstrip("/")
    if scheme != "memory" or not separator or "/" in name:
        raise InvalidArgument("url", f"{url!r} is not of the form memory://name")
    return f"memory://{name}"
