"""The metadata port: the interface of every metadata store.

The protocol (docs/protocol.md) relies on these guarantees. LMDB, PostgreSQL, Oxia and the in-memory reference model
implement them, and one contract suite (`llog.testing.metadata_contract`) tests every adapter.

- Keys form a tree, `a/b/c`. Ordered reads (`ceiling`, `scan`) see the direct children of one parent in byte order of
  their last segment, the only order that all stores share.
- Every write gets a version. Versions of a key only increase and are not reused, not even after a delete.
- `expected=ABSENT` and `expected=version` make a write conditional; a refused write changes nothing.
- A write whose answer was lost raises `MetadataUncertain`. An adapter does not repeat an uncertain write.
- Reads may be stale (a deposed leader may answer) unless `strict=True`: a strict read sees every write that was
  acknowledged to any process before the call began.
- An ephemeral record is deleted when its session is closed or lost. A write without a session makes it permanent; a
  write with another session moves it to that session.
"""

from __future__ import annotations

import abc
import itertools
import operator
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from llog.errors import InvalidArgument, MetadataStoreError, ValueTooLarge
from llog.limits import (
    METADATA_GET_MANY_MAX,
    METADATA_KEY_BYTES_MAX,
    METADATA_KEY_DEPTH_MAX,
    METADATA_SCAN_PAGE_RECORDS_MAX,
    METADATA_SESSION_TIMEOUT_MS_MAX,
    METADATA_SESSION_TIMEOUT_MS_MIN,
    METADATA_VALUE_BYTES_MAX,
    METADATA_VERSION_FLOOR_MAX,
)

ABSENT: Final = -1
"""As `expected`: the key must not exist."""

ANY: Final = None
"""As `expected`: write unconditionally."""


class Key(NamedTuple):
    """The path of a record and the routing key that selects its shard (all keys of a log share one).

    An empty route means that the path is the route. A key must always be used with the same route.
    """

    path: str
    route: str = ""


class Record(NamedTuple):
    key: Key
    value: bytes
    version: int
    ephemeral: bool = False


class Put(NamedTuple):
    key: Key
    value: bytes
    expected: int | None = ANY
    session: Session | None = None


class Delete(NamedTuple):
    """Deleting an absent record raises `VersionConflict` if a version was expected, and is a no-op otherwise."""

    key: Key
    expected: int | None = ANY


Write = Put | Delete

# The versions of a group's writes in order (0 for a Delete), or the error of the group.
GroupOutcome = tuple[int, ...] | MetadataStoreError


class Capabilities(NamedTuple):
    atomic_groups: bool
    """`write` accepts groups of several writes, each applied completely or not at all."""
    watch: bool
    server_clock: bool
    """`server_time_ms` returns the clock of the store."""
    shared: bool
    """Other processes can open the same store."""


VERSION_UNKNOWN: Final = -1
"""Version of a change if the store does not report it (0 is a valid version)."""


class ChangeKind(Enum):
    PUT = "put"
    DELETED = "deleted"
    RESYNC = "resync"
    """Changes may have been missed: read everything again."""


class Change(NamedTuple):
    kind: ChangeKind
    path: str = ""
    version: int = VERSION_UNKNOWN
    """Version of a PUT, if the store reports it."""


class Session(abc.ABC):
    """Owner of ephemeral records, kept alive in the background until `close` or until the store drops it."""

    id: str

    @property
    @abc.abstractmethod
    def lost(self) -> bool:
        """True from the moment this process knows, or must assume, that the store dropped the session."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End the session and delete its records. Idempotent; does not raise for a lost session."""


