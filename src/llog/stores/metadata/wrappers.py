"""Wrappers around a metadata store: the base class of all, and metering."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX
from llog.stores.metadata.port import ANY, Change, GroupOutcome, Key, MetadataStore, Record, Session, Write
from llog.stores.metering import MeasuredCall, MetadataStoreStats, OperationStats, StorePulse, outcome_of


class ForwardingMetadataStore(MetadataStore):
    """Base class of wrappers: forwards every call to another store.

    It inherits the port's derived calls (`get` from `get_many`, `ceiling` from `scan`, `put` and `delete` from
    `write`), so a wrapper that overrides `write` also changes `put`.
    """

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


class MeteredMetadataStore(ForwardingMetadataStore):
    """Counts calls, items, errors by kind and latency. A write of many groups is one call, and each failed group is one
    error."""

    def __init__(
        self,
        inner: MetadataStore,
        stats: MetadataStoreStats | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock`: seconds, from any origin."""
        super().__init__(inner)
        self.stats = MetadataStoreStats() if stats is None else stats
        self._clock, self.pulse = clock, StorePulse()

    def _measured(self, operation: str, items: int = 0) -> MeasuredCall:
        return MeasuredCall(operation, self.stats.operations[operation], self._clock, self.pulse, items)

    async def get(self, key: Key, *, strict: bool = False) -> Record | None:
        with self._measured("get", 1):
            return await self.inner.get(key, strict=strict)

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        with self._measured("get_many", len(keys)):
            return await self.inner.get_many(keys, strict=strict)

    async def ceiling(self, parent: Key, name: str, *, strict: bool = False) -> Record | None:
        with self._measured("ceiling", 1):
            return await self.inner.ceiling(parent, name, strict=strict)

    async def scan(
        self,
        parent: Key,
        *,
        start: str = "",
        stop: str | None = None,
        limit: int = METADATA_SCAN_PAGE_RECORDS_MAX,
        strict: bool = False,
    ) -> list[Record]:
        with self._measured("scan") as call:
            page = await self.inner.scan(parent, start=start, stop=stop, limit=limit, strict=strict)
            call.items = len(page)
        return page

    async def scan_tree(self, prefix: str) -> AsyncIterator[Record]:
        """The latency is the time spent waiting for the store, without the time of the caller."""
        stats, waited_ms, outcome = self.stats.operations["scan_tree"], 0.0, "ok"
        records = self.inner.scan_tree(prefix)
        try:
            while True:
                began = self._clock()
                try:
                    record = await anext(records)
                finally:
                    waited_ms += (self._clock() - began) * 1_000
                stats.item_count += 1
                yield record
        except StopAsyncIteration:
            return
        except GeneratorExit:
            raise  # the caller stopped early, which is not a failure
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            stats.record(outcome, waited_ms)
            if isinstance(records, AsyncGenerator):
                await records.aclose()

    async def put(self, key: Key, value: bytes, *, expected: int | None = ANY, session: Session | None = None) -> int:
        with self._measured("put", 1):
            return await self.inner.put(key, value, expected=expected, session=session)

    async def delete(self, key: Key, *, expected: int | None = ANY) -> None:
        with self._measured("delete", 1):
            await self.inner.delete(key, expected=expected)

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        with self._measured("write", sum(map(len, groups))) as call:
            outcomes = await self.inner.write(groups)
            # A store that carried out any group responds.
            failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            call.error = failures[0] if failures and len(failures) == len(outcomes) else None
        stats = self.stats.operations["write"]
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                stats.count(outcome_of(outcome))
        return outcomes

    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        def counted() -> None:
            self.stats.sessions_lost += 1
            if on_lost is not None:
                on_lost()

        with self._measured("open_session"):
            return await self.inner.open_session(timeout_ms=timeout_ms, on_lost=counted)

    def watch(self, prefix: str, *, route: str = "") -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        return self._watch(self.inner.watch(prefix, route=route))

    @asynccontextmanager
    async def _watch(
        self, opening: AbstractAsyncContextManager[AsyncIterator[Change]]
    ) -> AsyncIterator[AsyncIterator[Change]]:
        """The latency is the time until the watch is established."""
        async with AsyncExitStack() as stack:
            with self._measured("watch"):
                changes = await stack.enter_async_context(opening)
            yield _CountedChanges(changes, self.stats.operations["watch"])

    async def server_time_ms(self) -> int | None:
        with self._measured("server_time"):
            return await self.inner.server_time_ms()

    async def raise_versions(self, floor: int) -> bool:
        with self._measured("raise_versions"):
            return await self.inner.raise_versions(floor)


class _CountedChanges:
    """Not a generator: a generator would end when a caller is cancelled while it waits for the next change."""

    def __init__(self, changes: AsyncIterator[Change], stats: OperationStats) -> None:
        self._changes, self._stats = changes, stats

    def __aiter__(self) -> _CountedChanges:
        return self

    async def __anext__(self) -> Change:
        change = await anext(self._changes)
        self._stats.item_count += 1
        return change
