"""The object port: what the log needs from an object store, and nothing else.

Why it exists: record bytes live in S3, a directory or memory behind one small interface; retry, metering and faults
are wrappers around it (`retrying`, `metered`, `faulty`), and one contract suite (`llog.testing.object_contract`)
proves every adapter.

What every store promises
- `put` is atomic and durable: when it returns, the whole object survives a crash; before, nobody sees any of it.
- Objects are immutable to us: a name is written once. `if_absent=True` makes the store check it.
- Names are `/`-separated paths below the store's root; `uri(name)` is what index entries keep.
- A range outside the object is an error, never a shorter answer.
- A write whose answer was lost raises `ObjectStoreUncertain`; repeating the same put is safe, since names are drawn
  once and bytes never differ.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from llog.errors import InvalidArgument, ValueTooLarge
from llog.limits import OBJECT_BYTES_MAX, OBJECT_NAME_BYTES_MAX

Buffer = bytes | bytearray | memoryview


class ByteRange(NamedTuple):
    byte_offset: int
    byte_length: int


class ObjectMeta(NamedTuple):
    name: str
    byte_length: int
    last_modified_ms: int


class ObjectStore(abc.ABC):
    """One place for objects. Bound to the event loop it is used on; open it in the process that uses it."""

    url: str
    """The root, without a trailing slash: `s3://bucket`, `file:///dir`, `memory://name`."""

    @property
    def kind(self) -> str:
        """The scheme: `s3`, `file`, `memory`."""
        return self.url.partition(":")[0]

    def uri(self, name: str) -> str:
        check_name(name)
        return f"{self.url}/{name}"

    def name_of(self, uri: str) -> str:
        """The name behind a URI of this store; `InvalidArgument` when it belongs to another."""
        prefix = self.url + "/"
        if not uri.startswith(prefix):
            raise InvalidArgument("uri", f"{uri!r} is not in {self.url}")
        return uri[len(prefix) :]

    @abc.abstractmethod
    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Store the concatenation of `buffers`; durable when this returns. The buffers are not changed or kept."""

    @abc.abstractmethod
    async def get(self, name: str) -> Buffer:
        """The whole object."""

    @abc.abstractmethod
    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Exactly these ranges, in order; `ObjectRangeInvalid` when one reaches beyond the object."""

    async def get_range(self, name: str, byte_offset: int, byte_length: int) -> Buffer:
        return (await self.get_ranges(name, [ByteRange(byte_offset, byte_length)]))[0]

    @abc.abstractmethod
    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        """The last `byte_length` bytes in one request (all of a shorter object), and the object's whole length."""

    @abc.abstractmethod
    async def head(self, name: str) -> ObjectMeta:
        """Length and last-modified time; `ObjectNotFound` when there is no such object."""

    @abc.abstractmethod
    def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Objects whose name begins with `prefix` (any string), names > `start_after`, in byte order of the names."""

    @abc.abstractmethod
    async def delete_many(self, names: Sequence[str]) -> None:
        """Delete; what is not there is fine. Any number of names; bounded requests underneath."""

    async def delete(self, name: str) -> None:
        await self.delete_many([name])

    async def tidy(self, directory: str) -> None:  # noqa: B027 (most stores have nothing to tidy)
        """Remove what a store keeps of `directory` although no object lies there. Only for places whose objects need
        not survive a power cut: a put that meets the removal is whole, but may be less durable."""

    @abc.abstractmethod
    async def check(self, *, writing: bool = True) -> None:
        """Prove at start that the store is there and may be used; `ObjectStoreMisconfigured` or `…Denied` if not.

        With `writing=False` nothing is made or written: what a reader with a read-only credential needs.
        """

    @abc.abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def checked(store: ObjectStore, *, writing: bool = True) -> ObjectStore:
    """The store itself, once `check` passed; closed if it did not."""
    try:
        await store.check(writing=writing)
    except BaseException:
        await store.close()
        raise
    return store


def check_name(name: str) -> None:
    """Refuse names that some store could not hold or that would leave the root. Raises `InvalidArgument`."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name or size > OBJECT_NAME_BYTES_MAX:
        raise InvalidArgument("name", f"{name[:80]!r} has {size} bytes; 1 to {OBJECT_NAME_BYTES_MAX} are accepted")
    if not name.isprintable():
        raise InvalidArgument("name", f"{name!r} has a control or unprintable character")
    if any(segment in ("", ".", "..") for segment in name.split("/")):
        raise InvalidArgument("name", f"{name!r} has an empty or dotted segment")


def check_range(byte_offset: int, byte_length: int) -> None:
    if byte_offset < 0 or byte_length < 0:
        raise InvalidArgument("range", f"byte_offset {byte_offset}, byte_length {byte_length}: neither may be negative")


def total_bytes(name: str, buffers: Sequence[Buffer]) -> int:
    """The object's length; `ValueTooLarge` when no store would take it."""
    size = sum(len(b) if not isinstance(b, memoryview) else b.nbytes for b in buffers)
    if size > OBJECT_BYTES_MAX:
        raise ValueTooLarge(f"object {name!r}", size, OBJECT_BYTES_MAX)
    return size