class MetadataStore(abc.ABC):
    """One linearizable key-value store. Bound to the event loop it was opened on; not fork-safe."""

    capabilities: Capabilities
    url: str

    # -- reads ----------------------------------------------------------------------------------------------------
    async def get(self, key: Key, *, strict: bool = False) -> Record | None:
        return (await self.get_many([key], strict=strict))[0]

    @abc.abstractmethod
    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        """The records of up to METADATA_GET_MANY_MAX keys, in order. Not a snapshot across keys."""

    async def ceiling(self, parent: Key, name: str, *, strict: bool = False) -> Record | None:
        """The first direct child of `parent` whose last segment is >= `name`; None if there is none."""
        page = await self.scan(parent, start=name, limit=1, strict=strict)
        return page[0] if page else None

    @abc.abstractmethod
    async def scan(
        self,
        parent: Key,
        *,
        start: str = "",
        stop: str | None = None,
        limit: int = METADATA_SCAN_PAGE_RECORDS_MAX,
        strict: bool = False,
    ) -> list[Record]:
        """Direct children of `parent` with `start` <= last segment < `stop`, in byte order, at most `limit`.

        `limit` is at most METADATA_SCAN_PAGE_RECORDS_MAX. Fewer than `limit` records means the end was reached.
        Continue with `start=after(last)`. An empty route of `parent` queries every shard.
        """

    async def scan_all(
        self, parent: Key, *, start: str = "", stop: str | None = None, strict: bool = False
    ) -> AsyncIterator[Record]:
        """`scan` over all pages. Not a snapshot: changes during the scan may or may not be seen."""
        while True:
            page = await self.scan(parent, start=start, stop=stop, strict=strict)
            for record in page:
                yield record
            if len(page) < METADATA_SCAN_PAGE_RECORDS_MAX:
                return
            start = after(last_segment(page[-1].key.path))

    @abc.abstractmethod
    def scan_tree(self, prefix: str) -> AsyncIterator[Record]:
        """Every record whose path is `prefix` or lies below it, in no particular order ("" = all).

        For administration (backup, inspection): a store may have to read more than it returns. Keys have an empty
        route if the store does not keep routes.
        """

    # -- writes ---------------------------------------------------------------------------------------------------
    async def put(self, key: Key, value: bytes, *, expected: int | None = ANY, session: Session | None = None) -> int:
        """Write one record; its new version. Raises `VersionConflict`, `MetadataUncertain`, `SessionLost`, …"""
        [outcome] = await self.write([(Put(key, value, expected, session),)])
        if isinstance(outcome, MetadataStoreError):
            raise outcome
        return outcome[0]

    async def delete(self, key: Key, *, expected: int | None = ANY) -> None:
        [outcome] = await self.write([(Delete(key, expected),)])
        if isinstance(outcome, MetadataStoreError):
            raise outcome

    @abc.abstractmethod
    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        """Apply groups of writes in as few round trips as possible; one outcome per group, in order.

        A group is applied completely or not at all, independently of other groups. A call must not name a key twice.
        Groups of more than one write need `capabilities.atomic_groups`. On an atomic store all groups of a call become
        durable together.
        """

    # -- sessions, watch, clock ---------------------------------------------------------------------------------
    @abc.abstractmethod
    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        """A session that the store drops after `timeout_ms` without a heartbeat; `on_lost` is called once, on the event
        loop, when that has happened or must be assumed."""

    @abc.abstractmethod
    def watch(self, prefix: str, *, route: str = "") -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Changes below (or at) `prefix` from the moment the context is entered: at least once, in order per key.

        After a gap (reconnect without resume, slow reader) one RESYNC replaces the missed changes. Raises
        `InvalidArgument` if `capabilities.watch` is False. The compactor watches everything below its root; without a
        watch it polls.
        """

    async def server_time_ms(self) -> int | None:
        """The clock of the store; None if it has none."""
        return None

    async def raise_versions(self, floor: int) -> bool:
        """Make every version assigned from now on higher than `floor`; never lowers the counter.

        For a restore: versions of the lost store must not be assigned again. False: the counter of this store cannot be
        changed.
        """
        return False

    @abc.abstractmethod
    async def close(self) -> None:
        """End sessions and release resources. Idempotent. Pending calls end with `StoreClosed` or their result."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


