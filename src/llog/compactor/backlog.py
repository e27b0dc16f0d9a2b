"""The backlog of each log, counted from the index and remembered, so that each entry is read about once.

An inspection reads the two records that guard a log, for many logs in one request. It reads the index only where new
entries arrived or grew old enough, from where the last inspection ended. Its result says when time alone will change
it, so that a log that does not change is not inspected before. The result may be stale: it only decides whether a visit
is worth it, and the visit reads the log again.

Counting stops where a run could not continue (a gap, an entry too young, another type). A log that was compacted, cut
by retention or created again is counted anew.

From time to time a log that changed is looked at as a whole, for retention and merges (`look`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from llog.compactor.look import Look, look
from llog.compactor.plan import LogBacklog, Rules
from llog.concurrency import batched
from llog.errors import FormatError, InvalidArgument
from llog.formats.values import CompactionRecord, ControlRecord, decode_value
from llog.limits import COMPACTOR_INSPECT_LOGS_MAX
from llog.log.context import LogContext
from llog.log.index import EntryVerdict, entry_of, judge
from llog.log.inspect.coherent import run_of, shown_state
from llog.log.keys import Log, offset_name
from llog.stores.metadata.port import Record, after, last_segment

COMPACTOR_SCANS_IN_FLIGHT_MAX: Final = 16
COMPACTOR_SCAN_PAGE_ENTRIES: Final = 256
# Offsets below the counter that no entry covers: the read was stale, or the entry is written late. Read again after the
# trigger age, within these bounds.
COMPACTOR_GAP_MS_MIN: Final = 1_000
COMPACTOR_GAP_MS_MAX: Final = 60_000


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
    """All offsets from the floor up to here are counted."""
    byte_length: int = 0
    entries: int = 0
    oldest_ms: int | None = None
    young_ms: int | None = None
    """Creation time of the entry at which counting stopped because it was too young."""
    segments_since_merge: int = 0
    changed_at_ms: int = 0
    looked_at_ms: int = 0
    look_at_ms: int | None = None
    """When the log is looked at as a whole; None: it did not change since the last look."""
    retain_at_ms: int | None = None
    """When retention has something to remove, according to that look."""
    view: LogBacklog | None = None
    """Result of the last inspection, at these versions of the two records."""
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
        """Forget all other logs; returns the forgotten ones."""
        wanted = set(logs)
        gone = [log for log in self._known if log not in wanted]
        for log in gone:
            del self._known[log]
        return gone

    def lagging(self) -> list[Log]:
        """Logs with appends that are not compacted."""
        return [log for log, known in self._known.items() if known.view is not None and known.view.lag_offsets]

    def compaction_version(self, log: Log) -> int | None:
        """Version of the compaction record at the last inspection."""
        known = self._known.get(log)
        return None if known is None or known.versions[0] < 0 else known.versions[0]

    def retained(self, log: Log) -> None:
        """Retention was tried; the log is looked at again an interval later."""
        if (known := self._known.get(log)) is not None:
            now_ms = self._context.now_ms()
            known.looked_at_ms, known.look_at_ms = now_ms, now_ms + self._rules.retention_interval_ms
            known.retain_at_ms, known.view = None, None

    def look_again(self, topics: Collection[str]) -> list[Log]:
        """The configs of these topics may have changed: their logs are looked at within an interval, not all at the
        same moment. Returns these logs."""
        logs = [log for log in self._known if log.topic in topics]
        for log in logs:
            known = self._known[log]
            known.look_at_ms, known.view = self._some_time_ms(), None
        return logs

    def nothing_to_merge(self, log: Log) -> None:
        if (known := self._known.get(log)) is not None:
            known.segments_since_merge, known.view = 0, None

    async def inspect(self, logs: Sequence[Log], *, strict: bool = False) -> list[LogBacklog | BadLog]:
        """The backlogs of the logs that exist, in order."""
        views: list[LogBacklog | BadLog] = []
        for batch in batched(logs, COMPACTOR_INSPECT_LOGS_MAX):
            # The compaction record before control: what it names was below the counter then.
            keys = [key(log) for log in batch for key in (self._context.keys.compaction, self._context.keys.control)]
            records = await self._context.metadata.get_many(keys, strict=strict)
            guards = zip(batch, records[::2], records[1::2], strict=True)
            inspections = [self._unchanged(*one) or self._inspect(*one) for one in guards]
            slow = [one for one in inspections if not isinstance(one, LogBacklog)]
            # All of them end before an error is raised: a straggler would count together with the next inspection.
            results = iter(await asyncio.gather(*slow, return_exceptions=True))
            for one in inspections:
                view = one if isinstance(one, LogBacklog) else next(results)
                if isinstance(view, BaseException):
                    raise view
                if view is not None:
                    views.append(view)
        return views

    def _unchanged(self, log: Log, compaction: Record | None, control: Record | None) -> LogBacklog | None:
        """The last result, if neither a change nor the time can alter it; most logs are idle most of the time."""
        known = self._known.get(log)
        if known is None or known.view is None or compaction is None or control is None:
            return None
        if known.versions != (compaction.version, control.version) or known.view.pending:
            return None
        if self._is_worth_a_scan(known, known.view.counter) or self._is_worth_a_look(known):
            return None
        return known.view

    async def _inspect(
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
            self._note_versions(known, (compaction_record.version, control_record.version))
            if self._is_worth_a_scan(known, control.sequence_counter):
                async with self._scans:
                    await self._scan(log, known, control)
            run_state = await self._run_state(log, control, compaction)
        except (FormatError, InvalidArgument) as error:
            return BadLog(log, error)
        if self._is_worth_a_look(known):
            async with self._scans:
                await self._look(log, known, control, compaction)
        known.view = self._view(log, known, control, compaction, run_state)
        return known.view

    def _note_versions(self, known: _Backlog, versions: tuple[int, int]) -> None:
        if known.versions == versions:
            return
        known.versions, known.changed_at_ms = versions, self._context.now_ms()
        if known.look_at_ms is None:
            known.look_at_ms = known.looked_at_ms + self._rules.retention_interval_ms

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
            anew.versions, anew.changed_at_ms = known.versions, known.changed_at_ms
            anew.looked_at_ms, anew.look_at_ms = known.looked_at_ms, known.look_at_ms
            anew.retain_at_ms = known.retain_at_ms
            anew.segments_since_merge = known.segments_since_merge + (cursor > known.cursor)
        else:
            # It was never looked at: soon, and not all logs at the same moment.
            anew.looked_at_ms, anew.look_at_ms = self._context.now_ms(), self._some_time_ms()
        self._known[log] = anew
        return anew

    def _some_time_ms(self) -> int:
        """A random instant within the next interval."""
        return self._context.now_ms() + self._rules.retention_interval_ms * self._context.random_bits(16) // 65_536

    def _is_worth_a_look(self, known: _Backlog) -> bool:
        """A look in the future was noted before the clock was set back: it may be long ago."""
        now_ms = self._context.now_ms()
        return known.looked_at_ms > now_ms or (known.look_at_ms is not None and known.look_at_ms <= now_ms)

    async def _look(self, log: Log, known: _Backlog, control: ControlRecord, compaction: CompactionRecord) -> None:
        try:
            seen = await look(self._context, log, control, compaction, self._rules)
        except (FormatError, InvalidArgument):
            seen = Look(self._context.now_ms(), is_mergeable=False)  # retention meets the same record and reports it
        known.looked_at_ms, known.look_at_ms = self._context.now_ms(), None
        known.retain_at_ms = seen.retain_at_ms
        if seen.is_mergeable:
            known.segments_since_merge = max(known.segments_since_merge, self._rules.merge_inputs_min)

    def _is_worth_a_scan(self, known: _Backlog, counter: int) -> bool:
        if counter <= known.next_offset or self._is_full(known):
            return False
        return known.young_ms is None or known.young_ms <= self._old_before_ms()

    def _is_full(self, known: _Backlog) -> bool:
        """A run could not take more, so counting ends."""
        return (
            known.byte_length >= self._rules.trigger_bytes
            or known.entries >= self._rules.max_entries_per_run
            or known.next_offset - known.floor >= self._rules.max_offsets_per_run
        )

    def _old_before_ms(self) -> int:
        """Judges as `compact_once` does: without a minimum age, no entry is too young."""
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
        """False: a run could not continue with this entry."""
        entry = entry_of(record)
        verdict = judge(
            entry, incarnation=known.incarnation, cursor=known.cursor, log_start_offset=known.log_start_offset
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
        """State of the run in flight for users; empty: there is no run."""
        run = run_of(control, compaction)
        if run is None:
            return ""
        record = await self._context.metadata.get(self._context.keys.index_entry(log, run.end_offset))
        return shown_state(run, None if record is None else entry_of(record))

    def _view(
        self, log: Log, known: _Backlog, control: ControlRecord, compaction: CompactionRecord, run_state: str
    ) -> LogBacklog:
        ready, pending, pending_is_old = known, control.pending, False
        if pending is not None and pending.incarnation == control.incarnation:
            pending_is_old = pending.created_at_ms <= self._old_before_ms()
            if pending_is_old and pending.start_offset == known.next_offset:
                # Its entry is not written yet: the next worker on the log settles it first.
                ready = replace(known)
                ready.count(pending.end_offset, pending.byte_length or 0, pending.created_at_ms)
        wakes_at_ms = self._wakes_at_ms(ready, control, pending_is_old=pending_is_old)
        return LogBacklog(
            log=log,
            incarnation=control.incarnation,
            cursor=compaction.offset,
            counter=control.sequence_counter,
            lag_offsets=max(0, control.sequence_counter - known.floor),
            fenced=control.log_state == "FENCED",
            run_state=run_state,
            ready_bytes=ready.byte_length,
            ready_entries=ready.entries,
            ready_offsets=ready.next_offset - known.floor,
            oldest_created_at_ms=ready.oldest_ms,
            pending=pending is not None,
            pending_is_old=pending_is_old,
            segments_since_merge=known.segments_since_merge,
            retain_at_ms=known.retain_at_ms,
            wakes_at_ms=wakes_at_ms,
            changed_at_ms=known.changed_at_ms,
        )

    def _wakes_at_ms(self, ready: _Backlog, control: ControlRecord, *, pending_is_old: bool) -> int | None:
        """When time alone changes the view: it is looked at as a whole, or more entries are old enough. Every offset
        below the counter has an entry or is pending (I4); what is neither counted nor young is read again."""
        instants = [] if ready.look_at_ms is None else [ready.look_at_ms]
        pending = control.pending
        if ready.young_ms is not None:
            instants.append(ready.young_ms + self._rules.min_age_ms)
        elif pending is not None and pending.incarnation == control.incarnation and not pending_is_old:
            instants.append(pending.created_at_ms + self._rules.min_age_ms)
        elif ready.next_offset < control.sequence_counter and not self._is_full(ready):
            pause_ms = min(max(self._rules.trigger_age_ms, COMPACTOR_GAP_MS_MIN), COMPACTOR_GAP_MS_MAX)
            instants.append(self._context.now_ms() + pause_ms)
        return min(instants, default=None)
