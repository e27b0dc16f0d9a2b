"""Base class of object-store wrappers: forwards every call to another store.

The order of wrappers matters: `Retrying(Metered(store))` counts every attempt, like the bill.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from llog.stores.objects.port import Buffer, ByteRange, ObjectMeta, ObjectStore

__all__ = ["ForwardingObjectStore"]


class ForwardingObjectStore(ObjectStore):
    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.url = inner.url

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self.inner.put(name, buffers, if_absent=if_absent)

    async def get(self, name: str) -> Buffer:
        return await self.inner.get(name)

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return await self.inner.get_ranges(name, ranges)

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        return await self.inner.get_tail(name, byte_length)

    async def head(self, name: str) -> ObjectMeta:
        return await self.inner.head(name)

    def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        return self.inner.list(prefix, start_after=start_after)

    async def delete_many(self, names: Sequence[str]) -> None:
        await self.inner.delete_many(names)

    async def tidy(self, directory: str) -> None:
        await self.inner.tidy(directory)

    async def check(self, *, writing: bool = True) -> None:
        await self.inner.check(writing=writing)

    async def close(self) -> None:
        await self.inner.close()
