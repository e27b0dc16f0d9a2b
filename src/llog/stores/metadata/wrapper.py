"""Base class of metadata-store wrappers: forwards every call to another store.

It inherits the port's derived calls (`get` from `get_many`, `ceiling` from `scan`, `put` and `delete` from `write`), so
a wrapper that overrides `write` also changes `put`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX
from llog.stores.metadata.port import Change, GroupOutcome, Key, MetadataStore, Record, Session, Write

__all__ = ["ForwardingMetadataStore"]


class ForwardingMetadataStore(MetadataStore):
    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner
        self.capabilities, self.url = inner.capabilities, inner.url

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        return await self.inner.get_many(keys, strict=strict)

    async def scan(
        self,
        parent: Key,
        *,
        start: str = "",
        stop: str | None = None,
        limit: int = METADATA_SCAN_PAGE_RECORDS_MAX,
        strict: bool = False,
    ) -> list[Record]:
        return await self.inner.scan(parent, start=start, stop=stop, limit=limit, strict=strict)

    def scan_tree(self, prefix: str) -> AsyncIterator[Record]:
        return self.inner.scan_tree(prefix)

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        return await self.inner.write(groups)

    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        return await self.inner.open_session(timeout_ms=timeout_ms, on_lost=on_lost)

    def watch(self, prefix: str, *, route: str = "") -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        return self.inner.watch(prefix, route=route)

    async def server_time_ms(self) -> int | None:
        return await self.inner.server_time_ms()

    async def raise_versions(self, floor: int) -> bool:
        return await self.inner.raise_versions(floor)

    async def close(self) -> None:
        await self.inner.close()
