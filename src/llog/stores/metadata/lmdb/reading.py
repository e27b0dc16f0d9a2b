"""Reads in one transaction, on the event loop or in a reader thread; waits only for pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import lmdb

from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX
from llog.stores.metadata.lmdb.clock import BootClock
from llog.stores.metadata.lmdb.layout import (
    EPHEMERAL_VALUE_AT,
    U64,
    VALUE_AT,
    children_prefix,
    path_of,
    record_key,
    session_key,
    tree_prefixes,
    unpack_lease,
)
from llog.stores.metadata.port import Key, Record

# The limit of LMDB. No stored key is that long, so a longer bound can be cut here without changing its meaning.
BOUND_BYTES_MAX: Final = 511


class RunOutLease(Exception):
    """The lease of a record has expired by our clock but was not ended; the writer must decide."""


class RecordReader:
    """Reads stored values as records. With `decide`, an expired lease counts as ended."""

    txn: lmdb.Transaction[bytes]

    def __init__(self, clock: BootClock, *, decide: bool = False) -> None:
        self._clock, self._decide = clock, decide

    def at(self, txn: lmdb.Transaction[bytes]) -> Self:
        self.txn = txn
        return self

    def record(self, key: Key, stored: bytes) -> Record | None:
        header: int = U64.unpack_from(stored)[0]
        if not header & 1:
            return Record(key, stored[VALUE_AT:], header >> 1)
        if not self._is_alive(stored[VALUE_AT:EPHEMERAL_VALUE_AT]):
            return None
        return Record(key, stored[EPHEMERAL_VALUE_AT:], header >> 1, True)

    def _is_alive(self, session_id: bytes) -> bool:
        stored = self.txn.get(session_key(session_id))
        if stored is None:
            return False
        lease = unpack_lease(stored)
        if lease.boot_id == self._clock.boot_id and lease.expires_at_ms > self._clock.now_ms():
            return True
        if self._decide:
            return False
        raise RunOutLease


class Page(NamedTuple):
    """Records of a tree, and the start of the next page: number of the prefix, and key."""

    records: list[Record]
    run: int
    start: bytes


def find_many(reader: RecordReader, keys: Sequence[Key], stored_keys: list[bytes]) -> list[Record | None]:
    get, record = reader.txn.get, reader.record
    stored = [get(stored_key) for stored_key in stored_keys]
    return [None if value is None else record(key, value) for key, value in zip(keys, stored, strict=True)]


def find_children(reader: RecordReader, parent: Key, start: str, stop: str | None, limit: int) -> list[Record]:
    prefix = children_prefix(parent.path)
    if prefix is None:
        return []
    end = _end_of(prefix) if stop is None else prefix + stop.encode()
    records: list[Record] = []
    cursor = reader.txn.cursor()
    if not cursor.set_range((prefix + start.encode())[:BOUND_BYTES_MAX]):
        return records
    for key, value in cursor.iternext():
        if key >= end:
            break
        record = reader.record(Key(path_of(key), parent.route), value)
        if record is not None:
            records.append(record)
            if len(records) == limit:
                break
    return records


def find_tree(reader: RecordReader, prefix: str, at: Page) -> Page | None:
    """The page at `at`; None after the last."""
    runs = [record_key(prefix)] if prefix else []
    runs += tree_prefixes(prefix)
    if at.run == len(runs):
        return None
    records: list[Record] = []
    run, start = at.run, at.start
    while run < len(runs):
        # The first range is the single record at `prefix` itself.
        end = runs[0] + b"\x00" if prefix and run == 0 else _end_of(runs[run])
        cursor = reader.txn.cursor()
        if cursor.set_range(start or runs[run]):
            for key, value in cursor.iternext():
                if key >= end:
                    break
                if len(records) == METADATA_SCAN_PAGE_RECORDS_MAX:
                    return Page(records, run, key)
                record = reader.record(Key(path_of(key)), value)
                if record is not None:
                    records.append(record)
        run, start = run + 1, b""
    return Page(records, run, b"")


def _end_of(prefix: bytes) -> bytes:
    """The first key after all keys with `prefix`, which ends with a depth or a slash, not with 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
