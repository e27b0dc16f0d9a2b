"""Work done once for the whole cluster, on a timetable: vacuum, backups, unfinished deletions, key compaction.

An ephemeral claim decides which service does a chore. Those of vacuum and backups stay with their service, so that
there is one timetable, and are released when the chore fails, because another service may succeed, and when there is
nothing left to do. Measuring the WAL store and comparing clocks need no claim. Each chore is a coroutine that does it
once, if it is due and claimed; the service calls it repeatedly.

While nothing changes, no chore calls a store: each remembers a mark of the changes seen before it ran, and equal marks
mean that its result still holds.

Key compaction is a chore, not a visit: a pass reads whole logs at a limited speed and may take long, while a visit
holds its log. Fresh bytes become segments during a pass, which gives way to them when it publishes. A log that was not
worth a pass is inspected again when its segments or its config change, or when ages make it worth one; a log that fails
stops no other, and is left alone for longer than the failed pass took.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from llog.broker.wal_usage import plan_measure_interval_ms
from llog.compactor.claims import Claims
from llog.compactor.discovery import DyingTopic
from llog.compactor.jobs import CompactorJobs
from llog.compactor.metrics import (
    DELETION_FINISHED,
    VACUUM_FAILED,
    VACUUM_REFUSED,
    VACUUM_RUN,
    CompactorMetrics,
    Outcome,
)
from llog.compactor.pace import Pause
from llog.compactor.plan import (
    COMPACTOR_VACUUM_INTERVAL_MS_MIN,
    SeenBackup,
    is_pressed,
    plan_backup_in_ms,
    plan_backups_to_remove,
    plan_hurried_vacuum_interval_ms,
    plan_idle_vacuum_interval_ms,
    plan_vacuum_interval_ms,
)
from llog.errors import ClusterMismatch, LlogError, VacuumRefused
from llog.limits import COMPACTOR_BACKUP_INTERVAL_MS_MIN
from llog.log.cleanup.vacuum_check import read_clocks
from llog.log.context import LogChange, LogContext
from llog.log.keys import Log
from llog.log.metrics import COMPACT_BYTES, COMPACT_RUNS
from llog.log.topics.config import TopicConfig
from llog.pipeline.key_compact.report import KeyCompacted, State
from llog.pipeline.vacuum.job import VacuumReport
from llog.settings import Settings

VACUUM: Final = "vacuum"
BACKUP: Final = "backup"
DELETIONS: Final = "topic-deletions"
VACUUM_WORK: Final = ("blobs_deleted", "bytes_deleted", "segments_marked", "segments_deleted", "phantoms_removed")
"""Fields of the report that say what was changed."""
VACUUM_COUNTS: Final = (
    *VACUUM_WORK,
    *("kept_unreadable", "kept_unknown_log", "kept_unchecked", "kept_planned", "kept_unread"),
)
"""Fields of the report that are metrics of the same name."""
_log = logging.getLogger("llog.compactor")


class Marks(Protocol):
    """Marks of the changes seen so far (`Changes`)."""

    def log_mark(self) -> int:
        """Equal marks: between them no topic, no log and no plan of the sink changed."""

    def full_mark(self) -> int:
        """Equal marks: between them nothing changed that outlives its process."""


class Unwatched:
    """Marks where changes are not known: no two are equal."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def log_mark(self) -> int:
        return next(self._numbers)

    def full_mark(self) -> int:
        return next(self._numbers)