# -- helpers of the adapters ----------------------------------------------------------------------------------------


def last_segment(path: str) -> str:
    return path.rpartition("/")[2]


def after(name: str) -> str:
    """The smallest name that sorts after `name`: the start of the next page.

    Names contain no control character, so no name sorts between `name` and `name` + \\x01 (PostgreSQL has no \\x00).
    """
    return name + "\x01"


def check_key(key: Key) -> None:
    """Refuse keys that some store cannot hold or would order differently. Raises `InvalidArgument`."""
    path = key.path
    size = len(path.encode("utf-8", "surrogatepass"))
    if not path or size > METADATA_KEY_BYTES_MAX:
        raise InvalidArgument("key", f"{path[:80]!r} has {size} bytes; 1 to {METADATA_KEY_BYTES_MAX} are accepted")
    segments = path.split("/")
    if len(segments) > METADATA_KEY_DEPTH_MAX:
        raise InvalidArgument("key", f"{path!r} has {len(segments)} segments; at most {METADATA_KEY_DEPTH_MAX}")
    if "" in segments:
        raise InvalidArgument("key", f"{path!r} has an empty segment")
    if not path.isprintable():
        raise InvalidArgument("key", f"{path!r} has a control or unprintable character")
    if segments[0].startswith("__oxia"):
        raise InvalidArgument("key", f"{path!r} is in the store's own space")


def check_value(key: Key, value: bytes) -> None:
    """Refuse empty values (Oxia returns them as unset) and values that do not fit a request."""
    if not value:
        raise InvalidArgument("value", f"the value of {key.path!r} is empty")
    if len(value) > METADATA_VALUE_BYTES_MAX:
        raise ValueTooLarge(f"the value of {key.path!r}", len(value), METADATA_VALUE_BYTES_MAX)


def check_paths(paths: Sequence[str]) -> None:
    """`check_key` of many paths in a few passes over all of them together; one by one only to name the invalid one."""
    # With a slash before and after each path, an empty path or segment shows up as `//`.
    lines = "/" + "/\n/".join(paths) + "/"
    ascii_only = lines.isascii()
    longest = max(map(len, paths), default=0)
    fine = (
        "//" not in lines
        and ("_" not in lines or "__oxia" not in lines)
        and longest <= METADATA_KEY_BYTES_MAX // (1 if ascii_only else 4)
        # Of plain text only the separators remain.
        and (
            len(lines.encode().translate(None, _PLAIN)) == len(paths) - 1
            if ascii_only
            else "".join(paths).isprintable()
        )
        # A shorter path cannot have too many segments.
        and (longest < 2 * METADATA_KEY_DEPTH_MAX or max(map(_slashes, paths)) < METADATA_KEY_DEPTH_MAX)
    )
    if not fine:
        for path in paths:
            check_key(Key(path))


_PLAIN: Final = bytes(range(0x20, 0x7F))
_slashes: Final = operator.methodcaller("count", "/")
_PATH: Final[Callable[[Key], str]] = operator.itemgetter(0)


class CheckedWrites(NamedTuple):
    """All writes of a call in order, without their groups; as columns too if all of them are puts."""

    paths: Sequence[str]
    value_bytes: int
    values: Sequence[bytes] | None = None
    expected: Sequence[int | None] | None = None
    sessions: Sequence[Session | None] | None = None
    stored_keys: Any = None
    """The result of the `check` argument of `check_groups`."""


