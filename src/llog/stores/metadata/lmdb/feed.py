"""The change feed: which records the last transactions of all processes changed, for watches.

    0xfc · u64 version    u64 version before · sections    one transaction that changed records, and its last version
    0xff · "watch"        a lease                          transactions write the feed while it runs

A section is `P` (put) or `D` (deleted) and the keys of records, in the order of the writes. Neither separator occurs in
a key: it is a depth and UTF-8.

- The feed is written in the transaction whose changes it names, so it is neither early nor late nor lost in a crash.
- Only while a watch runs: each watch extends the lease. An append then writes one record more, whatever its size.
- It is a chain: each entry begins at the version at which the one before ended, and the last ends at the counter. So a
  reader notices every gap: entries that were dropped (the feed is bounded), a time without a lease, a restore, or a
  process of an older release. A version belongs to each put and, while the feed is written, to each delete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import lmdb

from llog.stores.metadata.changes import is_below
from llog.stores.metadata.lmdb.layout import U64, VERSION_KEY, path_of
from llog.stores.metadata.port import Change, ChangeKind

FEED_PREFIX: Final = b"\xfc"
WATCH_KEY: Final = b"\xffwatch"
# Versions that the feed covers: one per change, so this bounds its size too (about 5 MB).
LMDB_FEED_VERSIONS_MAX: Final = 65_536
# How long the feed is written after the last watch was extended. A crashed watcher costs writers no more than this.
LMDB_WATCH_LEASE_MS: Final = 600_000

PUT: Final = b"P"
DELETED: Final = b"D"
_KEYS: Final = b"\xff"
_SECTIONS: Final = b"\xfe"
_KINDS: Final = {PUT[0]: ChangeKind.PUT, DELETED[0]: ChangeKind.DELETED}


class Section(NamedTuple):
    kind: bytes
    keys: Sequence[bytes]


class FeedStart(NamedTuple):
    """Result of extending the lease."""

    version: int
    """Later changes are in the feed, from this version on."""
    expires_at_ms: int
    unbroken: bool
    """The lease was still running, so that no change since its last extension is missing in the feed."""


class FeedPage(NamedTuple):
    version: int
    """The feed is read up to here."""
    changes: list[Change]
    gap: bool = False
    """Changes before these are missing, or were more than the reader wants."""


def write_feed(txn: lmdb.Transaction[bytes], before: int, version: int, sections: Iterable[Section]) -> None:
    """Add one transaction, and drop entries that are no longer covered."""
    body = _SECTIONS.join([section.kind + _KEYS.join(section.keys) for section in sections])
    txn.put(FEED_PREFIX + U64.pack(version), U64.pack(before) + body)
    oldest = FEED_PREFIX + U64.pack(max(0, version - LMDB_FEED_VERSIONS_MAX))
    cursor = txn.cursor()
    # Two per transaction that adds one: a feed that is too long becomes shorter.
    for _ in range(2):
        if not cursor.set_range(FEED_PREFIX) or cursor.key() >= oldest:
            return
        cursor.delete()


def read_feed(txn: lmdb.Transaction[bytes], after: int, prefix: str, *, changes_max: int) -> FeedPage:
    """Changes below `prefix` since the version `after`."""
    counter = txn.get(VERSION_KEY)
    version = 0 if counter is None else int.from_bytes(counter, "big")
    if version == after:
        return FeedPage(version, [])
    changes: list[Change] = []
    reached, gap = after, False
    cursor = txn.cursor()
    if cursor.set_range(FEED_PREFIX + U64.pack(after + 1)):
        for key, value in cursor.iternext():
            if not key.startswith(FEED_PREFIX) or U64.unpack_from(value)[0] != reached:
                break
            reached = U64.unpack_from(key, len(FEED_PREFIX))[0]
            changes += _changes_in(value, prefix)
            if len(changes) > changes_max:
                changes, gap = [], True
    return FeedPage(version, changes, gap) if reached == version else FeedPage(version, [], gap=True)


def _changes_in(entry: bytes, prefix: str) -> list[Change]:
    changes: list[Change] = []
    for section in entry[U64.size :].split(_SECTIONS):
        kind = _KINDS[section[0]]
        paths = map(path_of, section[1:].split(_KEYS))
        changes += [Change(kind, path) for path in paths if is_below(path, prefix)]
    return changes
