"""What one write transaction does: groups of conditional writes, sessions, and the sweep of dead ones.

Why it exists: LMDB has one writer at a time on a machine, so everything that decides happens here, under its lock,
with one reading of the clock. Nothing in here waits.

What must stay true
- A group is decided in full before any of it is written; a refused group leaves no trace, not even a version.
- A lease that ran out is never renewed: once anyone under this lock could have seen it expired, it stays dead.
- A record bound to a dead session is as good as absent, swept or not.
"""

from __future__ import annotations

from collections.abc import Sequence

import lmdb

from llog.errors import MetadataStoreError, SessionLost, VersionConflict
from llog.stores.metadata.lmdb.clock import BootClock
from llog.stores.metadata.lmdb.layout import (
    EPHEMERAL_VALUE_AT,
    SESSION_ID_BYTES,
    SESSION_PREFIX,
    U64,
    VALUE_AT,
    VERSION_KEY,
    Lease,
    bindings_prefix,
    pack_lease,
    session_key,
    unpack_lease,
)
from llog.stores.metadata.port import ABSENT, ANY, Delete, GroupOutcome, Put, Write


class Transaction:
    """Used by the writer thread alone, between begin and commit of `txn`."""

    def __init__(self, txn: lmdb.Transaction[bytes], clock: BootClock) -> None:
        self.txn, self.boot_id, self.now_ms = txn, clock.boot_id, clock.now_ms()
        counter = txn.get(VERSION_KEY)
        self.version = self._version_before = 0 if counter is None else int.from_bytes(counter, "big")
        self._alive: dict[bytes, bool] = {}

    def finish(self) -> None:
        """The last step before commit."""
        if self.version != self._version_before:
            self.txn.put(VERSION_KEY, U64.pack(self.version))

    # -- writes -----------------------------------------------------------------------------------------------------
    def write(self, groups: Sequence[Sequence[Write]], keys: list[bytes]) -> list[GroupOutcome]:
        """`keys` are the stored keys of all writes, in order. No key is named twice, so every group may be decided
        against what was there before the first of them."""
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        outcomes: list[GroupOutcome] = []
        pack, position = U64.pack, 0
        for group in groups:
            version_before, puts_before, deletes_before = self.version, len(puts), len(deletes)
            end = position + len(group)
            versions: list[int] = []
            for write in group:
                key = keys[position]
                position += 1
                if (write.expected is not ANY and not self._is_at(key, write)) or self._has_lost_session(write):
                    outcomes.append(self._refusal(write))
                    self.version = version_before
                    del puts[puts_before:], deletes[deletes_before:]
                    position = end
                    break
                if isinstance(write, Delete):
                    deletes.append(key)
                    versions.append(0)
                    continue
                self.version += 1
                versions.append(self.version)
                if write.session is None:
                    puts.append((key, pack(self.version << 1) + write.value))
                else:
                    session_id = bytes.fromhex(write.session.id)
                    puts.append((key, pack(self.version << 1 | 1) + session_id + write.value))
                    puts.append((bindings_prefix(session_id) + key, b""))
            else:
                outcomes.append(tuple(versions))
        if puts:
            self.txn.cursor().putmulti(puts)
        for key in deletes:
            self.txn.delete(key)
        return outcomes

    def _is_at(self, key: bytes, write: Write) -> bool:
        """Does the key stand where this conditional write expects it?"""
        found = self.txn.get(key)
        if found is not None:
            header: int = U64.unpack_from(found)[0]
            if not header & 1 or self.is_alive(found[VALUE_AT:EPHEMERAL_VALUE_AT]):
                return header >> 1 == write.expected
        return write.expected == ABSENT and isinstance(write, Put)

    def _has_lost_session(self, write: Write) -> bool:
        session = write.session if isinstance(write, Put) else None
        return session is not None and not self.is_alive(bytes.fromhex(session.id))

    def _refusal(self, write: Write) -> MetadataStoreError:
        path = write.key.path
        if isinstance(write, Put) and write.session is not None and self._has_lost_session(write):
            return SessionLost("put", path, f"session {write.session.id} is gone")
        assert write.expected is not None
        return VersionConflict("put" if isinstance(write, Put) else "delete", path, write.expected)

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
        """Its expiry."""
        self.sweep()
        return self._lease(session_id, timeout_ms)

    def renew_session(self, session_id: bytes, timeout_ms: int) -> int | None:
        """Its new expiry, or None when it is gone."""
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
        prefix = bindings_prefix(session_id)
        for binding in keys_with(self.txn, prefix):
            key = binding[len(prefix) :]
            found = self.txn.get(key)
            if found is not None and U64.unpack_from(found)[0] & 1 and found[VALUE_AT:EPHEMERAL_VALUE_AT] == session_id:
                self.txn.delete(key)
            self.txn.delete(binding)

    def sweep(self) -> None:
        """End every session whose lease ran out."""
        for key in keys_with(self.txn, SESSION_PREFIX):
            session_id = key[len(SESSION_PREFIX) :]
            if len(session_id) == SESSION_ID_BYTES and not self.is_alive(session_id):
                self.close_session(session_id)


def keys_with(txn: lmdb.Transaction[bytes], prefix: bytes) -> list[bytes]:
    found: list[bytes] = []
    cursor = txn.cursor()
    more = cursor.set_range(prefix)
    while more and cursor.key().startswith(prefix):
        found.append(cursor.key())
        more = cursor.next()
    return found
