"""The metadata port: what the log needs from a metadata store, and nothing else.

Why it exists: the protocol (docs/protocol.md) is written once, against these few promises; LMDB, PostgreSQL, Oxia
and the in-memory reference model are dull adapters that keep them, proven by one contract suite
(`llog.testing.metadata_contract`).

What every store promises
- Keys form a tree, `a/b/c`. Ordered reads (`ceiling`, `scan`) see the direct children of one parent in byte order of
  their last segment: the only order that all stores share.
- Every write gets a version. Versions of a key only grow and never come back, not even after a delete.
- `expected=ABSENT` and `expected=version` make a write conditional; a refused write changes nothing.
- A write whose answer was lost raises `MetadataUncertain`. No adapter ever repeats an uncertain write by itself.
- Reads may be stale (a deposed leader answers from the past) unless `strict=True`: a strict read is never older than
  any write acknowledged before the call began, by this process or another.
- An ephemeral record vanishes when its session is closed or lost. Writing it without a session makes it permanent;
  writing it with another session hands it over.
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
"""As `expected`: write whatever is there."""


class Key(NamedTuple):
    """Where a record lives: its path, and the routing key that chooses the shard (all keys of a log share one).

    An empty route means that the path routes itself. A key must always be used with the same route.
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
    """Deleting what is not there is refused with `VersionConflict` when a version was expected, else it is a no-op."""

    key: Key
    expected: int | None = ANY


Write = Put | Delete

# The versions of a group's writes in order (a Delete yields 0), or why the group changed nothing / may have changed.
GroupOutcome = tuple[int, ...] | MetadataStoreError


class Capabilities(NamedTuple):
    atomic_groups: bool
    """`write` takes groups of more than one write, each all or nothing."""
    watch: bool
    server_clock: bool
    """`server_time_ms` tells the store's own clock."""
    shared: bool
    """Other processes can open the same store."""


NOT_TOLD: Final = -1
"""As the version of a change: the store does not say (0 is a version that stores do give)."""


class ChangeKind(Enum):
    PUT = "put"
    DELETED = "deleted"
    RESYNC = "resync"
    """Changes were missed (or may have been): read everything again."""


class Change(NamedTuple):
    kind: ChangeKind
    path: str = ""
    version: int = NOT_TOLD
    """Of a PUT, where the store tells it."""


class Session(abc.ABC):
    """What ephemeral records are bound to. Kept alive in the background until `close` or until the store forgets it."""

    id: str

    @property
    @abc.abstractmethod
    def lost(self) -> bool:
        """True from the moment this process knows, or must assume, that the store dropped the session."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End the session; its records vanish at once. Idempotent; never raises for a lost session."""


