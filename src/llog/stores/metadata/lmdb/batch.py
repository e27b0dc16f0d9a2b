"""The writes of one call as columns, and the versions of records that this process wrote last.

A flush writes thousands of records, and a Python statement per record costs as much as the work of LMDB. Most calls are
plain: puts without a session, and all conditions hold. They are decided and written in a few passes over whole columns;
`transaction` applies all others group by group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from llog.errors import InvalidArgument
from llog.stores.metadata.port import ABSENT, CheckedWrites, GroupOutcome, Put, Session, Write


class LmdbBatch:
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


# -- versions ----------------------------------------------------------------------------------------------------------


# Records with a remembered version.
LMDB_KNOWN_VERSIONS_MAX: Final = 65_536


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
