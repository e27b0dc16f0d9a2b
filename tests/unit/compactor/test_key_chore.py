"""The service cleans topics that are compacted by key, without being asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llog.compactor.backends import Backend, Backends
from llog.compactor.chores import COMPACTOR_KEYS_RETRY_MS, KeyChore
from llog.compactor.claims import Claims
from llog.compactor.discovery import Catalogue
from llog.compactor.jobs import CompactorJobs
from llog.compactor.service import COMPACTOR_KEYS_INTERVAL_MS
from llog.errors import ObjectStoreUnavailable, SparkJobFailed
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.topics.admin import alter_topic, create_topic
from llog.pipeline.compact.once import compact_once
from llog.pipeline.compact.plan import Sizing
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate, ScratchPart
from llog.pipeline.key_compact.job import KeyCompacted, KeyCompactReport
from llog.pipeline.key_compact.report import State
from llog.pipeline.runtime.tasks import TaskTools
from tests.unit.compactor.serving import running
from tests.unit.compactor.stage import START_MS, Clock, Cluster, RememberingMetrics, ScriptedJobs, settle
from tests.unit.compactor.test_jobs import CountingRunner

PRICES = Log("prices", 0)
BY_KEY = {"cleanup.policy": "compact"}


class Watching(ScriptedJobs):
    def __init__(self, context: LogContext, clock: Clock) -> None:
        super().__init__(context)
        self._clock = clock
        self.asked: list[list[Log]] = []
        self.broken: Exception | None = None
        self.ends: State | None = None
        self.takes_ms = 0

    async def key_compact(self, logs: Sequence[Log], *, bytes_per_second: int | None) -> KeyCompactReport:
        self.asked.append(list(logs))
        self._clock.now += self.takes_ms
        if self.broken is not None:
            raise self.broken
        if self.ends is not None:
            ended = [KeyCompacted(topic=log.topic, partition=log.partition, state=self.ends) for log in logs]
            return KeyCompactReport(dry_run=False, logs=ended)
        return await super().key_compact(logs, bytes_per_second=bytes_per_second)


class Cleaning:
    """The chore of a service that knows every topic and every compaction record."""

    def __init__(self, context: LogContext, chore: KeyChore) -> None:
        self._context, self._chore, self._catalogue = context, chore, Catalogue(context)

    @property
    def reasons(self) -> list[str]:
        return self._chore.reasons

    async def clean(self) -> None:
        await self._catalogue.read_all()
        configs = self._catalogue.by_key()
        found = await self._context.metadata.get_many([self._context.keys.compaction(log) for log in configs])
        versions = {log: None if one is None else one.version for log, one in zip(configs, found, strict=True)}
        await self._chore.clean(configs, versions.get)


def chore_of(cluster: Cluster, name: str = "one") -> tuple[Cleaning, Watching, RememberingMetrics]:
    context, metrics = cluster.open(sum(name.encode())), RememberingMetrics()
    claims = Claims(context, metrics, compactor_id=name, session_timeout_ms=10_000)
    runner = Watching(context, cluster.clock)
    chore = KeyChore(context, claims=claims, jobs=runner, metrics=metrics, bytes_per_second=0)
    return Cleaning(context, chore), runner, metrics


async def write(context: LogContext, log: Log, *keys: bytes) -> None:
    """One segment of so many records."""
    body = encode_records([b"of " + key for key in keys], keys=list(keys), timestamps_ms=START_MS)
    [outcome] = await Appender(context).append([EncodedGroup(log, len(keys), "kafka-v2", [body], START_MS)])
    assert isinstance(outcome, Appended)
    assert await compact_once(context, log) is not None


async def offsets_of(context: LogContext, log: Log) -> list[int]:
    return [record.offset async for run in iter_runs(context, log, 1) for record in run.records()]


async def test_topics_compacted_by_key_are_cleaned_and_no_others() -> None:
    cluster = Cluster()
    context = cluster.open()
    chore, runner, counted = chore_of(cluster)
    await chore.clean()
    assert runner.asked == []
    await create_topic(context, "prices", partitions=2, config=BY_KEY)
    await create_topic(context, "visits", partitions=1)
    for log in (PRICES, Log("visits", 0)):
        await write(context, log, b"a", b"b", b"a")
    await chore.clean()
    assert await offsets_of(context, PRICES) == [2, 3]
    assert await offsets_of(context, Log("visits", 0)) == [1, 2, 3]
    assert counted.outcomes["compacted", "key_compact"] == 1
    assert (counted.counted["log_compact_runs"], counted.counted["log_compact_bytes"] > 0) == (1, True)
    assert all(log.topic == "prices" for asked in runner.asked for log in asked)


async def test_a_log_that_is_not_worth_a_pass_is_looked_at_again_only_when_it_changed() -> None:
    cluster = Cluster()
    context = cluster.open()
    chore, runner, _ = chore_of(cluster)
    await create_topic(context, "prices", partitions=1, config=BY_KEY)
    await write(context, PRICES, *[b"%d" % n for n in range(100)])
    await chore.clean()
    await chore.clean()
    looks = len(runner.asked)
    await chore.clean()
    assert len(runner.asked) == looks
    await write(context, PRICES, b"1")  # a hundredth of the log: too little
    await chore.clean()
    await chore.clean()
    assert len(runner.asked) == looks + 1
    await alter_topic(context, "prices", put={"min.cleanable.dirty.ratio": "0"})
    await chore.clean()
    assert len(runner.asked) == looks + 2
    assert 2 not in await offsets_of(context, PRICES)
    await chore.clean()
    looks = len(runner.asked)
    cluster.clock.now += 3_600_000
    await chore.clean()
    assert len(runner.asked) == looks


@pytest.mark.parametrize("config", [{"min.compaction.lag.ms": "60000"}, {"max.compaction.lag.ms": "60000"}])
async def test_where_ages_decide_a_log_is_looked_at_when_it_is_old_enough(config: dict[str, str]) -> None:
    cluster = Cluster()
    context = cluster.open()
    chore, runner, _ = chore_of(cluster)
    dirty = {"min.cleanable.dirty.ratio": "0" if "min.compaction.lag.ms" in config else "1"}
    await create_topic(context, "prices", partitions=1, config=BY_KEY | dirty | config)
    await write(context, PRICES, b"b")
    await chore.clean()
    await write(context, PRICES, b"a", b"a")
    for _ in range(3):
        await chore.clean()
    looks = len(runner.asked)
    cluster.clock.now += 59_000
    await chore.clean()
    assert (len(runner.asked), await offsets_of(context, PRICES)) == (looks, [1, 2, 3])
    cluster.clock.now += 1_000
    await chore.clean()
    assert (len(runner.asked), await offsets_of(context, PRICES)) == (looks + 1, [1, 3])


async def test_a_log_that_fails_is_told_of_and_does_not_keep_the_others_waiting() -> None:
    cluster = Cluster()
    context = cluster.open()
    chore, runner, counted = chore_of(cluster)
    await create_topic(context, "prices", partitions=2, config=BY_KEY)
    for partition in (0, 1):
        await write(context, Log("prices", partition), b"a", b"a")
    [gone] = [one.name async for one in cluster.objects.list(f"{context.keys.root}/prices/partitions/1/data")]
    held = await cluster.objects.get(gone)
    await cluster.objects.put(gone, [b"\0" * len(memoryview(held))])
    await chore.clean()
    assert await offsets_of(context, PRICES) == [2]
    [reason] = chore.reasons
    assert reason.startswith("prices:1: by key: ")
    assert counted.outcomes["failed", "key_compact"] == 1
    looks = len(runner.asked)
    await write(context, Log("prices", 1), b"a")
    await chore.clean()
    assert runner.asked[looks:] == [[PRICES]], "it is not read again and again, changed or not"
    assert chore.reasons == [reason]
    await cluster.objects.put(gone, [held])
    cluster.clock.now += COMPACTOR_KEYS_RETRY_MS
    await chore.clean()
    assert chore.reasons == []
    assert await offsets_of(context, Log("prices", 1)) == [3]


@pytest.mark.parametrize("ends", ["failed", "changed meanwhile"])
async def test_a_log_that_was_read_in_vain_for_long_is_left_alone_for_longer(ends: State) -> None:
    cluster = Cluster()
    context = cluster.open()
    chore, runner, _ = chore_of(cluster)
    runner.takes_ms, runner.ends = 3_600_000, ends
    await create_topic(context, "prices", partitions=1, config=BY_KEY)
    await write(context, PRICES, b"a", b"a")
    await chore.clean()
    assert bool(chore.reasons) == (ends == "failed")
    cluster.clock.now += 9 * 3_600_000
    await chore.clean()
    assert len(runner.asked) == 1
    cluster.clock.now += 3_600_000
    await chore.clean()
    assert len(runner.asked) == 2


async def test_one_of_two_services_does_it_and_another_takes_over_when_it_fails() -> None:
    cluster = Cluster()
    context = cluster.open()
    (one, first, _), (two, second, _) = chore_of(cluster, "one"), chore_of(cluster, "two")
    await create_topic(context, "prices", partitions=1, config=BY_KEY)
    await write(context, PRICES, b"a", b"a")
    first.broken = ObjectStoreUnavailable("list", "memory://", "away")
    with pytest.raises(ObjectStoreUnavailable):
        await one.clean()
    await two.clean()
    assert await offsets_of(context, PRICES) == [2]
    await one.clean()
    assert (len(first.asked), len(second.asked)) == (1, 1)


async def test_the_service_does_it_by_its_timetable_and_its_health_tells_of_it() -> None:
    cluster = Cluster()
    context = cluster.open()
    await create_topic(context, "prices", partitions=1, config=BY_KEY)
    await write(context, PRICES, b"a", b"b", b"a")
    async with running(cluster) as there:
        await cluster.clock.advance(COMPACTOR_KEYS_INTERVAL_MS)
        for _ in range(100):  # the pass works in threads
            if there.metrics.outcomes["compacted", "key_compact"]:
                break
            await cluster.clock.advance(10)
        assert await offsets_of(context, PRICES) == [2, 3]
        assert there.service.health()["status"] == "ok"


@pytest.mark.parametrize("what_breaks", ["tasks", "aggregation"])
async def test_it_runs_on_spark_where_that_has_joined_and_leaves_a_spark_that_broke(what_breaks: str) -> None:
    cluster = Cluster()
    context = cluster.open()
    await create_topic(context, "prices", partitions=1, config=BY_KEY)
    await write(context, PRICES, b"a", b"a")
    elsewhere, broken, aggregates = CountingRunner(context), SparkJobFailed("keys", "the JVM is gone"), 0

    def make_aggregate(tools: TaskTools) -> LocalKeyAggregate:
        nonlocal aggregates
        aggregates += 1
        if what_breaks == "tasks" or aggregates > 1:
            return LocalKeyAggregate(tools)

        class Broken(LocalKeyAggregate):
            async def survivors(self, place: object, scanned: object) -> dict[int, ScratchPart]:
                raise broken

        return Broken(tools)

    async def join() -> Backend:
        return Backend(elsewhere, Sizing(2), make_aggregate)

    tasks = Backends(cluster.open(patient=True), join)
    tasks.start()
    await settle()
    runner = CompactorJobs(context, tasks)
    assert runner.spark_state == "ready"
    elsewhere.failing = broken if what_breaks == "tasks" else None
    [failed] = (await runner.key_compact([PRICES], bytes_per_second=None)).logs
    assert (failed.state, aggregates) == ("failed", 1)
    assert "the JVM is gone" in runner.spark_state
    ran = len(elsewhere.runs)
    [done] = (await runner.key_compact([PRICES], bytes_per_second=None)).logs
    assert (done.state, done.superseded) == ("compacted", 1)
    assert (len(elsewhere.runs), aggregates) == (ran, 1), "in this process"
    await runner.close()
