"""The service: discovers logs, visits those that need work, does the chores of the cluster, and stops gracefully.

    changes     ──►  topics and logs that changed
    discovery   ──►  targets
    passes      ──►  logs that are due: inspect, plan, visit (bounded workers)
    chores: compact by key, measure the WAL store, vacuum, compare clocks, finish deletions, back up

Each is a loop that no error ends: the health page shows the error, and the loop continues after a pause. After a stop
nothing begins, work under way may end within a time limit, and all claims are released.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

from llog.audit_log import Principal, act_as
from llog.compactor.backends import Backends, JoinSpark, OnSparkState
from llog.compactor.backlog import Backlogs
from llog.compactor.changes import Changes
from llog.compactor.chores import Chores, KeyChore
from llog.compactor.claims import Claims
from llog.compactor.discovery import DyingTopic
from llog.compactor.jobs import CompactorJobs
from llog.compactor.metrics import CompactorMetrics
from llog.compactor.pace import ServicePace
from llog.compactor.passes import Passes
from llog.compactor.plan import (
    Rules,
)
from llog.compactor.targets import Targets
from llog.compactor.troubles import Troubles
from llog.compactor.worker import Worker
from llog.formats.warm_up import warm_up
from llog.limits import (
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

# How often the service checks whether its session is in use; an idle service has none.
COMPACTOR_SESSION_CHECK_MS: Final = 30_000
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
        self._pace, self._troubles = ServicePace(context.sleep), Troubles(context.now_ms)
        self._backlogs = Backlogs(context, self._rules)
        session_timeout_ms, read_speed = settings.session_timeout_ms, settings.key_compact_bytes_per_second
        claims = Claims(context, metrics, compactor_id=settings.compactor_id, session_timeout_ms=session_timeout_ms)
        jobs, self._claims = self._jobs, claims
        self._configured = tuple(Log(*target) for target in settings.compactor_targets)
        self._targets = Targets(context, self._configured, interval_ms=settings.compactor_discovery_interval_ms)
        self._changes = Changes(
            context, on_log=self._log_changed, on_topic=self._targets.topic_changed, on_all=self._all_changed
        )
        self._chores = Chores(context, settings, claims=claims, jobs=jobs, metrics=metrics, marks=self._changes)
        self._keys = KeyChore(context, claims=claims, jobs=jobs, metrics=metrics, bytes_per_second=read_speed)
        worker = Worker(
            context, self._rules, backlogs=self._backlogs, claims=claims, jobs=jobs, metrics=metrics, hurry=self._hurry
        )
        self._passes = Passes(
            context,
            settings,
            self._rules,
            backlogs=self._backlogs,
            targets=self._targets,
            worker=worker,
            metrics=metrics,
            troubles=self._troubles,
            pace=self._pace,
            logs_per_worker=jobs.logs_per_worker,
            watched=lambda: self._changes.live,
            hurry=self._hurry,
        )
        self._left_behind: list[DyingTopic] = []
        self._dying = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self.started_at_ms = context.now_ms()
        self.host, self.port = settings.compactor_bind_host, settings.compactor_port
        """Address of the status pages; `serve` sets the actual port."""

    # -- start and stop ------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        self._passes.inspect_now(self._configured)  # without waiting for a discovery
        self._metrics.set_workers(0, self._settings.compactor_workers)
        loops: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("discovery", self._discover),
            ("passes", self._passes.one),
            ("sessions", self._end_idle_session),
            ("key compaction", self._compact_by_key),
            ("vacuum", self._vacuum),
            ("clocks", self._compare_clocks),
            ("topic deletions", self._finish_deletions),
        ]
        if self._changes.possible:
            loops.append(("changes", self._follow_changes))
        if self._chores.has_own_wal:
            loops.append(("WAL store", self._measure_wal))
        if self._chores.backup_interval_ms:
            loops.append(("backups", self._back_up))
        self._loops = [asyncio.create_task(self._keep_on(name, step), name=name) for name, step in loops]

    async def stop(self, *, timeout_ms: int = COMPACTOR_STOP_MS_MAX, at_once: asyncio.Event | None = None) -> None:
        """Begin no new work, and wait for work under way until the timeout or until `at_once` is set. The rest is
        cancelled; the next service resumes it."""
        self._pace.stop()
        under_way = [*self._loops, *(task for _, task in self._passes.visits.values())]
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
                self._troubles.note(name, error)
                await self._pace.rest(self._passes.error_pause_ms())

    # -- targets ------------------------------------------------------------------------------------------------------
    async def _discover(self) -> None:
        targets = self._targets
        refreshed = await targets.refresh(watched=self._changes.live)
        found = targets.discovered
        if refreshed.others:
            self._passes.keep(targets.logs)
        self._metrics.set_discovery(len(found.logs), found.at_ms)
        self._metrics.fenced_logs(len(found.fenced))
        if refreshed.left_behind is not None:
            self._left_behind = refreshed.left_behind
            if self._left_behind:
                self._dying.set()
        self._passes.inspect_now(refreshed.inspect)
        self._passes.inspect_now(self._backlogs.look_again(refreshed.reconfigured))
        self._troubles.clear("discovery")
        await self._pace.rest(self._passes.idle_pause_ms())  # topics often change together
        await self._pace.rest(targets.wait_ms(), targets.changed)

    # -- changes ------------------------------------------------------------------------------------------------------
    async def _follow_changes(self) -> None:
        await self._pace.until_stop(self._changes.follow())
        await self._pace.rest(self._passes.error_pause_ms())

    def _log_changed(self, log: Log) -> None:
        if log in self._targets.logs:
            self._passes.changed(log)
        else:
            self._targets.log_changed(log)

    def _all_changed(self) -> None:
        """A watch began, was lost or missed changes."""
        if self._changes.live:
            self._troubles.clear("changes")
        self._targets.all_changed()

    def _hurry(self) -> bool:
        return self._chores.under_pressure

    # -- chores -------------------------------------------------------------------------------------------------------
    async def _compact_by_key(self) -> None:
        await self._pace.rest(COMPACTOR_KEYS_INTERVAL_MS)
        if not self._pace.stopping and not self._chores.under_pressure:
            await self._keys.clean(self._targets.by_key(), self._backlogs.compaction_version)

    async def _vacuum(self) -> None:
        while (wait_ms := self._chores.vacuum_in_ms(len(self._targets.logs))) and not self._pace.stopping:
            await self._pace.rest(wait_ms, self._chores.pressed)
        if not self._pace.stopping:
            await self._chores.vacuum()

    async def _measure_wal(self) -> None:
        await self._chores.measure_wal()
        if self._chores.under_pressure:
            self._passes.inspect_now(self._backlogs.lagging())
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
        pause_ms = await self._chores.backup()
        self._troubles.clear("backups")
        await self._pace.rest(pause_ms)

    async def _end_idle_session(self) -> None:
        await self._pace.rest(COMPACTOR_SESSION_CHECK_MS)
        await self._claims.close_unused()

    def change_mark(self) -> int:
        """Equal marks: between them no object was written for a log."""
        return self._changes.log_mark()

    # -- the health page ----------------------------------------------------------------------------------------------
    def health(self) -> dict[str, Any]:
        targets, chores, settings = self._targets.discovered, self._chores, self._settings
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
            "workers": {"busy": self._passes.workers_busy, "total": settings.compactor_workers},
            "discovery": {"targets": len(targets.logs), "configured": len(self._configured), "at_ms": targets.at_ms},
            "in_session": self._claims.in_session,
            "watching": self._changes.live,
            "passes": self._passes.count,
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
    act_as(Principal(f"compactor:{settings.compactor_id}"))
    # Loading compiled code takes seconds; on the event loop the session would end meanwhile.
    await asyncio.to_thread(warm_up)
    metrics.set_loadtest(scenario_from_env(os.environ))
    meters = Meters(settings, metrics)
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT, wrapping=meters.wrapping) as opened:
        context = opened.context
        backends = Backends(context, join_spark, on_state=on_spark, on_requests=meters.add_requests)
        service = CompactorService(context, settings, metrics, jobs=make_jobs(context, backends))
        billing = Billing(
            meters.stores, root_prefix=settings.root_prefix, now_ms=context.now_ms, mark=service.change_mark
        )
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
                fields = {"compactor_id": settings.compactor_id, "url": pages.url, **settings.store_urls()}
                _log.info("compactor started", extra={"llog": fields})
                backends.start()  # from here on, stopping the service closes them
                await stop.wait()
            finally:
                stopped_at_ms = context.now_ms()
                _log.info("compactor stops", extra={"llog": {"compactor_id": settings.compactor_id}})
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)
                await service.stop(at_once=at_once)
                took = {"compactor_id": settings.compactor_id, "duration_ms": context.now_ms() - stopped_at_ms}
                _log.info("compactor stopped", extra={"llog": took})
