"""The calls of the metadata port as values that can wait, get lost and be described."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llog.errors import MetadataTimeout, MetadataUnavailable, MetadataUncertain, StoreError
from llog.stores.metadata.memory import MemorySession
from llog.stores.metadata.port import ABSENT, ANY, Change, ChangeKind, Delete, Key, Put, Record, Write
from llog.testing.sim.actor import Actor
from llog.testing.sim.calls import Call, answer_words, excerpt
from llog.testing.sim.faults import NOTICE_FAULTS, QUIET_FAULTS, READ_FAULTS, STRICT_READ_FAULTS, WRITE_FAULTS, Moment
from llog.testing.sim.metadata_server import MetadataServer, SimWatcher


class CallFootprint(NamedTuple):
    """What a call looks at, and what it changes."""

    reads: frozenset[str] = frozenset()
    scans: frozenset[str] = frozenset()
    """Keys of which it reads the direct children."""
    writes: frozenset[str] = frozenset()

    def disturbs(self, other: CallFootprint) -> bool:
        if self.writes & (other.reads | other.writes):
            return True
        return bool(other.scans) and any(path.rpartition("/")[0] in other.scans for path in self.writes)


class MetadataCall(Call):
    __slots__ = ("server",)

    def __init__(self, actor: Actor, server: MetadataServer) -> None:
        super().__init__(actor)
        self.server = server

    def footprint(self) -> CallFootprint | None:
        """None: unknown."""
        return None

    def commutes_with(self, other: Call) -> bool:
        if not isinstance(other, MetadataCall):
            return other.of_one_object
        mine, theirs = self.footprint(), other.footprint()
        return mine is not None and theirs is not None and not (mine.disturbs(theirs) or theirs.disturbs(mine))

    def subject(self) -> str:
        """The path that it touches first."""
        return ""

    def parts(self) -> Sequence[tuple[str, str]]:
        return [(self.operation, self.subject())]

    def uncertain(self) -> StoreError:
        kind = MetadataUncertain if self.writes else MetadataTimeout
        return kind(self.operation, self.subject(), "simulated: no answer")

    def unavailable(self) -> StoreError:
        return MetadataUnavailable(self.operation, self.subject(), "simulated: no connection")


class ReadCall(MetadataCall):
    __slots__ = ("faults", "strict")
    writes = False

    def __init__(self, actor: Actor, server: MetadataServer, strict: bool) -> None:
        super().__init__(actor, server)
        self.strict = strict
        self.faults = STRICT_READ_FAULTS if strict else READ_FAULTS


class GetCall(ReadCall):
    __slots__ = ("key",)
    operation = "get"

    def __init__(self, actor: Actor, server: MetadataServer, key: Key, strict: bool) -> None:
        super().__init__(actor, server, strict)
        self.key = key

    def footprint(self) -> CallFootprint:
        return CallFootprint(reads=frozenset((self.key.path,)))

    def perform(self) -> Record | None:
        return self.server.find(self.key)

    def perform_as_of(self, moment: Moment) -> Record | None:
        return self.server.find(self.key, moment)

    def old_answers(self, most: int) -> list[Moment]:
        shard = self.server.shards[self.server.backing.shard_of(self.key)]
        return self.server.moments_before([shard], self.key.path.__eq__, most)

    def subject(self) -> str:
        return self.key.path

    def words(self) -> str:
        return f"gets {self.key.path}{' strictly' if self.strict else ''}"

    def answer_words(self, answer: Any) -> str:
        return record_words(answer) if isinstance(answer, Record) else nothing_words(answer)


class ScanCall(ReadCall):
    __slots__ = ("limit", "parent", "start", "stop")
    operation = "scan"

    def __init__(
        self, actor: Actor, server: MetadataServer, parent: Key, start: str, stop: str | None, limit: int, strict: bool
    ) -> None:
        super().__init__(actor, server, strict)
        self.parent, self.start, self.stop, self.limit = parent, start, stop, limit

    def footprint(self) -> CallFootprint:
        return CallFootprint(scans=frozenset((self.parent.path,)))

    def perform(self) -> list[Record]:
        return self.server.scan(self.parent, self.start, self.stop, self.limit)

    def perform_as_of(self, moment: Moment) -> list[Record]:
        return self.server.scan(self.parent, self.start, self.stop, self.limit, moment)

    def old_answers(self, most: int) -> list[Moment]:
        parent, start, stop = self.parent.path, self.start, self.stop

        def concerns(path: str) -> bool:
            above, _, name = path.rpartition("/")
            return above == parent and name >= start and (stop is None or name < stop)

        return self.server.moments_before(self.server.shards_of_scan(self.parent), concerns, most)

    def subject(self) -> str:
        return self.parent.path

    def words(self) -> str:
        bounds = f" from {self.start}" if self.start else ""
        bounds += f" to {self.stop}" if self.stop is not None else ""
        bounds += " for one record" if self.limit == 1 else ""
        return f"scans {self.parent.path}{bounds}{' strictly' if self.strict else ''}"

    def answer_words(self, answer: Any) -> str:
        if isinstance(answer, list) and len(answer) == 1:
            return f"{answer[0].key.path} {record_words(answer[0])}"
        return f"{len(answer)} records" if answer and isinstance(answer, list) else nothing_words(answer)


class TreeCall(ReadCall):
    __slots__ = ("prefix",)
    operation = "scan_tree"

    def __init__(self, actor: Actor, server: MetadataServer, prefix: str) -> None:
        super().__init__(actor, server, strict=True)
        self.prefix = prefix

    def perform(self) -> list[Record]:
        return self.server.tree(self.prefix)

    def subject(self) -> str:
        return self.prefix

    def words(self) -> str:
        return f"scans all below {self.prefix or 'the root'}"

    def answer_words(self, answer: Any) -> str:
        return f"{len(answer)} records" if isinstance(answer, list) else answer_words(answer)


class TimeCall(ReadCall):
    __slots__ = ()
    operation = "time"

    def __init__(self, actor: Actor, server: MetadataServer) -> None:
        super().__init__(actor, server, strict=True)

    def footprint(self) -> CallFootprint:
        return CallFootprint()

    def perform(self) -> int:
        return self.server.backing.clock_ms()

    def words(self) -> str:
        return "asks the store for the time"


class WriteCall(MetadataCall):
    """One group (all or nothing); on an atomic store several groups share one call, and one fate."""

    __slots__ = ("groups",)
    operation = "write"
    faults = WRITE_FAULTS

    def __init__(self, actor: Actor, server: MetadataServer, groups: Sequence[Sequence[Write]]) -> None:
        super().__init__(actor, server)
        self.groups = groups

    def footprint(self) -> CallFootprint | None:
        writes = [write for group in self.groups for write in group]
        heard = any(watcher.of_client for watcher in self.server.watchers)
        if heard or any(isinstance(write, Put) and write.session is not None for write in writes):
            return None
        # Its conditions look at the very keys that it changes.
        return CallFootprint(writes=frozenset(write.key.path for write in writes))

    def perform(self) -> Any:
        backing = self.server.backing
        backing.sweep()
        return [backing.apply(group) for group in self.groups]

    def content(self) -> int:
        return hash(
            tuple(
                (write.key.path, write.expected, bytes(write.value) if isinstance(write, Put) else None)
                for group in self.groups
                for write in group
            )
        )

    def parts(self) -> Sequence[tuple[str, str]]:
        return [("put" if type(w) is Put else "delete", w.key.path) for group in self.groups for w in group]

    def subject(self) -> str:
        return self.groups[0][0].key.path

    def words(self) -> str:
        return "; ".join(" and ".join(map(write_words, group)) for group in self.groups)

    def answer_words(self, answer: Any) -> str:
        if not isinstance(answer, list):
            return answer_words(answer)
        return "; ".join(
            outcome_words(outcome, group) if isinstance(outcome, tuple) else answer_words(outcome)
            for outcome, group in zip(answer, self.groups, strict=True)
        )


class OpenSessionCall(ReadCall):
    __slots__ = ("on_lost", "session", "timeout_ms")
    session: MemorySession
    """Once it was performed."""
    operation = "open_session"

    def __init__(self, actor: Actor, server: MetadataServer, timeout_ms: int, on_lost: Callable[[], None]) -> None:
        super().__init__(actor, server, strict=True)
        self.timeout_ms, self.on_lost = timeout_ms, on_lost

    def perform(self) -> str:
        self.session = self.server.open_session(self.timeout_ms, self.on_lost)
        self.actor.sessions = [s for s in self.actor.sessions if s.id in self.server.backing.sessions]
        self.actor.sessions.append(self.session)
        return self.session.id

    def words(self) -> str:
        return f"opens a session of {self.timeout_ms} ms"


class CloseSessionCall(MetadataCall):
    __slots__ = ("session",)
    operation = "close_session"
    faults = QUIET_FAULTS

    def __init__(self, actor: Actor, server: MetadataServer, session: MemorySession) -> None:
        super().__init__(actor, server)
        self.session = session

    def perform(self) -> None:
        self.server.backing.drop(self.session)

    def subject(self) -> str:
        return self.session.id

    def words(self) -> str:
        return f"closes {self.session.id}"


class NoticeCall(MetadataCall):
    """A change reaches one watcher."""

    __slots__ = ("watcher",)
    operation = "notice"
    faults = NOTICE_FAULTS
    writes = False

    def __init__(self, actor: Actor, server: MetadataServer, watcher: SimWatcher) -> None:
        super().__init__(actor, server)
        self.watcher = watcher

    def perform(self) -> Change:
        return self.watcher.changes.popleft()

    def perform_missing(self) -> Change:
        self.watcher.changes.clear()
        return Change(ChangeKind.RESYNC)

    def subject(self) -> str:
        return self.watcher.changes[0].path if self.watcher.changes else self.watcher.prefix

    def words(self) -> str:
        return f"hears of {self.watcher.prefix or 'the store'}"

    def answer_words(self, answer: Any) -> str:
        return f"{answer.kind.value} {answer.path}" if isinstance(answer, Change) else answer_words(answer)


# -- words ------------------------------------------------------------------------------------------------------------


def record_words(record: Record) -> str:
    return f"version {record.version}{' (ephemeral)' if record.ephemeral else ''}: {excerpt(record.value)}"


def nothing_words(answer: Any) -> str:
    return answer_words(answer) if answer else "nothing"


def write_words(write: Write) -> str:
    if isinstance(write, Delete):
        return f"deletes {write.key.path}{expecting(write.expected)}"
    session = f" for {write.session.id}" if write.session is not None else ""
    return f"puts {write.key.path}{expecting(write.expected)}{session}: {excerpt(write.value)}"


def expecting(expected: int | None) -> str:
    if expected is ANY:
        return ""
    return " expecting nothing there" if expected == ABSENT else f" expecting version {expected}"


def outcome_words(versions: tuple[int, ...], group: Sequence[Write]) -> str:
    return ", ".join(
        f"version {version}" if isinstance(write, Put) else "deleted"
        for version, write in zip(versions, group, strict=True)
    )
