"""A log's metadata as readers see it: `LogView` (control record, compaction cursor) and `IndexWalk` (index entries).

- "No such log" and "no such offset" are answered only after a strict read: a deposed leader of the metadata store may
  return an older counter, and a consumer would reset (h10).
- An entry counts as `judge` says (R9). Phantoms are skipped. `pending` alone may cover the tail.
- A gap, an entry of a later incarnation or a missing object mean that the metadata is stale. The walk reads it again, a
  bounded number of times and at last strictly; it never takes them for the end of the log (R10, h21).
- The end of the log is the control record's counter. If retention passes the walk's offset, the walk raises
  `OffsetOutOfRange`; if the topic is deleted and created again, `LogDeleted`. One walk never returns records of two
  incarnations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import InconsistentReadState, LogDeleted, OffsetOutOfRange, PartitionNotInitialized
from llog.formats.values import CompactionRecord, ControlRecord, decode_value
from llog.limits import LOG_READ_ROUNDS_MAX, LOG_READ_STRICT_ROUNDS, METADATA_SCAN_PAGE_RECORDS_MAX
from llog.log.context import LogContext
from llog.log.control import index_entry_of
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log, offset_name
from llog.stores.metadata.port import Record, after, last_segment

# Entries that a walk's first scan asks for. Each further scan asks for GROWTH times as many, up to a page of the store.
LOG_READ_PAGE_ENTRIES_FIRST: Final = 32
LOG_READ_PAGE_GROWTH: Final = 4


class LogView(NamedTuple):
    """Control record and compaction cursor of a log, as one read returned them."""

    control: ControlRecord
    version: int
    cursor: int
    compaction_version: int = 0
    """Version of the record that holds the cursor."""

    @property
    def next_offset(self) -> int:
        return self.control.sequence_counter

    @property
    def log_start_offset(self) -> int:
        return self.control.log_start_offset


async def view(context: LogContext, log: Log, *, strict: bool = False) -> LogView:
    """Read control record and cursor. Raises `PartitionNotInitialized` only after a strict read."""
    keys = [context.keys.control(log), context.keys.compaction(log)]
    control_record, compaction_record = await context.metadata.get_many(keys, strict=strict)
    seen = view_of(control_record, compaction_record)
    if seen is not None:
        return seen
    if strict:
        raise PartitionNotInitialized(*log)
    return await view(context, log, strict=True)


def view_of(control_record: Record | None, compaction_record: Record | None) -> LogView | None:
    """The view of two records; None if they show no log."""
    if control_record is None:
        return None
    control = decode_value(ControlRecord, control_record.value, control_record.key.path)
    if control.log_state == "DELETED":
        return None
    if compaction_record is None:
        return LogView(control, control_record.version, cursor=0)
    compaction = decode_value(CompactionRecord, compaction_record.value, compaction_record.key.path)
    cursor = compaction.offset if compaction.incarnation == control.incarnation else 0
    return LogView(control, control_record.version, cursor, compaction_record.version)


async def checked_view(context: LogContext, log: Log, offset: int, *, end_is_data: bool) -> LogView:
    """A view in which `offset` is readable; the end of the log counts as readable unless `end_is_data`."""
    for strict in (False, True):
        seen = await view(context, log, strict=strict)
        last_readable = seen.next_offset - (1 if end_is_data else 0)
        if seen.log_start_offset <= offset <= last_readable:
            return seen
    raise OffsetOutOfRange(*log, offset, seen.log_start_offset, seen.next_offset)


class Tiles(NamedTuple):
    entries: tuple[Entry, ...]
    """The first covers the wanted offset, each other begins behind the one before it."""
    go_on: bool
    """The page held only phantoms; read the next page."""


def plan_tiles(entries: Sequence[Entry], seen: LogView, offset: int, end_offset: int | None = None) -> Tiles:
    """The entries to read from a page of the index that begins at `offset`, up to the entry with `end_offset`.

    A compacted entry may begin below `offset`, while the entries it replaces still exist (I5).
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
    """A walk through a log's index in offset order, as pages of valid entries without a gap. For one task."""

    def __init__(self, context: LogContext, log: Log, offset: int, seen: LogView) -> None:
        self._context, self._log, self._seen = context, log, seen
        self.offset = offset
        """Everything below it was read."""
        self._incarnation = seen.control.incarnation
        self._fresh = True
        self._tiles: tuple[Entry, ...] = ()
        self._page_entries = LOG_READ_PAGE_ENTRIES_FIRST
        self._rounds = 0

    async def ahead(self, end_offset: int | None = None) -> tuple[Entry, ...]:
        """The entries from `offset` on, as many as one page holds; none at the end of the log.

        If the log ends before `end_offset`, a strict read confirms the end. (A reader without `end_offset` asks again
        anyway.)
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
            await self.retry(f"no entry covers offset {self.offset}, and no append is pending there")

    def passed(self, next_offset: int) -> None:
        """Advance: everything below `next_offset` was read."""
        if next_offset > self.offset:
            self.offset, self._rounds = next_offset, 0
        first = 0
        while first < len(self._tiles) and self._tiles[first].end_offset < next_offset:
            first += 1
        self._tiles = self._tiles[first:]

    async def retry(self, trouble: str | Exception) -> None:
        """Drop the entries and read the metadata again; `InconsistentReadState` after too many rounds."""
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
        """Whether the walk can continue in this view: it is not older than the last one."""
        same_log = seen.control.incarnation == self._incarnation and seen.version >= self._seen.version
        return same_log and seen.log_start_offset <= self.offset <= seen.next_offset

    def _take(self, seen: LogView) -> None:
        if seen.cursor != self._seen.cursor:
            self._tiles = ()  # compaction advanced: the entries ahead have changed
        self._seen = seen

    async def _page(self, end_offset: int | None) -> tuple[Entry, ...]:
        parent, start = self._context.keys.index(self._log), offset_name(self.offset)
        if end_offset == self.offset:
            # One record needs one entry; not every store limits a scan on the wire.
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
