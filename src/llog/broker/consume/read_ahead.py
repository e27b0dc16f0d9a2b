"""Read-ahead: what was fetched from the stores and may soon be asked for again.

Why it exists: index entries are fetched whole and answers are smaller, and several consumers of one log ask for the
same bytes. Whoever reads on where the last answer ended gets a larger window fetched.

What must stay true: bounded by bytes over all logs; what is here counts only for a log whose life was confirmed and is
the one it was read in, and, where keys are compacted, while the compaction record is the one it was read under. Fetched
bytes are immutable, so nothing else can make them wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from llog.broker.tail.shelf import CachedBatch, Shelf
from llog.limits import MIB, READ_AHEAD_BYTES_MAX
from llog.log.keys import Log

READ_AHEAD_WINDOW_BYTES: Final = 4 * MIB
READ_AHEAD_READERS_MAX: Final = 10_000


class ReadAhead:
    def __init__(self, max_bytes: int = READ_AHEAD_BYTES_MAX) -> None:
        self._shelf = Shelf(max_bytes)
        self._expected: OrderedDict[tuple[Log, int], None] = OrderedDict()

    @property
    def byte_length(self) -> int:
        return self._shelf.byte_length

    def covers(self, log: Log, offset: int) -> bool:
        return self._shelf.covers(log, offset)

    def lookup(
        self, log: Log, offset: int, incarnation: int, max_bytes: int, *, compaction_version: int | None = None
    ) -> list[CachedBatch]:
        """In a row from `offset` on; none when it is not here, or of another life. With a `compaction_version`, what
        was read under another one does not count."""
        found: list[CachedBatch] = []
        size = 0
        for item in self._shelf.run(log, offset):
            rewritten = compaction_version not in (None, item.compaction_version)
            if rewritten or item.incarnation != incarnation or size >= max_bytes:
                break
            found.append(item)
            size += item.byte_length
        return found

    def put(self, log: Log, batch: CachedBatch) -> None:
        """Keep what was fetched; it replaces what it overlaps (a segment takes the place of its appends)."""
        for other in self._shelf.overlapping(log, batch.start_offset, batch.end_offset):
            same = (other.incarnation, other.compaction_version) == (batch.incarnation, batch.compaction_version)
            if same and other.start_offset <= batch.start_offset and other.end_offset >= batch.end_offset:
                return
            self._shelf.remove(log, other)
        self._shelf.put(log, batch)

    def window_bytes(self, log: Log, offset: int, wanted: int) -> int:
        """How much to fetch from `offset` on for who wants so much: more, for who reads on."""
        if (log, offset) not in self._expected:
            return wanted
        del self._expected[log, offset]
        return max(wanted, READ_AHEAD_WINDOW_BYTES)

    def expect(self, log: Log, next_offset: int) -> None:
        """An answer ended there."""
        self._expected[log, next_offset] = None
        self._expected.move_to_end((log, next_offset))
        if len(self._expected) > READ_AHEAD_READERS_MAX:
            self._expected.popitem(last=False)