class Chores:
    def __init__(
        self,
        context: LogContext,
        settings: Settings,
        *,
        claims: Claims,
        jobs: CompactorJobs,
        metrics: CompactorMetrics,
        marks: Marks | None = None,
    ) -> None:
        self._context, self._claims, self._jobs, self._metrics = context, claims, jobs, metrics
        self._marks = Unwatched() if marks is None else marks
        self.has_own_wal = settings.wal_url != settings.objects_url
        self._wal_max_bytes = settings.wal_max_bytes
        self.wal_bytes: int | None = None
        """Size of the WAL store when last measured; None before that, or without a separate WAL store."""
        self.pressed = asyncio.Event()
        """Set by every measurement that shows the WAL store nearly full."""
        wal_grace_ms = settings.wal_grace_ms if self.has_own_wal else None
        self._vacuum_interval_ms = plan_vacuum_interval_ms(settings.vacuum_grace_ms, wal_grace_ms)
        graces_ms = {settings.vacuum_grace_ms, settings.vacuum_grace_ms if wal_grace_ms is None else wal_grace_ms}
        # After the first time a vacuum judges the objects of one store that the last one found too young, after the
        # second those of the other store too.
        self._graces_over_ms = sorted(COMPACTOR_VACUUM_INTERVAL_MS_MIN + grace_ms for grace_ms in graces_ms)
        self._hurried_interval_ms = plan_hurried_vacuum_interval_ms(settings.wal_grace_ms)
        self.backup_interval_ms = settings.compactor_backup_interval_ms
        """0: no scheduled backups."""
        # The time of the last vacuum is unknown; services that start together should not all begin with one.
        self._vacuumed_at_ms = context.now_ms() - self._vacuum_interval_ms * context.random_bits(16) // 65_536
        self.last_vacuum: VacuumReport | None = None
        self._vacuumed: int | None = None
        self._vacuum_left_nothing = False
        self._vacuums_unchanged = 0
        """Vacuums in a row, after the first, between which nothing changed."""
        self._wal_measured: int | None = None
        self._clocks_compared: int | None = None
        self._backed_up: int | None = None
        """Marks of the changes before each of these."""

    @property
    def under_pressure(self) -> bool:
        return self.wal_bytes is not None and is_pressed(self.wal_bytes, self._wal_max_bytes)

    # -- the WAL store ------------------------------------------------------------------------------------------------
    def wal_interval_ms(self) -> int:
        is_local = self._context.wal is None or self._context.wal.kind in ("file", "memory")
        return plan_measure_interval_ms(self.wal_bytes or 0, self._wal_max_bytes, is_local=is_local)

    async def measure_wal(self) -> None:
        """Blobs come with appends and go with vacuum. A store that is nearly full is measured every time."""
        mark = self._marks.log_mark()
        if not self.has_own_wal or self._context.wal is None:
            return
        if mark == self._wal_measured and not self.under_pressure:
            return
        blobs = self._context.wal.list(self._context.keys.blobs())
        was_pressed = self.under_pressure
        self.wal_bytes, self._wal_measured = sum([blob.byte_length async for blob in blobs]), mark
        if self.under_pressure != was_pressed:
            fields = {"wal_bytes": self.wal_bytes, "wal_max_bytes": self._wal_max_bytes}
            if was_pressed:
                _log.info("the WAL store is below three quarters again", extra={"llog": fields})
            else:
                event = "the WAL store is three quarters full: compaction and vacuum start at once"
                _log.warning(event, extra={"llog": fields})
        if self.under_pressure:
            self.pressed.set()

    # -- vacuum -------------------------------------------------------------------------------------------------------
    def vacuum_in_ms(self, logs: int = 0) -> int:
        """Time until it must be decided again whether a vacuum is due; 0: it is due. `logs` is their number."""
        interval_ms = self._hurried_interval_ms if self.under_pressure else self._vacuum_interval_ms
        left_ms = self._left_ms(interval_ms)
        if self._marks.log_mark() != self._vacuumed or self.under_pressure:
            return left_ms
        if self._vacuum_left_nothing:
            unchanged_ms = plan_idle_vacuum_interval_ms(logs)
        else:
            unchanged_ms = self._graces_over_ms[min(self._vacuums_unchanged, len(self._graces_over_ms) - 1)]
        return min(self._left_ms(max(unchanged_ms, interval_ms)), left_ms or interval_ms)

    def _left_ms(self, interval_ms: int) -> int:
        return Pause(self._vacuumed_at_ms, self._vacuumed_at_ms + interval_ms).left_ms(self._context.now_ms())

    async def vacuum(self) -> None:
        """Begin the next interval, and run if this service holds the claim."""
        mark = self._marks.log_mark()
        self._vacuums_unchanged = self._vacuums_unchanged + 1 if mark == self._vacuumed else 0
        self._vacuumed_at_ms, self._vacuumed, self._vacuum_left_nothing = self._context.now_ms(), None, False
        if not await self._claims.take_chore(VACUUM):
            return
        try:
            self.last_vacuum = await self._claims.do_chore(VACUUM, self._jobs.vacuum())
        except Exception as error:
            refused = isinstance(error, VacuumRefused | ClusterMismatch)
            self._metrics.vacuum_event(VACUUM_REFUSED if refused else VACUUM_FAILED, 1)
            raise
        self._metrics.vacuum_event(VACUUM_RUN, 1)
        self._wal_measured = None
        counts = {kind: getattr(self.last_vacuum, kind) for kind in VACUUM_COUNTS}
        for kind, count in counts.items():
            self._metrics.vacuum_event(kind, count)
        if any(counts[kind] for kind in VACUUM_WORK):
            duration_ms = self._context.now_ms() - self._vacuumed_at_ms
            done = {kind: count for kind, count in counts.items() if count}
            _log.info("vacuumed the stores", extra={"llog": {**done, "duration_ms": duration_ms}})
        self._vacuumed, self._vacuum_left_nothing = mark, self.last_vacuum.left_nothing
        if self._vacuum_left_nothing and mark == self._marks.log_mark():
            await self._claims.give_chore(VACUUM)

    # -- clocks -------------------------------------------------------------------------------------------------------
    @property
    def clocks_interval_ms(self) -> int:
        return self._vacuum_interval_ms

    async def compare_clocks(self) -> None:
        """Report the largest difference between the clocks that vacuum uses. It costs requests, and while nothing
        changes no decision depends on a clock."""
        mark = self._marks.log_mark()
        if mark == self._clocks_compared:
            return
        clocks_ms = (await read_clocks(self._context)).values()
        self._clocks_compared = mark
        self._metrics.clock_skew(max(clocks_ms) - min(clocks_ms))

    # -- deletions ----------------------------------------------------------------------------------------------------
    async def finish_deletions(self, left_behind: list[DyingTopic]) -> None:
        """Finish deletions that another process began. Tries every topic; then raises the first error."""
        if left_behind and await self._claims.take_chore(DELETIONS):
            await self._claims.do_chore(DELETIONS, self._delete(left_behind))
            await self._claims.give_chore(DELETIONS)

    async def _delete(self, left_behind: list[DyingTopic]) -> None:
        errors: list[LlogError] = []
        for topic, incarnation in left_behind:
            started_ms = self._context.now_ms()
            try:
                done = await self._jobs.delete_topic(topic, incarnation)
            except LlogError as error:
                errors.append(error)
                continue
            fields = {**done._asdict(), "duration_ms": self._context.now_ms() - started_ms}
            _log.info("finished deleting a topic", extra={"llog": fields})
            self._metrics.recovery_event(DELETION_FINISHED)
        if errors:
            raise errors[0]

    # -- backups ------------------------------------------------------------------------------------------------------
    async def backup(self) -> int:
        """Back up if it is due, something changed, and this service holds the claim; the time until the next look. Only
        the holder lists the backups, and not before the next one is due, because each listing is a billed request."""
        mark = self._marks.full_mark()
        if mark == self._backed_up:
            await self._claims.give_chore(BACKUP)
        elif self.backup_interval_ms and await self._claims.take_chore(BACKUP):
            return await self._claims.do_chore(BACKUP, self._backup(mark))
        return COMPACTOR_BACKUP_INTERVAL_MS_MIN

    async def _backup(self, mark: int) -> int:
        self._backed_up = None
        seen, interval_ms = await self.backups(), self.backup_interval_ms
        if not plan_backup_in_ms(seen, self._context.now_ms(), interval_ms):
            manifest = await self._jobs.backup()
            fields = {"backup_id": manifest.backup_id, "records": manifest.records, "logs": manifest.logs}
            fields["bytes"] = sum(part.byte_length for part in manifest.parts)
            fields["duration_ms"] = manifest.finished_at_ms - manifest.started_at_ms
            _log.info("backed up the metadata", extra={"llog": fields})
            self._backed_up, seen = mark, await self.backups()
        for old in plan_backups_to_remove(seen, self._context.now_ms()):
            await self._remove(old)
        next_ms = min(interval_ms, plan_backup_in_ms(seen, self._context.now_ms(), interval_ms))
        return max(COMPACTOR_BACKUP_INTERVAL_MS_MIN, next_ms)

    async def backups(self) -> list[SeenBackup]:
        """The objects below the prefix of backups, by backup."""
        assert self._context.segments is not None
        kinds: dict[str, dict[str, str]] = {}
        async for listed in self._context.segments.list(self._context.keys.backups()):
            parsed = self._context.keys.parse_object(listed.name)
            if parsed is not None:
                kinds.setdefault(parsed.object_id, {})[listed.name] = parsed.kind
        return [
            SeenBackup(
                backup_id,
                whole="backup_manifest" in names.values(),
                scheduled="backup_schedule" in names.values(),
                names=tuple(names),
            )
            for backup_id, names in sorted(kinds.items())
        ]

    async def _remove(self, old: SeenBackup) -> None:
        """Remove the manifest first, so that the other objects do not look like a backup, and the schedule mark last,
        so that the next removal continues an interrupted one."""
        store, keys = self._context.segments, self._context.keys
        assert store is not None
        first, last = keys.backup_manifest_object(old.backup_id), keys.backup_schedule_object(old.backup_id)
        await store.delete(first)
        await store.delete_many([name for name in old.names if name not in (first, last)])
        await store.delete(last)
        self._context.on_change(LogChange("backup.delete", old.backup_id, after={"objects": len(old.names)}))


