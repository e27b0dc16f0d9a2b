"""One object under audit: read once and held, or, where it is too large to be held, read in pieces; requests counted.

It is a store, so that every check that reads from a store works on it unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from llog.errors import ObjectRangeInvalid
from llog.stores.objects.port import Buffer, ByteRange, ObjectMeta, ObjectStore
from llog.stores.objects.wrapper import ForwardingObjectStore


class OneObject(ForwardingObjectStore):
    def __init__(self, inner: ObjectStore, name: str, uri: str) -> None:
        super().__init__(inner)
        self.name, self.object_uri = name, uri
        self._held: memoryview | None = None
        self._tail: tuple[Buffer, int] | None = None
        self.bytes_read = self.requests = 0

    async def hold(self) -> None:
        """From here on everything is answered from memory."""
        if self._held is None:
            self._held = memoryview(self._counted(await self.inner.get(self.name)))

    @property
    def held(self) -> bool:
        return self._held is not None

    async def get(self, name: str) -> Buffer:
        return self._counted(await self.inner.get(name)) if self._held is None else self._held

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        held = self._held
        if held is None:
            return [self._counted(data) for data in await self.inner.get_ranges(name, ranges)]
        for byte_offset, byte_length in ranges:
            if byte_offset + byte_length > len(held):
                reason = f"bytes {byte_offset} to {byte_offset + byte_length} of {len(held)}"
                raise ObjectRangeInvalid("get_ranges", self.object_uri, reason)
        return [held[byte_offset : byte_offset + byte_length] for byte_offset, byte_length in ranges]

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        held = self._held
        if held is not None:
            return held[max(0, len(held) - byte_length) :], len(held)
        if self._tail is None or len(self._tail[0]) < min(byte_length, self._tail[1]):
            tail, length = await self.inner.get_tail(name, byte_length)
            self._tail = self._counted(tail), length
        tail, length = self._tail
        return memoryview(tail)[max(0, len(tail) - byte_length) :], length

    async def head(self, name: str) -> ObjectMeta:
        self.requests += 1
        return await self.inner.head(name)

    async def byte_length(self) -> int:
        return len(self._held) if self._held is not None else (await self.head(self.name)).byte_length

    def _counted(self, data: Buffer) -> Buffer:
        self.requests += 1
        self.bytes_read += len(data)
        return data
