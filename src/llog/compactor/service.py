"""The service: discovers logs, visits those that need work, does the chores of the cluster, and stops gracefully.

    discovery   ──►  targets  ──►  pass: inspect, plan, visit (bounded workers)  ──►  the next pass, or a pause
    chores: compact by key, measure the WAL store, vacuum, compare clocks, finish deletions, back up

Each is a loop that no error ends: the health page shows the error, and the loop continues after a pause. There is at
most one visit per log, and at most `LLOG_COMPACTOR_WORKERS` × `logs_per_worker` visits at once; a pass visits logs in
random order, topics in turn. After a stop nothing begins, work under way may end within a time limit, and all claims
are released.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from llog.compactor.backends import Backends, JoinSpark, OnSparkState
from llog.compactor.backlog import Backlogs, BadLog
from llog.compactor.chores import Chores, KeyChore
from llog.compactor.claims import Claims
from llog.compactor.discovery import Discovered, DyingTopic, discover, plan_left_behind
from llog.compactor.jobs import CompactorJobs
from llog.compactor.metrics import CompactorMetrics
from llog.compactor.pace import Pause, ServicePace
from llog.compactor.plan import Kind, LogBacklog, Rules, plan_pass, plan_pause_ms, plan_work
from llog.compactor.troubles import Troubles
from llog.compactor.worker import Visit, Worker
from llog.concurrency import batched
from llog.errors import LlogError
from llog.formats.warm_up import warm_up
from llog.limits import (
    COMPACTOR_BACKUP_INTERVAL_MS_MIN,
    COMPACTOR_INSPECT_LOGS_MAX,
    COMPACTOR_MERGES_AT_ONCE,
    COMPACTOR_TROUBLES_SHOWN_MAX,
)
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.settings import Settings
from llog.telemetry.billing import Billing
from llog.telemetry.metering import Meters
from llog.telemetry.metrics import BrokerMetrics
from llog.telemetry.scenario import scenario_from_env
from llog.wiring import Use, opened_log

# Shortest pause between passes: the event loop also answers pages and keeps sessions alive.
COMPACTOR_PASS_PAUSE_MS_MIN: Final = 5
# How long work under way may continue after a stop request; the next service resumes interrupted work.
COMPACTOR_STOP_MS_MAX: Final = 30_000
# How often the service checks whether logs are worth a key compaction.
COMPACTOR_KEYS_INTERVAL_MS: Final = 15_000

_log = logging.getLogger("llog.compactor")


class CompactorService:
    def __init__(
        self,
        context: LogContext,
        settings: Settings,
        metrics: CompactorMetrics,
        *,
        jobs: CompactorJobs | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._context, self._settings, self._metrics = context, settings, metrics
        self._rules = Rules.of(settings) if rules is None else rules
        self._jobs = CompactorJobs(context) if jobs is None else jobs
        self._pace, self._troubles = ServicePace(context.sleep), Troubles()
        self._backlogs = Backlogs(context, self._rules)
        session_timeout_ms, read_speed = settings.session_timeout_ms, settings.key_compact_bytes_per_second
        claims = Claims(context, metrics, compactor_id=settings.compactor_id, session_timeout_ms=session_timeout_ms)
        jobs, self._claims = self._jobs, claims
        self._chores = Chores(context, settings, claims=claims, jobs=jobs, metrics=metrics)
        self._keys = KeyChore(context, claims=claims, jobs=jobs, metrics=metrics, bytes_per_second=read_speed)
        self._worker = Worker(
            context, self._rules, backlogs=self._backlogs, claims=claims, jobs=jobs, metrics=metrics, hurry=self._hurry
        )
        self._configured = tuple(Log(*target) for target in settings.compactor_targets)
        self._discovered = Discovered(self._configured)
        self._left_behind: list[DyingTopic] = []
        self._slots = asyncio.Semaphore(settings.compactor_workers * self._jobs.logs_per_worker)
        self._visits: dict[Log, tuple[Kind, asyncio.Task[None]]] = {}
        self._paused: dict[Log, Pause] = {}
        """Logs that are left alone."""
        self._again: set[Log] = set()
        """Logs worked on since the last pass, which likely need more work."""
        self._between_passes = Pause()
        self._wake, self._dying = asyncio.Event(), asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._passes = 0
        self.started_at_ms = context.now_ms()
        self.host, self.port = settings.compactor_bind_host, settings.compactor_port
        """Address of the status pages; `serve` sets the actual port."""

    # -- start and stop ------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        self._metrics.set_workers(0, self._settings.compactor_workers)
        loops: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("discovery", self._discover),
            ("passes", self._pass),
            ("key compaction", self._compact_by_key),
            ("vacuum", self._vacuum),
            ("clocks", self._compare_clocks),
            ("topic deletions", self._finish_deletions),
        ]
        if self._chores.has_own_wal:
            loops += [("WAL store", self._measure_wal), ("backups", self._back_up)]
        self._loops = [asyncio.create_task(self._keep_on(name, step), name=name) for name, step in loops]

    async def stop(self, *, timeout_ms: int = COMPACTOR_STOP_MS_MAX, at_once: asyncio.Event | None = None) -> None:
        """Begin no new work, and wait for work under way until the timeout or until `at_once` is set. The rest is
        cancelled; the next service resumes it."""
        self._pace.stop()
        under_way = [*self._loops, *(task for _, task in self._visits.values())]
        if under_way:
            ends = [asyncio.ensure_future(self._context.sleep(timeout_ms / 1_000))]
            ends += [] if at_once is None else [asyncio.ensure_future(at_once.wait())]
            ends.append(asyncio.ensure_future(asyncio.wait(under_way)))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            left = [task for task in under_way if not task.done()]
            for task in (*left, *ends):
                task.cancel()
            await asyncio.gather(*under_way, *ends, return_exceptions=True)
            if left:
                _log.warning("the stop cancelled %d tasks; another service resumes their work", len(left))
        await self._claims.close()
        await self._jobs.close()

    async def _keep_on(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat the step until the stop. A failed step is reported, and repeated after a pause."""
        while not self._pace.stopping:
            try:
                await step()
                self._troubles.clear(name)
            except Exception as error:
                foreseen = isinstance(error, LlogError)
                _log.warning("%s: %s: %s", name, type(error).__name__, error, exc_info=not foreseen)
                self._troubles.note(name, error)
                await self._pace.rest(self._error_pause_ms())

    # -- targets ------------------------------------------------------------------------------------------------------
    async def _discover(self) -> None:
        before, now = self._discovered, await discover(self._context, self._configured)
        self._discovered = now
        gone = self._backlogs.keep(now.logs)
        self._troubles.keep_logs(now.logs)
        for log in gone:
            self._metrics.set_compaction_lag(log.topic, log.partition, 0, 0)
        self._metrics.set_discovery(len(now.logs), now.at_ms)
        self._metrics.fenced_logs(len(now.fenced))
        self._left_behind = plan_left_behind(before, now)
        if self._left_behind:
            self._dying.set()
        if set(now.logs) - set(before.logs):
            self._hurry_on()
        self._troubles.clear("discovery")
        await self._pace.rest(self._settings.compactor_discovery_interval_ms)

    # -- visits -------------------------------------------------------------------------------------------------------
    async def _pass(self) -> None:
        """Inspect every log once per idle pause; in between, only logs that were just worked on."""
        now_ms = self._context.now_ms()
        self._paused = {log: pause for log, pause in self._paused.items() if pause.left_ms(now_ms)}
        logs: Collection[Log] = self._again
        self._again = set()
        if full := not self._between_passes.left_ms(now_ms):
            self._between_passes = self._pause(self._idle_pause_ms())
            self._passes += 1
            logs = self._discovered.logs
        free = (log for log in logs if log not in self._visits and log not in self._paused)
        order = plan_pass(free, self._context.random_bits)
        runs, appends = Counter[str](), 0
        for batch in batched(order, COMPACTOR_INSPECT_LOGS_MAX):
            views = await self._backlogs.inspect(batch)
            for gone in set(batch) - {view.log for view in views}:  # a configured log stays a target when it is deleted
                self._metrics.set_compaction_lag(gone.topic, gone.partition, 0, 0)
            for view in views:
                if isinstance(view, LogBacklog):
                    runs[view.run_state] += bool(view.run_state)
                    appends += view.pending_is_old
                await self._consider(view)
                if self._pace.stopping:
                    return
        if full:
            self._metrics.set_compaction_pending(runs, appends)
        self._troubles.clear("passes")
        pause_ms = max(self._between_passes.left_ms(self._context.now_ms()), COMPACTOR_PASS_PAUSE_MS_MIN)
        await self._pace.rest(pause_ms, self._wake)

    def _hurry_on(self) -> None:
        self._between_passes = Pause()
        self._wake.set()

    async def _consider(self, view: LogBacklog | BadLog) -> None:
        """Begin a visit if the log needs one, as soon as a worker is free."""
        if isinstance(view, BadLog):
            self._ended(Visit(view.log, "failed", Kind.COMPACT, error=f"{type(view.error).__name__}: {view.error}"))
            self._metrics.observe_compaction("failed", Kind.COMPACT.value, 0, 0, {})
            return
        self._metrics.set_compaction_lag(
            view.log.topic, view.log.partition, view.lag_offsets, view.ready_bytes, view.oldest_created_at_ms
        )
        merging = sum(kind is Kind.MERGE for kind, _ in self._visits.values())
        work = plan_work(
            view,
            self._rules,
            self._context.now_ms(),
            may_merge=merging < COMPACTOR_MERGES_AT_ONCE,
            hurry=self._hurry(),
        )
        if work is None:
            self._troubles.log_is_idle(view.log)
            self._metrics.observe_compaction("idle", Kind.COMPACT.value, 0, 0, {})
            return
        await self._slots.acquire()
        if self._pace.stopping:
            self._slots.release()
            return
        task = asyncio.create_task(self._visit(view, work), name=f"visit {view.log}")
        self._visits[view.log] = (work, task)
        self._metrics.set_workers(self._workers_busy(), self._settings.compactor_workers)

    async def _visit(self, view: LogBacklog, work: Kind) -> None:
        try:
            self._ended(await self._worker.visit(view, work))
        finally:
            del self._visits[view.log]
            self._slots.release()
            self._metrics.set_workers(self._workers_busy(), self._settings.compactor_workers)

    def _hurry(self) -> bool:
        return self._chores.under_pressure

    def _workers_busy(self) -> int:
        return -(-len(self._visits) // self._jobs.logs_per_worker)

    def _ended(self, visit: Visit) -> None:
        if visit.outcome == "failed":
            # Another service may do the work, and the log is idle then. For retention and merges an idle log proves
            # nothing: they may only be waiting for their turn.
            until_idle = visit.kind in (Kind.COMPACT, Kind.RESUME)
            self._troubles.note_log(visit.log, visit.error, until_idle=until_idle)
            self._paused[visit.log] = self._pause(self._error_pause_ms())
            return
        self._troubles.clear_log(visit.log)
        if visit.worked:
            self._again.add(visit.log)
            self._wake.set()
        else:
            self._paused[visit.log] = self._pause(self._idle_pause_ms())

    def _pause(self, pause_ms: int) -> Pause:
        now_ms = self._context.now_ms()
        return Pause(now_ms, now_ms + pause_ms)

    def _idle_pause_ms(self) -> int:
        settings = self._settings
        sleep_ms, jitter_ms = settings.compactor_idle_sleep_ms, settings.compactor_idle_jitter_ms
        return plan_pause_ms(sleep_ms, jitter_ms, self._context.random_bits)

    def _error_pause_ms(self) -> int:
        settings = self._settings
        sleep_ms, jitter_ms = settings.compactor_error_sleep_ms, settings.compactor_error_jitter_ms
        return max(plan_pause_ms(sleep_ms, jitter_ms, self._context.random_bits), COMPACTOR_PASS_PAUSE_MS_MIN)

    # -- chores -------------------------------------------------------------------------------------------------------
    async def _compact_by_key(self) -> None:
        await self._pace.rest(COMPACTOR_KEYS_INTERVAL_MS)
        if not self._pace.stopping and not self._chores.under_pressure:
            await self._keys.clean()

    async def _vacuum(self) -> None:
        while (wait_ms := self._chores.vacuum_in_ms()) and not self._pace.stopping:
            await self._pace.rest(wait_ms, self._chores.pressed)
        if not self._pace.stopping:
            await self._chores.vacuum()

    async def _measure_wal(self) -> None:
        await self._chores.measure_wal()
        if self._chores.under_pressure:
            self._hurry_on()
        self._troubles.clear("WAL store")
        await self._pace.rest(self._chores.wal_interval_ms())

    async def _compare_clocks(self) -> None:
        await self._chores.compare_clocks()
        self._troubles.clear("clocks")
        await self._pace.rest(self._chores.clocks_interval_ms)

    async def _finish_deletions(self) -> None:
        await self._pace.rest(self._settings.compactor_discovery_interval_ms, self._dying)
        left_behind, self._left_behind = self._left_behind, []
        if not self._pace.stopping:
            await self._chores.finish_deletions(left_behind)

    async def _back_up(self) -> None:
        await self._chores.backup()
        self._troubles.clear("backups")
        await self._pace.rest(COMPACTOR_BACKUP_INTERVAL_MS_MIN)

    # -- the health page ----------------------------------------------------------------------------------------------
    def health(self) -> dict[str, Any]:
        targets, chores, settings = self._discovered, self._chores, self._settings
        reasons = [*self._troubles.reasons(), *self._keys.reasons]
        if chores.under_pressure:
            reasons.append(f"the WAL store holds {chores.wal_bytes} bytes of {settings.wal_max_bytes}")
        if targets.left_out:
            reasons.append(f"{targets.left_out} logs are left to other services, or for later: too many for one")
        reasons += [f"a topic is left alone: {why}" for why in targets.unreadable[:COMPACTOR_TROUBLES_SHOWN_MAX]]
        status = "degraded" if reasons else "ok"
        if self._pace.stopping:
            status = "stopping"
        elif not targets.at_ms:
            status = "starting"
        return {
            "status": status,
            "reasons": reasons,
            "service": "compactor",
            "compactor_id": settings.compactor_id,
            "host": self.host,
            "port": self.port,
            "started_at_ms": self.started_at_ms,
            "workers": {"busy": self._workers_busy(), "total": settings.compactor_workers},
            "discovery": {"targets": len(targets.logs), "configured": len(self._configured), "at_ms": targets.at_ms},
            "in_session": self._claims.in_session,
            "passes": self._passes,
            "failing_logs": self._troubles.failing_logs,
            "fenced_logs": len(targets.fenced),
            # Not a reason for `degraded`: an operator may have closed the log on purpose.
            "fenced": [f"{log}: {reason}" for log, reason in targets.fenced[:COMPACTOR_TROUBLES_SHOWN_MAX]],
            "wal_bytes": chores.wal_bytes,
            "spark": self._jobs.spark_state,
        }


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    *,
    at_once: asyncio.Event | None = None,
    metrics: BrokerMetrics | None = None,
    make_jobs: Callable[[LogContext, Backends], CompactorJobs] = CompactorJobs,
    on_started: Callable[[str], None] | None = None,
    join_spark: JoinSpark | None = None,
    on_spark: OnSparkState | None = None,
) -> None:
    """Run stores, service and pages until `stop` is set; with `at_once` set too, work under way is cancelled.

    `on_started` receives the URL of the pages. `join_spark` starts Spark in the background; `on_spark` receives changes
    of its state.
    """
    from llog.compactor.pages import serving  # slow to import, and not needed for the service class

    metrics = BrokerMetrics() if metrics is None else metrics
    # Loading compiled code takes seconds; on the event loop the session would end meanwhile.
    await asyncio.to_thread(warm_up)
    metrics.set_loadtest(scenario_from_env(os.environ))
    meters = Meters(settings, metrics)
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT, wrapping=meters.wrapping) as opened:
        context = opened.context
        billing = Billing(meters.stores, root_prefix=settings.root_prefix, now_ms=context.now_ms)
        backends = Backends(context, join_spark, on_state=on_spark, on_requests=meters.add_requests)
        service = CompactorService(context, settings, metrics, jobs=make_jobs(context, backends))
        async with serving(settings, health=service.health, metrics=metrics) as pages:
            service.host, service.port = pages.host, pages.port
            metrics.set_compactor(
                compactor_id=settings.compactor_id,
                host=pages.host,
                port=pages.port,
                started_at_ms=service.started_at_ms,
                metadata_url=settings.metadata_url,
                wal_url=settings.wal_url,
                objects_url=settings.objects_url,
            )
            counting = asyncio.create_task(billing.run(context.sleep), name="billing")
            await service.start()
            try:
                if on_started is not None:
                    on_started(pages.url)
                backends.start()  # from here on, stopping the service closes them
                await stop.wait()
            finally:
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)
                await service.stop(at_once=at_once)