def check_groups(
    groups: Sequence[Sequence[Write]],
    *,
    atomic: bool,
    groups_max: int,
    check: Callable[[Sequence[str]], Any] = check_paths,
) -> CheckedWrites:
    """Check everything that `write` refuses before it reaches the store. A store that converts paths to its own keys
    passes a `check` that does both; it must refuse the same paths as `check_paths`."""
    if len(groups) > groups_max:
        raise InvalidArgument("groups", f"{len(groups)} groups; at most {groups_max} in one call")
    if not all(groups):
        raise InvalidArgument("groups", "a group is empty")
    writes = list(itertools.chain.from_iterable(groups))
    if len(writes) > len(groups) and not atomic:
        raise InvalidArgument("groups", "this store has no atomic groups; one write per group")
    columns = _put_columns(writes)
    if columns is not None:
        keys, values, expected, sessions = columns
        paths = list(map(_PATH, keys))
        checked = CheckedWrites(paths, check_sizes(writes, values), values, expected, sessions)
    else:
        paths = [write.key.path for write in writes]
        puts = [write for write in writes if isinstance(write, Put)]
        checked = CheckedWrites(paths, check_sizes(puts, [put.value for put in puts]))
    stored_keys = check(paths)
    if len(set(paths)) != len(paths):
        raise InvalidArgument("groups", "a key is written twice in one call")
    return checked._replace(stored_keys=stored_keys)


def check_sizes(puts: Sequence[Write], values: Sequence[bytes]) -> int:
    """Total length of all values of these puts."""
    sizes = set(map(len, values))
    if sizes and not 0 < min(sizes) <= max(sizes) <= METADATA_VALUE_BYTES_MAX:
        for put, value in zip(puts, values, strict=True):
            check_value(put.key, value)
    # Records of one kind often have the same size.
    return sizes.pop() * len(values) if len(sizes) == 1 else sum(map(len, values))


def _put_columns(writes: Sequence[Write]) -> tuple[Sequence[Any], ...] | None:
    """Rows to columns, without a statement per record; None unless all of them are puts.

    A Put has four fields and a Delete two, so only puts give four columns of the same length.
    """
    try:
        columns = tuple(zip(*writes, strict=True))
    except ValueError:
        return None
    return columns if len(columns) == len(Put._fields) else None


def check_get_many(keys: Sequence[Key]) -> None:
    if len(keys) > METADATA_GET_MANY_MAX:
        raise InvalidArgument("keys", f"{len(keys)} keys; at most {METADATA_GET_MANY_MAX} in one call")
    check_paths([key.path for key in keys])


def check_scan(parent: Key, start: str, stop: str | None, limit: int) -> None:
    """Refuse bounds that cannot be compared with a last segment: some stores read a `/` as another depth."""
    check_key(parent)
    if not 1 <= limit <= METADATA_SCAN_PAGE_RECORDS_MAX:
        raise InvalidArgument("limit", f"{limit} records; 1 to {METADATA_SCAN_PAGE_RECORDS_MAX} are accepted")
    for argument, bound in (("start", start), ("stop", stop or "")):
        if "/" in bound or "\x00" in bound or any("\ud800" <= c <= "\udfff" for c in bound):
            raise InvalidArgument(argument, f"{bound!r} cannot be part of a key's last segment")
        if len(bound.encode()) > METADATA_KEY_BYTES_MAX + 1:
            raise InvalidArgument(argument, f"{bound[:80]!r}… is longer than any key")


def check_session_timeout(timeout_ms: int) -> None:
    if not METADATA_SESSION_TIMEOUT_MS_MIN <= timeout_ms <= METADATA_SESSION_TIMEOUT_MS_MAX:
        accepted = f"{METADATA_SESSION_TIMEOUT_MS_MIN} to {METADATA_SESSION_TIMEOUT_MS_MAX}"
        raise InvalidArgument("timeout_ms", f"{timeout_ms} ms; {accepted} are accepted")


def check_version_floor(floor: int) -> None:
    if not 0 <= floor <= METADATA_VERSION_FLOOR_MAX:
        raise InvalidArgument("floor", f"version {floor}; 0 to {METADATA_VERSION_FLOOR_MAX} are accepted")
