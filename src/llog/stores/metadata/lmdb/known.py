"""The versions of records that this process moved last, known without reading them again.

Why it exists: a flush checks and moves the same control records over and over, and reading each one to learn a version
that this very process wrote a moment ago costs as much as writing it.

Why it is safe: LMDB numbers the transactions that changed something, whichever process made them, one by one. When
the number of the transaction just begun follows directly the last one committed here, nobody wrote in between, and
what we remember is what is stored. When it does not, everything is forgotten. So is it after any failure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

from llog.stores.metadata.lmdb.batch import LmdbBatch

# Records whose version the writer remembers from its own last transactions.
LMDB_KNOWN_VERSIONS_MAX: Final = 65_536


class KnownVersions:
    """Used by the writer thread alone."""

    def __init__(self) -> None:
        self.versions: dict[bytes, int] = {}
        self._last_number = -1

    def begin(self, number: int) -> None:
        if number != self._last_number + 1:
            self.forget_all()

    def commits(self, number: int) -> None:
        """The transaction of this number is about to be committed, and it did change something."""
        self._last_number = number

    def note(self, batch: LmdbBatch, first_version: int) -> None:
        """The batch was written, with versions counted up from there. Records that are new are left out: an index
        entry is not moved again."""
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
