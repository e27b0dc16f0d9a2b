"""The metadata port in memory: the reference model that every other store is compared with.

The deterministic simulation runs on it, and `memory://` runs a broker without a server.
- It has no thread, lock, clock or randomness: the clock is an argument and ids are counted. Every coroutine takes
  effect in one step, without an await, so that a seed replays exactly.
- Routes matter, as on a sharded server: a key is not found through a route to another shard. Versions are counted per
  shard and never reused.
- Clients of one `MemoryBacking` see each other's writes at once. A client after `freeze` sends no heartbeats, so its
  sessions expire by the clock of the backing.
"""

from __future__ import annotations

import asyncio
import bisect
import heapq
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from llog.errors import InvalidArgument, MetadataStoreError, SessionLost, SettingsError, StoreClosed, VersionConflict
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX, METADATA_WRITE_GROUPS_MAX
from llog.stores.metadata.changes import ChangeQueue, is_below
from llog.stores.metadata.port import (
    ABSENT,
    ANY,
    Capabilities,
    Change,
    ChangeKind,
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
    check_version_floor,
)

ClockMs = Callable[[], int]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Cell(NamedTuple):
    value: bytes
    version: int
    session_id: str | None


class _Shard:
    """One version counter, the records, and per parent the sorted names of its direct children.

    `str` order is code point order, which is the byte order of UTF-8.
    """

    def __init__(self) -> None:
        self.version = 0
        self.cells: dict[str, _Cell] = {}
        self.children: dict[str, list[str]] = {}

    def put(self, path: str, value: bytes, session_id: str | None) -> int:
        if path not in self.cells:
            parent, _, name = path.rpartition("/")
            bisect.insort(self.children.setdefault(parent, []), name)
        self.version += 1
        self.cells[path] = _Cell(value, self.version, session_id)
        return self.version

    def remove(self, path: str) -> None:
        del self.cells[path]
        parent, _, name = path.rpartition("/")
        names = self.children[parent]
        del names[bisect.bisect_left(names, name)]
        if not names:
            del self.children[parent]

    def names(self, parent: str, start: str, stop: str | None, limit: int) -> list[str]:
        names = self.children.get(parent, [])
        first = bisect.bisect_left(names, start)
        end = len(names) if stop is None else bisect.bisect_left(names, stop)
        return names[first : min(end, first + limit)]


class MemorySession(Session):
    def __init__(self, backing: MemoryBacking, timeout_ms: int, on_lost: Callable[[], None] | None) -> None:
        self.id = backing.next_session_id()
        self.timeout_ms, self.on_lost = timeout_ms, on_lost
        self.expires_at_ms: int | None = None  # None: the client sends heartbeats
        self.backing = backing

    @property
    def lost(self) -> bool:
        self.backing.sweep()
        return self.id not in self.backing.sessions

    async def close(self) -> None:
        self.backing.drop(self)


