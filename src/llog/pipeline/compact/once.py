"""One piece of work on one log by the compaction job: `compact_once` and `merge_once`, with tasks in this process.

The public API calls these functions; the compactor service asks the same job for many logs at a time and collects the
answers of each log with `RunAnswers`. Neither takes a claim: a claim only saves work (R12).
"""

from __future__ import annotations

from llog.errors import CompactionFailed, InvalidArgument, LlogError, LogBusy
from llog.limits import LOG_COMPACT_BYTES_DEFAULT, LOG_MERGE_BYTES_DEFAULT
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.rewrite.publish import LOG_MERGE_INPUTS_MIN, Compacted
from llog.pipeline.compact.job import CompactOptions, compact_claimed
from llog.pipeline.compact.merge import merge_claimed
from llog.pipeline.compact.plan import SegmentRules
from llog.pipeline.compact.round import CompactReport, LogReport, segment_store
from llog.pipeline.runtime.tasks import LocalTasks, tools_of


async def compact_once(
    context: LogContext,
    log: Log,
    *,
    max_offsets: int = 2**62,
    target_bytes: int = LOG_COMPACT_BYTES_DEFAULT,
    min_age_ms: int = 0,
) -> Compacted | None:
    """Finish the run in flight, or compact the next run; None when nothing is left to do."""
    segment_store(context)
    options = CompactOptions(
        rules=SegmentRules(target_bytes, max_offsets),
        min_age_ms=min_age_ms,
        log_bytes_max=target_bytes,
        log_offsets_max=max_offsets,
        once=True,
    )
    answers, tasks = RunAnswers(), LocalTasks(tools_of(context))
    reports = await compact_claimed(context, tasks, [log], CompactReport(), options, answers.add, answers.fail)
    return answers.result(log, reports[log])


async def merge_once(
    context: LogContext,
    log: Log,
    *,
    target_bytes: int = LOG_MERGE_BYTES_DEFAULT,
    min_inputs: int = LOG_MERGE_INPUTS_MIN,
) -> Compacted | None:
    """Finish the run in flight, or merge the first neighbours that fit; None when there are none."""
    if min_inputs < LOG_MERGE_INPUTS_MIN:
        raise InvalidArgument("min_inputs", f"{min_inputs}: a merge takes at least {LOG_MERGE_INPUTS_MIN} segments")
    segment_store(context)
    options = CompactOptions(merge_bytes=target_bytes, merge_inputs_min=min_inputs, once=True)
    answers, tasks = RunAnswers(), LocalTasks(tools_of(context))
    reports = {log: LogReport(topic=log.topic, partition=log.partition)}
    await merge_claimed(context, tasks, reports, CompactReport(), options, answers.add, answers.fail)
    return answers.result(log, reports[log])


class RunAnswers:
    """The published runs and the errors of a job, by log."""

    def __init__(self) -> None:
        self._runs: dict[Log, list[Compacted]] = {}
        self._errors: dict[Log, LlogError] = {}

    def add(self, run: Compacted) -> None:
        self._runs.setdefault(run.log, []).append(run)

    def fail(self, log: Log, error: LlogError) -> None:
        self._errors[log] = error

    def answer(self, log: Log, report: LogReport) -> Compacted | LlogError | None:
        """All runs of the log as if they were one, or the error that ended the work on it."""
        if (error := self._errors.get(log)) is not None:
            return error
        if report.outcome == "failed":
            return CompactionFailed(*log, report.error_type, report.error)
        if report.outcome == "busy":
            return LogBusy(*log, report.error)
        runs = self._runs.get(log)
        if not runs:
            return None
        entries, size = sum(run.entry_count for run in runs), sum(run.byte_length for run in runs)
        return runs[0]._replace(end_offset=runs[-1].end_offset, entry_count=entries, byte_length=size)

    def result(self, log: Log, report: LogReport) -> Compacted | None:
        """As `answer`; raises the error."""
        answer = self.answer(log, report)
        if isinstance(answer, LlogError):
            raise answer
        return answer
