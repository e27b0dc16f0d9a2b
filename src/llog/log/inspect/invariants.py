"""Check the invariants of a log while it is in use.

    I4   every offset from the log's start up to its counter has exactly one valid covering entry, or is pending
    I5   valid entries never overlap, except a run's segment over the entries it replaces while the run is in flight
    I6   the compaction cursor is not beyond the counter
    I8   every object that a valid entry references exists and matches the entry   (`check_objects`)
    I11  no record of a later incarnation of the topic exists under this one
    I12  the producer snapshot has not passed the counter, and the entries from it on tile without a hole

The rules are pure functions of the values read. `check_log` reads them, and since the log changes meanwhile, it reports
only faults that a strict, coherent second read (`coherent`) confirms. `judge` alone decides which entries are valid
(R9).
"""

from __future__ import annotations

from typing import NamedTuple

from llog.errors import FormatError, InvalidArgument, PartitionNotInitialized
from llog.formats.values import CompactionRecord, ControlRecord, ProducerSnapshot, decode_value
from llog.limits import LOG_CHECK_FAULTS_MAX, LOG_CHECK_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.inspect.check_objects import LogFault, ObjectCheck
from llog.log.inspect.coherent import LogGuards, cursor_of, is_coherent, is_swapped, read_guards, run_of
from llog.log.keys import OFFSET_MAX, Log, offset_name
from llog.stores.metadata.port import Record


class LogCheck(NamedTuple):
    """The result of checking one log."""

    log: Log
    faults: tuple[LogFault, ...]
    """Each of them confirmed by a second read."""
    settled: bool
    """False: the log changed so much that faults could be neither confirmed nor refuted; check again."""
    entries: int
    objects: int
    rounds: int


class Tiling:
    """Takes the entries in key order, one at a time, and keeps none of them."""

    def __init__(
        self, control: ControlRecord, compaction: CompactionRecord | None, *, counter_after: int | None = None
    ) -> None:
        self.control, self.compaction = control, compaction
        self.counter_after = control.sequence_counter if counter_after is None else counter_after
        self.cursor, self.run = cursor_of(control, compaction), run_of(control, compaction)
        self.end_entry: Entry | None = None
        """The entry at the end key of the run in flight; set before the first `add`."""
        self.faults: list[LogFault] = _head_faults(control, compaction)
        self.valid = 0
        self._position = control.log_start_offset
        self._pending_seen = control.pending is None

    def add(self, entry: Entry) -> bool:
        """True when the entry is valid, so that its object must exist."""
        control = self.control
        verdict = judge(
            entry,
            incarnation=control.incarnation,
            cursor=self.cursor,
            log_start_offset=control.log_start_offset,
        )
        if verdict is EntryVerdict.FROM_THE_FUTURE:
            reason = f"entry of incarnation {entry.value.incarnation}, control record of {control.incarnation}"
            self._fault("I11", "later incarnation", entry.start_offset, entry.end_offset, reason)
        if verdict is not EntryVerdict.VALID:
            return False
        if entry.end_offset >= control.sequence_counter:
            if entry.end_offset >= self.counter_after:
                reason = f"ends at or beyond the counter {self.counter_after}"
                self._fault("I4", "beyond counter", entry.start_offset, entry.end_offset, reason)
            return False
        if self._is_being_replaced(entry):
            return True
        self._cover(entry.start_offset, entry.end_offset)
        self.valid += 1
        return True

    def finish(self) -> list[LogFault]:
        pending, counter = self.control.pending, self.control.sequence_counter
        if pending is not None and self._position < counter and self._position <= pending.end_offset:
            self._cover(pending.start_offset, pending.end_offset)
        if self._position < counter:
            self._fault("I4", "gap", self._position, counter - 1, "no valid entry covers it, and none is pending")
        return self.faults

    def _is_being_replaced(self, entry: Entry) -> bool:
        """The run in flight has replaced this entry and not removed it yet (the exception of I5)."""
        run = self.run
        return (
            run is not None
            and run.start_offset <= entry.start_offset
            and entry.end_offset < run.end_offset
            and is_swapped(run, self.end_entry)
        )

    def _cover(self, start_offset: int, end_offset: int) -> None:
        position = self._position
        if start_offset > position:
            self._fault("I4", "gap", position, start_offset - 1, "no valid entry covers it, and none is pending")
        elif start_offset < position and (position > self.control.log_start_offset):
            end = min(end_offset, position - 1)
            self._fault("I5", "overlap", start_offset, end, f"covered twice; again by the entry at {end_offset}")
        self._position = max(position, end_offset + 1)

    def _fault(self, invariant: str, kind: str, start_offset: int, end_offset: int, reason: str) -> None:
        if len(self.faults) < LOG_CHECK_FAULTS_MAX:
            self.faults.append(LogFault(invariant, kind, start_offset, end_offset, reason))


