"""The metadata port of one actor: every call waits until the scheduler performs it.

Simulated code reaches the metadata store in no other way, so every change of shared state passes the scheduler.

- A request that can never be accepted is refused at once, as a real client does, without the scheduler.
- A call with several keys is as many calls as the port allows: reads of several keys are no snapshot, and on a store
  without atomic groups every group has its own fate. On an atomic store all groups of a call share one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from llog.errors import InvalidArgument, MetadataStoreError, StoreClosed
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX, METADATA_WRITE_GROUPS_MAX
from llog.stores.metadata.memory import MemorySession
from llog.stores.metadata.port import (
    Capabilities,
    Change,
    Delete,
    GroupOutcome,
    Key,
    MetadataStore,
    Put,
    Record,
    Session,
    Write,
    check_get_many,
    check_groups,
    check_scan,
    check_session_timeout,
    check_value,
)
from llog.testing.sim.actor import Actor
from llog.testing.sim.calls import Call, answers_of
from llog.testing.sim.metadata_calls import (
    CloseSessionCall,
    GetCall,
    NoticeCall,
    OpenSessionCall,
    ScanCall,
    TimeCall,
    TreeCall,
    WriteCall,
)
from llog.testing.sim.metadata_server import MetadataServer, SimWatcher

# Paths that were found to be valid keys, remembered over all runs of a process; forgotten all at once when full.
SIM_CHECKED_PATHS_MAX: Final = 65_536

Submit = Callable[[Call], Call]

_checked: Final[set[str]] = set()
"""Paths that passed the port's checks; simulated runs use the same few over and over."""


class SimSession(Session):
    def __init__(self, store: SimMetadataStore, inner: MemorySession) -> None:
        self.id, self.inner, self._store = inner.id, inner, store

    @property
    def lost(self) -> bool:
        return self.inner.lost

    async def close(self) -> None:
        await self._store.end_session(self.inner)


