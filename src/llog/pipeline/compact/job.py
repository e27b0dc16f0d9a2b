"""The compaction job: WAL entries of many logs become segments, and each WAL blob is read once for all of them.

    report = await compact(context, LocalTasks(tools_of(context)))             # every log, up to its present end
    report = await compact(context, runner, [Log("orders", 0)], merge=True)

The driver claims logs, settles them, finishes runs left in flight, plans windows over all of them (`plan`), has a
runner rewrite the windows (`task`) and publishes log by log (`round`). It repeats rounds until every log has reached
the end that it had when the job first read it, so a growing log does not keep the job busy forever.

The driver may die anywhere. The next process that works on the log finishes its run in flight, vacuum removes segments
that were registered and not published, and the next job begins at the cursor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llog.concurrency import gather_bounded
from llog.errors import LlogError, LogBusy, LogDeleted, LogError, PartitionNotInitialized
from llog.limits import COMPACT_LOGS_AT_ONCE, COMPACT_REPLANS_MAX, COMPACT_ROUND_LOGS_MAX, LOG_MERGE_BYTES_DEFAULT
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.rewrite.publish import LOG_MERGE_INPUTS_MIN, Bounds, Choice, Run, select_run
from llog.pipeline.compact.plan import Resize, SegmentRules, Share, Sizing, plan_round, plan_shares
from llog.pipeline.compact.round import (
    CompactReport,
    LogPlan,
    LogPublished,
    LogReport,
    OnRun,
    SettledLog,
    entries_from,
    perform_round,
    settle_log,
)
from llog.pipeline.runtime.gather import gathered
from llog.pipeline.runtime.log_choice import claimed, live_logs
from llog.pipeline.runtime.tasks import TaskRunner

# How long the claims of a job outlive it when it dies, unless its caller says otherwise.
COMPACT_SESSION_TIMEOUT_MS: Final = 15_000

OnError = Callable[[Log, LlogError], None]
"""A log, and the error that ended work on it in this job."""


@dataclass(frozen=True, slots=True)
class CompactOptions:
    rules: SegmentRules = field(default_factory=SegmentRules)
    sizing: Sizing = field(default_factory=Sizing.in_process)
    resize: Resize | None = None
    """Called before every round instead of using `sizing`, where the number of cores may change."""
    start: Callable[[], Awaitable[bool]] | None = None
    """Starts the runner, once there is work for it; True: the sizing is another one now."""
    min_age_ms: int = 0
    """Younger entries are left alone (R4); 0: entries of any age are taken."""
    log_bytes_max: int | None = None
    """Of one log in one round; None: its share."""
    log_offsets_max: int = 2**62
    """The same in offsets."""
    once: bool = False
    """One piece of work per log: finish the run in flight, or compact what fits into one round; never both."""
    merge_bytes: int = LOG_MERGE_BYTES_DEFAULT
    merge_inputs_min: int = LOG_MERGE_INPUTS_MIN

    async def sized(self) -> Sizing:
        return self.sizing if self.resize is None else await self.resize()

    async def started(self) -> bool:
        """Whether the runner was started by this call."""
        return self.start is not None and await self.start()


async def compact(
    context: LogContext,
    runner: TaskRunner,
    logs: Sequence[Log] | None = None,
    *,
    options: CompactOptions | None = None,
    merge: bool = False,
    owner: str = "pipeline",
    session_timeout_ms: int = COMPACT_SESSION_TIMEOUT_MS,
    on_run: OnRun = lambda _: None,
) -> CompactReport:
    """Claim the logs (None: all), compact them and, with `merge`, make larger segments of small neighbours.

    The report holds failures of single logs; a failure of the whole job (the runner, the metadata store) is raised.
    """
    from llog.pipeline.compact.merge import merge_claimed

    options = CompactOptions() if options is None else options
    began_ms, report = context.now_ms(), CompactReport()
    found = await live_logs(context, logs)
    async with (
        gathered(context) as context,
        claimed(context, found.incarnations, owner=owner, session_timeout_ms=session_timeout_ms) as taken,
    ):
        reports = await compact_claimed(context, runner, taken.ours, report, options, on_run)
        if merge:
            await merge_claimed(context, runner, reports, report, options, on_run)
    for log, error in (found.unreadable | taken.failed).items():
        reports[log] = LogReport(topic=log.topic, partition=log.partition)
        note_error(reports, log, error)
    for log in sorted(found.incarnations.keys() | found.unreadable.keys()):
        elsewhere = LogReport(topic=log.topic, partition=log.partition, outcome="claimed_elsewhere")
        report.logs.append(reports.get(log, elsewhere))
    report.bytes_written = sum(log.bytes_written for log in report.logs)
    report.seconds = (context.now_ms() - began_ms) / 1_000
    return report


async def compact_claimed(
    context: LogContext,
    runner: TaskRunner,
    logs: Sequence[Log],
    report: CompactReport,
    options: CompactOptions,
    on_run: OnRun = lambda _: None,
    on_error: OnError = lambda _, __: None,
) -> dict[Log, LogReport]:
    """Compact logs that this process has claimed already; the report of each."""
    async with gathered(context) as context:
        reports = {log: LogReport(topic=log.topic, partition=log.partition) for log in logs}
        job = _CompactJob(context, runner, reports, report, options, on_run, on_error)
        left = list(logs)
        while left:
            some, rest = left[:COMPACT_ROUND_LOGS_MAX], left[COMPACT_ROUND_LOGS_MAX:]
            left = rest + await job.round(some)
    return reports


class _CompactJob:
    def __init__(
        self,
        context: LogContext,
        runner: TaskRunner,
        reports: Mapping[Log, LogReport],
        report: CompactReport,
        options: CompactOptions,
        on_run: OnRun,
        on_error: OnError,
    ) -> None:
        self._context, self._runner, self._report, self._options = context, runner, report, options
        self._reports, self._on_run, self._on_error = reports, on_run, on_error
        self._ends: dict[Log, int] = {}
        """Where each log ended when the job first read it."""
        self._notes = RoundNotes(self._reports, once=options.once, on_error=on_error)

    async def round(self, logs: Sequence[Log]) -> list[Log]:
        """Returns the logs that need another round."""
        sizing = await self._options.sized()
        shares = plan_shares(logs, sizing, self._options.rules)
        selected = await gather_bounded(logs, lambda log: self._select(log, shares[log]), limit=COMPACT_LOGS_AT_ONCE)
        chosen = {log: run for log, run in zip(logs, selected, strict=True) if run is not None}
        plan = plan_round({log: run for log, (_, run) in chosen.items()}, sizing, self._options.rules)
        plans = {
            log: LogPlan(chosen[log][0], [(Choice("COMPACT", 1, one.run), one.window) for one in runs])
            for log, runs in plan.runs.items()
        }
        if not plans:
            return []
        if await self._options.started():
            return list(logs)  # plan again, with the sizing of the runner
        ended = await perform_round(self._context, self._runner, plans, self._report, self._on_run)
        later = [log for log in chosen if log not in plans]  # their blobs come after the end of this round
        return [log for log in ended if self._is_left(log, ended[log])] + later

    async def _select(self, log: Log, share: Share) -> tuple[SettledLog, Run] | None:
        options, bytes_max = self._options, self._options.log_bytes_max or share.byte_length
        try:
            head = await settle_log(self._context, log)
            self._reports[log].add(head.resumed)
            for resumed in head.resumed:
                self._on_run(resumed)
            if head.resumed and options.once:
                return None
            cursor, control = head.record.value.offset, head.control
            floor = max(cursor, control.log_start_offset)
            bounds = Bounds(
                incarnation=control.incarnation,
                cursor=cursor,
                log_start_offset=control.log_start_offset,
                counter=min(control.sequence_counter, self._ends.setdefault(log, control.sequence_counter)),
                max_offsets=options.log_offsets_max,
                target_bytes=bytes_max,
                # Without a minimum age, age does not count: a writer's clock may be ahead of ours.
                created_before_ms=self._context.now_ms() - options.min_age_ms if options.min_age_ms else 2**63 - 1,
            )
            entries = await entries_from(self._context, log, floor, entries_max=share.entries, bytes_max=bytes_max)
            run = select_run(entries, bounds)
        except LlogError as error:
            note_error(self._reports, log, error, self._on_error)
            return None
        return None if run is None else (head, run)

    def _is_left(self, log: Log, ended: LogPublished | LlogError) -> bool:
        if not self._notes.is_left(log, ended):
            return False
        assert not isinstance(ended, LlogError)
        return ended.ended != "all" or ended.runs[-1].end_offset + 1 < self._ends[log]


class RoundNotes:
    """Notes in the reports how rounds ended, and decides which logs deserve another round."""

    def __init__(self, reports: Mapping[Log, LogReport], *, once: bool, on_error: OnError) -> None:
        self._reports, self._once, self._on_error = reports, once, on_error
        self._in_vain: Counter[Log] = Counter()
        """Rounds in a row in which a log made no progress."""

    def is_left(self, log: Log, ended: LogPublished | LlogError) -> bool:
        if isinstance(ended, LlogError):
            note_error(self._reports, log, ended, self._on_error)
            return False
        report = self._reports[log]
        report.add(ended.runs)
        if ended.ended == "failed":
            assert ended.failed is not None
            report.fail("failed", ended.failed.error_type, ended.failed.error)
            return False
        self._in_vain[log] = 0 if ended.runs else self._in_vain[log] + 1
        if self._in_vain[log] >= COMPACT_REPLANS_MAX:
            _note_in_vain(report, ended)
            return False
        return not (ended.runs and self._once)


def _note_in_vain(report: LogReport, ended: LogPublished) -> None:
    """Report a log that made no progress in COMPACT_REPLANS_MAX rounds. Other processes may keep changing it; but an
    object that is missing every time, while fresh metadata names it, is lost."""
    if ended.failed is None:
        report.fail("busy", "LogBusy", f"other processes were faster {COMPACT_REPLANS_MAX} times; try again")
        return
    times = f"each of the {COMPACT_REPLANS_MAX} times it was planned; `llog pipeline audit` shows what is missing"
    report.fail("failed", ended.failed.error_type, f"{ended.failed.error}, {times}")


def note_error(
    reports: Mapping[Log, LogReport], log: Log, error: LlogError, on_error: OnError = lambda _, __: None
) -> None:
    on_error(log, error)
    if isinstance(error, PartitionNotInitialized | LogDeleted):
        return  # deleted meanwhile: nothing to do
    reason = error.reason if isinstance(error, LogError) else str(error)  # the report names the log
    reports[log].fail("busy" if isinstance(error, LogBusy) else "failed", type(error).__name__, reason)
