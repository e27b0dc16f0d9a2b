"""The merge job: neighbouring segments of one level become one of the next, many logs at a time.

`llog.log.rewrite.publish` chooses the neighbours; a task reads each segment with one ranged read and writes one object.
A round does one merge per log, because one record guards all rewriting of a log; rounds repeat until no log has
neighbours that fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from llog.concurrency import gather_bounded
from llog.errors import LlogError
from llog.formats.values import ControlRecord
from llog.limits import COMPACT_LOGS_AT_ONCE, COMPACT_ROUND_LOGS_MAX, COMPACT_TASKS_PER_CORE
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log, offset_name
from llog.log.rewrite.publish import Choice, KnownCompaction, select_merge
from llog.pipeline.compact.job import CompactOptions, OnError, RoundNotes, note_error
from llog.pipeline.compact.plan import Sizing
from llog.pipeline.compact.round import (
    CompactReport,
    LogPlan,
    LogPublished,
    LogReport,
    OnRun,
    SettledLog,
    perform_round,
    settle_log,
)
from llog.pipeline.runtime.gather import gathered
from llog.pipeline.runtime.tasks import TaskRunner


async def merge_claimed(
    context: LogContext,
    runner: TaskRunner,
    reports: Mapping[Log, LogReport],
    report: CompactReport,
    options: CompactOptions,
    on_run: OnRun = lambda _: None,
    on_error: OnError = lambda _, __: None,
) -> None:
    """Merge logs that this process has claimed already; adds to their reports."""
    left = [log for log, one in reports.items() if one.outcome not in ("failed", "busy")]
    notes = RoundNotes(reports, once=options.once, on_error=on_error)
    while left:
        some, rest = left[:COMPACT_ROUND_LOGS_MAX], left[COMPACT_ROUND_LOGS_MAX:]
        async with gathered(context) as gathering:
            ended = await _round(gathering, runner, some, reports, report, options, on_run, on_error)
        left = rest + [log for log, how in ended.items() if notes.is_left(log, how)]


async def _round(
    context: LogContext,
    runner: TaskRunner,
    logs: Sequence[Log],
    reports: Mapping[Log, LogReport],
    report: CompactReport,
    options: CompactOptions,
    on_run: OnRun,
    on_error: OnError,
) -> dict[Log, LogPublished | LlogError]:
    async def select(log: Log) -> tuple[SettledLog, Choice] | None:
        try:
            head = await settle_log(context, log)
            reports[log].add(head.resumed)
            for resumed in head.resumed:
                on_run(resumed)
            if head.resumed and options.once:
                return None
            entries = await _segment_entries(context, log, head.control, head.record)
        except LlogError as error:
            note_error(reports, log, error, on_error)
            return None
        run = select_merge(entries, target_bytes=options.merge_bytes, min_inputs=options.merge_inputs_min)
        return None if run is None else (head, Choice("MERGE", run.entries[0].value.level + 1, run))

    selected = await gather_bounded(logs, select, limit=COMPACT_LOGS_AT_ONCE)
    chosen = {log: choice for log, choice in zip(logs, selected, strict=True) if choice is not None}
    if not chosen:
        return {}
    sizes = {
        log: sum(entry.value.byte_length or 0 for entry in choice.run.entries) for log, (_, choice) in chosen.items()
    }
    await options.started()
    task_of = plan_merge_tasks(sizes, await options.sized())
    plans = {log: LogPlan(head, [(choice, task_of[log])]) for log, (head, choice) in chosen.items()}
    return await perform_round(context, runner, plans, report, on_run)


async def _segment_entries(
    context: LogContext, log: Log, control: ControlRecord, record: KnownCompaction
) -> list[Entry]:
    """Valid COMPACTED entries below the cursor. A stale answer does no harm: the swap of the end key at its version
    fails then."""
    found = []
    start, stop = offset_name(control.log_start_offset), offset_name(record.value.offset)
    async for item in context.metadata.scan_all(context.keys.index(log), start=start, stop=stop):
        entry = entry_of(item)
        verdict = judge(
            entry,
            incarnation=control.incarnation,
            cursor=record.value.offset,
            log_start_offset=control.log_start_offset,
        )
        if verdict is EntryVerdict.FROM_THE_FUTURE:
            break
        if verdict is EntryVerdict.VALID and entry.value.type == "COMPACTED":
            found.append(entry)
    return found


def plan_merge_tasks(sizes: Mapping[Log, int], sizing: Sizing) -> dict[Log, int]:
    """Which task does which merge: the largest first, each to the task that has least to do."""
    wanted = sum(sizes.values()) // sizing.window_bytes_min
    count = min(max(wanted, 1), sizing.cores * COMPACT_TASKS_PER_CORE, len(sizes))
    loads = [(0, number) for number in range(count)]
    task_of: dict[Log, int] = {}
    for log in sorted(sizes, key=lambda log: (-sizes[log], log)):
        load, number = heapq.heappop(loads)
        task_of[log] = number
        heapq.heappush(loads, (load + sizes[log], number))
    return task_of
