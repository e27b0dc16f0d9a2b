"""Walk the index of a log in offset order: pages of valid entries that tile it without a hole.

Why it exists: whoever reads much of a log (a reader, a look-up by timestamp) wants one metadata scan for many entries,
and all of them must agree on what an entry that is missing means. What must stay true
- an entry counts as `judge` says (R9), phantoms are passed over; the tail may be covered by `pending` alone;
- a gap, an entry of a later life or an object that is gone mean "look again with fresh metadata", a bounded number of
  times and at last strictly, never "the end" (R10, h21);
- the end is where the counter is. An offset that retention passed meanwhile raises `OffsetOutOfRange`, a topic that was
  deleted and created again meanwhile `LogDeleted`: records of two lives are never handed out in one walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import InconsistentReadState, LogDeleted, OffsetOutOfRange
from llog.limits import LOG_READ_ROUNDS_MAX, LOG_READ_STRICT_ROUNDS, METADATA_SCAN_PAGE_RECORDS_MAX
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, index_entry_of, judge
from llog.log.keys import Log, offset_name
from llog.log.read.view import LogView, view
from llog.stores.metadata.port import after, last_segment

# Index entries that a reader's first scan asks for; each further one asks for more, up to a page of the store.
LOG_READ_PAGE_ENTRIES_FIRST: Final = 32
LOG_READ_PAGE_GROWTH: Final = 4


class Tiles(NamedTuple):
    entries: tuple[Entry, ...]
    """The first covers the offset asked for, each other begins behind the one before it."""
    go_on: bool
    """Nothing but phantoms was seen: what decides may stand on the next page."""


def plan_tiles(entries: Sequence[Entry], seen: LogView, offset: int, end_offset: int | None = None) -> Tiles:
    """From a page of the index (from `offset` on, in order) the entries to read, up to the one with `end_offset`.

    An entry may begin below the offset it is taken for: a compacted one whose lower keys are still there (I5).
    """
    control = seen.control
    tiles: list[Entry] = []
    decided = False
    for entry in entries:
        verdict = judge(
            entry, incarnation=control.incarnation, cursor=seen.cursor, log_start_offset=control.log_start_offset
        )
        if verdict in (EntryVerdict.PHANTOM, EntryVerdict.BELOW_START):
            continue
        decided = True
        if verdict is not EntryVerdict.VALID or not entry.covers(offset):
            break
        tiles.append(entry)
        offset = entry.end_offset + 1
        if end_offset is not None and offset > end_offset:
            return Tiles(tuple(tiles), False)
    pending = control.pending
    if pending is not None and pending.start_offset <= offset <= pending.end_offset:
        tiles.append(Entry(pending.end_offset, index_entry_of(pending), -1))
    return Tiles(tuple(tiles), not decided and not tiles)


class IndexWalk:
    """Where a walk through a log's index stands. Not for two tasks at once."""

    def __init__(self, context: LogContext, log: Log, offset: int, seen: LogView) -> None:
        self._context, self._log, self._seen = context, log, seen
        self.offset = offset
        """Everything below was handed out."""
        self._incarnation = seen.control.incarnation
        self._fresh = True
        self._tiles: tuple[Entry, ...] = ()
        self._page_entries = LOG_READ_PAGE_ENTRIES_FIRST
        self._rounds = 0

    async def ahead(self, end_offset: int | None = None) -> tuple[Entry, ...]:
        """The entries from `offset` on, as many as one page holds; none at the end of the log.

        Where the end comes before `end_offset`, which the caller has reason to ask for, it is believed after a strict
        look only. (Who reads on and on asks again anyway.)
        """
        while True:
            if not self._fresh:
                await self._refresh()
            self._fresh = False
            if self.offset == self._seen.next_offset and end_offset is not None:
                self._take(await self._strict_view())
            if self.offset == self._seen.next_offset:
                return ()
            if not self._tiles:
                self._tiles = await self._page(end_offset)
            if self._tiles:
                return self._tiles
            await self.look_again(f"no entry covers offset {self.offset}, and no append is pending there")

    def passed(self, next_offset: int) -> None:
        """Everything below `next_offset` was read."""
        if next_offset > self.offset:
            self.offset, self._rounds = next_offset, 0
        first = 0
        while first < len(self._tiles) and self._tiles[first].end_offset < next_offset:
            first += 1
        self._tiles = self._tiles[first:]

    async def look_again(self, trouble: str | Exception) -> None:
        """Forget what was seen; `InconsistentReadState` when that has not helped often enough."""
        self._rounds += 1
        if self._rounds >= LOG_READ_ROUNDS_MAX:
            cause = trouble if isinstance(trouble, Exception) else None
            raise InconsistentReadState(*self._log, f"offset {self.offset}: {trouble}") from cause
        self._tiles = ()
        await self._context.back_off(self._rounds)
        await self._refresh()
        self._fresh = True

    @property
    def _strict(self) -> bool:
        return self._rounds >= LOG_READ_ROUNDS_MAX - LOG_READ_STRICT_ROUNDS

    async def _refresh(self) -> None:
        seen = await view(self._context, self._log, strict=self._strict)
        if self._fits(seen):
            self._take(seen)
        else:
            self._take(await self._strict_view())

    async def _strict_view(self) -> LogView:
        seen = await view(self._context, self._log, strict=True)
        if seen.control.incarnation != self._incarnation:
            raise LogDeleted(*self._log, "its topic was deleted and created again during this read")
        if not seen.log_start_offset <= self.offset <= seen.next_offset:
            raise OffsetOutOfRange(*self._log, self.offset, seen.log_start_offset, seen.next_offset)
        return seen

    def _fits(self, seen: LogView) -> bool:
        """Can the walk go on in this view? A stale one, older than what was seen before, cannot."""
        same_life = seen.control.incarnation == self._incarnation and seen.version >= self._seen.version
        return same_life and seen.log_start_offset <= self.offset <= seen.next_offset

    def _take(self, seen: LogView) -> None:
        if seen.cursor != self._seen.cursor:
            self._tiles = ()  # compaction went on: what is ahead lies elsewhere now
        self._seen = seen

    async def _page(self, end_offset: int | None) -> tuple[Entry, ...]:
        parent, start = self._context.keys.index(self._log), offset_name(self.offset)
        if end_offset == self.offset:
            # Who wants one record asks for one entry: a scan has no limit on every store's wire.
            first = await self._context.metadata.ceiling(parent, start, strict=self._strict)
            tiles = plan_tiles([] if first is None else [entry_of(first)], self._seen, self.offset, end_offset)
            if tiles.entries:
                return tiles.entries
        limit = self._page_entries
        self._page_entries = min(METADATA_SCAN_PAGE_RECORDS_MAX, limit * LOG_READ_PAGE_GROWTH)
        while True:
            page = await self._context.metadata.scan(parent, start=start, limit=limit, strict=self._strict)
            tiles = plan_tiles([entry_of(record) for record in page], self._seen, self.offset, end_offset)
            if not tiles.go_on or len(page) < limit:
                return tiles.entries
            start, limit = after(last_segment(page[-1].key.path)), METADATA_SCAN_PAGE_RECORDS_MAX
