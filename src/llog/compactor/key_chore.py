"""Key compaction as a chore: topics whose `cleanup.policy` holds `compact` are cleaned without anybody asking.

Why a chore and not a visit: a pass reads whole logs at a limited speed and may take long, while a visit keeps others
away from its log; fresh bytes go on becoming segments beside a pass, which gives way to them when it publishes.

What must stay true: one service of the cluster does it at a time; a log that was not worth a pass is looked at again
only when its segments or its config changed, or after a while; one that fails stops no other, and one that was read in
vain is left alone for longer than that took.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from llog.compactor.claims import Claims
from llog.compactor.discovery import readable_topics
from llog.compactor.jobs import CompactorJobs
from llog.compactor.metrics import CompactorMetrics, Outcome
from llog.compactor.pace import Pause
from llog.errors import InvalidArgument
from llog.limits import METADATA_GET_MANY_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.metrics import COMPACT_BYTES, COMPACT_RUNS
from llog.log.topics.config import TopicConfig
from llog.pipeline.key_compact.report import KeyCompacted, State

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
        """Logs that are compacted by key. A config that nobody understands is left to whoever meets it on purpose."""
        found: dict[Log, TopicConfig] = {}
        topics, _ = await readable_topics(self._context, ["LIVE"])  # discovery tells of the others
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