class MetadataStore(abc.ABC):
    """One linearizable key-value store. Bound to the event loop it was opened on; not fork-safe."""

    capabilities: Capabilities
    url: str

    # -- reads ----------------------------------------------------------------------------------------------------
    async def get(self, key: Key, *, strict: bool = False) -> Record | None:
        return (await self.get_many([key], strict=strict))[0]

    @abc.abstractmethod
    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        """One answer per key, in order. Up to METADATA_GET_MANY_MAX keys; not one snapshot across keys."""

    async def ceiling(self, parent: Key, name: str, *, strict: bool = False) -> Record | None:
        """The first direct child of `parent` whose last segment is >= `name`; None when there is none."""
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
        Go on with `start=after(last)`. An empty route on `parent` asks every shard.
        """

    async def scan_all(
        self, parent: Key, *, start: str = "", stop: str | None = None, strict: bool = False
    ) -> AsyncIterator[Record]:
        """`scan`, page after page. Not a snapshot: what changes meanwhile may or may not be seen."""
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

        For administration (backup, inspection): a store may have to read more than it returns. The route of the
        records' keys is left empty where the store does not keep it.
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
        """Many groups of writes in as few round trips as the store can; one outcome per group, in order.

        A group is all or nothing and never touches one key twice; groups do not depend on each other: one refused
        group never harms another. Two groups of one call must not name the same key. Groups of more than one write
        need `capabilities.atomic_groups`. On an atomic store all groups of a call become durable together.
        """

    # -- sessions, watch, clock ---------------------------------------------------------------------------------
    @abc.abstractmethod
    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        """A session that the store drops when it was not heard of for `timeout_ms`; `on_lost` is called once, on the
        event loop, when that happened or must be assumed."""

    @abc.abstractmethod
    def watch(self, prefix: str, *, route: str = "") -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Changes below (or at) `prefix` from the moment the context is entered: at least once, in order per key.

        After a gap (reconnect without resume, slow reader) one RESYNC comes instead of what was missed. Raises
        `InvalidArgument` where `capabilities.watch` is False.
        """

    async def server_time_ms(self) -> int | None:
        """The store's clock, where it has one of its own."""
        return None

    async def raise_versions(self, floor: int) -> bool:
        """Make every version given from now on higher than `floor`; it never lowers the counter.

        For a restore: versions that the lost store gave must never come back. False: this store counts by itself, and
        nobody can move its counter.
        """
        return False

    @abc.abstractmethod
    async def close(self) -> None:
        """Release everything; sessions end. Idempotent. Calls under way end with `StoreClosed` or their result."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


# -- helpers every adapter shares ---------------------------------------------------------------------------------


def last_segment(path: str) -> str:
    return path.rpartition("/")[2]


def after(name: str) -> str:
    """The smallest name that sorts behind `name`: where the next page starts.

    Names never hold a control character, so \\x01 (PostgreSQL has no \\x00) leaves nothing in between.
    """
    return name + "\x01"


def check_key(key: Key) -> None:
    """Refuse what some store could not hold or would order differently. Raises `InvalidArgument`."""
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
    """Refuse empty values (Oxia reads them back as unset) and ones that no request could carry."""
    if not value:
        raise InvalidArgument("value", f"the value of {key.path!r} is empty")
    if len(value) > METADATA_VALUE_BYTES_MAX:
        raise ValueTooLarge(f"the value of {key.path!r}", len(value), METADATA_VALUE_BYTES_MAX)


def check_paths(paths: Sequence[str]) -> None:
    """`check_key` for many at once: a few passes over all of them together, one by one only to name the bad one."""
    # A path that is empty or has an empty segment, at either end or inside, shows as `//` once it stands in slashes.
    lines = "/" + "/\n/".join(paths) + "/"
    ascii_only = lines.isascii()
    longest = max(map(len, paths), default=0)
    fine = (
        "//" not in lines
        and ("_" not in lines or "__oxia" not in lines)
        and longest <= METADATA_KEY_BYTES_MAX // (1 if ascii_only else 4)
        # Nothing may be left of plain text but the separators.
        and (
            len(lines.encode().translate(None, _PLAIN)) == len(paths) - 1
            if ascii_only
            else "".join(paths).isprintable()
        )
        # Fewer characters than that cannot hold too many segments.
        and (longest < 2 * METADATA_KEY_DEPTH_MAX or max(map(_slashes, paths)) < METADATA_KEY_DEPTH_MAX)
    )
    if not fine:
        for path in paths:
            check_key(Key(path))


_PLAIN: Final = bytes(range(0x20, 0x7F))
_slashes: Final = operator.methodcaller("count", "/")
_PATH: Final[Callable[[Key], str]] = operator.itemgetter(0)


class CheckedWrites(NamedTuple):
    """All writes of a call in order, without their groups; when they are puts one and all, also column by column."""

    paths: Sequence[str]
    value_bytes: int
    values: Sequence[bytes] | None = None
    expected: Sequence[int | None] | None = None
    sessions: Sequence[Session | None] | None = None
    stored_keys: Any = None
    """What the `check` given to `check_groups` returned."""


def check_groups(
    groups: Sequence[Sequence[Write]],
    *,
    atomic: bool,
    groups_max: int,
    check: Callable[[Sequence[str]], Any] = check_paths,
) -> CheckedWrites:
    """Everything `write` refuses before it touches the store. A store that turns paths into keys of its own may do so
    in one go with checking them: its `check` stands in for `check_paths` and refuses the same."""
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
        raise InvalidArgument("groups", "one key is written twice in one call")
    return checked._replace(stored_keys=stored_keys)


def check_sizes(puts: Sequence[Write], values: Sequence[bytes]) -> int:
    """How many bytes all values of these puts have together."""
    sizes = set(map(len, values))
    if sizes and not 0 < min(sizes) <= max(sizes) <= METADATA_VALUE_BYTES_MAX:
        for put, value in zip(puts, values, strict=True):
            check_value(put.key, value)
    # Records of one kind are often of one size.
    return sizes.pop() * len(values) if len(sizes) == 1 else sum(map(len, values))


def _put_columns(writes: Sequence[Write]) -> tuple[Sequence[Any], ...] | None:
    """Rows into columns, without a statement per record; None unless they are puts one and all.

    A Put has four fields and a Delete two, so only puts alone make four columns of the same length.
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
    """Refuse bounds that no last segment could be compared with: a `/` would mean another depth to some stores."""
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
