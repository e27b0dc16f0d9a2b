"""The metadata store that all actors of a run share: the reference model, with its history.

Stale reads need earlier states; watchers and the state hash of a search need every change, also the end of a session.
Every change of a shard goes through `JournaledShard.put` and `remove`. Undoing the journal from its end gives any
earlier state exactly. The digest of a shard is a function of its contents alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import Final

from llog.errors import InvalidArgument
from llog.limits import METADATA_WATCH_QUEUE_MAX
from llog.stores.metadata.changes import is_below
from llog.stores.metadata.memory import MemoryBacking, MemorySession, MemoryStore, _Cell, _Shard
from llog.stores.metadata.port import Change, ChangeKind, Key, Record
from llog.testing.sim.calls import run_now
from llog.testing.sim.faults import Moment

# How far back a stale read can look, in changes of one shard.
SIM_STALE_CHANGES_MAX: Final = 10_000

OnChange = Callable[[int, str, int | None], None]
"""Shard, path, and the new version; None when it was removed."""


class Versions(Enum):
    """How a shard numbers what is written to it."""

    OF_SHARD = "one counter for all keys"
    OF_KEY = "a counter per key, which outlasts the key"
    """Writes to different keys leave the same numbers in either order: a search meets equal states more often."""
    RESTARTING = "a counter per key, which begins again when the key was deleted"
    """What a store must not do (hazard h12)."""


class JournaledShard(_Shard):
    def __init__(self, number: int, on_change: OnChange, versions: Versions) -> None:
        super().__init__()
        self.number, self._on_change, self._versions = number, on_change, versions
        self._last_versions: dict[str, int] = {}
        self.changes = 0
        self.digest = 0
        self.past_digest = 0
        """Of the whole history, not only of what it led to."""
        self._journal: deque[tuple[str, _Cell | None]] = deque(maxlen=SIM_STALE_CHANGES_MAX)

    def put(self, path: str, value: bytes, session_id: str | None) -> int:
        old = self.cells.get(path)
        if self._versions is Versions.RESTARTING:
            self.version = 0 if old is None else old.version
        elif self._versions is Versions.OF_KEY:
            self.version = self._last_versions.get(path, 0)
        version = super().put(path, value, session_id)
        self._last_versions[path] = version
        self._note(path, old, self.cells[path])
        self._on_change(self.number, path, version)
        return version

    def remove(self, path: str) -> None:
        old = self.cells[path]
        super().remove(path)
        self._note(path, old, None)
        self._on_change(self.number, path, None)

    def numbering(self) -> object:
        """What the versions to come depend on."""
        if self._versions is Versions.OF_SHARD:
            return self.version
        # Those of keys that are there are in the digest already.
        return frozenset((path, last) for path, last in self._last_versions.items() if path not in self.cells)

    def _note(self, path: str, old: _Cell | None, new: _Cell | None) -> None:
        self._journal.append((path, old))
        self.changes += 1
        self.past_digest = hash((self.past_digest, path, old))
        if old is not None:
            self.digest ^= hash((path, old))
        if new is not None:
            self.digest ^= hash((path, new))

    def backwards(self) -> Iterator[tuple[int, str]]:
        """Each change from the newest on: how many there were before it, and its path."""
        for steps, (path, _) in enumerate(reversed(self._journal), 1):
            yield self.changes - steps, path

    def cells_after(self, changes: int) -> dict[str, _Cell]:
        """The contents as they were when there had been so many changes."""
        undo = self.changes - changes
        if not 0 <= undo <= len(self._journal):
            raise InvalidArgument("moment", f"{undo} changes ago; the journal knows the last {len(self._journal)}")
        cells = dict(self.cells)
        for path, old in islice(reversed(self._journal), undo):
            if old is None:
                cells.pop(path, None)
            else:
                cells[path] = old
        return cells


class SimWatcher:
    """Changes that one reader has not heard of yet; too many become one RESYNC."""

    of_client = True
    """It is a client that hears of them, to whom their order may matter."""

    def __init__(self, prefix: str, shard: int | None, wake: Callable[[], None]) -> None:
        self.prefix, self.shard, self.wake = prefix, shard, wake
        self.changes: deque[Change] = deque()

    def offer(self, shard: int, change: Change) -> None:
        if self.shard not in (None, shard) or not is_below(change.path, self.prefix):
            return
        if len(self.changes) >= METADATA_WATCH_QUEUE_MAX:
            self.changes.clear()
            self.changes.append(Change(ChangeKind.RESYNC))
        self.changes.append(change)
        self.wake()


class MetadataServer:
    def __init__(
        self, *, shards: int, atomic_groups: bool, clock_ms: Callable[[], int], versions: Versions = Versions.OF_SHARD
    ) -> None:
        self.backing = MemoryBacking(shards=shards, atomic_groups=atomic_groups, clock_ms=clock_ms, name="sim")
        self.shards: Final = [JournaledShard(number, self._changed, versions) for number in range(shards)]
        self.backing.shards = list(self.shards)
        self.watchers: list[SimWatcher] = []
        self._reader = MemoryStore(self.backing)

    def _changed(self, shard: int, path: str, version: int | None) -> None:
        if self.watchers:
            change = Change(ChangeKind.DELETED, path) if version is None else Change(ChangeKind.PUT, path, version)
            for watcher in self.watchers:
                watcher.offer(shard, change)

    # -- reads --------------------------------------------------------------------------------------------------------
    def find(self, key: Key, moment: Moment | None = None) -> Record | None:
        self.backing.sweep()
        shard = self.shards[self.backing.shard_of(key)]
        cells = shard.cells if moment is None else shard.cells_after(moment[shard.number])
        cell = cells.get(key.path)
        return None if cell is None else Record(key, cell.value, cell.version, cell.session_id is not None)

    def scan(self, parent: Key, start: str, stop: str | None, limit: int, moment: Moment | None = None) -> list[Record]:
        if moment is None:
            return run_now(self._reader.scan(parent, start=start, stop=stop, limit=limit))
        self.backing.sweep()
        prefix, found = parent.path + "/", list[tuple[str, _Cell]]()
        for shard in self.shards_of_scan(parent):
            for path, cell in shard.cells_after(moment[shard.number]).items():
                name = path[len(prefix) :]
                if path.startswith(prefix) and "/" not in name and start <= name and (stop is None or name < stop):
                    found.append((name, cell))
        found.sort(key=lambda pair: pair[0])
        return [
            Record(Key(prefix + name, parent.route), cell.value, cell.version, cell.session_id is not None)
            for name, cell in found[:limit]
        ]

    def tree(self, prefix: str) -> list[Record]:
        async def collect() -> list[Record]:
            return [record async for record in self._reader.scan_tree(prefix)]

        return run_now(collect())

    def shards_of_scan(self, parent: Key) -> list[JournaledShard]:
        return [self.shards[self.backing.shard_of(parent)]] if parent.route else self.shards

    # -- the past -----------------------------------------------------------------------------------------------------
    def moment(self) -> Moment:
        return tuple(shard.changes for shard in self.shards)

    def moments_before(
        self, shards: Iterable[JournaledShard], concerns: Callable[[str], bool], most: int
    ) -> list[Moment]:
        """The moments just before the last changes that concern a read, all else being as it is now."""
        now, moments = self.moment(), list[Moment]()
        for shard in shards:
            found = 0
            for changes, path in shard.backwards():
                if found == most:
                    break
                if concerns(path):
                    moments.append((*now[: shard.number], changes, *now[shard.number + 1 :]))
                    found += 1
        return moments

    # -- sessions -----------------------------------------------------------------------------------------------------
    def open_session(self, timeout_ms: int, on_lost: Callable[[], None]) -> MemorySession:
        self.backing.sweep()
        session = MemorySession(self.backing, timeout_ms, on_lost)
        self.backing.sessions[session.id] = session
        return session

    def state(self) -> int:
        """A digest of all that a client could find out."""
        sessions = tuple([(s.id, s.expires_at_ms) for s in self.backing.sessions.values()])
        unheard = tuple([tuple(watcher.changes) for watcher in self.watchers])
        return hash((tuple([(shard.digest, shard.numbering()) for shard in self.shards]), sessions, unheard))

    def past(self) -> int:
        return hash(tuple(shard.past_digest for shard in self.shards))
