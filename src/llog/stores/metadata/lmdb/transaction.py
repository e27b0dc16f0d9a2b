"""One write transaction: groups of conditional writes, sessions, and removal of expired sessions.

A flush writes thousands of records, and a Python statement per record costs as much as the work of LMDB. Most calls are
plain: puts without a session, and all conditions hold. They are decided and written in a few passes over whole columns;
all others are applied group by group.

LMDB has one writer at a time on a machine, so all decisions are made here, under its lock, with one reading of the
clock. Nothing here waits.
- A group is decided completely before any of it is written; a refused group changes nothing.
- An expired lease is not renewed, because another holder of the lock may have seen it expired.
- A record of an ended session counts as absent, removed or not.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Final

import lmdb

from llog.errors import InvalidArgument, MetadataStoreError, SessionLost, VersionConflict
from llog.stores.metadata.lmdb.feed import (
    DELETED,
    LMDB_WATCH_LEASE_MS,
    PUT,
    WATCH_KEY,
    FeedStart,
    Section,
    write_feed,
)
from llog.stores.metadata.lmdb.layout import (
    BINDING_PREFIX,
    EPHEMERAL_VALUE_AT,
    SESSION_ID_BYTES,
    SESSION_PREFIX,
    U64,
    VALUE_AT,
    VERSION_KEY,
    BootClock,
    Lease,
    bindings_prefix,
    pack_lease,
    session_key,
    unpack_lease,
)
from llog.stores.metadata.port import ABSENT, ANY, CheckedWrites, Delete, GroupOutcome, Put, Session, Write

# Records with a remembered version.
LMDB_KNOWN_VERSIONS_MAX: Final = 65_536

_NO_HEADER: Final = ABSENT << 1
# Not a version that a caller can expect.
_EPHEMERAL: Final = "ephemeral"


class LmdbBatch:
    """The writes of one call as columns."""

    def __init__(self, groups: Sequence[Sequence[Write]], checked: CheckedWrites) -> None:
        """`checked` is the result of `check_groups` with a `StoredKeys`."""
        self.groups = groups
        self.keys: list[bytes] = checked.stored_keys
        self.size_bytes = checked.value_bytes
        self.values, self.expected = checked.values or (), checked.expected or ()
        sessions = checked.sessions
        if sessions is None:
            sessions = [write.session for group in groups for write in group if isinstance(write, Put)]
        self.plain = checked.values is not None and sessions.count(None) == len(sessions)
        self.sessions: list[Session] = []
        if not self.plain:
            self.sessions = list({id(session): session for session in sessions if session is not None}.values())

    @property
    def moves_only(self) -> bool:
        """Whether every put replaces a record at a version."""
        return None not in self.expected and ABSENT not in self.expected

    def check_sessions(self, kind: type[Session], environment: object) -> None:
        for session in self.sessions:
            if not isinstance(session, kind) or getattr(session, "environment", None) is not environment:
                raise InvalidArgument("session", f"{session.id} was not opened on this store")

    def outcomes_of(self, written: int | list[GroupOutcome]) -> list[GroupOutcome]:
        """One outcome per group. A number means that every put was written, with consecutive versions from it on."""
        if isinstance(written, list):
            return written
        first_version = written
        versions = iter(range(first_version, first_version + len(self.keys)))
        sizes = set(map(len, self.groups))
        if len(sizes) == 1:
            # The same iterator n times gives tuples of n.
            return list(zip(*[versions] * sizes.pop(), strict=True))
        return [tuple(itertools.islice(versions, len(group))) for group in self.groups]


class KnownVersions:
    """Versions of records that this process wrote last, so that it need not read them again. Only the writer thread
    uses it.

    LMDB numbers the transactions of all processes that changed something. If the current transaction has the number
    after our last commit, no other process wrote in between and the versions are right; otherwise they are dropped, as
    after any failure.
    """

    def __init__(self) -> None:
        self.versions: dict[bytes, int] = {}
        self._last_number = -1

    def begin(self, number: int) -> None:
        if number != self._last_number + 1:
            self.forget_all()

    def commits(self, number: int) -> None:
        """Called before the commit of a transaction that changed something."""
        self._last_number = number

    def note(self, batch: LmdbBatch, first_version: int) -> None:
        """The batch was written with consecutive versions from `first_version` on. New records are not remembered: an
        index entry is not written again."""
        given = zip(batch.keys, range(first_version, first_version + len(batch.keys)), strict=True)
        if batch.moves_only:
            self.versions.update(given)
        else:
            moved = [expected is not None and expected >= 0 for expected in batch.expected]
            self.versions.update(itertools.compress(given, moved))
        if len(self.versions) > LMDB_KNOWN_VERSIONS_MAX:
            self.versions.clear()

    def forget(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.versions.pop(key, None)

    def forget_all(self) -> None:
        self.versions.clear()
        self._last_number = -1


class Transaction:
    """Only the writer thread uses it, between begin and commit of `txn`."""

    def __init__(self, txn: lmdb.Transaction[bytes], clock: BootClock, known: KnownVersions) -> None:
        self.txn, self.boot_id, self.now_ms = txn, clock.boot_id, clock.now_ms()
        self.known = known
        known.begin(txn.id())
        counter = txn.get(VERSION_KEY)
        self.version = self._version_before = 0 if counter is None else int.from_bytes(counter, "big")
        self._alive: dict[bytes, bool] = {}
        self._changed: list[Section] = []
        """The records that this transaction changed, in order."""

    def finish(self) -> None:
        """The last step before commit."""
        if self._changed and self._is_watched():
            # Deletes take versions too, so that no change leaves the counter where it was.
            self.version += sum(len(section.keys) for section in self._changed if section.kind == DELETED)
            write_feed(self.txn, self._version_before, self.version, self._changed)
        if self.version != self._version_before:
            self.txn.put(VERSION_KEY, U64.pack(self.version))
            # Only now it is certain that the commit writes and uses its number.
            self.known.commits(self.txn.id())

    def _is_watched(self) -> bool:
        lease = self.txn.get(WATCH_KEY)
        return lease is not None and self._runs(unpack_lease(lease))

    def extend_feed(self) -> FeedStart:
        """Have every transaction from this one on write the change feed for a while."""
        self.sweep()
        unbroken, expires_at_ms = self._is_watched(), self.now_ms + LMDB_WATCH_LEASE_MS
        self.txn.put(WATCH_KEY, pack_lease(Lease(self.boot_id, expires_at_ms, LMDB_WATCH_LEASE_MS)))
        # Other calls of this transaction count as later, before or after this one.
        return FeedStart(self._version_before, expires_at_ms, unbroken)

    def raise_version(self, floor: int) -> None:
        self.version = max(self.version, floor)

    # -- writes -----------------------------------------------------------------------------------------------------
    def write(self, batch: LmdbBatch) -> int | list[GroupOutcome]:
        """One outcome per group, or only the first version if a whole plain batch was written (see `outcomes_of`). No
        key occurs twice, so all conditions are checked against the state before the call."""
        if batch.plain and self._stands_as_expected(batch):
            first_version = self.version + 1
            self.version += len(batch.keys)
            headers = range(first_version << 1, (self.version + 1) << 1, 2)
            framed = map(operator.add, map(U64.pack, headers), batch.values)
            self.txn.cursor().putmulti(zip(batch.keys, framed, strict=True))
            self.known.note(batch, first_version)
            self._changed.append(Section(PUT, batch.keys))
            return first_version
        self.known.forget(batch.keys)
        return self._write_carefully(batch)

    def _stands_as_expected(self, batch: LmdbBatch) -> bool:
        """Whether every condition of a plain batch holds. Ephemeral records have no version here, so that batches with
        them are applied group by group."""
        known = tuple(map(self.known.versions.get, batch.keys))
        if known == batch.expected and None not in known:
            return True
        versions: list[int | str | None] = list(known)
        if None in versions:
            # A cursor finds a key near its last position faster than a new lookup.
            get, unpack = self.txn.cursor().get, U64.unpack_from
            for i, (key, version) in enumerate(zip(batch.keys, versions, strict=True)):
                if version is None:
                    stored = get(key)
                    header = _NO_HEADER if stored is None else unpack(stored)[0]
                    versions[i] = _EPHEMERAL if header & 1 else header >> 1
        if ANY not in batch.expected:
            return tuple(versions) == batch.expected
        return all(expected in (ANY, version) for expected, version in zip(batch.expected, versions, strict=True))

    def _write_carefully(self, batch: LmdbBatch) -> list[GroupOutcome]:
        """Apply group by group, so that a refused group does not affect others."""
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        outcomes: list[GroupOutcome] = []
        keys = iter(batch.keys)
        for group in batch.groups:
            stored = list(itertools.islice(keys, len(group)))
            error = next(filter(None, map(self._refusal, group, stored)), None)
            if error is not None:
                outcomes.append(error)
                continue
            outcomes.append(tuple(map(self._plan, group, stored, itertools.repeat(puts), itertools.repeat(deletes))))
        if puts:
            self.txn.cursor().putmulti(puts)
            self._note_changed(PUT, [key for key, _ in puts if not key.startswith(BINDING_PREFIX)])
        self._note_changed(DELETED, [key for key in deletes if self.txn.delete(key)])
        return outcomes

    def _note_changed(self, kind: bytes, keys: Sequence[bytes]) -> None:
        if keys:
            self._changed.append(Section(kind, keys))

    def _plan(self, write: Write, key: bytes, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> int:
        """Record the change of this write; returns its version."""
        if isinstance(write, Delete):
            deletes.append(key)
            return 0
        self.version += 1
        if write.session is None:
            puts.append((key, U64.pack(self.version << 1) + write.value))
        else:
            session_id = bytes.fromhex(write.session.id)
            puts.append((key, U64.pack(self.version << 1 | 1) + session_id + write.value))
            puts.append((bindings_prefix(session_id) + key, b""))
        return self.version

    def _refusal(self, write: Write, key: bytes) -> MetadataStoreError | None:
        session = write.session if isinstance(write, Put) else None
        if session is not None and not self.is_alive(bytes.fromhex(session.id)):
            return SessionLost("put", write.key.path, f"session {session.id} is gone")
        if write.expected is ANY or self._is_at(key, write):
            return None
        return VersionConflict("put" if isinstance(write, Put) else "delete", write.key.path, write.expected)

    def _is_at(self, key: bytes, write: Write) -> bool:
        """Whether the condition of this write holds."""
        stored = self.txn.get(key)
        if stored is not None:
            header: int = U64.unpack_from(stored)[0]
            if not header & 1 or self.is_alive(stored[VALUE_AT:EPHEMERAL_VALUE_AT]):
                return header >> 1 == write.expected
        return write.expected == ABSENT and isinstance(write, Put)

    # -- sessions ---------------------------------------------------------------------------------------------------
    def is_alive(self, session_id: bytes) -> bool:
        known = self._alive.get(session_id)
        if known is None:
            lease = self.txn.get(session_key(session_id))
            known = self._alive[session_id] = lease is not None and self._runs(unpack_lease(lease))
        return known

    def _runs(self, lease: Lease) -> bool:
        return lease.boot_id == self.boot_id and lease.expires_at_ms > self.now_ms

    def open_session(self, session_id: bytes, timeout_ms: int) -> int:
        """Returns the expiry of the session."""
        self.sweep()
        return self._lease(session_id, timeout_ms)

    def renew_session(self, session_id: bytes, timeout_ms: int) -> int | None:
        """Returns the new expiry, or None if the session has ended."""
        self.sweep()
        return self._lease(session_id, timeout_ms) if self.is_alive(session_id) else None

    def _lease(self, session_id: bytes, timeout_ms: int) -> int:
        expires_at_ms = self.now_ms + timeout_ms
        self.txn.put(session_key(session_id), pack_lease(Lease(self.boot_id, expires_at_ms, timeout_ms)))
        self._alive[session_id] = True
        return expires_at_ms

    def close_session(self, session_id: bytes) -> None:
        self._alive[session_id] = False
        self.txn.delete(session_key(session_id))
        prefix, ended = bindings_prefix(session_id), list[bytes]()
        for binding in keys_with(self.txn, prefix):
            key = binding[len(prefix) :]
            stored = self.txn.get(key)
            if (
                stored is not None
                and U64.unpack_from(stored)[0] & 1
                and stored[VALUE_AT:EPHEMERAL_VALUE_AT] == session_id
            ):
                self.txn.delete(key)
                ended.append(key)
            self.txn.delete(binding)
        self._note_changed(DELETED, ended)

    def sweep(self) -> None:
        """End every session with an expired lease."""
        for key in keys_with(self.txn, SESSION_PREFIX):
            session_id = key[len(SESSION_PREFIX) :]
            if len(session_id) == SESSION_ID_BYTES and not self.is_alive(session_id):
                self.close_session(session_id)


def keys_with(txn: lmdb.Transaction[bytes], prefix: bytes) -> list[bytes]:
    keys: list[bytes] = []
    cursor = txn.cursor()
    more = cursor.set_range(prefix)
    while more and cursor.key().startswith(prefix):
        keys.append(cursor.key())
        more = cursor.next()
    return keys
