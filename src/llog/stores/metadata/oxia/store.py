"""The metadata port on Oxia.

- The route of the port is the partition key of Oxia, so all keys of a log are on one shard.
- Oxia has no transactions: a group has one write.
- Within one parent every version of Oxia sorts names by bytes, and `[parent/, parent//)` holds exactly the direct
  children. Versions differ beyond that, so nothing here relies on it; a ceiling from another parent is discarded.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar

from llog.errors import InvalidArgument, LlogError, SettingsError, StoreClosed
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX, METADATA_WRITE_GROUPS_MAX
from llog.stores.metadata.changes import is_below
from llog.stores.metadata.oxia import client as oxia
from llog.stores.metadata.oxia.mapping import parse_url, to_llog, to_outcome
from llog.stores.metadata.oxia.session import OxiaSession
from llog.stores.metadata.oxia.strict import PROBE_KEY, StrictGate, probe
from llog.stores.metadata.oxia.watch import OxiaWatcher
from llog.stores.metadata.port import (
    Capabilities,
    Change,
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
)

T = TypeVar("T")

CLOCK_KEY: Final = "__llog/clock"
_OWN_KEYS: Final = frozenset({PROBE_KEY, CLOCK_KEY})

# Writes prepared in one turn of the event loop: a millisecond or two of work.
_WRITE_SLICE: Final = 1_024

# All keys except those of the server, whose values are not records. In the order of 0.14 and of 0.17 these two ranges
# hold all other keys; both may hold some that begin with `__oxia`, which are skipped.
_INTERNAL: Final = "__oxia"
_TREE_RANGES: Final = (("", f"{_INTERNAL}/"), (f"{_INTERNAL}\x00/", ""))


class OxiaSettings(Protocol):
    """The settings of this store."""

    @property
    def oxia_namespace(self) -> str: ...
    @property
    def client_identifier(self) -> str: ...
    @property
    def request_timeout_ms(self) -> int: ...
    @property
    def oxia_tls_ca_file(self) -> Path | None: ...
    @property
    def oxia_token(self) -> str | None: ...


async def open_from_url(url: str, settings: OxiaSettings) -> OxiaStore:
    """`oxia://host:port[,host:port…][/namespace]`; the namespace may come from the settings instead."""
    address = parse_url(url)
    ca_certificates = await asyncio.to_thread(_authorities, settings.oxia_tls_ca_file) if address.tls else None
    options = oxia.OxiaOptions(
        addresses=address.addresses,
        namespace=address.namespace or settings.oxia_namespace,
        identity=settings.client_identifier,
        request_timeout_ms=settings.request_timeout_ms,
        tls=address.tls,
        ca_certificates=ca_certificates,
        token=settings.oxia_token,
    )
    try:
        return OxiaStore(await oxia.OxiaClient.open(options), url)
    except oxia.OxiaError as error:
        raise to_llog(error, "open", url) from error


def _authorities(path: Path | None) -> bytes | None:
    """Certificate authorities: the given file, or those of the system (gRPC would use its own list)."""
    if path is None:
        system = ssl.get_default_verify_paths().cafile
        return Path(system).read_bytes() if system else None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = f"a readable PEM file ({error.strerror})"
        raise SettingsError("LLOG_OXIA_TLS_CA_FILE", str(path), reason) from error


class OxiaStore(MetadataStore):
    capabilities = Capabilities(atomic_groups=False, watch=True, server_clock=True, shared=True)

    def __init__(self, client: oxia.OxiaClient, url: str) -> None:
        self.client, self.url = client, url
        self._gates: dict[int, StrictGate] = {}
        self._sessions: list[OxiaSession] = []
        self._watchers: set[OxiaWatcher] = set()
        self._closed = False

    # -- reads ------------------------------------------------------------------------------------------------------
    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        check_get_many(keys)
        self._check_open("get")
        found: list[Record | None] = [None] * len(keys)

        async def ask(shard: int, positions: list[int]) -> None:
            gets = [oxia.Get(keys[at].path) for at in positions]
            answers = await self._read(shard, strict, lambda link: self.client.get_many(shard, gets, link))
            for at, answer in zip(positions, answers, strict=True):
                found[at] = None if answer is None else _record(keys[at], answer)

        try:
            by_shard: dict[int, list[int]] = {}
            for at, key in enumerate(keys):
                by_shard.setdefault(self.client.shard_of(key.route or key.path), []).append(at)
            await _all([ask(shard, positions) for shard, positions in by_shard.items()])
        except oxia.OxiaError as error:
            self._raise(error, "get", keys[0].path)
        return found

    async def ceiling(self, parent: Key, name: str, *, strict: bool = False) -> Record | None:
        check_scan(parent, name, None, 1)
        self._check_open("ceiling")
        gets = [oxia.Get(f"{parent.path}/{name}", oxia.CEILING)]
        prefix = f"{parent.path}/"

        async def ask(shard: int) -> oxia.OxiaRecord | None:
            [found] = await self._read(shard, strict, lambda link: self.client.get_many(shard, gets, link))
            inside = found is not None and found.key.startswith(prefix) and "/" not in found.key[len(prefix) :]
            return found if inside else None

        try:
            found = [found for found in await _all([ask(shard) for shard in self._shards_of(parent)]) if found]
        except oxia.OxiaError as error:
            self._raise(error, "ceiling", parent.path)
        if not found:
            return None
        first = min(found, key=lambda one: one.key)
        return _record(Key(first.key, parent.route), first)

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
        if stop is not None and stop <= start:
            return []
        first = f"{parent.path}/{start}"
        end = f"{parent.path}/" + ("/" if stop is None else stop)

        async def ask(shard: int) -> list[oxia.OxiaRecord]:
            return await self._read(shard, strict, lambda link: self.client.scan(shard, first, end, limit, link))

        try:
            pages = await _all([ask(shard) for shard in self._shards_of(parent)])
        except oxia.OxiaError as error:
            self._raise(error, "scan", parent.path)
        found = pages[0] if len(pages) == 1 else sorted((one for page in pages for one in page), key=_path)[:limit]
        return [_record(Key(one.key, parent.route), one) for one in found]

    async def scan_tree(self, prefix: str) -> AsyncIterator[Record]:
        self._check_open("scan")
        try:
            for shard in self.client.shards:
                for start, stop in _TREE_RANGES:
                    async with aclosing(self.client.scan_frames(shard, start, stop)) as frames:
                        async for found in (found async for frame in frames for found in frame):
                            path = found.key
                            if is_below(path, prefix) and not path.startswith(_INTERNAL) and path not in _OWN_KEYS:
                                yield _record(Key(path), found)
        except oxia.OxiaError as error:
            self._raise(error, "scan", prefix)

    def _shards_of(self, parent: Key) -> tuple[int, ...]:
        return (self.client.shard_of(parent.route),) if parent.route else self.client.shards

    async def _read(self, shard: int, strict: bool, call: Callable[[oxia.OxiaLink | None], Awaitable[T]]) -> T:
        """`call(None)`, or for a strict read `call(link)` at the server of a successful probe (see `strict`)."""
        if not strict:
            return await call(None)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.client.options.request_timeout_ms / 1_000
        gate = self._gates.get(shard)
        if gate is None:
            gate = self._gates[shard] = StrictGate(lambda: probe(self.client, shard))
        while True:
            link = await gate.enter()
            try:
                return await call(link)
            except (oxia.Unavailable, oxia.ReadTimeout):
                if loop.time() >= deadline:
                    raise

    # -- writes -----------------------------------------------------------------------------------------------------
    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        check_groups(groups, atomic=False, groups_max=METADATA_WRITE_GROUPS_MAX)
        self._check_open("write")
        writes = [group[0] for group in groups]
        outcomes: list[GroupOutcome] = [()] * len(writes)
        begun: list[tuple[oxia.Submission, list[int]]] = []
        for start in range(0, len(writes), _WRITE_SLICE):
            # The first slices are sent while the next are prepared, and the event loop stays responsive.
            plan = await self._plan(writes, range(start, min(start + _WRITE_SLICE, len(writes))), outcomes)
            for shard, (ops, positions) in plan.items():
                try:
                    begun.append((await self.client.begin(shard, ops), positions))
                except oxia.ClientClosed as error:
                    if not begun:
                        self._raise(error, "write", writes[0].key.path)
                    self._refuse(writes, positions, error, outcomes)
                except oxia.OxiaError as error:
                    self._refuse(writes, positions, error, outcomes)
            await asyncio.sleep(0)
        for submission, positions in begun:
            await submission.done
            for at, outcome in zip(positions, submission.outcomes, strict=True):
                outcomes[at] = (outcome,) if type(outcome) is int else self._refused(writes[at], outcome)
        if begun and all(isinstance(one, oxia.ClientClosed) for submission, _ in begun for one in submission.outcomes):
            raise StoreClosed("write", writes[0].key.path)
        return outcomes

    async def _plan(
        self, writes: Sequence[Write], positions: range, outcomes: list[GroupOutcome]
    ) -> dict[int, tuple[list[oxia.Op], list[int]]]:
        """Operations and their positions, per shard. A write with an ended session gets its outcome at once."""
        by_shard: dict[int, tuple[list[oxia.Op], list[int]]] = {}
        shard_by_route: dict[str, int] = {}
        for at in positions:
            write = writes[at]
            path, route = write.key
            shard = shard_by_route.get(route) if route else None
            if shard is None:
                shard = shard_by_route[route] = self._shard_of(route or path)
            op: oxia.Op
            if type(write) is Put:
                _, value, expected, session = write
                session_id = None
                if session is not None:
                    try:
                        session_id = (await self._session(session).on_shard(shard)).id
                    except oxia.OxiaError as error:
                        outcomes[at] = to_outcome(error, "put", path)
                        continue
                op = oxia.OxiaPut(path, value, expected, route or None, session_id)
            else:
                op = oxia.OxiaDelete(path, write.expected, route or None)
            plan = by_shard.get(shard)
            if plan is None:
                plan = by_shard[shard] = ([], [])
            plan[0].append(op)
            plan[1].append(at)
        return by_shard

    def _shard_of(self, route: str) -> int:
        try:
            return self.client.shard_of(route)
        except oxia.OxiaError as error:
            self._raise(error, "route", route)

    def _refuse(
        self, writes: Sequence[Write], positions: list[int], error: oxia.OxiaError, outcomes: list[GroupOutcome]
    ) -> None:
        for at in positions:
            outcomes[at] = self._refused(writes[at], error)

    def _session(self, session: Session) -> OxiaSession:
        if not isinstance(session, OxiaSession) or not session.belongs_to(self.client):
            raise InvalidArgument("session", f"{session.id} was not opened on this store")
        return session

    def _refused(self, write: Write, outcome: oxia.Outcome) -> GroupOutcome:
        assert isinstance(outcome, oxia.OxiaError)
        if isinstance(outcome, oxia.SessionExpired) and isinstance(write, Put) and write.session is not None:
            shard = self.client.shard_of(write.key.route or write.key.path)
            self._session(write.session).expired(shard, str(outcome))
        return to_outcome(outcome, "put" if isinstance(write, Put) else "delete", write.key.path)

    # -- sessions, watch, clock -------------------------------------------------------------------------------------
    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        check_session_timeout(timeout_ms)
        self._check_open("open session")
        session = OxiaSession(self.client, timeout_ms, on_lost)
        self._sessions = [one for one in self._sessions if not one.lost]
        self._sessions.append(session)
        return session

    @asynccontextmanager
    async def watch(self, prefix: str, *, route: str = "") -> AsyncIterator[AsyncIterator[Change]]:
        self._check_open("watch")
        watcher = OxiaWatcher(self.client, self.url, prefix, route, _OWN_KEYS.__contains__)
        self._watchers.add(watcher)
        try:
            try:
                await watcher.start()
            except oxia.OxiaError as error:
                self._raise(error, "watch", prefix)
            yield watcher
        finally:
            self._watchers.discard(watcher)
            await watcher.close()

    async def server_time_ms(self) -> int | None:
        """The clock of the leader of the first shard: the timestamp of a record that the same request deletes."""
        self._check_open("time")
        shard = self.client.shards[0]
        try:
            submission = await self.client.submit(shard, [oxia.OxiaPut(CLOCK_KEY, b"1"), oxia.OxiaDelete(CLOCK_KEY)])
            outcome = submission.outcomes[0]
            if isinstance(outcome, oxia.Uncertain):
                raise oxia.ReadTimeout(str(outcome))
            if isinstance(outcome, oxia.OxiaError):
                raise outcome
        except oxia.OxiaError as error:
            self._raise(error, "time", self.url)
        return submission.server_time_ms

    # -- the end ----------------------------------------------------------------------------------------------------
    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(watcher.close() for watcher in list(self._watchers)))
        await asyncio.gather(*(session.close() for session in self._sessions))
        await self.client.close()
        await asyncio.gather(*(gate.close() for gate in self._gates.values()))

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise StoreClosed(operation, self.url)

    def _raise(self, error: oxia.OxiaError, operation: str, subject: str) -> NoReturn:
        found: LlogError = to_llog(error, operation, subject)
        raise found from error


async def _all(calls: list[Awaitable[T]]) -> list[T]:
    """Run the calls together; a single one, the usual case, without a task."""
    if len(calls) == 1:
        return [await calls[0]]
    return list(await asyncio.gather(*calls))


def _path(found: oxia.OxiaRecord) -> str:
    return found.key


def _record(key: Key, found: oxia.OxiaRecord) -> Record:
    return Record(key, found.value, found.version_id, found.session_id is not None)