class MemoryBacking:
    """The state that clients share; stands for the server."""

    def __init__(
        self, *, shards: int = 1, atomic_groups: bool = True, clock_ms: ClockMs = wall_clock_ms, name: str = ""
    ) -> None:
        if shards < 1:
            raise InvalidArgument("shards", f"{shards}; at least 1")
        self.atomic_groups, self.clock_ms, self.name = atomic_groups, clock_ms, name
        self.shards = [_Shard() for _ in range(shards)]
        self.sessions: dict[str, MemorySession] = {}
        # Dicts, because the order of a set depends on addresses and a seed must replay.
        self.watchers: dict[ChangeQueue, int | None] = {}
        """With the shard they watch; None: all."""
        self._sessions_opened = 0

    def shard_of(self, key: Key) -> int:
        return zlib.crc32((key.route or key.path).encode()) % len(self.shards)

    def next_session_id(self) -> str:
        self._sessions_opened += 1
        return f"session-{self._sessions_opened}"

    def expire(self, session: Session) -> None:
        """Drop this session now, in spite of its heartbeats."""
        if isinstance(session, MemorySession) and session.id in self.sessions:
            self._lose(session)

    def sweep(self) -> None:
        """Drop expired sessions. Every operation calls this first, so no reader sees an expired record."""
        now_ms = self.clock_ms()
        for session in list(self.sessions.values()):
            if session.expires_at_ms is not None and session.expires_at_ms <= now_ms:
                self._lose(session)

    def drop(self, session: MemorySession) -> None:
        if self.sessions.pop(session.id, None) is None:
            return
        for number, shard in enumerate(self.shards):
            for path in [path for path, cell in shard.cells.items() if cell.session_id == session.id]:
                self._remove(number, path)

    def _lose(self, session: MemorySession) -> None:
        self.drop(session)
        if session.on_lost is not None:
            asyncio.get_running_loop().call_soon(session.on_lost)

    def check_sessions(self, groups: Sequence[Sequence[Write]]) -> None:
        for write in (write for group in groups for write in group):
            session = write.session if isinstance(write, Put) else None
            if session is not None and (not isinstance(session, MemorySession) or session.backing is not self):
                raise InvalidArgument("session", f"{session.id} was not opened on this store")

    def apply(self, group: Sequence[Write]) -> GroupOutcome:
        """Apply the whole group or nothing."""
        numbers = [self.shard_of(write.key) for write in group]
        for number, write in zip(numbers, group, strict=True):
            error = self._refusal(number, write)
            if error is not None:
                return error
        return tuple(self._perform(number, write) for number, write in zip(numbers, group, strict=True))

    def _refusal(self, number: int, write: Write) -> MetadataStoreError | None:
        path, is_put = write.key.path, isinstance(write, Put)
        if isinstance(write, Put) and write.session is not None and write.session.id not in self.sessions:
            return SessionLost("put", path, f"session {write.session.id} is gone")
        cell = self.shards[number].cells.get(path)
        if write.expected is ANY or (cell is not None and cell.version == write.expected):
            return None
        if cell is None and write.expected == ABSENT and is_put:
            return None
        return VersionConflict("put" if is_put else "delete", path, write.expected)

    def _perform(self, number: int, write: Write) -> int:
        path = write.key.path
        if isinstance(write, Put):
            session_id = None if write.session is None else write.session.id
            version = self.shards[number].put(path, bytes(write.value), session_id)
            self._publish(number, Change(ChangeKind.PUT, path, version))
            return version
        if path in self.shards[number].cells:
            self._remove(number, path)
        return 0

    def _remove(self, number: int, path: str) -> None:
        self.shards[number].remove(path)
        self._publish(number, Change(ChangeKind.DELETED, path))

    def _publish(self, number: int, change: Change) -> None:
        for watcher, shard in self.watchers.items():
            if shard in (None, number):
                watcher.offer(change)


