"""Work done once for the whole cluster, on a timetable: vacuum, backups, unfinished deletions, key compaction.

An ephemeral claim decides which service does a chore. Those of vacuum and backups stay with their service, so that
there is one timetable, and are released when the chore fails, because another service may succeed. Measuring the WAL
store and comparing clocks need no claim. Each chore is a coroutine that does it once, if it is due and claimed; the
service calls it repeatedly.

Key compaction is a chore, not a visit: a pass reads whole logs at a limited speed and may take long, while a visit
holds its log. Fresh bytes become segments during a pass, which gives way to them when it publishes. A log that was not
worth a pass is inspected again when its segments or its config change, or after a while; a log that fails stops no
other, and is left alone for longer than the failed pass took.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from llog.compactor.claims import Claims
from llog.compactor.discovery import DyingTopic, readable_topics
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
    SeenBackup,
    is_pressed,
    plan_backup_due,
    plan_backup_interval_ms,
    plan_backups_to_remove,
    plan_hurried_vacuum_interval_ms,
    plan_vacuum_interval_ms,
)
from llog.errors import ClusterMismatch, InvalidArgument, LlogError, SessionLost, VacuumRefused
from llog.limits import METADATA_GET_MANY_MAX
from llog.log.cleanup.vacuum_check import read_clocks
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.metrics import COMPACT_BYTES, COMPACT_RUNS
from llog.log.topics.config import TopicConfig
from llog.pipeline.key_compact.report import KeyCompacted, State
from llog.pipeline.vacuum.job import VacuumReport
from llog.settings import Settings

# How often the WAL store is measured: where listing is free, and where each request is billed.
COMPACTOR_WAL_MEASURE_LOCAL_MS: Final = 10_000
COMPACTOR_WAL_MEASURE_REMOTE_MS: Final = 60_000

VACUUM: Final = "vacuum"
BACKUP: Final = "backup"
DELETIONS: Final = "topic-deletions"
_log = logging.getLogger("llog.compactor")


class Chores:
    def __init__(
        self,
        context: LogContext,
        settings: Settings,
        *,
        claims: Claims,
        jobs: CompactorJobs,
        metrics: CompactorMetrics,
    ) -> None:
        self._context, self._claims, self._jobs, self._metrics = context, claims, jobs, metrics
        self.has_own_wal = settings.wal_url != settings.objects_url
        self._wal_max_bytes = settings.wal_max_bytes
        self.wal_bytes: int | None = None
        """Held by the WAL store when last measured; None where it is not a store of its own, or not yet."""
        self.pressed = asyncio.Event()
        """Set with every measurement that finds the WAL store too full."""
        wal_grace_ms = settings.wal_grace_ms if self.has_own_wal else None
        self._vacuum_interval_ms = plan_vacuum_interval_ms(settings.vacuum_grace_ms, wal_grace_ms)
        self._hurried_interval_ms = plan_hurried_vacuum_interval_ms(settings.wal_grace_ms)
        self.backup_interval_ms = plan_backup_interval_ms(settings.vacuum_grace_ms)
        # The time of the last one is unknown; services that start together should not all begin with it.
        self._vacuumed_at_ms = context.now_ms() - self._vacuum_interval_ms * context.random_bits(16) // 65_536
        self.last_vacuum: VacuumReport | None = None

    @property
    def under_pressure(self) -> bool:
        return self.wal_bytes is not None and is_pressed(self.wal_bytes, self._wal_max_bytes)

    # -- the WAL store ------------------------------------------------------------------------------------------------
    def wal_interval_ms(self) -> int:
        local = self._context.wal is None or self._context.wal.kind in ("file", "memory")
        return COMPACTOR_WAL_MEASURE_LOCAL_MS if local else COMPACTOR_WAL_MEASURE_REMOTE_MS

    async def measure_wal(self) -> None:
        if not self.has_own_wal or self._context.wal is None:
            return
        used = 0
        async for found in self._context.wal.list(self._context.keys.blobs()):
            used += found.byte_length
        self.wal_bytes = used
        if self.under_pressure:
            _log.warning("the WAL store holds %d bytes of %d: compacting and vacuuming", used, self._wal_max_bytes)
            self.pressed.set()

    # -- vacuum -------------------------------------------------------------------------------------------------------
    def vacuum_in_ms(self) -> int:
        """How long until vacuum is due; 0: now."""
        interval_ms = self._hurried_interval_ms if self.under_pressure else self._vacuum_interval_ms
        return Pause(self._vacuumed_at_ms, self._vacuumed_at_ms + interval_ms).left_ms(self._context.now_ms())

    async def vacuum(self) -> None:
        """Begin the next interval, and run if the chore is ours."""
        self._vacuumed_at_ms = self._context.now_ms()
        if not await self._claims.take_chore(VACUUM):
            return
        try:
            done = await self._claims.guarded(self._vacuum())
        except (VacuumRefused, ClusterMismatch):
            self._metrics.vacuum_event(VACUUM_REFUSED, 1)
            await self._claims.give_chore(VACUUM)
            raise
        except Exception:
            self._metrics.vacuum_event(VACUUM_FAILED, 1)
            await self._claims.give_chore(VACUUM)
            raise
        self.last_vacuum = done
        self._metrics.vacuum_event(VACUUM_RUN, 1)
        for kind, count in vacuum_counts(done).items():
            self._metrics.vacuum_event(kind, count)

    async def _vacuum(self) -> VacuumReport:
        return await self._jobs.vacuum()

    # -- clocks -------------------------------------------------------------------------------------------------------
    @property
    def clocks_interval_ms(self) -> int:
        return self._vacuum_interval_ms

    async def compare_clocks(self) -> None:
        """How far the clocks that vacuum would go by are apart, seen from here."""
        clocks_ms = (await read_clocks(self._context)).values()
        self._metrics.clock_skew(max(clocks_ms) - min(clocks_ms))

    # -- deletions ----------------------------------------------------------------------------------------------------
    async def finish_deletions(self, left_behind: list[DyingTopic]) -> None:
        """Finish deletions that another process began. Every topic gets its turn; then the first error is raised."""
        if not left_behind or not await self._claims.take_chore(DELETIONS):
            return
        failed: LlogError | None = None
        try:
            for topic, incarnation in left_behind:
                try:
                    await self._claims.guarded(self._delete(topic, incarnation))
                    self._metrics.recovery_event(DELETION_FINISHED)
                except SessionLost:
                    raise
                except LlogError as error:
                    failed = failed or error
        finally:
            await self._claims.give_chore(DELETIONS)
        if failed is not None:
            raise failed

    async def _delete(self, topic: str, incarnation: int) -> None:
        done = await self._jobs.delete_topic(topic, incarnation)
        _log.info("finished deleting %s: %d partitions", topic, done.partitions)

    # -- backups ------------------------------------------------------------------------------------------------------
    async def backup(self) -> None:
        """Where the WAL is a store of its own, so is the metadata mostly: on a disk that may be lost."""
        if not self.has_own_wal or not await self._claims.take_chore(BACKUP):
            return
        try:
            await self._claims.guarded(self._backup())
        except Exception:
            await self._claims.give_chore(BACKUP)
            raise

    async def _backup(self) -> None:
        seen = await self.backups()
        if plan_backup_due(seen, self._context.now_ms(), self.backup_interval_ms):
            manifest = await self._jobs.backup()
            _log.info("backed up %d records of %d logs", manifest.records, manifest.logs)
            seen = await self.backups()
        for old in plan_backups_to_remove(seen, self._context.now_ms()):
            await self._remove(old)

    async def backups(self) -> list[SeenBackup]:
        """Whatever lies below the prefix of backups, by backup."""
        assert self._context.segments is not None
        names: dict[str, list[str]] = {}
        kinds: dict[str, set[str]] = {}
        async for found in self._context.segments.list(self._context.keys.backups()):
            parsed = self._context.keys.parse_object(found.name)
            if parsed is not None:
                names.setdefault(parsed.object_id, []).append(found.name)
                kinds.setdefault(parsed.object_id, set()).add(parsed.kind)
        return [
            SeenBackup(
                backup_id,
                whole="backup_manifest" in kinds[backup_id],
                scheduled="backup_schedule" in kinds[backup_id],
                names=tuple(names[backup_id]),
            )
            for backup_id in sorted(names)
        ]

    async def _remove(self, old: SeenBackup) -> None:
        """Remove the manifest first, so that the rest is not taken for a backup, and the mark last, so that the next
        removal continues an interrupted one."""
        store, keys = self._context.segments, self._context.keys
        assert store is not None
        first, last = keys.backup_manifest_object(old.backup_id), keys.backup_schedule_object(old.backup_id)
        await store.delete(first)
        await store.delete_many([name for name in old.names if name not in (first, last)])
        await store.delete(last)


def vacuum_counts(done: VacuumReport) -> dict[str, int]:
    """What is counted of a vacuum, by the name of the event."""
    return {
        "blobs_deleted": done.blobs_deleted,
        "bytes_deleted": done.bytes_deleted,
        "segments_marked": done.segments_marked,
        "segments_deleted": done.segments_deleted,
        "phantoms_removed": done.phantoms_removed,
        "kept_unreadable": done.kept_unreadable,
        "kept_unknown_log": done.kept_unknown_log,
        "kept_unchecked": done.kept_unchecked,
        "kept_planned": done.kept_planned,
        "kept_unread": done.kept_unread,
    }


# -- key_chore ---------------------------------------------------------------------------------------------------------

COMPACTOR_KEYS_REST_MS: Final = 600_000
COMPACTOR_KEYS_RETRY_MS: Final = 60_000
COMPACTOR_KEYS_RETRY_TIMES: Final = 10

KEYS: Final = "key-compaction"
KIND: Final = "key_compact"
"""In metrics, beside the kinds of visits."""
OUTCOMES: Final[dict[State, Outcome]] = {
    "compacted": "compacted",
    "clean": "idle",
    "not dirty enough": "idle",
    "not by key": "idle",
    "changed meanwhile": "busy",
    "failed": "failed",
}
_log = logging.getLogger("llog.compactor")


class _Seen(NamedTuple):
    """What a look depends on, beside the time."""

    version: int
    """Of the compaction record, which every change of segments moves."""
    config: TopicConfig


class _Rest(NamedTuple):
    seen: _Seen | None
    """It ends when this changes; None: only with the time."""
    pause: Pause


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
        """For the health page: what is wrong, by the first log with which it is."""
        if not self._failing:
            return []
        log, more = min(self._failing), len(self._failing) - 1
        return [f"{log}: by key: {self._failing[log]}" + (f" (and {more} more logs)" if more else "")]

    async def clean(self) -> None:
        """One pass over the logs that may be worth it, if the chore is ours."""
        configs = await self._configs()
        if not configs or not await self._claims.take_chore(KEYS):
            self._resting, self._failing = {}, {}
            return
        try:
            await self._claims.guarded(self._clean(configs))
        except Exception:
            await self._claims.give_chore(KEYS)
            raise

    async def _configs(self) -> dict[Log, TopicConfig]:
        """Logs that are compacted by key; a topic with an invalid config is logged and skipped."""
        found: dict[Log, TopicConfig] = {}
        topics, _ = await readable_topics(self._context, ["LIVE"])  # discovery reports the others
        for topic, record in topics:
            try:
                config = TopicConfig.of(record.config)
            except InvalidArgument as error:
                _log.warning("%s is not compacted by key: %s", topic, error)
                continue
            if config.compact:
                found |= {Log(topic, number): config for number in range(record.partition_count)}
        return found

    async def _clean(self, configs: dict[Log, TopicConfig]) -> None:
        seen = await self._look(configs)
        now_ms = self._context.now_ms()
        self._resting = {
            log: rest
            for log, rest in self._resting.items()
            if log in seen and rest.seen in (None, seen[log]) and rest.pause.left_ms(now_ms)
        }
        self._failing = {log: error for log, error in self._failing.items() if log in self._resting}
        due = [log for log in seen if log not in self._resting]
        if not due:
            return
        report = await self._jobs.key_compact(due, bytes_per_second=self._bytes_per_second)
        for done in report.logs:
            self._note(done, seen[done.log], now_ms)

    async def _look(self, configs: dict[Log, TopicConfig]) -> dict[Log, _Seen]:
        """Logs that are there."""
        logs, seen = list(configs), dict[Log, _Seen]()
        for first in range(0, len(logs), METADATA_GET_MANY_MAX):
            some = logs[first : first + METADATA_GET_MANY_MAX]
            records = await self._context.metadata.get_many([self._context.keys.compaction(log) for log in some])
            for log, record in zip(some, records, strict=True):
                if record is not None:
                    seen[log] = _Seen(record.version, configs[log])
        return seen

    def _note(self, done: KeyCompacted, seen: _Seen, now_ms: int) -> None:
        self._metrics.observe_compaction(OUTCOMES[done.state], KIND, done.segments_replaced, done.bytes_after, {})
        if done.segments_written:
            self._metrics.count(COMPACT_RUNS, done.segments_written)
            self._metrics.count(COMPACT_BYTES, done.bytes_after)
            _log.info("compacted %s by key: %d of %d records went", done.log, done.superseded, done.records_before)
        if done.state == "failed":
            self._failing[done.log] = done.error
            _log.warning("%s could not be compacted by key: %s", done.log, done.error)
        if done.state == "failed" or (done.state == "changed meanwhile" and not done.segments_written):
            ended_ms = self._context.now_ms()
            pause_ms = max(COMPACTOR_KEYS_RETRY_MS, COMPACTOR_KEYS_RETRY_TIMES * (ended_ms - now_ms))
            self._resting[done.log] = _Rest(None, Pause(ended_ms, ended_ms + pause_ms))
            return
        from llog.pipeline.key_compact.plan import limits_lag  # loaded by the pass

        # Where ages decide, time alone makes a log worth a pass.
        by_age = seen.config.min_compaction_lag_ms > 0 or limits_lag(seen.config)
        if done.state in ("clean", "not dirty enough") and not by_age:
            self._resting[done.log] = _Rest(seen, Pause(now_ms, now_ms + COMPACTOR_KEYS_REST_MS))
