"""Passes over the logs that are due: inspect them, begin the visits they need, and note when each is due next.

A log is due when it changed, or when time alone may give it work; an idle log is not read. Changed logs wait until an
idle pause after the last pass, so that changes are inspected together. A log that was just worked on likely needs more
work and is due at once; one whose visit failed or found nothing to do is left alone for a pause.

There is at most one visit per log, and at most `LLOG_COMPACTOR_WORKERS` × `logs_per_worker` visits at once; a pass
visits logs in random order, topics in turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from llog.compactor.agenda import Agenda
from llog.compactor.backlog import Backlogs, BadLog
from llog.compactor.metrics import CompactorMetrics
from llog.compactor.pace import Pause, ServicePace
from llog.compactor.plan import (
    Kind,
    LogBacklog,
    Rules,
    plan_merges_due,
    plan_next_ms,
    plan_pass,
    plan_pause_ms,
    plan_poll_ms,
    plan_work,
)
from llog.compactor.targets import Targets
from llog.compactor.troubles import Troubles
from llog.compactor.worker import Visit, Worker
from llog.concurrency import batched
from llog.limits import COMPACTOR_INSPECT_LOGS_MAX, COMPACTOR_MERGES_AT_ONCE
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.settings import Settings

# Shortest pause between passes: the event loop also answers pages and keeps sessions alive.
COMPACTOR_PASS_PAUSE_MS_MIN: Final = 5
# Longest pause between passes: a clock that was set is noticed after this time.
COMPACTOR_PASS_PAUSE_MS_MAX: Final = 60_000
# A clock that was set back further than this makes every log due that waits for a time.
COMPACTOR_CLOCK_BACK_MS_MAX: Final = 1_000


class Passes:
    def __init__(
        self,
        context: LogContext,
        settings: Settings,
        rules: Rules,
        *,
        backlogs: Backlogs,
        targets: Targets,
        worker: Worker,
        metrics: CompactorMetrics,
        troubles: Troubles,
        pace: ServicePace,
        logs_per_worker: int,
        watched: Callable[[], bool],
        hurry: Callable[[], bool],
    ) -> None:
        """`watched`: changes are reported; otherwise every log is read from time to time."""
        self._context, self._settings, self._rules = context, settings, rules
        self._backlogs, self._targets, self._worker = backlogs, targets, worker
        self._metrics, self._troubles, self._pace = metrics, troubles, pace
        self._watched, self._hurry = watched, hurry
        self._logs_per_worker = logs_per_worker
        self._slots = asyncio.Semaphore(settings.compactor_workers * logs_per_worker)
        self.visits: dict[Log, tuple[Kind, asyncio.Task[None]]] = {}
        self._paused: dict[Log, Pause] = {}
        """Logs that are left alone."""
        self._agenda = Agenda()
        self._merge_later: dict[Log, None] = {}
        """Logs that wait for their turn to be merged, in order."""
        self._unfinished: dict[Log, tuple[str, bool]] = {}
        """Logs with a run in flight (its state), or with an append that was reserved long ago."""
        self._passed_at_ms = self._next_pass_ms = 0
        """When the last pass began, and when changed logs are inspected next."""
        self._wake = asyncio.Event()
        self.count = 0
        """Passes that inspected a log."""

    # -- what is due ---------------------------------------------------------------------------------------------------
    def inspect_at(self, log: Log, due_ms: int) -> None:
        """Inspect the log then, or when its pause is over."""
        if (pause := self._paused.get(log)) is not None:
            now_ms = self._context.now_ms()
            due_ms = max(due_ms, now_ms + pause.left_ms(now_ms))
        if self._agenda.add(log, due_ms):
            self._wake.set()

    def inspect_now(self, logs: Collection[Log]) -> None:
        now_ms = self._context.now_ms()
        for log in logs:
            self.inspect_at(log, now_ms)

    def changed(self, log: Log) -> None:
        self.inspect_at(log, self._next_pass_ms)

    def keep(self, logs: Collection[Log]) -> None:
        """Forget all other logs."""
        for log in self._backlogs.keep(logs):
            self._metrics.set_compaction_lag(log.topic, log.partition, 0, 0)
        self._troubles.keep_logs(logs)
        self._agenda.keep(logs)
        for log in [log for log in (*self._unfinished, *self._merge_later) if log not in logs]:
            self._unfinished.pop(log, None)
            self._merge_later.pop(log, None)

    def _due_logs(self) -> list[Log]:
        now_ms = self._context.now_ms()
        if now_ms < self._passed_at_ms - COMPACTOR_CLOCK_BACK_MS_MAX:
            self._agenda.make_due(now_ms)
            self._next_pass_ms = now_ms
        self._passed_at_ms = now_ms
        self._paused = {log: pause for log, pause in self._paused.items() if pause.left_ms(now_ms)}
        due = dict.fromkeys(self._agenda.take(now_ms))
        if self._merge_later and self._may_merge():
            log = next(iter(self._merge_later))
            del self._merge_later[log]
            due[log] = None
        if due:
            self._next_pass_ms = now_ms + self.idle_pause_ms()
        for log in due.keys() & self._paused.keys():
            self.inspect_at(log, now_ms)
        # A log that is visited is inspected after the visit.
        free = (log for log in due if log not in self.visits and log not in self._paused)
        return plan_pass(free, self._context.random_bits)

    # -- one pass ------------------------------------------------------------------------------------------------------
    async def one(self) -> None:
        """Inspect the logs that are due, then wait until others are."""
        due = self._due_logs()
        if due:
            self.count += 1
            await self._inspect(due)
            runs = Counter(state for state, _ in self._unfinished.values() if state)
            self._metrics.set_compaction_pending(runs, sum(is_old for _, is_old in self._unfinished.values()))
        self._troubles.clear("passes")
        await self._pace.rest(self._pause_ms(), self._wake)

    async def _inspect(self, logs: Sequence[Log]) -> None:
        left = dict.fromkeys(logs)
        try:
            for batch in batched(logs, COMPACTOR_INSPECT_LOGS_MAX):
                views = await self._backlogs.inspect(batch)
                for absent in set(batch) - {view.log for view in views}:
                    del left[absent]
                    self._note_absent(absent)
                for view in views:
                    del left[view.log]
                    await self._consider(view)
                    if self._pace.stopping:
                        return
        finally:
            for log in left:  # after an error, in the next pass
                self.inspect_at(log, self._next_pass_ms)

    def _note_absent(self, log: Log) -> None:
        """A configured log is a target before it exists, and stays one when it is deleted."""
        self._metrics.set_compaction_lag(log.topic, log.partition, 0, 0)
        self._unfinished.pop(log, None)
        if not self._watched():
            self.inspect_at(log, self._next_pass_ms)

    def _pause_ms(self) -> int:
        next_ms, now_ms = self._agenda.next_ms(), self._context.now_ms()
        if self._merge_later and self._may_merge():
            next_ms = now_ms
        pause_ms = COMPACTOR_PASS_PAUSE_MS_MAX if next_ms is None else next_ms - now_ms
        return min(max(pause_ms, COMPACTOR_PASS_PAUSE_MS_MIN), COMPACTOR_PASS_PAUSE_MS_MAX)

    async def _consider(self, view: LogBacklog | BadLog) -> None:
        """Begin a visit if the log needs one, as soon as a worker is free."""
        if isinstance(view, BadLog):
            self._ended(Visit(view.log, "failed", Kind.COMPACT, error=f"{type(view.error).__name__}: {view.error}"))
            self._metrics.observe_compaction("failed", Kind.COMPACT.value, 0, 0, {})
            return
        self._note_state(view)
        may_merge = self._may_merge()
        work = plan_work(view, self._rules, self._context.now_ms(), may_merge=may_merge, hurry=self._hurry())
        if work is None:
            self._troubles.log_is_idle(view.log)
            self._metrics.observe_compaction("idle", Kind.COMPACT.value, 0, 0, {})
            self._inspect_later(view)
            if not may_merge and plan_merges_due(view, self._rules):
                self._merge_later[view.log] = None
            return
        await self._slots.acquire()
        if self._pace.stopping:
            self._slots.release()
            return
        task = asyncio.create_task(self._visit(view, work), name=f"visit {view.log}")
        self.visits[view.log] = (work, task)
        self._metrics.set_workers(self.workers_busy, self._settings.compactor_workers)

    def _note_state(self, view: LogBacklog) -> None:
        log = view.log
        self._metrics.set_compaction_lag(
            log.topic, log.partition, view.lag_offsets, view.ready_bytes, view.oldest_created_at_ms
        )
        if view.run_state or view.pending_is_old:
            self._unfinished[log] = (view.run_state, view.pending_is_old)
        else:
            self._unfinished.pop(log, None)
        if view.fenced != (log in self._targets.fenced):
            self._targets.topic_changed(log.topic)

    def _inspect_later(self, view: LogBacklog) -> None:
        """The log has no work now: inspect it when time alone may give it some, or (without a watch) after a while."""
        due_ms = plan_next_ms(view, self._rules)
        if not self._watched():
            now_ms = self._context.now_ms()
            quiet_ms = max(0, now_ms - view.changed_at_ms)
            poll_ms = now_ms + plan_poll_ms(quiet_ms, self.idle_pause_ms(), self._rules.trigger_age_ms)
            due_ms = poll_ms if due_ms is None else min(due_ms, poll_ms)
        if due_ms is not None:
            self.inspect_at(view.log, max(due_ms, self._next_pass_ms))

    # -- visits --------------------------------------------------------------------------------------------------------
    async def _visit(self, view: LogBacklog, work: Kind) -> None:
        try:
            self._ended(await self._worker.visit(view, work))
        finally:
            del self.visits[view.log]
            self._slots.release()
            self._metrics.set_workers(self.workers_busy, self._settings.compactor_workers)
            if self._merge_later:
                self._wake.set()

    def _ended(self, visit: Visit) -> None:
        log = visit.log
        if visit.outcome == "failed":
            # Another service may do the work, and the log is idle then. For retention and merges an idle log proves
            # nothing: they may only be waiting for their turn.
            until_idle = visit.kind in (Kind.COMPACT, Kind.RESUME)
            self._troubles.note_log(log, visit.error, until_idle=until_idle)
            self._paused[log] = self._pause(self.error_pause_ms())
        else:
            self._troubles.clear_log(log)
            if not visit.worked:
                self._paused[log] = self._pause(self.idle_pause_ms())
        self.inspect_at(log, self._context.now_ms())

    def _may_merge(self) -> bool:
        return sum(kind is Kind.MERGE for kind, _ in self.visits.values()) < COMPACTOR_MERGES_AT_ONCE

    @property
    def workers_busy(self) -> int:
        return -(-len(self.visits) // self._logs_per_worker)

    # -- pauses --------------------------------------------------------------------------------------------------------
    def _pause(self, pause_ms: int) -> Pause:
        now_ms = self._context.now_ms()
        return Pause(now_ms, now_ms + pause_ms)

    def idle_pause_ms(self) -> int:
        settings = self._settings
        sleep_ms, jitter_ms = settings.compactor_idle_sleep_ms, settings.compactor_idle_jitter_ms
        return max(plan_pause_ms(sleep_ms, jitter_ms, self._context.random_bits), COMPACTOR_PASS_PAUSE_MS_MIN)

    def error_pause_ms(self) -> int:
        settings = self._settings
        sleep_ms, jitter_ms = settings.compactor_error_sleep_ms, settings.compactor_error_jitter_ms
        return max(plan_pause_ms(sleep_ms, jitter_ms, self._context.random_bits), COMPACTOR_PASS_PAUSE_MS_MIN)
