"""Paths turned into stored keys, checked on the way; those used lately are remembered.

Why it exists: a flush names the same control records every time. Checking and encoding a path costs about as much as
LMDB takes to write the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llog.stores.metadata.lmdb.layout import record_keys
from llog.stores.metadata.port import check_paths

# Paths whose stored key is remembered, checked and encoded.
LMDB_KNOWN_KEYS_MAX: Final = 65_536


class StoredKeys:
    """`StoredKeys()(paths)`: their keys in order; raises what `check_paths` raises. Used on one event loop."""

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
