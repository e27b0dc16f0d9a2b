"""One round of rewriting: settle logs, register segments, have tasks write them, publish log by log.

A log's runs are published as soon as their tasks are done (in this process, as soon as each segment is written), while
other tasks still write. Several runs of one log are published in offset order: run k + 1 at the version that the last
step of run k returned, and only if it starts at that cursor and no other process began a run (protocol section 7).

Only segments that a task reported as written are published. A failed task fails only its own runs. When the runner
itself fails, the driver publishes what was written and then raises the error. A segment that is not published stays an
object without a name in the index; vacuum removes it after the grace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from llog.concurrency import gather_bounded
from llog.errors import InvalidArgument, LlogError, LogBusy
from llog.formats.values import ControlRecord, SegmentRecord
from llog.limits import COMPACT_LOGS_AT_ONCE, COMPACT_REPLANS_MAX
from llog.log.append.settle import settle_and_clear
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.index import Entry, entry_of
from llog.log.keys import Log, offset_name
from llog.log.rewrite import segments
from llog.log.rewrite.publish import Choice, Compacted, KnownCompaction, finish, load_compaction, planned_run, publish
from llog.pipeline.compact.plan import NamedRun, RunOutcome, Window, Written, window_of_runs
from llog.pipeline.compact.task import REWRITE_WINDOW
from llog.pipeline.runtime.tasks import TaskFailed, TaskRunner
from llog.stores.objects.port import ObjectStore

LogOutcome = Literal["compacted", "resumed", "idle", "busy", "claimed_elsewhere", "failed"]
"""compacted: runs were published; resumed: only a run in flight was finished; idle: nothing to do; busy: other
processes kept changing the log; claimed_elsewhere: another compactor works on it."""


class LogReport(msgspec.Struct, kw_only=True):
    """Filled while the job runs."""

    topic: str
    partition: int
    outcome: LogOutcome = "idle"
    runs: int = 0
    merges: int = 0
    resumed: int = 0
    entries: int = 0
    offsets: int = 0
    bytes_written: int = 0
    error: str = ""
    error_type: str = ""

    def add(self, runs: Iterable[Compacted]) -> None:
        for run in runs:
            if run.resumed:
                self.resumed += 1
                self.outcome = "resumed" if self.outcome == "idle" else self.outcome
                continue
            self.outcome = "compacted"
            self.runs += run.kind == "COMPACT"
            self.merges += run.kind == "MERGE"
            self.entries += run.entry_count
            self.bytes_written += run.byte_length
            if run.kind == "COMPACT":
                self.offsets += run.end_offset - run.start_offset + 1

    def fail(self, outcome: LogOutcome, error_type: str, error: str) -> None:
        self.outcome, self.error_type, self.error = outcome, error_type, error


class CompactReport(msgspec.Struct, kw_only=True):
    logs: list[LogReport] = []
    rounds: int = 0
    tasks: int = 0
    objects_planned: int = 0
    """Distinct objects that rounds were planned to read, round by round."""
    objects_read: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    object_requests: dict[str, int] = {}
    """Requests of the job and its tasks to object stores, by operation."""

    @property
    def failed(self) -> list[LogReport]:
        return [log for log in self.logs if log.outcome == "failed"]

    def count(self, outcome: LogOutcome) -> int:
        return sum(log.outcome == outcome for log in self.logs)


# -- one log -----------------------------------------------------------------------------------------------------------


class SettledLog(NamedTuple):
    """A log with nothing pending and nothing in flight, at the versions that were read."""

    log: Log
    control: ControlRecord
    record: KnownCompaction
    resumed: tuple[Compacted, ...] = ()
    """Runs that another process had left in flight, finished by this one."""


async def settle_log(context: LogContext, log: Log) -> SettledLog:
    """Settle the log and finish the run in flight.

    The order is that of protocol section 7: pending is settled and cleared, and that counter noted, before the
    compaction record is read, and the record before any entry. So no run reaches past the counter (R11), and whatever
    happens to the entries of the log afterwards makes publishing at the record's version fail. Raises `LogBusy` when
    other processes keep beginning runs."""
    resumed: list[Compacted] = []
    for round_number in range(COMPACT_REPLANS_MAX):
        control = await settle_and_clear(context, log)
        record = await load_compaction(context, log, control.incarnation)
        run = record.value.in_flight
        if run is None:
            return SettledLog(log, control, record, tuple(resumed))
        if (await finish(context, log, control, run)).done:
            size, level = run.entry.byte_length or 0, run.entry.level
            resumed.append(
                Compacted(log, run.start_offset, run.end_offset, 0, size, run.data_key, True, run.kind, level)
            )
        else:
            await context.back_off(round_number)
    raise LogBusy(*log, f"it had a run in flight {COMPACT_REPLANS_MAX} times in a row; try again")


async def entries_from(context: LogContext, log: Log, offset: int, *, entries_max: int, bytes_max: int) -> list[Entry]:
    """Index entries that end at `offset` or after it, up to either limit."""
    entries: list[Entry] = []
    size_bytes = 0
    async for record in context.metadata.scan_all(context.keys.index(log), start=offset_name(offset)):
        entry = entry_of(record)
        entries.append(entry)
        size_bytes += entry.value.byte_length or 0
        if len(entries) >= entries_max or size_bytes > bytes_max:
            break
    return entries


# -- publish ----------------------------------------------------------------------------------------------------------

ENTRY_CHANGED = "ObjectNotFound"
"""The object of an entry is gone, so the entry was replaced or removed (R10): plan again."""


class NewSegment(NamedTuple):
    """A run that a task rewrites, with the identity of its segment and its future outcome."""

    choice: Choice
    segment_id: str
    uri: str
    named: NamedRun
    outcome: asyncio.Future[RunOutcome]


class LogPublished(NamedTuple):
    """How far one log came in a round."""

    ended: Literal["all", "lost", "changed", "failed"]
    """all: every run; lost: another process was faster; changed: an object was gone; failed: a run cannot be done."""
    runs: tuple[Compacted, ...] = ()
    failed: TaskFailed | None = None


def segment_store(context: LogContext) -> ObjectStore:
    if context.segments is None:
        raise InvalidArgument("context", "has no store to put segments into")
    return context.segments


async def register(context: LogContext, head: SettledLog, choice: Choice) -> NewSegment:
    """Write the segment record before the object: a crash anywhere leaves a record to find the object by."""
    log, taken, now_ms, incarnation = head.log, choice.run, context.now_ms(), head.control.incarnation
    segment_id = new_object_id(now_ms, context.random_bits)
    name = context.keys.segment_object(log, segment_id)
    uri = segment_store(context).uri(name)
    record = SegmentRecord(
        segment_id=segment_id,
        incarnation=incarnation,
        start_offset=taken.start_offset,
        end_offset=taken.end_offset,
        size_bytes=0,
        sources=taken.sources,
        state="COPY_SEGMENT_STARTED",
        state_changed_at_ms=now_ms,
        data_key=uri,
    )
    await segments.register(context, log, record)
    named = NamedRun(log, taken, incarnation, choice.level, now_ms, name)
    return NewSegment(choice, segment_id, uri, named, asyncio.get_running_loop().create_future())


async def publish_in_order(
    context: LogContext,
    head: SettledLog,
    written: Sequence[NewSegment],
    slots: asyncio.Semaphore,
    on_run: Callable[[Compacted], None] = lambda _: None,
) -> LogPublished:
    """Publish each run as soon as its task is done. Slots bound the publishing, not the waiting for tasks."""
    done: list[Compacted] = []
    record = head.record
    for number, new in enumerate(written):
        outcome = await new.outcome
        if outcome.segment is None:
            failed = outcome.failed
            changed = failed is not None and failed.error_type == ENTRY_CHANGED
            return LogPublished("changed" if changed else "failed", tuple(done), failed)
        if number and not _follows(record, new):
            return LogPublished("lost", tuple(done))
        async with slots:
            moved = await _publish_one(context, head, record, new, outcome)
        if moved is None:
            return LogPublished("lost", tuple(done))
        record = moved
        taken, size = new.choice.run, outcome.segment.byte_length
        run = Compacted(
            head.log, taken.start_offset, taken.end_offset, len(taken.entries), size, new.uri, False, *new.choice[:2]
        )
        done.append(run)
        on_run(run)
    return LogPublished("all", tuple(done))


def _follows(record: KnownCompaction, new: NewSegment) -> bool:
    if record.value.in_flight is not None:
        return False
    return new.choice.kind != "COMPACT" or record.value.offset == new.choice.run.start_offset


async def _publish_one(
    context: LogContext, head: SettledLog, record: KnownCompaction, new: NewSegment, outcome: RunOutcome
) -> KnownCompaction | None:
    """The compaction record after it; None: another run came first, or the run had to be abandoned."""
    assert outcome.segment is not None
    segment, incarnation = outcome.segment.as_segment(), head.control.incarnation
    run = planned_run(incarnation, new.choice, new.segment_id, segment, new.uri, new.named.created_at_ms)
    if not await publish(context, head.log, record, run):
        return None
    published = await finish(context, head.log, head.control, run)
    return published.record if published.done else None


# -- round ------------------------------------------------------------------------------------------------------------

OnRun = Callable[[Compacted], None]


class LogPlan(NamedTuple):
    """What one log brings into a round: its runs in offset order, each with the number of its task."""

    head: SettledLog
    runs: Sequence[tuple[Choice, int]]


async def perform_round(
    context: LogContext,
    runner: TaskRunner,
    plans: Mapping[Log, LogPlan],
    report: CompactReport,
    on_run: OnRun = lambda _: None,
) -> dict[Log, LogPublished | LlogError]:
    """The outcome of each log. Raises what the runner raises, after all written segments are published."""
    registered = await gather_bounded(
        list(plans), lambda log: _register_all(context, plans[log]), limit=COMPACT_LOGS_AT_ONCE
    )
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
    context: LogContext, head: SettledLog, new: Sequence[NewSegment], slots: asyncio.Semaphore, on_run: OnRun
) -> LogPublished | LlogError:
    try:
        return await publish_in_order(context, head, new, slots, on_run)
    except LlogError as error:
        return error
    finally:
        for left in new:
            left.outcome.cancel()  # no publication waits for it any more
