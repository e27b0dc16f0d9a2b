"""Audit of one log's metadata: everything that can be judged without opening an object.

Tiling, cursor, incarnations and producer snapshot are rules of `llog.log.inspect.invariants`; this module adds
phantoms, entries below the start, levels, epochs, counts, `pending`, the run in flight and the catalogue.

The log changes meanwhile, so a finding counts when two inspections show it, the second of them strict and coherent
(`llog.log.inspect.coherent`). A log on which inspections cannot agree is unsettled, never damaged.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from llog.errors import FormatError, InvalidArgument
from llog.formats.values import CompactionRun, IndexEntry, Pending, SegmentRecord
from llog.limits import LOG_CHECK_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.control import index_entry_of
from llog.log.index import Entry, EntryVerdict, entry_of, judge_by
from llog.log.inspect.coherent import LogGuards, is_coherent, read_guards
from llog.log.inspect.invariants import Tiling, snapshot_faults
from llog.log.keys import OFFSET_MAX, Log
from llog.log.rewrite.segments import list_segments
from llog.pipeline.audit.catalogue import catalogue_findings
from llog.pipeline.audit.objects import Catalogued
from llog.pipeline.audit.report import Finding, damage, damage_of, leftover
from llog.pipeline.audit.task import Claim
from llog.stores.metadata.port import Record


class LogInspection(NamedTuple):
    findings: list[Finding]
    claims: list[Claim]
    """One per object that must exist."""
    named: set[str]
    """URIs that keep an object alive; phantoms name nothing."""
    records: dict[str, SegmentRecord]
    """The catalogue, by URI."""
    coherent: bool
    whole: bool = True
    """False: a record could not be read, so more objects may be named."""


class AuditedLog(NamedTuple):
    inspection: LogInspection
    """The last one, with confirmed findings only."""
    settled: bool


NOTHING = LogInspection([], [], set(), {}, True)


async def audit_log(context: LogContext, log: Log, *, being_deleted: bool = False) -> AuditedLog:
    suspected: set[Finding] = set()
    confirmed: list[Finding] = []
    for round_number in range(LOG_CHECK_ROUNDS_MAX):
        last = await inspect_metadata(context, log, strict=round_number > 0, being_deleted=being_deleted)
        if not last.findings:
            return AuditedLog(last, True)
        if last.coherent and round_number > 0:
            confirmed = [finding for finding in last.findings if finding in suspected]
            if len(confirmed) == len(last.findings):
                return AuditedLog(last, True)
        suspected = set(last.findings)
        await context.back_off(round_number)
    return AuditedLog(last._replace(findings=confirmed), False)


async def inspect_metadata(
    context: LogContext, log: Log, *, strict: bool, being_deleted: bool = False
) -> LogInspection:
    """One inspection. A log that was never created has no findings."""
    try:
        head = await read_guards(context, log, strict=strict)
        if head is None:
            return await _without_control(context, log, strict=strict)
        if head.control.log_state == "DELETED":
            return NOTHING if being_deleted else await _tombstone(context, log, head, strict=strict)
        inspector = _Inspector(context, log, head, strict=strict)
        inspector.check_incarnations()
        await inspector.check_index()
        await inspector.check_catalogue()
        faults = await snapshot_faults(context, log, head, strict=strict)
        inspector.findings += [damage_of(log, fault) for fault in faults]
        return await inspector.finish()
    except (FormatError, InvalidArgument) as error:
        return NOTHING._replace(findings=[damage(log, "values", "unreadable value", str(error))], whole=False)


async def _without_control(context: LogContext, log: Log, *, strict: bool) -> LogInspection:
    """A control record is written before the first entry and never removed."""
    entries = await context.metadata.scan(context.keys.index(log), limit=1, strict=strict)
    reason = "the log has entries and no control record"
    return NOTHING._replace(findings=[damage(log, "I4", "no control record", reason)] if entries else [])


async def _tombstone(context: LogContext, log: Log, head: LogGuards, *, strict: bool) -> LogInspection:
    """A deleted log names nothing; vacuum removes records that late processes added."""
    findings = []
    async for item in context.metadata.scan_all(context.keys.index(log), strict=strict):
        entry = _entry_or_none(item)
        if entry is not None and entry.value.incarnation <= head.control.incarnation:
            reason = f"an entry of incarnation {entry.value.incarnation} of a log that is deleted"
            findings.append(leftover(log, "R9", "phantom", reason, *_where(entry)))
    for record, _ in await list_segments(context, log):
        if record.incarnation <= head.control.incarnation:
            reason = f"record {record.segment_id} of a log that is deleted"
            start, end, uri = record.start_offset, record.end_offset, record.data_key
            findings.append(leftover(log, "R9", "phantom record", reason, start, end, uri))
    after = await read_guards(context, log)
    return NOTHING._replace(findings=findings, coherent=is_coherent(head, after))


class _Inspector:
    """One inspection of one log that is not deleted."""

    def __init__(self, context: LogContext, log: Log, head: LogGuards, *, strict: bool) -> None:
        self._context, self._log, self._head, self._strict = context, log, head, strict
        # The counter is read again after the entries; until then no entry counts as beyond it.
        self._tiling = Tiling(head.control, head.compaction, counter_after=OFFSET_MAX + 1)
        self.findings: list[Finding] = []
        self._claims: list[Claim] = []
        self._named: set[str] = set()
        self._records: dict[str, SegmentRecord] = {}
        self._compacted: dict[str, Entry] = {}
        self._epoch = 0
        self._last_offset = -1
        self._whole = True

    def check_incarnations(self) -> None:
        """`llog.log.inspect.invariants` reports lower incarnations. The compaction record was read first, so a
        concurrent re-creation never makes it the later one."""
        control, compaction = self._head.control, self._head.compaction
        if compaction is not None and compaction.incarnation > control.incarnation:
            reason = f"compaction record of incarnation {compaction.incarnation} under a control record of incarnation"
            self.findings.append(damage(self._log, "I11", "later incarnation", f"{reason} {control.incarnation}"))

    # -- entries -------------------------------------------------------------------------------------------------------
    async def check_index(self) -> None:
        metadata, keys, log = self._context.metadata, self._context.keys, self._log
        run = self._tiling.run
        if run is not None:
            record = await metadata.get(keys.index_entry(log, run.end_offset), strict=self._strict)
            self._tiling.end_entry = _entry_or_none(record)
            self._check_run(run)
        async for item in metadata.scan_all(keys.index(log), strict=self._strict):
            entry = _entry_or_none(item)
            if entry is None:
                self.findings.append(damage(log, "I4", "unreadable", f"{item.key.path} is not an index entry"))
                self._whole = False
            else:
                self._check_entry(entry)
        if self._head.control.pending is not None:
            self._check_pending(self._head.control.pending)
        self.findings += [damage_of(log, fault) for fault in self._tiling.finish()]

    def _check_entry(self, entry: Entry) -> None:
        control, value = self._head.control, entry.value
        verdict = judge_by(control, self._tiling.cursor, entry)
        if value.incarnation == control.incarnation:
            self._last_offset = entry.end_offset
        if verdict is EntryVerdict.PHANTOM:
            self._check_phantom(entry)
        else:
            self._named.add(value.data_key)
        if verdict is EntryVerdict.BELOW_START:
            reason = f"ends below the log's start {control.log_start_offset}; retention removes it"
            self._leftover("R9", "below start", entry, reason)
        if self._tiling.add(entry):
            self._claim(entry)
            self._check_numbers(entry)
            if value.type == "COMPACTED":
                self._compacted[value.data_key] = entry
                self._check_cursor(entry)

    def _check_phantom(self, entry: Entry) -> None:
        run = self._tiling.run
        if run is not None and run.start_offset <= entry.start_offset and entry.end_offset <= run.end_offset:
            return  # its run is about to remove it
        if entry.value.incarnation < self._head.control.incarnation:
            reason = f"of incarnation {entry.value.incarnation}, the log of {self._head.control.incarnation}"
        else:
            reason = f"a WAL entry below the cursor {self._tiling.cursor}, which no run in flight removes"
        self._leftover("R9", "phantom", entry, reason)

    def _check_numbers(self, entry: Entry) -> None:
        value = entry.value
        if value.type == "WAL" and value.level != 0:
            self._damage("levels", "level", entry, f"a WAL entry of level {value.level}")
        if value.record_count is not None and value.record_count > value.msg_count:
            self._damage("counts", "count", entry, f"{value.record_count} records at {value.msg_count} offsets")
        if not self._epoch <= value.epoch <= self._head.control.epoch:
            reason = f"epoch {value.epoch}, behind epoch {self._epoch}, in a log of epoch {self._head.control.epoch}"
            self._damage("epochs", "epoch", entry, reason)
        self._epoch = max(self._epoch, value.epoch)

    def _check_cursor(self, segment: Entry) -> None:
        """All segments end below the cursor, except that of a run which is about to move it: compaction would never
        continue from inside a segment."""
        run, cursor, compaction = self._tiling.run, self._tiling.cursor, self._head.compaction
        if compaction is None or compaction.incarnation != self._head.control.incarnation:
            return  # there is no cursor; another check reports this
        if segment.end_offset >= cursor and (run is None or run.data_key != segment.value.data_key):
            self._damage("I6", "cursor", segment, f"a segment that does not end below the cursor {cursor}")

    def _claim(self, entry: Entry) -> None:
        self._named.add(entry.value.data_key)
        self._claims.append(claim_of(self._log, entry.end_offset, entry.value))

    # -- work under way ---------------------------------------------------------------------------------------------
    def _check_pending(self, pending: Pending) -> None:
        control, entry = self._head.control, Entry(pending.end_offset, index_entry_of(pending), -1)
        wrong = []
        if pending.end_offset - pending.start_offset + 1 != pending.msg_count:
            wrong.append(f"{pending.msg_count} messages at {pending.start_offset} … {pending.end_offset}")
        if pending.incarnation != control.incarnation:
            wrong.append(f"of incarnation {pending.incarnation} in a log of incarnation {control.incarnation}")
        if pending.epoch > control.epoch:
            wrong.append(f"of epoch {pending.epoch} in a log of epoch {control.epoch}")
        for reason in wrong:
            self._damage("pending", "pending", entry, reason)
        self._claim(entry)

    def _check_run(self, run: CompactionRun) -> None:
        control, entry = self._head.control, Entry(run.end_offset, run.entry, -1)
        wrong = []
        if (run.entry.data_key, run.entry.msg_count, run.entry.type) != (run.data_key, run.msg_count, "COMPACTED"):
            wrong.append("its entry is not that of its segment")
        if run.end_offset - run.start_offset + 1 != run.msg_count:
            wrong.append(f"{run.msg_count} offsets at {run.start_offset} … {run.end_offset}")
        if not run.start_offset <= run.last_start_offset <= run.end_offset < control.sequence_counter:
            wrong.append(f"{run.start_offset} … {run.end_offset} does not end below the counter")
        if run.entry.incarnation != control.incarnation:
            wrong.append(f"of incarnation {run.entry.incarnation} in a log of incarnation {control.incarnation}")
        for reason in wrong:
            self._damage("in_flight", "run", entry, f"run {run.compaction_id}: {reason}")
        if run.created_at_ms < self._grace_ago_ms():
            reason = f"run {run.compaction_id} ({run.state}) is in flight for longer than a grace"
            self._leftover("in_flight", "stalled run", entry, reason)
        self._claim(entry)

    # -- the catalogue -------------------------------------------------------------------------------------------------
    async def check_catalogue(self) -> None:
        known = await list_segments(self._context, self._log)
        self._records = {segment.record.data_key: segment.record for segment in known}
        self.findings += catalogue_findings(
            self._log,
            known,
            self._compacted,
            incarnation=self._head.control.incarnation,
            run=self._tiling.run,
            before_ms=self._grace_ago_ms(),
            own_objects=self._context.keys.segment_objects(self._log),
        )

    def _grace_ago_ms(self) -> int:
        return self._context.now_ms() - self._context.options.vacuum_grace_ms

    # -- the end -------------------------------------------------------------------------------------------------------
    async def finish(self) -> LogInspection:
        after = await read_guards(self._context, self._log)
        coherent = is_coherent(self._head, after)
        if after is not None and coherent and self._last_offset >= after.control.sequence_counter:
            reason = "an entry of offsets that were never assigned"
            counter = after.control.sequence_counter
            self.findings.append(damage(self._log, "I4", "beyond counter", reason, counter, self._last_offset))
        claims = [self._with_catalogue(claim) for claim in self._claims]
        return LogInspection(self.findings, claims, self._named, self._records, coherent, self._whole)

    def _with_catalogue(self, claim: Claim) -> Claim:
        record = self._records.get(claim.entry.data_key) if claim.entry.type == "COMPACTED" else None
        return claim if record is None else replace(claim, catalogued=Catalogued.of(record))

    def _damage(self, rule: str, kind: str, entry: Entry, reason: str) -> None:
        self.findings.append(damage(self._log, rule, kind, reason, *_where(entry)))

    def _leftover(self, rule: str, kind: str, entry: Entry, reason: str) -> None:
        self.findings.append(leftover(self._log, rule, kind, reason, *_where(entry)))


def _where(entry: Entry) -> tuple[int, int, str]:
    return entry.start_offset, entry.end_offset, entry.value.data_key


def claim_of(log: Log, end_offset: int, value: IndexEntry) -> Claim:
    entry = replace(value, producers=()) if value.producers else value
    return Claim(topic=log.topic, partition=log.partition, end_offset=end_offset, entry=entry)


async def still_claims(context: LogContext, claim: Claim) -> bool:
    """By strict reads: does an entry, the pending append or the run in flight still make this claim?"""
    head = await read_guards(context, claim.log)
    if head is None or head.control.log_state == "DELETED":
        return False
    control, named = head.control, list[tuple[int, IndexEntry]]()
    if control.pending is not None:
        named.append((control.pending.end_offset, index_entry_of(control.pending)))
    run = None if head.compaction is None else head.compaction.in_flight
    if run is not None:
        named.append((run.end_offset, run.entry))
    record = await context.metadata.get(context.keys.index_entry(claim.log, claim.end_offset), strict=True)
    entry = _entry_or_none(record)
    if entry is not None and judge_by(control, head.cursor, entry) is EntryVerdict.VALID:
        named.append((entry.end_offset, entry.value))
    return any(claim_of(claim.log, end, value).entry == claim.entry and end == claim.end_offset for end, value in named)


def _entry_or_none(record: Record | None) -> Entry | None:
    if record is None:
        return None
    try:
        return entry_of(record)
    except (FormatError, InvalidArgument):
        return None