class MemoryStore(MetadataStore):
    """One client. Without a backing it makes its own."""

    def __init__(
        self,
        backing: MemoryBacking | None = None,
        *,
        shards: int = 1,
        atomic_groups: bool = True,
        clock_ms: ClockMs = wall_clock_ms,
    ) -> None:
        self.backing = backing or MemoryBacking(shards=shards, atomic_groups=atomic_groups, clock_ms=clock_ms)
        self.capabilities = Capabilities(
            atomic_groups=self.backing.atomic_groups, watch=True, server_clock=True, shared=False
        )
        self.url = f"memory://{self.backing.name}"
        self._sessions: list[MemorySession] = []
        self._watchers: dict[ChangeQueue, None] = {}
        self._frozen = self._closed = False

    def _begin(self, operation: str) -> None:
        if self._closed:
            raise StoreClosed(operation, self.url)
        self.backing.sweep()

    def freeze(self) -> None:
        """Stop the heartbeats of this client, as in a paused or dead process."""
        self._frozen = True
        now_ms = self.backing.clock_ms()
        for session in self._sessions:
            session.expires_at_ms = now_ms + session.timeout_ms

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        check_get_many(keys)
        self._begin("get")
        return [self._find(key) for key in keys]

    def _find(self, key: Key) -> Record | None:
        cell = self.backing.shards[self.backing.shard_of(key)].cells.get(key.path)
        return None if cell is None else _record(key, cell)

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
        self._begin("scan")
        all_shards = self.backing.shards
        shards = [all_shards[self.backing.shard_of(parent)]] if parent.route else all_shards
        found = [
            [(name, shard.cells[f"{parent.path}/{name}"]) for name in shard.names(parent.path, start, stop, limit)]
            for shard in shards
        ]
        merged = heapq.merge(*found, key=lambda pair: pair[0])
        records = [_record(Key(f"{parent.path}/{name}", parent.route), cell) for name, cell in merged]
        return records[:limit]

    async def scan_tree(self, prefix: str) -> AsyncIterator[Record]:
        self._begin("scan")
        found = [
            _record(Key(path), cell)
            for shard in self.backing.shards
            for path, cell in shard.cells.items()
            if is_below(path, prefix)
        ]
        for record in found:
            yield record

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        check_groups(groups, atomic=self.capabilities.atomic_groups, groups_max=METADATA_WRITE_GROUPS_MAX)
        self._begin("write")
        self.backing.check_sessions(groups)
        return [self.backing.apply(group) for group in groups]

    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        check_session_timeout(timeout_ms)
        self._begin("open session")
        session = MemorySession(self.backing, timeout_ms, on_lost)
        if self._frozen:
            session.expires_at_ms = self.backing.clock_ms() + timeout_ms
        self.backing.sessions[session.id] = session
        self._sessions = [s for s in self._sessions if s.id in self.backing.sessions]
        self._sessions.append(session)
        return session

    @asynccontextmanager
    async def watch(self, prefix: str, *, route: str = "") -> AsyncIterator[AsyncIterator[Change]]:
        self._begin("watch")
        watcher = ChangeQueue(self.url, prefix)
        self.backing.watchers[watcher] = self.backing.shard_of(Key(prefix, route)) if route else None
        self._watchers[watcher] = None
        try:
            yield watcher
        finally:
            self.backing.watchers.pop(watcher, None)
            self._watchers.pop(watcher, None)

    async def server_time_ms(self) -> int | None:
        self._begin("time")
        return self.backing.clock_ms()

    async def raise_versions(self, floor: int) -> bool:
        check_version_floor(floor)
        self._begin("raise versions")
        for shard in self.backing.shards:
            shard.version = max(shard.version, floor)
        return True

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for session in self._sessions:
            self.backing.drop(session)
        for watcher in self._watchers:
            watcher.end()


def _record(key: Key, cell: _Cell) -> Record:
    return Record(key, cell.value, cell.version, cell.session_id is not None)


# By name, until the process ends, so that two clients of one URL share a store.
_BACKINGS: Final[dict[str, MemoryBacking]] = {}


async def open_from_url(url: str, settings: object = None) -> MemoryStore:
    """`memory://name`, optionally `?shards=4` and `?atomic_groups=0`, which count only when the store is created."""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    shards, atomic = options.pop("shards", "1"), options.pop("atomic_groups", "1")
    if parts.scheme != "memory" or options or not shards.isdecimal() or int(shards) < 1 or atomic not in ("0", "1"):
        accepted = "memory://name, optionally with ?shards=NUMBER and &atomic_groups=0"
        raise SettingsError("LLOG_METADATA_URL", url, accepted)
    name = parts.netloc + parts.path
    if name not in _BACKINGS:
        _BACKINGS[name] = MemoryBacking(shards=int(shards), atomic_groups=atomic == "1", name=name)
    return MemoryStore(_BACKINGS[name])
