"""The writes of one call, column by column.

Why it exists: a flush moves thousands of records, and a Python statement per record costs as much as LMDB's own work.
Most calls are plain: puts without a session whose conditions all hold. Those are decided and written by a few passes
over whole columns; everything else takes the careful way, group by group (`transaction`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from llog.errors import InvalidArgument
from llog.stores.metadata.port import ABSENT, CheckedWrites, GroupOutcome, Put, Session, Write


class LmdbBatch:
    def __init__(self, groups: Sequence[Sequence[Write]], checked: CheckedWrites) -> None:
        """`checked` by `check_groups` with a `StoredKeys`."""
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
        """Every put replaces a record at a version."""
        return None not in self.expected and ABSENT not in self.expected

    def check_sessions(self, kind: type[Session], environment: object) -> None:
        for session in self.sessions:
            if not isinstance(session, kind) or getattr(session, "environment", None) is not environment:
                raise InvalidArgument("session", f"{session.id} was not opened on this store")

    def outcomes_of(self, written: int | list[GroupOutcome]) -> list[GroupOutcome]:
        """One per group. A number means that every put was written, with versions counted up from it."""
        if isinstance(written, list):
            return written
        first_version = written
        versions = iter(range(first_version, first_version + len(self.keys)))
        sizes = set(map(len, self.groups))
        if len(sizes) == 1:
            # The same iterator named n times deals out tuples of n.
            return list(zip(*[versions] * sizes.pop(), strict=True))
        return [tuple(itertools.islice(versions, len(group))) for group in self.groups]