# -- key compaction ----------------------------------------------------------------------------------------------------

# How long a failed log is left alone, at least and as a multiple of the pass: it may have read a large log in vain.
COMPACTOR_KEYS_RETRY_MS: Final = 60_000
COMPACTOR_KEYS_RETRY_TIMES: Final = 10

KEYS: Final = "key-compaction"
KIND: Final = "key_compact"
"""Label in metrics, beside the kinds of visits."""
OUTCOMES: Final[dict[State, Outcome]] = {
    "compacted": "compacted",
    "clean": "idle",
    "not dirty enough": "idle",
    "not by key": "idle",
    "changed meanwhile": "busy",
    "failed": "failed",
}


class _Segments(NamedTuple):
    """What decides, besides the time, whether a log is worth a pass."""

    version: int
    """Version of the compaction record; every change of segments changes it."""
    config: TopicConfig


class _Rest(NamedTuple):
    segments: _Segments | None
    """A change of these ends the rest early; None: nothing does."""
    pause: Pause | None = None
    """None: only a change ends the rest."""

    def is_over(self, now_ms: int) -> bool:
        return self.pause is not None and not self.pause.left_ms(now_ms)


class KeyChore:
    def __init__(
        self,
        context: LogContext,
        *,
        claims: Claims,
        jobs: CompactorJobs,
        metrics: CompactorMetrics,
        bytes_per_second: int,
    ) -> None:
        self._context, self._claims, self._jobs, self._metrics = context, claims, jobs, metrics
        self._bytes_per_second = bytes_per_second or None
        self._resting: dict[Log, _Rest] = {}
        self._failing: dict[Log, str] = {}

    @property
    def reasons(self) -> list[str]:
        """For the health page: the error of the first failing log, and the number of others."""
        if not self._failing:
            return []
        log, more = min(self._failing), len(self._failing) - 1
        return [f"{log}: by key: {self._failing[log]}" + (f" (and {more} more logs)" if more else "")]

    async def clean(self, configs: Mapping[Log, TopicConfig], version_of: Callable[[Log], int | None]) -> None:
        """One pass over the logs that may be worth it, if this service holds the claim. `configs` are those of the logs
        that are compacted by key; `version_of` is the version of a log's compaction record, None if it is not known."""
        segments = {
            log: _Segments(version, config)
            for log, config in configs.items()
            if (version := version_of(log)) is not None
        }
        now_ms = self._context.now_ms()
        self._resting = {
            log: rest
            for log, rest in self._resting.items()
            if log in segments and rest.segments in (None, segments[log]) and not rest.is_over(now_ms)
        }
        self._failing = {log: error for log, error in self._failing.items() if log in self._resting}
        due = [log for log in segments if log not in self._resting]
        if not due:
            await self._claims.give_chore(KEYS)
        elif await self._claims.take_chore(KEYS):
            await self._claims.do_chore(KEYS, self._clean(due, segments))
        else:
            self._failing = {}

    async def _clean(self, due: list[Log], segments: Mapping[Log, _Segments]) -> None:
        now_ms = self._context.now_ms()
        report = await self._jobs.key_compact(due, bytes_per_second=self._bytes_per_second)
        for done in report.logs:
            self._note(done, segments[done.log], now_ms)

    def _note(self, done: KeyCompacted, segments: _Segments, now_ms: int) -> None:
        self._metrics.observe_compaction(OUTCOMES[done.state], KIND, done.segments_replaced, done.bytes_after, {})
        if done.segments_written:
            self._metrics.count(COMPACT_RUNS, done.segments_written)
            self._metrics.count(COMPACT_BYTES, done.bytes_after)
            fields = {"log": str(done.log), "records": done.records_before, "superseded": done.superseded}
            fields |= {"tombstones": done.tombstones, "bytes_before": done.bytes_before, "bytes": done.bytes_after}
            fields |= {"segments": done.segments_written, "pass_duration_ms": self._context.now_ms() - now_ms}
            _log.info("compacted a log by key", extra={"llog": fields})
        if done.state == "failed":
            if done.log not in self._failing:
                _log.warning("%s could not be compacted by key: %s", done.log, done.error)
            self._failing[done.log] = done.error
        if done.state == "failed" or (done.state == "changed meanwhile" and not done.segments_written):
            ended_ms = self._context.now_ms()
            pause_ms = max(COMPACTOR_KEYS_RETRY_MS, COMPACTOR_KEYS_RETRY_TIMES * (ended_ms - now_ms))
            self._resting[done.log] = _Rest(None, Pause(ended_ms, ended_ms + pause_ms))
            return
        if done.state in ("clean", "not dirty enough", "not by key"):
            pause = None if done.due_at_ms is None else Pause(now_ms, done.due_at_ms)
            self._resting[done.log] = _Rest(segments, pause)
