"""The bytes of the LMDB store (keys, record values, session leases), and reading them in one transaction.

One unnamed database holds everything; the first byte of a key is its kind.

    depth (0…31) · path        record         u64 (version × 2 + ephemeral) · [16 bytes session id] · value
    0xfd · session id · key    binding        empty: this record was written with that session (and maybe again)
    0xfe · session id          session lease  16 bytes boot id · u64 expires at, ms since boot · u32 timeout ms
    0xff · "version"           the counter    u64: the highest version assigned
    0xff · "format"            the format     its name
    0xfc · u64 version         change feed    for watches, see `feed`; 0xff · "watch" is its lease

- Keys begin with their depth (the number of slashes), so the direct children of a parent are contiguous in byte order.
- A version is never reused: the counter increases in the transaction that uses it.
- All integers are big-endian.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import lmdb

from llog.errors import MetadataMisconfigured
from llog.limits import METADATA_KEY_DEPTH_MAX, METADATA_SCAN_PAGE_RECORDS_MAX
from llog.stores.metadata.port import Key, Record, check_paths

FORMAT: Final = b"llog-lmdb-1"
FORMAT_KEY: Final = b"\xffformat"
VERSION_KEY: Final = b"\xffversion"
SESSION_PREFIX: Final = b"\xfe"
BINDING_PREFIX: Final = b"\xfd"
RECORDS_END: Final = bytes([METADATA_KEY_DEPTH_MAX])
SESSION_ID_BYTES: Final = 16

U64: Final = struct.Struct(">Q")
VALUE_AT: Final = U64.size
EPHEMERAL_VALUE_AT: Final = U64.size + SESSION_ID_BYTES
_LEASE: Final = struct.Struct(">16sQI")
_NEITHER_SLASH_NOR_LINE: Final = bytes(set(range(256)) - set(b"/\n"))
_DEPTHS: Final = [bytes([depth]) for depth in range(METADATA_KEY_DEPTH_MAX)]


class Lease(NamedTuple):
    boot_id: bytes
    expires_at_ms: int
    timeout_ms: int


def record_key(path: str) -> bytes:
    return _DEPTHS[path.count("/")] + path.encode()


def record_keys(paths: Sequence[str]) -> list[bytes]:
    """`record_key` of many paths, with one pass for all depths; paths contain no line feed."""
    if not paths:
        return []
    encoded = "\n".join(paths).encode()
    slashes = encoded.translate(None, _NEITHER_SLASH_NOR_LINE)
    first, _, _ = slashes.partition(b"\n")
    if slashes + b"\n" == (first + b"\n") * len(paths):
        # All have the depth of the first, like the keys of a flush.
        depth = _DEPTHS[len(first)]
        return (depth + encoded.replace(b"\n", b"\n" + depth)).split(b"\n")
    depths = map(len, slashes.split(b"\n"))
    return [_DEPTHS[depth] + path for depth, path in zip(depths, encoded.split(b"\n"), strict=True)]


def path_of(key: bytes) -> str:
    return key[1:].decode()


def children_prefix(parent: str) -> bytes | None:
    """Prefix of the keys of all direct children; None if the parent is too deep to have any."""
    depth = parent.count("/") + 1
    return None if depth == len(_DEPTHS) else _DEPTHS[depth] + parent.encode() + b"/"


def tree_prefixes(prefix: str) -> list[bytes]:
    """Prefixes of all keys strictly below `prefix`, one per depth."""
    if not prefix:
        return list(_DEPTHS)
    below = prefix.encode() + b"/"
    return [depth + below for depth in _DEPTHS[prefix.count("/") + 1 :]]


def session_key(session_id: bytes) -> bytes:
    return SESSION_PREFIX + session_id


def bindings_prefix(session_id: bytes) -> bytes:
    return BINDING_PREFIX + session_id


def pack_lease(lease: Lease) -> bytes:
    return _LEASE.pack(*lease)


def unpack_lease(value: bytes) -> Lease:
    return Lease(*_LEASE.unpack(value))


def check_format(stored: bytes | None, url: str) -> None:
    if stored != FORMAT:
        raise MetadataMisconfigured("open", url, f"holds {stored!r}, which this version does not read ({FORMAT!r})")


# -- paths to stored keys ----------------------------------------------------------------------------------------------


# Paths with a cached key, which is checked and encoded.
LMDB_KNOWN_KEYS_MAX: Final = 65_536


class StoredKeys:
    """Cache of checked and encoded keys, for one event loop. A flush uses the same control keys every time, and
    checking and encoding a path costs as much as writing the record. Raises the errors of `check_paths`."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def __call__(self, paths: Sequence[str]) -> list[bytes]:
        known = self._known
        try:
            return list(map(known.__getitem__, paths))
        except KeyError:
            unknown = [path for path in paths if path not in known]
        check_paths(unknown)
        if len(known) + len(unknown) > LMDB_KNOWN_KEYS_MAX:
            known.clear()
            unknown = list(paths)
        known.update(zip(unknown, record_keys(unknown), strict=True))
        return list(map(known.__getitem__, paths))


# -- the clock of leases -----------------------------------------------------------------------------------------------

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


class BootClock:
    """The boot clock of the machine: milliseconds since boot, and the id of the boot. Tests may subclass it.

    Leases use it because it cannot be set, continues during suspend, and is the same for all processes, provided they
    are in one time namespace. A lease of an earlier boot has ended.
    """

    def __init__(self) -> None:
        try:
            self.boot_id = uuid.UUID(BOOT_ID_FILE.read_text().strip()).bytes
        except (OSError, ValueError) as error:
            raise MetadataMisconfigured("open", "lmdb", f"needs Linux: {BOOT_ID_FILE}: {error}") from error

    def now_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


# -- reading, on the event loop or in a reader thread; waits only for pages --------------------------------------------

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
