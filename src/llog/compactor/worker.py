"""One visit to one log: claim it, inspect it again, do the most important work, release it.

The second inspection, under the claim, matters: another service may have done the work since the visit was planned. A
visit does one piece of work, so that logs take turns, and ends in one outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from llog.compactor.backlog import Backlogs, BadLog
from llog.compactor.claims import Claims
from llog.compactor.jobs import CompactorJobs
from llog.compactor.metrics import PENDING_SETTLED, RUN_RESUMED, CompactorMetrics, Outcome
from llog.compactor.plan import Kind, LogBacklog, Rules, plan_work
from llog.errors import LlogError, LogBusy, LogDeleted, PartitionNotInitialized, SessionLost
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.metrics import COMPACT_BYTES, COMPACT_RUNS
from llog.log.rewrite.publish import Compacted

T = TypeVar("T")
EVENTS: Final = {
    Kind.COMPACT: "compacted a log",
    Kind.MERGE: "merged segments",
    Kind.RESUME: "finished an interrupted run",
    Kind.RETAIN: "applied retention",
}
"""The lines of visits that did something."""
_log = logging.getLogger("llog.compactor")


class Visit(NamedTuple):
    """The outcome of a visit."""

    log: Log
    outcome: Outcome
    kind: Kind
    entries: int = 0
    byte_length: int = 0
    error: str = ""
    fields: Mapping[str, object] = {}
    """What was done, for the log; empty when nothing was."""

    @property
    def worked(self) -> bool:
        """The log may need more work at once."""
        return self.outcome in ("compacted", "resumed")


class Worker:
    def __init__(
        self,
        context: LogContext,
        rules: Rules,
        *,
        backlogs: Backlogs,
        claims: Claims,
        jobs: CompactorJobs,
        metrics: CompactorMetrics,
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        self._context, self._rules = context, rules
        self._backlogs, self._claims, self._jobs, self._metrics = backlogs, claims, jobs, metrics
        self._hurry = hurry

    async def visit(self, planned: LogBacklog, kind: Kind) -> Visit:
        stages_ms: dict[str, float] = {}
        try:
            done = await self._visit(planned, kind, stages_ms)
        except LogBusy as error:
            done = Visit(planned.log, "busy", kind, error=str(error))
        except (PartitionNotInitialized, LogDeleted):
            done = Visit(planned.log, "idle", kind)  # deleted meanwhile: the next discovery drops it
        except Exception as error:
            if not isinstance(error, LlogError):  # the others are reported once (`Troubles`)
                _log.error("%s of %s failed", kind.value, planned.log, exc_info=error)
            done = Visit(planned.log, "failed", kind, error=f"{type(error).__name__}: {error}")
        if done.fields:
            timed = {"log": str(done.log), **done.fields, "duration_ms": stages_ms["run"]}
            _log.info(EVENTS[done.kind], extra={"llog": timed})
        self._metrics.observe_compaction(done.outcome, done.kind.value, done.entries, done.byte_length, stages_ms)
        return done

    async def _visit(self, planned: LogBacklog, kind: Kind, stages_ms: dict[str, float]) -> Visit:
        log = planned.log
        if not await self._timed(stages_ms, "claim", self._claims.take(log, planned.incarnation)):
            return Visit(log, "claimed_elsewhere", kind)
        try:
            done = await self._claims.guarded(self._work(planned, kind, stages_ms))
        except SessionLost:
            raise  # the claim ended with the session
        except Exception:
            await self._claims.give(log)
            raise
        await self._timed(stages_ms, "release", self._claims.give(log))
        return done

    async def _work(self, planned: LogBacklog, kind: Kind, stages_ms: dict[str, float]) -> Visit:
        log = planned.log
        for view in await self._timed(stages_ms, "look", self._backlogs.inspect([log], strict=True)):
            if isinstance(view, BadLog):
                raise view.error
            work = plan_work(
                view, self._rules, self._context.now_ms(), may_merge=kind is Kind.MERGE, hurry=self._hurry()
            )
            if work is not None:
                done = await self._timed(stages_ms, "run", self._run(view, work))
                if view.pending_is_old and done.outcome != "idle":
                    self._metrics.recovery_event(PENDING_SETTLED)
                return done
        return Visit(log, "idle", kind)

    async def _run(self, view: LogBacklog, work: Kind) -> Visit:
        log, rules = view.log, self._rules
        if work is Kind.RETAIN:
            try:
                retained = await self._jobs.retain(log)
            finally:
                self._backlogs.retained(log)  # also after a failure: until the next turn the log is compacted
            entries, segments = retained.entries_removed, retained.segments_removed
            if not entries + segments:
                return Visit(log, "idle", work)
            fields = {"log_start_offset": retained.log_start_offset, "entries": entries, "segments": segments}
            return Visit(log, "compacted", work, entries, fields=fields)
        if work is Kind.MERGE:
            merged = await self._jobs.merge(log, target_bytes=rules.merge_max_bytes, min_inputs=rules.merge_inputs_min)
            if merged is None:
                self._backlogs.nothing_to_merge(log)
            return self._ended(log, work, merged)
        max_offsets, target_bytes = rules.max_offsets_per_run, rules.trigger_bytes
        compacted = await self._jobs.compact(
            log, max_offsets=max_offsets, target_bytes=target_bytes, min_age_ms=rules.min_age_ms
        )
        return self._ended(log, work, compacted)

    def _ended(self, log: Log, work: Kind, run: Compacted | None) -> Visit:
        if run is None:
            return Visit(log, "idle", work)
        self._metrics.count(COMPACT_RUNS)
        self._metrics.count(COMPACT_BYTES, run.byte_length)
        fields = {
            "start_offset": run.start_offset,
            "end_offset": run.end_offset,
            "entries": run.entry_count,
            "bytes": run.byte_length,
            "segment_level": run.level,
        }
        if run.resumed:
            self._metrics.recovery_event(RUN_RESUMED)
            return Visit(log, "resumed", Kind.RESUME, run.entry_count, run.byte_length, fields=fields)
        return Visit(log, "compacted", work, run.entry_count, run.byte_length, fields=fields)

    async def _timed(self, stages_ms: dict[str, float], stage: str, work: Coroutine[Any, Any, T]) -> T:
        started_ms = self._context.now_ms()
        try:
            return await work
        finally:
            stages_ms[stage] = self._context.now_ms() - started_ms
