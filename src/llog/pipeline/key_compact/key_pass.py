"""One pass of key compaction over some logs: scan, aggregate, rewrite, publish.

- Groups of segments of a log are published in rising offset order, and none after a group that could not be published:
  a tombstone goes only after everything older of its key, so a deleted value never reappears (see `plan_groups`).
- A group is published as soon as it is written and its turn has come: vacuum deletes an object that nothing names for
  longer than the grace.
- The number of concurrent tasks never exceeds the number that share the reading speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from llog.errors import LlogError, LogBusy, PartitionNotInitialized
from llog.formats.values import ControlRecord, SegmentRecord
from llog.limits import KEY_COMPACT_LEVEL
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log, offset_name
from llog.log.read.fetch import is_segment
from llog.log.rewrite import segments
from llog.log.rewrite.publish import Choice, KnownCompaction, Run, finish, planned_run, publish
from llog.pipeline.key_compact.aggregate import (
    KeyAggregate,
    ScratchPart,
    ScratchPlace,
    SegmentKeys,
    remove_pass,
    scratch_root,
)
from llog.pipeline.key_compact.batches import SegmentSource
from llog.pipeline.key_compact.plan import (
    KEY_COMPACT_RACES_MAX,
    LogCandidate,
    ScannedEntry,
    inspect_log,
    plan_groups,
    settled_compaction,
)
from llog.pipeline.key_compact.report import KeyCompacted, KeyCompactOptions
from llog.pipeline.key_compact.tasks import (
    REWRITE_KEYS,
    SCAN_KEYS,
    KeyRewrite,
    KeyRewritten,
    KeyScan,
    RewriteSource,
    ScannedSegment,
)
from llog.pipeline.runtime.tasks import Item, Result, Task, TaskFailed, TaskRunner
from llog.stores.metadata.port import after

Ending = Literal["published", "changed"]


async def publish_group(
    context: LogContext, log: Log, control: ControlRecord, entries: Sequence[Entry], written: KeyRewritten
) -> Ending:
    """`changed`: the entries were replaced, or vacuum may have deleted the new segment; the log must be planned again.
    Vacuum deletes a segment that was not published."""
    taken = Run(tuple(entries))
    await segments.register(context, log, _segment_record(control, taken, written))
    chosen = Choice("KEY_COMPACT", KEY_COMPACT_LEVEL, taken)
    run = planned_run(
        control.incarnation,
        chosen,
        written.segment_id,
        written.segment.as_segment(),
        written.uri,
        written.created_at_ms,
    )
    for round_number in range(KEY_COMPACT_RACES_MAX):
        record = await settled_compaction(context, log, control)
        stand = await _still_stand(context, log, control, record, taken)
        if not stand:
            # Perhaps this very run replaced them: an attempt without an answer may have succeeded late, and another
            # process may have finished the run.
            return "published" if (await finish(context, log, control, run)).done else "changed"
        if run.created_at_ms < record.value.segment_horizon_ms:
            return "changed"
        if await publish(context, log, record, run):
            return "published" if (await finish(context, log, control, run)).done else "changed"
        await context.back_off(round_number)
    raise LogBusy(*log, f"other compactors changed it {KEY_COMPACT_RACES_MAX} times; try again")


async def _still_stand(
    context: LogContext, log: Log, control: ControlRecord, record: KnownCompaction, taken: Run
) -> bool:
    start, stop = offset_name(taken.start_offset), after(offset_name(taken.end_offset))
    valid: list[tuple[int, int]] = []
    async for item in context.metadata.scan_all(context.keys.index(log), start=start, stop=stop, strict=True):
        entry = entry_of(item)
        # Entries below the log's start count too: they exist, although no reader gets them.
        verdict = judge(entry, incarnation=control.incarnation, cursor=record.value.offset, log_start_offset=0)
        if verdict is EntryVerdict.VALID:
            valid.append((entry.end_offset, entry.version))
    return valid == [(entry.end_offset, entry.version) for entry in taken.entries]


def _segment_record(control: ControlRecord, taken: Run, written: KeyRewritten) -> SegmentRecord:
    return SegmentRecord(
        segment_id=written.segment_id,
        incarnation=control.incarnation,
        start_offset=taken.start_offset,
        end_offset=taken.end_offset,
        size_bytes=0,
        sources=taken.sources,
        state="COPY_SEGMENT_STARTED",
        state_changed_at_ms=written.created_at_ms,
        data_key=written.uri,
    )


# -- key_pass ----------------------------------------------------------------------------------------------------------

Progress = Callable[[str, int], None]
"""Receives the step ("scan" or "rewrite"), and the source bytes done since the last call."""
OnError = Callable[[LlogError], None]
_PLAN_AGAIN = ("ObjectNotFound", "ObjectRangeInvalid")
"""Errors of an entry that changed during the pass (R10)."""


@dataclass(slots=True)
class LogPass:
    """The progress of one log through the pass."""

    candidate: LogCandidate
    report: KeyCompacted
    scanned: dict[int, ScannedSegment] = field(default_factory=dict)
    """By position in the range; entries of bare payloads have no keys and are not scanned."""
    survivors: dict[int, ScratchPart] = field(default_factory=dict)

    @property
    def log(self) -> Log:
        return self.report.log

    @property
    def open(self) -> bool:
        return self.report.state == "compacted"

    def fail(self, failed: TaskFailed) -> None:
        self.report.fail(f"{failed.error_type}: {failed.error}", again=failed.error_type in _PLAN_AGAIN)

    def check_survivors(self) -> None:
        """The last record with a key always survives: a list without it is wrong, and nothing may be deleted by it."""
        last = max((position for position, scanned in self.scanned.items() if scanned.keyed_records), default=None)
        if last is not None and last not in self.survivors:
            self.report.fail("its last record with a key is not among the survivors: nothing was changed")

    def groups(self, target_bytes: int) -> list[list[ScannedEntry]]:
        entries = []
        for position, scanned in sorted(self.scanned.items()):
            part = self.survivors.get(position)
            entry = self.candidate.range.entries[position]
            entries.append(ScannedEntry(position, entry, scanned, 0 if part is None else part.rows))
        now_ms, retention_ms = self.candidate.now_ms, self.candidate.config.delete_retention_ms
        return plan_groups(entries, now_ms, delete_retention_ms=retention_ms, target_bytes=target_bytes)


class _ScanPlace(NamedTuple):
    """One segment to scan."""

    log_pass: LogPass
    position: int
    source: SegmentSource


class KeyPass:
    def __init__(
        self,
        context: LogContext,
        runner: TaskRunner,
        aggregate: KeyAggregate,
        options: KeyCompactOptions,
        on_progress: Progress,
        on_error: OnError = lambda _: None,
    ) -> None:
        self._context, self._runner, self._aggregate = context, runner, aggregate
        self._options, self._progress, self._on_error = options, on_progress, on_error
        self._slots = asyncio.Semaphore(options.tasks_at_once)

    async def run(self, logs: Sequence[Log]) -> list[KeyCompacted]:
        """Compact these logs together; returns one report each, in order."""
        begun = await asyncio.gather(*(self._begin(log) for log in logs))
        passes = [one for one in begun if isinstance(one, LogPass)]
        if passes:
            await self._run(passes)
        return [one.report if isinstance(one, LogPass) else one for one in begun]

    async def _begin(self, log: Log) -> LogPass | KeyCompacted:
        report = KeyCompacted(topic=log.topic, partition=log.partition)
        try:
            force, read_only = self._options.force, self._options.dry_run
            candidate = await inspect_log(self._context, log, report, force=force, read_only=read_only)
            return report if candidate is None else LogPass(candidate, report)
        except PartitionNotInitialized:
            return report  # the partition never had an append
        except LlogError as error:
            report.fail(str(error))
            return report

    async def _run(self, passes: Sequence[LogPass]) -> None:
        store = self._context.segments
        assert store is not None
        pass_id = new_object_id(self._context.now_ms(), self._context.random_bits)
        place = ScratchPlace(store.url, f"{scratch_root(self._context.keys.root)}{pass_id}/")
        try:
            await self._scan(passes, place)
            await self._find_survivors([one for one in passes if one.open], place)
            await self._rewrite([one for one in passes if one.open], place)
        finally:
            await remove_pass(store, place)

    # -- keys ----------------------------------------------------------------------------------------------------------
    async def _scan(self, passes: Sequence[LogPass], place: ScratchPlace) -> None:
        segments = [
            _ScanPlace(one, position, SegmentSource.of(entry))
            for one in passes
            for position, entry in enumerate(one.candidate.range.entries)
            if is_segment(entry)
        ]
        packed = _packed(segments, self._options.scan_task_bytes)
        rate = self._rate(len(packed))

        async def scan(places: Sequence[_ScanPlace]) -> None:
            item = KeyScan(tuple(one.source for one in places), place, rate)
            try:
                outcome = await self._run_one(SCAN_KEYS, item)
            except LlogError as error:  # the runner failed
                self._on_error(error)
                for one in places:
                    one.log_pass.report.fail(str(error))
                return
            if isinstance(outcome, TaskFailed):
                for one in places:
                    one.log_pass.fail(outcome)
                return
            for one, segment in zip(places, outcome.segments, strict=True):
                if segment.failed is not None:
                    one.log_pass.fail(segment.failed)
                elif segment.scanned is not None:
                    self._note_scan(one, segment.scanned)

        async with asyncio.TaskGroup() as group:
            for places in packed:
                group.create_task(scan(places))

    def _note_scan(self, place: _ScanPlace, scanned: ScannedSegment) -> None:
        place.log_pass.scanned[place.position] = scanned
        place.log_pass.report.segments_read += 1
        place.log_pass.report.records_before += scanned.records
        self._progress("scan", scanned.data_bytes)

    async def _find_survivors(self, passes: Sequence[LogPass], place: ScratchPlace) -> None:
        """All logs at once; if that fails, one by one, so that only logs with an error fail."""
        keys, owners = list[SegmentKeys](), list[tuple[LogPass, int]]()
        for number, one in enumerate(passes):
            for position, scanned in sorted(one.scanned.items()):
                end_offset = one.candidate.range.entries[position].end_offset
                keys.append(SegmentKeys(number, len(owners), end_offset, scanned.parts))
                owners.append((one, position))
        if not keys:
            return
        try:
            survivors = await self._aggregate.survivors(place, keys)
        except LlogError as error:
            self._on_error(error)
            if len(passes) == 1:
                passes[0].report.fail(str(error))
                return
            for one in passes:
                await self._find_survivors([one], place)
            return
        for number, part in survivors.items():
            log_pass, position = owners[number]
            log_pass.survivors[position] = part
        for one in passes:
            one.check_survivors()

    # -- segments ------------------------------------------------------------------------------------------------------
    async def _rewrite(self, passes: Sequence[LogPass], place: ScratchPlace) -> None:
        planned = [(one, one.groups(self._options.target_bytes)) for one in passes]
        rate = self._rate(sum(len(groups) for _, groups in planned))
        async with asyncio.TaskGroup() as group:
            for one, groups in planned:
                if groups:
                    group.create_task(self._rewrite_log(one, groups, place, rate))
                else:
                    one.report.state = "clean"

    async def _rewrite_log(
        self, one: LogPass, groups: Sequence[Sequence[ScannedEntry]], place: ScratchPlace, rate: float | None
    ) -> None:
        """Groups are written concurrently, as slots allow, and published one by one in order."""
        items = [self._item(one, group, place, rate) for group in groups]
        writing = [asyncio.create_task(self._written(item)) for item in items]
        try:
            for group, task in zip(groups, writing, strict=True):
                outcome = await task
                if isinstance(outcome, TaskFailed):
                    one.fail(outcome)
                    return
                if not self._options.dry_run and not await self._publish(one, group, outcome):
                    return
                self._note_rewrite(one.report, group, outcome)
        except LlogError as error:
            self._on_error(error)
            one.report.fail(str(error))
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)

    async def _written(self, item: KeyRewrite) -> KeyRewritten | TaskFailed:
        return await self._run_one(REWRITE_KEYS, item)

    def _item(self, one: LogPass, group: Sequence[ScannedEntry], place: ScratchPlace, rate: float | None) -> KeyRewrite:
        candidate = one.candidate
        sources = [RewriteSource(SegmentSource.of(each.entry), one.survivors.get(each.position)) for each in group]
        return KeyRewrite(
            topic=one.log.topic,
            partition=one.log.partition,
            incarnation=candidate.control.incarnation,
            level=KEY_COMPACT_LEVEL,
            root=self._context.keys.root,
            sources=tuple(sources),
            scratch=place,
            now_ms=candidate.now_ms,
            delete_retention_ms=candidate.config.delete_retention_ms,
            bytes_per_second=rate,
            dry_run=self._options.dry_run,
        )

    async def _publish(self, one: LogPass, group: Sequence[ScannedEntry], written: KeyRewritten) -> bool:
        entries = [each.entry for each in group]
        ending = await publish_group(self._context, one.log, one.candidate.control, entries, written)
        if ending == "changed":
            offsets = f"{entries[0].start_offset} … {entries[-1].end_offset}"
            one.report.fail(f"offsets {offsets} were rewritten meanwhile", again=True)
            return False
        one.report.clean_until = max(one.report.clean_until, entries[-1].end_offset + 1)
        return True

    def _note_rewrite(self, report: KeyCompacted, group: Sequence[ScannedEntry], written: KeyRewritten) -> None:
        report.segments_replaced += len(group)
        report.segments_written += 1
        report.superseded += written.superseded
        report.tombstones += written.tombstones
        report.bytes_before += sum(each.entry.value.byte_length or 0 for each in group)
        report.bytes_after += written.segment.byte_length
        self._progress("rewrite", sum(each.scanned.data_bytes for each in group))

    # -- tasks ---------------------------------------------------------------------------------------------------------
    def _rate(self, task_count: int) -> float | None:
        """One concurrent task's share of the reading speed."""
        whole = self._options.bytes_per_second
        return None if whole is None else whole / max(1, min(task_count, self._options.tasks_at_once))

    async def _run_one(self, task: Task[Item, Result], item: Item) -> Result | TaskFailed:
        async with self._slots:
            [outcome] = await self._runner.run(task, [item])
            return outcome


def _packed(places: Sequence[_ScanPlace], bytes_max: int) -> list[list[_ScanPlace]]:
    """Adjoining segments in one task, up to a size; a larger segment is a task of its own."""
    packed: list[list[_ScanPlace]] = []
    size_bytes = 0
    for place in places:
        length = place.source.data_length or bytes_max
        if not packed or size_bytes + length > bytes_max:
            packed.append([])
            size_bytes = 0
        packed[-1].append(place)
        size_bytes += length
    return packed
