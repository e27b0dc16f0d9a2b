"""The bytes of the LMDB store: keys, record values, session leases. Pure functions.

One unnamed database holds everything; the first byte of a key is its kind.

    depth (0…31) · path        record         u64 (version × 2 + ephemeral) · [16 bytes session id] · value
    0xfd · session id · key    binding        empty: this record was written with that session (and maybe again)
    0xfe · session id          session lease  16 bytes boot id · u64 expires at, ms since boot · u32 timeout ms
    0xff · "version"           the counter    u64: the highest version assigned
    0xff · "format"            the format     its name

- Keys begin with their depth (the number of slashes), so the direct children of a parent are contiguous in byte order.
- A version is never reused: the counter increases in the transaction that uses it.
- All integers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import MetadataMisconfigured
from llog.limits import METADATA_KEY_DEPTH_MAX
from llog.stores.metadata.port import check_paths

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
