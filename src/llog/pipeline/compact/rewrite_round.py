"""One round of rewriting, whatever was planned: register segments, let tasks write them, publish log by log.

Publishing does not wait for the round: a log's runs are published as soon as the tasks that hold them are done (in this
process, as soon as each segment is written), while others still write. What must stay true: nothing is published that a
task did not report as written; a task that fails takes only its own runs along; when the runner itself fails, what was
written is still published, and the error is raised after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from llog.errors import LlogError
from llog.limits import COMPACT_LOGS_AT_ONCE
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.rewrite.publish import Compacted
from llog.log.rewrite.select import Choice
from llog.pipeline.compact.look import LogHead, for_each
from llog.pipeline.compact.plan import window_of_runs
from llog.pipeline.compact.publish import LogPublished, NewSegment, publish_in_order, register, segment_store
from llog.pipeline.compact.report import CompactReport
from llog.pipeline.compact.task import REWRITE_WINDOW, RunOutcome, Window, Written
from llog.pipeline.runtime.tasks import TaskFailed, TaskRunner

OnRun = Callable[[Compacted], None]


class LogPlan(NamedTuple):
    """What one log brings into a round: its runs in offset order, each with the number of its task."""

    head: LogHead
    runs: Sequence[tuple[Choice, int]]


async def perform_round(
    context: LogContext,
    runner: TaskRunner,
    plans: Mapping[Log, LogPlan],
    report: CompactReport,
    on_run: OnRun = lambda _: None,
) -> dict[Log, LogPublished | LlogError]:
    """What became of each log. Raises what the runner raises, once everything written is published."""
    registered = await for_each(list(plans), lambda log: _register_all(context, plans[log]))
    segments = {log: new for log, new in zip(plans, registered, strict=True) if not isinstance(new, LlogError)}
    tasks = _by_task(plans, segments)
    url = segment_store(context).url
    items = [window_of_runs(url, [new.named for new in task]) for task in tasks]
    slots = asyncio.Semaphore(COMPACT_LOGS_AT_ONCE)
    publishing = {
        log: asyncio.create_task(_published(context, plans[log].head, new, slots, on_run))
        for log, new in segments.items()
    }
    try:
        await _run_tasks(runner, tasks, items, report)
    except Exception as error:
        _give_up(segments, TaskFailed(type(error).__name__, str(error), True))
        await asyncio.gather(*publishing.values(), return_exceptions=True)
        raise
    except BaseException:
        for task in publishing.values():
            task.cancel()
        await asyncio.gather(*publishing.values(), return_exceptions=True)
        raise
    ended: dict[Log, LogPublished | LlogError] = {
        log: new for log, new in zip(plans, registered, strict=True) if isinstance(new, LlogError)
    }
    for log, how in zip(publishing, await asyncio.gather(*publishing.values(), return_exceptions=True), strict=True):
        if isinstance(how, BaseException) and not isinstance(how, LlogError):
            raise how
        ended[log] = how
    report.rounds += 1
    return ended


async def _register_all(context: LogContext, plan: LogPlan) -> list[NewSegment] | LlogError:
    registered = await asyncio.gather(
        *(register(context, plan.head, choice) for choice, _ in plan.runs), return_exceptions=True
    )
    for outcome in registered:
        if isinstance(outcome, LlogError):
            return outcome
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in registered if isinstance(outcome, NewSegment)]


def _by_task(plans: Mapping[Log, LogPlan], segments: Mapping[Log, Sequence[NewSegment]]) -> list[list[NewSegment]]:
    tasks: dict[int, list[NewSegment]] = {}
    for log, new in segments.items():
        for (_, number), segment in zip(plans[log].runs, new, strict=True):
            tasks.setdefault(number, []).append(segment)
    return [tasks[number] for number in sorted(tasks)]


async def _run_tasks(
    runner: TaskRunner, tasks: Sequence[Sequence[NewSegment]], items: Sequence[Window], report: CompactReport
) -> None:
    def run_done(number: int, position: int, outcome: RunOutcome) -> None:
        future = tasks[number][position].outcome
        if not future.done():
            future.set_result(outcome)

    def window_done(number: int, outcome: Written | TaskFailed) -> None:
        for position in range(len(tasks[number])):
            of_run = RunOutcome(failed=outcome) if isinstance(outcome, TaskFailed) else outcome.outcomes[position]
            run_done(number, position, of_run)

    report.tasks += len(items)
    report.objects_planned += sum(len(item.objects) for item in items)
    # A log is published by a dozen small writes that mostly wait for a disk. Where the runner announces each run
    # (`on_part`), the driver publishes while the rest of the window is still being written.
    outcomes = await runner.run(REWRITE_WINDOW, items, window_done, on_part=run_done)
    for number, outcome in enumerate(outcomes):
        window_done(number, outcome)
        if isinstance(outcome, Written):
            report.objects_read += outcome.objects_read
            report.bytes_read += outcome.bytes_read


def _give_up(segments: Mapping[Log, Sequence[NewSegment]], failed: TaskFailed) -> None:
    for new in (new for log in segments.values() for new in log):
        if not new.outcome.done():
            new.outcome.set_result(RunOutcome(failed=failed))


async def _published(
    context: LogContext, head: LogHead, new: Sequence[NewSegment], slots: asyncio.Semaphore, on_run: OnRun
) -> LogPublished | LlogError:
    try:
        return await publish_in_order(context, head, new, slots, on_run)
    except LlogError as error:
        return error
    finally:
        for left in new:
            left.outcome.cancel()  # nobody waits for it any more
