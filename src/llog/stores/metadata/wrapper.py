"""What the wrappers share: a metadata store that passes everything to another one.

Why it exists: metering, faults and gathering are wrappers around the port; each changes only the calls it is about.

What must stay true: what the port makes of other calls (`get` of `get_many`, `ceiling` of `scan`, `put` and `delete` of
`write`) is made here the same way, so that a wrapper which changes `write` has changed `put` with it.
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
