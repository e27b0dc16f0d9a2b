"""The LMDB metadata store.

- Writes go to the writer thread of the process and share its transactions (`writer`).
- Small reads run on the event loop: a lookup in memory takes about 1 µs, a hop to a thread a hundred times that. After
  a read that waited for the disk, reads use threads for a while.
- Every read sees the last commit of any process, so every read is strict.
- A watch reads the change feed (`feed`, `watch`).
- A record of an expired session is never returned. A reader cannot decide expiry alone, because the lease may be in
  renewal: the writer decides under its lock, and the reader reads again.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import lmdb

from llog.errors import (
    MetadataStoreError,
    MetadataTimeout,
    SettingsError,
    StoreClosed,
)
from llog.limits import LMDB_WAIT_MS_MAX, METADATA_SCAN_PAGE_RECORDS_MAX, METADATA_WRITE_GROUPS_MAX
from llog.stores.metadata.lmdb.environment import Environment, give_back, lease_out
from llog.stores.metadata.lmdb.failures import translate
from llog.stores.metadata.lmdb.feed import FeedPage, FeedStart
from llog.stores.metadata.lmdb.layout import (
    BootClock,
    Page,
    RecordReader,
    RunOutLease,
    StoredKeys,
    find_children,
    find_many,
    find_tree,
    record_keys,
)
from llog.stores.metadata.lmdb.transaction import LmdbBatch, Transaction
from llog.stores.metadata.lmdb.watch import LmdbWatcher
from llog.stores.metadata.port import (
    Capabilities,
    Change,
    GroupOutcome,
    Key,
    MetadataStore,
    Record,
    Session,
    Write,
    check_get_many,
    check_groups,
    check_key,
    check_scan,
    check_session_timeout,
    check_version_floor,
)

# Reads that wait for a reader thread; later ones wait on the event loop.
LMDB_POOL_READS_MAX: Final = 64
# Reads of up to this many records run on the event loop, about 1 µs each if in memory.
LMDB_INLINE_RECORDS_MAX: Final = 128
# After a read on the event loop that took longer, reads use threads for a while.
LMDB_INLINE_SLOW_US: Final = 500
LMDB_INLINE_PAUSE_MS: Final = 100
# How often a read that met an expired session has it ended and reads again.
LMDB_SETTLE_ROUNDS_MAX: Final = 5

# Renewals of a session in its timeout, and how often a failed one is tried again while the lease still runs.
RENEWALS_PER_TIMEOUT: Final = 3
RETRIES_PER_TIMEOUT: Final = 10

T = TypeVar("T")


class LmdbSession(Session):
    """A lease in the database, renewed by a task of the event loop.

    - The lease ends by the boot clock of the machine. A process that was paused longer notices at once, because `lost`
      reads the clock; the next renewal fails, and an ended lease is not revived.
    - `on_lost` is called once, on the event loop, and not after `close`.
    """

    def __init__(
        self,
        environment: Environment,
        session_id: bytes,
        timeout_ms: int,
        expires_at_ms: int,
        on_lost: Callable[[], None] | None,
    ) -> None:
        self.id = session_id.hex()
        self.environment, self.timeout_ms = environment, timeout_ms
        self._key, self._expires_at_ms, self._on_lost = session_id, expires_at_ms, on_lost
        self._lost = self._closed = False
        self._heartbeat = asyncio.create_task(self._keep_alive(), name=f"lmdb session {self.id}")

    @property
    def lost(self) -> bool:
        return self._lost or (not self._closed and self._ran_out())

    @property
    def over(self) -> bool:
        return self._lost or self._closed

    def _ran_out(self) -> bool:
        return self.environment.clock.now_ms() >= self._expires_at_ms

    async def _keep_alive(self) -> None:
        wait_ms = self.timeout_ms / RENEWALS_PER_TIMEOUT
        while not self._lost:
            await asyncio.sleep(wait_ms / 1_000)
            try:
                renewed = await self.environment.writer.do(
                    "renew session", lambda transaction: transaction.renew_session(self._key, self.timeout_ms)
                )
            except StoreClosed:
                return
            except MetadataStoreError:
                if self._ran_out():
                    self.note_lost()
                wait_ms = self.timeout_ms / RETRIES_PER_TIMEOUT
                continue
            if renewed is None:
                self.note_lost()
                return
            self._expires_at_ms = renewed
            wait_ms = self.timeout_ms / RENEWALS_PER_TIMEOUT

    def note_lost(self) -> None:
        """The store or the clock ended the session."""
        if self.over:
            return
        self._lost = True
        if self._on_lost is not None:
            self._on_lost()

    async def close(self) -> None:
        if self._closed:
            return
        was_lost, self._closed = self._lost, True
        self._heartbeat.cancel()
        if was_lost:
            return
        await self.environment.writer.do("close session", lambda transaction: transaction.close_session(self._key))


class LmdbStore(MetadataStore):
    """Made by `LmdbStore.open`."""

    capabilities = Capabilities(atomic_groups=True, watch=True, server_clock=False, shared=True)

    def __init__(self, environment: Environment) -> None:
        self.environment, self.url = environment, environment.url
        self._sessions: list[LmdbSession] = []
        self._watchers: set[LmdbWatcher] = set()
        self._stored_keys = StoredKeys()
        self._pool_slots = asyncio.Semaphore(LMDB_POOL_READS_MAX)
        self._inline_from = 0.0
        self._under_way = 0
        self._idle = asyncio.Event()
        self._closed = False

    @classmethod
    async def open(cls, directory: Path, *, clock: BootClock | None = None) -> LmdbStore:
        """Open the directory, created if necessary; stores of one process share the environment."""
        return cls(await asyncio.to_thread(lease_out, directory, clock or BootClock()))

    def _begin(self, operation: str) -> None:
        if self._closed:
            raise StoreClosed(operation, self.url)
        if self.environment.forked:
            self.environment.check_process()

    # -- reads --------------------------------------------------------------------------------------------------------
    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        check_get_many(keys)
        stored = record_keys([key.path for key in keys])
        return await self._read("get", len(keys), lambda reader: find_many(reader, keys, stored))

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
        return await self._read("scan", limit, lambda reader: find_children(reader, parent, start, stop, limit))

    async def scan_tree(self, prefix: str) -> AsyncIterator[Record]:
        if prefix:
            check_key(Key(prefix))
        page: Page | None = Page([], 0, b"")
        while page is not None:
            at = page
            find = partial(find_tree, prefix=prefix, at=at)
            page = await self._read("scan", METADATA_SCAN_PAGE_RECORDS_MAX, find)
            for record in page.records if page is not None else ():
                yield record

    async def _read(self, operation: str, size: int, work: Callable[[RecordReader], T]) -> T:
        """Run `work` in a read transaction, here or in a thread; expired sessions are ended on the way."""
        self._begin(operation)
        for turn in range(LMDB_SETTLE_ROUNDS_MAX + 1):
            reader = RecordReader(self.environment.clock, decide=turn == LMDB_SETTLE_ROUNDS_MAX)
            try:
                if size > LMDB_INLINE_RECORDS_MAX or not self._may_read_inline():
                    return await self._read_in_thread(operation, reader, work)
                try:
                    return self._read_inline(reader, work)
                except (lmdb.MapResizedError, lmdb.ReadersFullError, lmdb.BadRslotError):
                    # A thread may wait for this, the event loop may not.
                    return await self._read_in_thread(operation, reader, work)
            except RunOutLease:
                await self._write("settle sessions", lambda transaction: transaction.sweep())
            except lmdb.Error as error:
                raise translate(error, operation, self.url) from error
        raise AssertionError("the last round decides by itself")

    def _may_read_inline(self) -> bool:
        return time.monotonic() >= self._inline_from and self.environment.gate.try_enter()

    def _read_inline(self, reader: RecordReader, work: Callable[[RecordReader], T]) -> T:
        """The caller has entered the gate."""
        started_ns = time.perf_counter_ns()
        try:
            return self.environment.read_now(lambda txn: work(reader.at(txn)))
        finally:
            self.environment.gate.leave()
            if time.perf_counter_ns() - started_ns > LMDB_INLINE_SLOW_US * 1_000:
                self._inline_from = time.monotonic() + LMDB_INLINE_PAUSE_MS / 1_000

    async def _read_in_thread(self, operation: str, reader: RecordReader, work: Callable[[RecordReader], T]) -> T:
        async with self._pool_slots:
            self._begin(operation)
            with self._in_use():
                reading = asyncio.get_running_loop().run_in_executor(
                    self.environment.readers, self.environment.read, lambda txn: work(reader.at(txn))
                )
                try:
                    return await asyncio.wait_for(reading, LMDB_WAIT_MS_MAX / 1_000)
                except TimeoutError:
                    raise MetadataTimeout(operation, self.url, f"no answer within {LMDB_WAIT_MS_MAX} ms") from None

    # -- writes -------------------------------------------------------------------------------------------------------
    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        checked = check_groups(groups, atomic=True, groups_max=METADATA_WRITE_GROUPS_MAX, check=self._stored_keys)
        self._begin("write")
        if not groups:
            return []
        batch = LmdbBatch(groups, checked)
        batch.check_sessions(LmdbSession, self.environment)
        try:
            outcomes: list[GroupOutcome] = await self._write(
                "write",
                lambda transaction: transaction.write(batch),
                writes=len(batch.keys),
                size_bytes=batch.size_bytes,
                finish=batch.outcomes_of,
            )
        except MetadataStoreError as error:
            return [error] * len(groups)
        for session in batch.sessions:
            if isinstance(session, LmdbSession) and session.lost:
                session.note_lost()
        return outcomes

    async def _write(self, operation: str, work: Callable[[Transaction], Any], **options: Any) -> Any:
        """`options` are those of `Writer.do`."""
        with self._in_use():
            return await self.environment.writer.do(operation, work, **options)

    # -- sessions, watch, end -----------------------------------------------------------------------------------------
    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        check_session_timeout(timeout_ms)
        self._begin("open session")
        session_id = uuid.uuid4().bytes
        expires_at_ms = await self._write(
            "open session", lambda transaction: transaction.open_session(session_id, timeout_ms)
        )
        session = LmdbSession(self.environment, session_id, timeout_ms, expires_at_ms, on_lost)
        self._sessions = [held for held in self._sessions if not held.over]
        self._sessions.append(session)
        return session

    @asynccontextmanager
    async def watch(self, prefix: str, *, route: str = "") -> AsyncIterator[AsyncIterator[Change]]:
        self._begin("watch")
        watcher = LmdbWatcher(self, self.environment, prefix)
        self._watchers.add(watcher)
        try:
            await watcher.start()
            yield watcher
        finally:
            self._watchers.discard(watcher)
            await watcher.close()

    async def extend_feed(self) -> FeedStart:
        """For watchers."""
        self._begin("watch")
        started: FeedStart = await self._write("watch", lambda transaction: transaction.extend_feed())
        return started

    async def read_feed(self, work: Callable[[lmdb.Transaction[bytes]], FeedPage]) -> FeedPage:
        """For watchers; in a thread, because one flush may have thousands of changes."""
        return await self._read("watch", METADATA_SCAN_PAGE_RECORDS_MAX, lambda reader: work(reader.txn))

    async def raise_versions(self, floor: int) -> bool:
        check_version_floor(floor)
        self._begin("raise versions")
        await self._write("raise versions", lambda transaction: transaction.raise_version(floor))
        return True

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """`close` waits for the end of this block."""
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.environment.forked:
            return
        await asyncio.gather(*(watcher.close() for watcher in list(self._watchers)))
        try:
            for session in self._sessions:
                await session.close()
            if self._under_way:
                await self._idle.wait()
        finally:
            await asyncio.to_thread(give_back, self.environment)


async def open_from_url(url: str, settings: object = None) -> LmdbStore:
    """`lmdb:///path/to/directory`."""
    parts = urlsplit(url)
    if parts.scheme != "lmdb" or parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise SettingsError("LLOG_METADATA_URL", url, "lmdb:///path/to/directory, an absolute path")
    return await LmdbStore.open(Path(unquote(parts.path)))
