"""A metadata store that counts calls, items, errors by kind and latency.

The counts are plain numbers, written here on the hot path and read by the metrics page (`snapshot` is a copy). One
event loop writes them, so no lock is needed. The lists below name every operation and kind of error, so that dashboards
can rely on them. A write of many groups is one call, and each failed group is one error. Histograms are cumulative, as
in Prometheus.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from llog.errors import (
    InvalidArgument,
    MetadataDenied,
    MetadataFull,
    MetadataMisconfigured,
    MetadataTimeout,
    MetadataUnavailable,
    MetadataUncertain,
    SessionLost,
    StoreClosed,
    VersionConflict,
)
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX
from llog.stores.metadata.port import ANY, Change, GroupOutcome, Key, MetadataStore, Record, Session, Write
from llog.stores.metadata.wrapper import ForwardingMetadataStore
from llog.stores.pulse import StorePulse

__all__ = ["ERRORS", "LATENCY_BOUNDS_MS", "OPERATIONS", "MetadataStoreStats", "MeteredMetadataStore", "error_kind_of"]

OPERATIONS: Final = (
    "get", "get_many", "ceiling", "scan", "scan_tree", "put", "delete", "write",
    "open_session", "watch", "server_time", "raise_versions",
)  # fmt: skip
_WRITING: Final = frozenset({"put", "delete", "write", "raise_versions"})
# Opening a session or watch may not contact the store; the first use does.
_PROMISES: Final = frozenset({"open_session", "watch"})
# An embedded store answers within microseconds, a remote one within milliseconds, a failing one within seconds.
LATENCY_BOUNDS_MS: Final = (
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0,
)  # fmt: skip

_BY_ERROR: Final[dict[type[BaseException], str]] = {
    VersionConflict: "conflict",
    MetadataTimeout: "timeout",
    MetadataUnavailable: "unavailable",
    MetadataUncertain: "uncertain",
    MetadataDenied: "denied",
    MetadataMisconfigured: "misconfigured",
    MetadataFull: "full",
    SessionLost: "session_lost",
    StoreClosed: "closed",
    InvalidArgument: "invalid",
}
ERRORS: Final = (*_BY_ERROR.values(), "cancelled", "error")


def error_kind_of(error: BaseException) -> str:
    """The name of an error's kind; `cancelled` if the caller gave up, `error` for unexpected errors."""
    for kind in type(error).__mro__:
        if kind in _BY_ERROR:
            return _BY_ERROR[kind]
    return "error" if isinstance(error, Exception) else "cancelled"


class MetadataOperationStats:
    """Counts of one operation."""

    __slots__ = ("_buckets", "call_count", "errors", "item_count", "latency_ms_sum")

    def __init__(self) -> None:
        self.call_count = 0
        self.item_count = 0
        """Keys read, records returned by scans, writes requested, changes reported by watches."""
        self.errors: dict[str, int] = {}
        self.latency_ms_sum = 0.0
        self._buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)

    def record(self, latency_ms: float) -> None:
        self.call_count += 1
        self.latency_ms_sum += latency_ms
        self._buckets[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += 1

    def failed(self, error: BaseException) -> None:
        kind = error_kind_of(error)
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def snapshot(self) -> dict[str, Any]:
        cumulative, total = {}, 0
        for bound, count in zip((*LATENCY_BOUNDS_MS, float("inf")), self._buckets, strict=True):
            total += count
            cumulative[bound] = total
        return {
            "calls": self.call_count,
            "items": self.item_count,
            "errors": {kind: self.errors.get(kind, 0) for kind in ERRORS},
            "latency_ms_sum": self.latency_ms_sum,
            "latency_ms_buckets": cumulative,
        }


class MetadataStoreStats:
    """Counts of all operations of one store in this process."""

    def __init__(self) -> None:
        self.operations = {operation: MetadataOperationStats() for operation in OPERATIONS}
        self.sessions_lost = 0
        """Sessions that were lost, or must be assumed lost."""

    def snapshot(self) -> dict[str, Any]:
        operations = {name: operation.snapshot() for name, operation in self.operations.items()}
        return {"operations": operations, "sessions_lost": self.sessions_lost}


class MeteredMetadataStore(ForwardingMetadataStore):
    def __init__(
        self,
        inner: MetadataStore,
        stats: MetadataStoreStats | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(inner)
        self.stats = MetadataStoreStats() if stats is None else stats
        self._clock = clock
        """Seconds, from any origin."""
        self.pulse = StorePulse()

    def _measured(self, operation: str, items: int = 0) -> _MetadataCall:
        pulse = None if operation in _PROMISES else self.pulse
        return _MetadataCall(self.stats.operations[operation], self._clock, items, pulse, operation in _WRITING)

    # -- reads ----------------------------------------------------------------------------------------------------
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
        stats, waited_ms = self.stats.operations["scan_tree"], 0.0
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
            stats.failed(error)
            raise
        finally:
            stats.record(waited_ms)
            if isinstance(records, AsyncGenerator):
                await records.aclose()

    # -- writes ---------------------------------------------------------------------------------------------------
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
                stats.failed(outcome)
        return outcomes

    # -- sessions, watch, clock -----------------------------------------------------------------------------------
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


class _MetadataCall:
    """Measures one call, whether it succeeds or fails."""

    __slots__ = ("_clock", "_pulse", "_start", "_stats", "_writing", "error", "items")

    def __init__(
        self,
        stats: MetadataOperationStats,
        clock: Callable[[], float],
        items: int,
        pulse: StorePulse | None,
        writing: bool,
    ) -> None:
        self._stats, self._clock, self.items, self._pulse, self._writing = stats, clock, items, pulse, writing
        self.error: Exception | None = None
        """The error of a call that returned its error instead of raising it."""

    def __enter__(self) -> _MetadataCall:
        self._start = self._clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        latency_ms = (self._clock() - self._start) * 1_000
        self._stats.record(latency_ms)
        if self._pulse is not None:
            self._pulse.record(error or self.error, latency_ms, writing=self._writing)
        self._stats.item_count += self.items
        if error is not None:
            self._stats.failed(error)


class _CountedChanges:
    """Not a generator: a generator would end when a caller is cancelled while it waits for the next change."""

    def __init__(self, changes: AsyncIterator[Change], stats: MetadataOperationStats) -> None:
        self._changes, self._stats = changes, stats

    def __aiter__(self) -> _CountedChanges:
        return self

    async def __anext__(self) -> Change:
        change = await anext(self._changes)
        self._stats.item_count += 1
        return change