def _head_faults(control: ControlRecord, compaction: CompactionRecord | None) -> list[LogFault]:
    """Contradictions within the control record, or between it and the compaction record."""
    faults, counter = [], control.sequence_counter
    if control.log_start_offset > counter:
        reason = f"the log starts at {control.log_start_offset}, beyond its counter {counter}"
        faults.append(LogFault("I4", "log start", counter, control.log_start_offset, reason))
    pending = control.pending
    if pending is not None and pending.end_offset != counter - 1:
        reason = f"the pending append does not end below the counter {counter}"
        faults.append(LogFault("I4", "pending", pending.start_offset, pending.end_offset, reason))
    if compaction is None:
        faults.append(LogFault("I6", "no compaction record", 0, 0, "the control record exists without one"))
    elif compaction.incarnation < control.incarnation:
        reason = f"compaction record of incarnation {compaction.incarnation}, control record of {control.incarnation}"
        faults.append(LogFault("I11", "earlier incarnation", 0, 0, reason))
    elif compaction.incarnation == control.incarnation and compaction.offset > counter:
        reason = f"the cursor {compaction.offset} is beyond the counter {counter}"
        faults.append(LogFault("I6", "cursor", counter, compaction.offset, reason))
    return faults


class SnapshotTiling:
    """I12: from the snapshot's offset on, WAL entries tile up to the counter. Entries as for `Tiling`."""

    def __init__(self, control: ControlRecord, head: ProducerSnapshot | None, pages_found: int) -> None:
        self.control, self.head = control, head
        self.faults: list[LogFault] = []
        self._position = -1
        if head is None or head.incarnation != control.incarnation:
            self._fault("no snapshot", 0, 0, "this incarnation of the topic has no producer snapshot")
            return
        self._position = head.as_of
        if head.as_of > control.sequence_counter:
            reason = f"as of {head.as_of}, beyond the counter {control.sequence_counter}"
            self._fault("snapshot", control.sequence_counter, head.as_of, reason)
        if pages_found != head.pages:
            self._fault("snapshot pages", head.as_of, head.as_of, f"{pages_found} of {head.pages} pages exist")

    def add(self, entry: Entry) -> None:
        head, control = self.head, self.control
        if head is None or self.faults or entry.value.incarnation != control.incarnation:
            return
        if entry.end_offset < head.as_of or entry.end_offset >= control.sequence_counter:
            return
        if entry.value.type != "WAL" or entry.start_offset != self._position:
            reason = (
                f"{entry.value.type} entry {entry.start_offset} … {entry.end_offset} where {self._position} follows"
            )
            self._fault("snapshot hole", self._position, entry.end_offset, reason)
        self._position = entry.end_offset + 1

    def finish(self) -> list[LogFault]:
        pending, counter = self.control.pending, self.control.sequence_counter
        end = counter if pending is None else pending.start_offset
        if not self.faults and self._position not in (end, counter) and self._position < counter:
            self._fault("snapshot hole", self._position, end, "no entry shows what producers wrote there")
        return self.faults

    def _fault(self, kind: str, start_offset: int, end_offset: int, reason: str) -> None:
        self.faults.append(LogFault("I12", kind, start_offset, end_offset, reason))


