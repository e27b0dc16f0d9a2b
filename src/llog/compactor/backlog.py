"""The backlog of each log, counted from the index and remembered, so that each entry is read about once.

An inspection reads the two records that guard a log, for many logs in one request. It reads the index only where new
entries arrived or grew old enough, from where the last inspection ended. The result may be stale: it only decides
whether a visit is worth it, and the visit reads the log again.

Counting stops where a run could not continue (a gap, an entry too young, another type). A log that was compacted, cut
by retention or created again is counted anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from llog.compactor.plan import LogBacklog, Rules
from llog.errors import FormatError, InvalidArgument
from llog.formats.values import CompactionRecord, ControlRecord, decode_value
from llog.limits import COMPACTOR_LOOK_LOGS_MAX
from llog.log.context import LogContext
from llog.log.index import EntryVerdict, entry_of, judge
from llog.log.inspect.coherent import run_of, shown_state
from llog.log.keys import Log, offset_name
from llog.stores.metadata.port import Record, after, last_segment

COMPACTOR_SCANS_IN_FLIGHT_MAX: Final = 16
COMPACTOR_SCAN_PAGE_ENTRIES: Final = 256


class BadLog(NamedTuple):
    """A log with unreadable records."""

    log: Log
    error: FormatError | InvalidArgument


@dataclass(slots=True)
class _Backlog:
    incarnation: int
    cursor: int
    log_start_offset: int
    next_offset: int
    """Everything below it, from the floor on, is counted."""
    byte_length: int = 0
    entries: int = 0
    oldest_ms: int | None = None
    young_ms: int | None = None
    """When the entry was made that was too young to be counted."""
    segments_since_merge: int = 0
    retained_at_ms: int = 0
    view: LogBacklog | None = None
    """What the last look made of it, at these versions of the two records."""
    versions: tuple[int, int] = (-1, -1)

    @property
    def floor(self) -> int:
        return max(self.cursor, self.log_start_offset)

    def count(self, end_offset: int, byte_length: int, created_at_ms: int) -> None:
        self.next_offset = end_offset + 1
        self.byte_length += byte_length
        self.entries += 1
        self.oldest_ms = created_at_ms if self.oldest_ms is None else min(self.oldest_ms, created_at_ms)


class Backlogs:
    def __init__(self, context: LogContext, rules: Rules) -> None:
        self._context, self._rules = context, rules
        self._known: dict[Log, _Backlog] = {}
        self._scans = asyncio.Semaphore(COMPACTOR_SCANS_IN_FLIGHT_MAX)

    def keep(self, logs: Iterable[Log]) -> list[Log]:
        """Forget every other log; the forgotten ones."""
        wanted = set(logs)
        gone = [log for log in self._known if log not in wanted]
        for log in gone:
            del self._known[log]
        return gone

    def retained(self, log: Log) -> None:
        if (known := self._known.get(log)) is not None:
            known.retained_at_ms, known.view = self._context.now_ms(), None

    def nothing_to_merge(self, log: Log) -> None:
        if (known := self._known.get(log)) is not None:
            known.segments_since_merge, known.view = 0, None

    async def look(self, logs: Sequence[Log], *, strict: bool = False) -> list[LogBacklog | BadLog]:
        """The logs that are there, in order."""
        views: list[LogBacklog | BadLog] = []
        for first in range(0, len(logs), COMPACTOR_LOOK_LOGS_MAX):
            some = logs[first : first + COMPACTOR_LOOK_LOGS_MAX]
            # The compaction record before control: what it names was below the counter then.
            keys = [key(log) for log in some for key in (self._context.keys.compaction, self._context.keys.control)]
            found = await self._context.metadata.get_many(keys, strict=strict)
            pairs = list(zip(some, found[::2], found[1::2], strict=True))
            looks = [self._unchanged(*pair) or self._look_at(*pair) for pair in pairs]
            slow = [look for look in looks if not isinstance(look, LogBacklog)]
            # All of them end before an error is raised: a straggler would count together with the next inspection.
            results = iter(await asyncio.gather(*slow, return_exceptions=True))
            for look in looks:
                view = look if isinstance(look, LogBacklog) else next(results)
                if isinstance(view, BaseException):
                    raise view
                if view is not None:
                    views.append(view)
        return views

    def _unchanged(self, log: Log, compaction: Record | None, control: Record | None) -> LogBacklog | None:
        """The last view, where nothing changed and time alone changes nothing; most logs are idle most of the time."""
        known = self._known.get(log)
        if known is None or known.view is None or compaction is None or control is None:
            return None
        if known.versions != (compaction.version, control.version) or known.view.pending:
            return None
        return None if self._is_worth_a_scan(known, known.view.counter) else known.view

    async def _look_at(
        self, log: Log, compaction_record: Record | None, control_record: Record | None
    ) -> LogBacklog | BadLog | None:
        if compaction_record is None or control_record is None:
            return None
        try:
            compaction = decode_value(CompactionRecord, compaction_record.value, compaction_record.key.path)
            control = decode_value(ControlRecord, control_record.value, control_record.key.path)
            if control.log_state == "DELETED" or control.incarnation != compaction.incarnation:
                return None
            known = self._remembered(log, control, compaction)
            if self._is_worth_a_scan(known, control.sequence_counter):
                async with self._scans:
                    await self._scan(log, known, control)
            run_state = await self._run_state(log, control, compaction)
        except (FormatError, InvalidArgument) as error:
            return BadLog(log, error)
        known.view = self._view(log, known, control, compaction, run_state)
        known.versions = (compaction_record.version, control_record.version)
        return known.view

    def _remembered(self, log: Log, control: ControlRecord, compaction: CompactionRecord) -> _Backlog:
        known = self._known.get(log)
        cursor, start = compaction.offset, control.log_start_offset
        if known is not None and (known.incarnation, known.cursor, known.log_start_offset) == (
            control.incarnation,
            cursor,
            start,
        ):
            return known
        anew = _Backlog(control.incarnation, cursor, start, max(cursor, start))
        if known is not None and known.incarnation == control.incarnation:
            anew.retained_at_ms = known.retained_at_ms
            anew.segments_since_merge = known.segments_since_merge + (cursor > known.cursor)
        else:
            # Its last retention is unknown: due soon, and not all logs at the same moment.
            interval_ms = self._rules.retention_interval_ms
            anew.retained_at_ms = self._context.now_ms() - interval_ms * self._context.random_bits(16) // 65_536
            anew.segments_since_merge = self._rules.merge_inputs_min if cursor > start else 0
        self._known[log] = anew
        return anew

    def _is_worth_a_scan(self, known: _Backlog, counter: int) -> bool:
        if counter <= known.next_offset or self._is_full(known):
            return False
        return known.young_ms is None or known.young_ms <= self._old_before_ms()

    def _is_full(self, known: _Backlog) -> bool:
        """A run could not take more: no need to count on."""
        return (
            known.byte_length >= self._rules.trigger_bytes
            or known.entries >= self._rules.max_entries_per_run
            or known.next_offset - known.floor >= self._rules.max_offsets_per_run
        )

    def _old_before_ms(self) -> int:
        """As `compact_once` judges: no age asked for means none looked at."""
        return self._context.now_ms() - self._rules.min_age_ms if self._rules.min_age_ms else 2**63 - 1

    async def _scan(self, log: Log, known: _Backlog, control: ControlRecord) -> None:
        known.young_ms = None
        start = offset_name(known.next_offset)
        while True:
            page = await self._context.metadata.scan(
                self._context.keys.index(log), start=start, limit=COMPACTOR_SCAN_PAGE_ENTRIES
            )
            for record in page:
                if not self._count(known, control, record) or self._is_full(known):
                    return
            if len(page) < COMPACTOR_SCAN_PAGE_ENTRIES:
                return
            start = after(last_segment(page[-1].key.path))

    def _count(self, known: _Backlog, control: ControlRecord, record: Record) -> bool:
        """False: a run could not go on from here."""
        entry = entry_of(record)
        verdict = judge(
            entry,
            incarnation=known.incarnation,
            cursor=known.cursor,
            log_start_offset=known.log_start_offset,
        )
        if verdict in (EntryVerdict.PHANTOM, EntryVerdict.BELOW_START):
            return True
        if verdict is EntryVerdict.FROM_THE_FUTURE or not entry.covers(known.next_offset):
            return False
        if entry.value.type != "WAL" or entry.end_offset >= control.sequence_counter:
            return False
        if entry.value.created_at_ms > self._old_before_ms():
            known.young_ms = entry.value.created_at_ms
            return False
        known.count(entry.end_offset, entry.value.byte_length or 0, entry.value.created_at_ms)
        return True

    async def _run_state(self, log: Log, control: ControlRecord, compaction: CompactionRecord) -> str:
        """Of the run in flight, as people are shown it; empty: none is."""
        run = run_of(control, compaction)
        if run is None:
            return ""
        found = await self._context.metadata.get(self._context.keys.index_entry(log, run.end_offset))
        return shown_state(run, None if found is None else entry_of(found))

    def _view(
        self, log: Log, known: _Backlog, control: ControlRecord, compaction: CompactionRecord, run_state: str
    ) -> LogBacklog:
        ready_bytes, ready_entries, next_offset, oldest_ms = (
            known.byte_length,
            known.entries,
            known.next_offset,
            known.oldest_ms,
        )
        pending, pending_is_old = control.pending, False
        if pending is not None and pending.incarnation == control.incarnation:
            pending_is_old = pending.created_at_ms <= self._old_before_ms()
            if pending_is_old and pending.start_offset == next_offset:
                # Not written yet: the next worker on the log settles it first.
                ready_bytes, ready_entries = ready_bytes + (pending.byte_length or 0), ready_entries + 1
                next_offset = pending.end_offset + 1
                oldest_ms = pending.created_at_ms if oldest_ms is None else min(oldest_ms, pending.created_at_ms)
        return LogBacklog(
            log=log,
            incarnation=control.incarnation,
            cursor=compaction.offset,
            counter=control.sequence_counter,
            lag_offsets=max(0, control.sequence_counter - known.floor),
            fenced=control.log_state == "FENCED",
            run_state=run_state,
            ready_bytes=ready_bytes,
            ready_entries=ready_entries,
            ready_offsets=next_offset - known.floor,
            oldest_created_at_ms=oldest_ms,
            pending=pending is not None,
            pending_is_old=pending_is_old,
            segments_since_merge=known.segments_since_merge,
            retained_at_ms=known.retained_at_ms,
        )
