"""What these tests share: memory stores, a clock that a test moves, and metrics that record calls."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from llog.compactor.jobs import CompactorJobs
from llog.errors import MetadataDenied
from llog.formats.backup import BackupManifest
from llog.formats.records.encode import encode_records
from llog.formats.values import CompactionRecord, ControlRecord, decode_value
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.cleanup.retention import Retained
from llog.log.context import LogContext, LogOptions
from llog.log.keys import Log
from llog.log.rewrite.publish import Compacted
from llog.log.topics.create import initialize
from llog.log.topics.delete import TopicDeleted
from llog.pipeline.vacuum.job import VacuumReport
from llog.settings import Settings
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import GroupOutcome, Write
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore

START_MS = 1_750_000_000_000
ORDERS = Log("orders", 0)
_numbers = itertools.count()


class Clock:
    def __init__(self) -> None:
        self.now = START_MS
        self.ahead_ms = 0
        """Of the clocks that patient processes look at; they sleep as long as ever."""
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self.now

    def wrong_ms(self) -> int:
        return self.now + self.ahead_ms

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + max(1, round(seconds * 1_000)), next(_numbers), future))
        await future

    async def advance(self, ms: int) -> None:
        """Let time pass and wake sleepers in the order of their times."""
        end = self.now + ms
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                self.now = due
                future.set_result(None)
                await settle()
        self.now = end
        await settle()


async def settle() -> None:
    """Run the loop until all tasks wait for the clock or for an event of the test."""
    for _ in range(300):
        await asyncio.sleep(0)


class Cluster:
    """Stores that several services share; `open` is what a process has of them."""

    def __init__(self, *, atomic: bool = True, own_wal: bool = False, watch: bool = True, **options: Any) -> None:
        self.clock, self._watch = Clock(), watch
        self.backing = MemoryBacking(atomic_groups=atomic, clock_ms=self.clock.now_ms)
        number = next(_numbers)
        self.objects = MemoryObjectStore(f"memory://objects-{number}", clock_ms=self.clock.now_ms)
        self.wal = MemoryObjectStore(f"memory://wal-{number}", clock_ms=self.clock.now_ms) if own_wal else self.objects
        self.options = LogOptions(**options)

    def open(self, seed: int = 1, *, patient: bool = False) -> LogContext:
        """A patient process sleeps by the clock; the others do not wait at all."""

        async def hurry(seconds: float) -> None:
            await asyncio.sleep(0)

        async def find(uri: str) -> tuple[ObjectStore, str]:
            store = self.wal if uri.startswith(self.wal.url + "/") else self.objects
            return store, store.name_of(uri)

        metadata = MemoryStore(self.backing)
        metadata.capabilities = metadata.capabilities._replace(watch=self._watch)
        return LogContext(
            metadata=metadata,
            wal=self.wal,
            segments=self.objects,
            find_object=find,
            now_ms=self.clock.wrong_ms if patient else self.clock.now_ms,
            random_bits=random.Random(seed).getrandbits,
            sleep=self.clock.sleep if patient else hurry,
            options=self.options,
        )

    def settings(self, **overrides: object) -> Settings:
        given: dict[str, object] = {
            "metadata_url": "memory://",
            "objects_url": self.objects.url,
            "wal_url": self.wal.url,
            "compactor_id": "one",
            "compactor_idle_sleep_ms": 1_000,
            "compactor_idle_jitter_ms": 0,
            "compactor_error_jitter_ms": 0,
        }
        return Settings.from_env({}, **given | overrides)


class Writer:
    def __init__(self, context: LogContext) -> None:
        self._appender = Appender(context, growth=Growth.HTTP)

    async def append(self, *logs: Log, size: int = 100) -> None:
        groups = []
        for log in logs:
            body = [encode_records([b"x" * size], timestamps_ms=START_MS)]
            groups.append(EncodedGroup(log, 1, "kafka-v2", body, START_MS))
        outcomes = await self._appender.append(groups)
        assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes


def die_at(context: LogContext, marker: str, *, after: bool) -> None:
    """The process's metadata calls fail from the write on that names `marker`, which is performed only if `after`."""
    perform, dead = context.metadata.write, False

    async def write(groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        nonlocal dead
        writes = [write for group in groups for write in group]
        meant = any(marker in one.key.path or marker.encode() in getattr(one, "value", b"") for one in writes)
        outcomes = [] if dead or (meant and not after) else await perform(groups)
        dead = dead or meant
        if dead:
            raise MetadataDenied("write", marker, "the process died")
        return outcomes

    context.metadata.write = write  # type: ignore[method-assign]


async def leave_pending(cluster: Cluster, log: Log) -> None:
    """An append of a writer that died before its entry was written: only control shows it (compare-and-set stores)."""
    context = cluster.open()
    await initialize(context, log)
    await Writer(cluster.open(patient=True)).append(log)  # it would clear the pending append after a while
    await settle()
    await context.metadata.delete(context.keys.index_entry(log, 1))


async def lag_of(context: LogContext, log: Log) -> int:
    control = await context.metadata.get(context.keys.control(log))
    record = await context.metadata.get(context.keys.compaction(log))
    assert control is not None
    assert record is not None
    counter = decode_value(ControlRecord, control.value, str(log)).sequence_counter
    return counter - decode_value(CompactionRecord, record.value, str(log)).offset


class RememberingMetrics:
    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.lag: dict[Log, tuple[int, int]] = {}
        self.workers: list[tuple[int, int]] = []
        self.discovery: list[tuple[int, int]] = []
        self.claims: Counter[str] = Counter()
        self.recoveries: Counter[str] = Counter()
        self.vacuums: Counter[str] = Counter()
        self.pending: list[tuple[int, int]] = []
        self.run_states: set[str] = set()
        self.fenced = -1
        self.skew_ms = -1.0
        self.stages: set[str] = set()
        self.counted: Counter[str] = Counter()
        self.answered: list[tuple[str, str, int]] = []

    def observe_compaction(
        self, outcome: str, kind: str, entries: int, byte_length: int, stages_ms: Mapping[str, float]
    ) -> None:
        self.outcomes[outcome, kind] += 1
        self.stages |= stages_ms.keys()

    def set_compaction_lag(
        self, topic: str, partition: int, offsets: int, byte_length: int, oldest_ms: int | None = None
    ) -> None:
        self.lag[Log(topic, partition)] = (offsets, byte_length)

    def set_compaction_pending(self, runs: Mapping[str, int], appends: int) -> None:
        self.pending.append((sum(runs.values()), appends))
        self.run_states.update(state for state, count in runs.items() if count)

    def set_workers(self, busy: int, total: int) -> None:
        self.workers.append((busy, total))

    def set_discovery(self, targets: int, at_ms: int) -> None:
        self.discovery.append((targets, at_ms))

    def claim_event(self, kind: str) -> None:
        self.claims[kind] += 1

    def recovery_event(self, kind: str) -> None:
        self.recoveries[kind] += 1

    def vacuum_event(self, kind: str, count: int) -> None:
        self.vacuums[kind] += count

    def fenced_logs(self, count: int) -> None:
        self.fenced = count

    def clock_skew(self, ms: float) -> None:
        self.skew_ms = ms

    def count(self, name: str, value: int = 1) -> None:
        self.counted[name] += value

    def observe_http(
        self, route: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        self.answered.append((route, method, status))

    def snapshot(self) -> dict[str, Any]:
        outcomes = {f"{outcome}/{kind}": count for (outcome, kind), count in self.outcomes.items()}
        return {"compaction": outcomes, "claims": dict(self.claims)}

    def prometheus(self) -> bytes:
        return b"".join(
            b'llog_compaction_total{outcome="%s",kind="%s"} %d\n' % (outcome.encode(), kind.encode(), count)
            for (outcome, kind), count in sorted(self.outcomes.items())
        )


class ScriptedJobs(CompactorJobs):
    """Counts the logs being worked on, blocks while `go_on` is clear, and fails for the logs in `failing`."""

    logs_per_worker = 1

    def __init__(self, context: LogContext, at_work: dict[Log, int] | None = None) -> None:
        super().__init__(context)
        self.at_work = {} if at_work is None else at_work
        self.together_max = self.same_log_max = 0
        self.calls: list[tuple[str, Log]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.failing: dict[Log, Exception] = {}
        self.vacuums = 0
        self.refusal: Exception | None = None

    async def _enter(self, job: str, log: Log) -> None:
        self.calls.append((job, log))
        self.at_work[log] = self.at_work.get(log, 0) + 1
        self.together_max = max(self.together_max, sum(self.at_work.values()))
        self.same_log_max = max(self.same_log_max, self.at_work[log])
        try:
            await self.go_on.wait()
            if log in self.failing:
                raise self.failing[log]
        except BaseException:
            self.at_work[log] -= 1
            raise

    async def compact(self, log: Log, *, max_offsets: int, target_bytes: int, min_age_ms: int) -> Compacted | None:
        await self._enter("compact", log)
        try:
            return await super().compact(log, max_offsets=max_offsets, target_bytes=target_bytes, min_age_ms=min_age_ms)
        finally:
            self.at_work[log] -= 1

    async def merge(self, log: Log, *, target_bytes: int, min_inputs: int) -> Compacted | None:
        await self._enter("merge", log)
        try:
            return await super().merge(log, target_bytes=target_bytes, min_inputs=min_inputs)
        finally:
            self.at_work[log] -= 1

    async def retain(self, log: Log) -> Retained:
        await self._enter("retain", log)
        try:
            return await super().retain(log)
        finally:
            self.at_work[log] -= 1

    async def vacuum(self) -> VacuumReport:
        self.vacuums += 1
        await self.go_on.wait()
        if self.refusal is not None:
            raise self.refusal
        return await super().vacuum()

    async def delete_topic(self, topic: str, incarnation: int) -> TopicDeleted:
        self.calls.append(("delete", Log(topic, incarnation)))
        return await super().delete_topic(topic, incarnation)

    async def backup(self) -> BackupManifest:
        await self.go_on.wait()
        return await super().backup()