async def check_log(context: LogContext, log: Log, *, deep: bool = False) -> LogCheck:
    """Check a log. `deep` also reads all bytes and compares their checksums.

    Raises `PartitionNotInitialized` for a log that does not exist.
    """
    suspected: set[LogFault] = set()
    confirmed: tuple[LogFault, ...] = ()
    async for round_number in context.rounds(LOG_CHECK_ROUNDS_MAX):
        result = await _check_once(context, log, deep=deep, strict=round_number > 0)
        if not result.faults:
            return LogCheck(log, (), True, result.entries, result.objects, round_number + 1)
        if result.coherent and round_number > 0:
            # A fault that two reads show is not an artefact of reading while the log changed.
            confirmed = tuple(fault for fault in result.faults if fault in suspected)
            if len(confirmed) == len(result.faults):
                return LogCheck(log, confirmed, True, result.entries, result.objects, round_number + 1)
        suspected = set(result.faults)
    return LogCheck(log, confirmed, False, result.entries, result.objects, LOG_CHECK_ROUNDS_MAX)


class _CheckRound(NamedTuple):
    faults: list[LogFault]
    coherent: bool
    entries: int
    objects: int


async def _check_once(context: LogContext, log: Log, *, deep: bool, strict: bool) -> _CheckRound:
    head = await read_guards(context, log, strict=strict) or await read_guards(context, log)
    if head is None or head.control.log_state == "DELETED":
        raise PartitionNotInitialized(*log)
    objects = ObjectCheck(context, log, deep=deep)
    try:
        walked = await _walk_index(context, log, head, objects, strict=strict)
        if head.control.pending is not None:
            await objects.add_pending(head.control.pending)
        await objects.finish()
    finally:
        await objects.close()
    faults = [*walked.faults, *objects.faults, *await snapshot_faults(context, log, head, strict=strict)]
    after = await read_guards(context, log)
    coherent = is_coherent(head, after)
    if after is not None and coherent and walked.last_offset >= after.control.sequence_counter:
        counter = after.control.sequence_counter
        faults.append(
            LogFault("I4", "beyond counter", counter, walked.last_offset, "these offsets were never assigned")
        )
    return _CheckRound(faults, coherent, walked.entries, objects.checked)


class _Walked(NamedTuple):
    faults: list[LogFault]
    entries: int
    last_offset: int
    """The last offset of this incarnation."""


async def _walk_index(context: LogContext, log: Log, head: LogGuards, objects: ObjectCheck, *, strict: bool) -> _Walked:
    # The counter is read again after the entries, so none counts as beyond it here.
    tiling = Tiling(head.control, head.compaction, counter_after=OFFSET_MAX + 1)
    if tiling.run is not None:
        found = await context.metadata.get(context.keys.index_entry(log, tiling.run.end_offset), strict=strict)
        tiling.end_entry = _entry_or_none(found)
    unread: list[LogFault] = []
    entries, last_offset = 0, -1
    async for record in context.metadata.scan_all(context.keys.index(log), strict=strict):
        entries += 1
        entry = _entry_or_none(record)
        if entry is None:
            if len(unread) < LOG_CHECK_FAULTS_MAX:
                unread.append(LogFault("I4", "unreadable", 0, 0, f"{record.key.path} is not an index entry"))
            continue
        if entry.value.incarnation == head.control.incarnation:
            last_offset = entry.end_offset
        if tiling.add(entry):
            await objects.add(entry)
    return _Walked([*tiling.finish(), *unread], entries, last_offset)


async def snapshot_faults(context: LogContext, log: Log, head: LogGuards, *, strict: bool) -> list[LogFault]:
    found = await context.metadata.get(context.keys.producers(log), strict=strict)
    snapshot = None if found is None else decode_value(ProducerSnapshot, found.value, found.key.path)
    pages = 0
    if snapshot is not None and snapshot.pages:
        keys = [context.keys.producer_page(log, snapshot.as_of, page) for page in range(snapshot.pages)]
        pages = sum(page is not None for page in await context.metadata.get_many(keys, strict=strict))
    tiling = SnapshotTiling(head.control, snapshot, pages)
    if not tiling.faults:
        assert snapshot is not None
        start = offset_name(snapshot.as_of)
        async for record in context.metadata.scan_all(context.keys.index(log), start=start, strict=strict):
            entry = _entry_or_none(record)
            if entry is not None:
                tiling.add(entry)
    return tiling.finish()


def _entry_or_none(record: Record | None) -> Entry | None:
    if record is None:
        return None
    try:
        return entry_of(record)
    except (FormatError, InvalidArgument):
        return None