class SimMetadataStore(MetadataStore):
    def __init__(self, actor: Actor, server: MetadataServer, submit: Submit) -> None:
        self._actor, self._server, self._submit = actor, server, submit
        self.capabilities = Capabilities(
            atomic_groups=server.backing.atomic_groups, watch=True, server_clock=True, shared=True
        )
        self.url = "memory://sim"
        self._watches: list[_Watch] = []
        self._closed = False

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise StoreClosed(operation, self.url)

    # -- reads --------------------------------------------------------------------------------------------------------
    async def get(self, key: Key, *, strict: bool = False) -> Record | None:
        if key.path not in _checked:
            _check([key])
        self._check_open("get")
        found: Record | None = await self._submit(GetCall(self._actor, self._server, key, strict))
        return found

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        _check(keys)
        self._check_open("get")
        # All are asked for at once; each is answered when its turn comes.
        calls = [self._submit(GetCall(self._actor, self._server, key, strict)) for key in keys]
        records: list[Record | None] = []
        for answer in await answers_of(calls):
            if isinstance(answer, Exception):
                raise answer
            records.append(answer)
        return records

    async def scan(
        self,
        parent: Key,
        *,
        start: str = "",
        stop: str | None = None,
        limit: int = METADATA_SCAN_PAGE_RECORDS_MAX,
        strict: bool = False,
    ) -> list[Record]:
        check_scan(parent, start, stop, limit)
        self._check_open("scan")
        page: list[Record] = await self._submit(ScanCall(self._actor, self._server, parent, start, stop, limit, strict))
        return page

    async def scan_tree(self, prefix: str) -> AsyncIterator[Record]:
        self._check_open("scan")
        for record in await self._submit(TreeCall(self._actor, self._server, prefix)):
            yield record

    async def server_time_ms(self) -> int | None:
        self._check_open("time")
        now_ms: int = await self._submit(TimeCall(self._actor, self._server))
        return now_ms

    # -- writes -------------------------------------------------------------------------------------------------------
    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        self._check_writes(groups)
        self._check_open("write")
        groups = [[self._unwrapped(write) for write in group] for group in groups]
        if not groups:
            return []
        if self.capabilities.atomic_groups:
            calls = [self._submit(WriteCall(self._actor, self._server, groups))]
        else:
            calls = [self._submit(WriteCall(self._actor, self._server, [group])) for group in groups]
        outcomes: list[GroupOutcome] = []
        for call, answer in zip(calls, await answers_of(calls), strict=True):
            assert isinstance(call, WriteCall)
            if isinstance(answer, MetadataStoreError):
                outcomes += [_error_of_group(answer, group) for group in call.groups]
            elif isinstance(answer, Exception):
                raise answer
            else:
                outcomes += answer
        return outcomes

    def _check_writes(self, groups: Sequence[Sequence[Write]]) -> None:
        if len(groups) == 1 and len(groups[0]) == 1:
            # The common case, at a fraction of the price.
            [write] = groups[0]
            if write.key.path in _checked:
                if isinstance(write, Put):
                    check_value(write.key, write.value)
                return
        check_groups(groups, atomic=self.capabilities.atomic_groups, groups_max=METADATA_WRITE_GROUPS_MAX)
        _remember(write.key for group in groups for write in group)

    def _unwrapped(self, write: Write) -> Write:
        if isinstance(write, Delete) or write.session is None:
            return write
        session = write.session
        if not isinstance(session, SimSession) or session.inner.backing is not self._server.backing:
            raise InvalidArgument("session", f"{session.id} was not opened on this store")
        return write._replace(session=session.inner)

    # -- sessions -----------------------------------------------------------------------------------------------------
    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        check_session_timeout(timeout_ms)
        self._check_open("open session")
        loop, actor = asyncio.get_running_loop(), self._actor

        def session_lost() -> None:
            actor.observed = hash((actor.observed, "session lost"))
            if on_lost is not None:
                loop.call_soon(on_lost, context=actor.context)

        call = OpenSessionCall(actor, self._server, timeout_ms, session_lost)
        await self._submit(call)
        return SimSession(self, call.session)

    async def end_session(self, session: MemorySession) -> None:
        if session.id in self._server.backing.sessions:
            await self._submit(CloseSessionCall(self._actor, self._server, session))

    # -- watching -----------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def watch(self, prefix: str, *, route: str = "") -> AsyncIterator[AsyncIterator[Change]]:
        self._check_open("watch")
        watch = _Watch(self, prefix, self._server.backing.shard_of(Key(prefix, route)) if route else None)
        self._server.watchers.append(watch.watcher)
        self._watches.append(watch)
        try:
            yield watch
        finally:
            self._server.watchers.remove(watch.watcher)
            self._watches.remove(watch)

    async def next_change(self, watcher: SimWatcher) -> Change:
        change: Change = await self._submit(NoticeCall(self._actor, self._server, watcher))
        return change

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for watch in self._watches:
            watch.end()
        for session in self._actor.sessions:
            await self.end_session(session)


class _Watch(AsyncIterator[Change]):
    def __init__(self, store: SimMetadataStore, prefix: str, shard: int | None) -> None:
        self.watcher = SimWatcher(prefix, shard, self._wake)
        self._store = store
        self._event = asyncio.Event()
        self._ended = False

    def _wake(self) -> None:
        self._event.set()

    def end(self) -> None:
        self._ended = True
        self._event.set()

    async def __anext__(self) -> Change:
        while not self.watcher.changes:
            if self._ended:
                raise StoreClosed("watch", self._store.url)
            self._event.clear()
            await self._event.wait()
        return await self._store.next_change(self.watcher)


def _error_of_group(error: MetadataStoreError, group: Sequence[Write]) -> MetadataStoreError:
    return type(error)(error.operation, group[0].key.path, error.reason)


def _check(keys: Sequence[Key]) -> None:
    if len(keys) != 1 or keys[0].path not in _checked:
        check_get_many(keys)
        _remember(keys)


def _remember(keys: Iterable[Key]) -> None:
    if len(_checked) > SIM_CHECKED_PATHS_MAX:
        _checked.clear()
    _checked.update(key.path for key in keys)
