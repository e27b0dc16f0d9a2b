"""The service's compaction as jobs over many logs, in this process until Spark has joined."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from llog.compactor.backends import COMPACT_SPARK_REJOIN_MS, Backend, Backends
from llog.compactor.jobs import COMPACT_JOBS_AT_ONCE, CompactorJobs, SharedJobs
from llog.compactor.service import CompactorService
from llog.errors import CompactionFailed, LogBusy, SparkJobFailed, SparkNotInstalled, SparkSessionFailed
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.pipeline.compact.plan import Sizing
from llog.pipeline.runtime.tasks import LocalTasks, Task, TaskFailed, tools_of
from tests.patience import PATIENCE_SECONDS
from tests.unit.compactor.stage import Cluster, RememberingMetrics, Writer, lag_of, settle
from tests.unit.pipeline.compact.compact_stage import entries_of

LOGS = [Log("orders", partition) for partition in range(12)]
TERMS: dict[str, Any] = {"max_offsets": 1_000, "target_bytes": 1 << 20, "min_age_ms": 0}


class CountingRunner(LocalTasks):
    """Tasks in this process, as if it were another."""

    def __init__(self, context: LogContext) -> None:
        super().__init__(tools_of(context))
        self.runs: list[int] = []
        self.failing: Exception | None = None
        self.closed = False

    async def run(self, task: Task[Any, Any], items: Sequence[Any], on_done: Any = None, **parts: Any) -> list[Any]:
        self.runs.append(len(items))
        if self.failing is not None:
            raise self.failing
        return await super().run(task, items, on_done, **parts)

    async def close(self) -> None:
        self.closed = True


# -- jobs of many visits -----------------------------------------------------------------------------------------------


async def test_visits_of_the_same_moment_share_one_job_which_reads_each_blob_once() -> None:
    cluster = Cluster()
    context = cluster.open()
    for _ in range(3):
        await Writer(context).append(*LOGS)
    reads: list[str] = []
    get_ranges = cluster.objects.get_ranges

    async def counted(name: str, ranges: Any) -> Any:
        reads.append(name)
        return await get_ranges(name, ranges)

    cluster.objects.get_ranges = counted  # type: ignore[method-assign]
    runner = CompactorJobs(context)
    done = await asyncio.gather(*(runner.compact(log, **TERMS) for log in LOGS))
    assert [run is not None and (run.entry_count, run.end_offset) for run in done] == [(3, 3)] * 12
    assert len(reads) == 3
    assert await asyncio.gather(*(runner.compact(log, **TERMS) for log in LOGS)) == [None] * 12
    await runner.close()


async def test_a_visit_does_one_piece_of_work() -> None:
    cluster = Cluster()
    context = cluster.open()
    for _ in range(5):
        await Writer(context).append(LOGS[0])
    runner = CompactorJobs(context)
    first = await runner.compact(LOGS[0], **TERMS | {"max_offsets": 2})
    assert first is not None
    assert (first.start_offset, first.end_offset) == (1, 2)
    assert await lag_of(context, LOGS[0]) == 3
    await runner.close()


async def test_one_damaged_log_fails_its_own_visit() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(LOGS[0])
    await Writer(context).append(LOGS[1])
    damaged = (await entries_of(context, LOGS[0]))[0].value
    name = cluster.objects.name_of(damaged.data_key)
    content = bytearray(await cluster.objects.get(name))
    content[-1] ^= 1
    await cluster.objects.put(name, [content])
    runner = CompactorJobs(context)
    failed, done = await asyncio.gather(*(runner.compact(log, **TERMS) for log in LOGS[:2]), return_exceptions=True)
    assert isinstance(failed, CompactionFailed)
    assert failed.error_type == "ChecksumMismatch"
    assert not isinstance(done, BaseException)
    await runner.close()


async def test_merges_go_through_tasks_too() -> None:
    cluster = Cluster()
    context = cluster.open()
    elsewhere = CountingRunner(context)

    async def join() -> Backend:
        return Backend(elsewhere, Sizing(2))

    tasks = Backends(context, join, local_bytes_max=0)
    tasks.start()
    await settle()
    runner = CompactorJobs(context, tasks)
    for _ in range(3):
        await Writer(context).append(LOGS[0])
        await runner.compact(LOGS[0], **TERMS)
    merged = await runner.merge(LOGS[0], target_bytes=1 << 20, min_inputs=3)
    assert merged is not None
    assert (merged.kind, merged.level, merged.entry_count) == ("MERGE", 2, 3)
    assert await runner.merge(LOGS[0], target_bytes=1 << 20, min_inputs=3) is None
    assert elsewhere.runs == [1, 1, 1, 1]
    await runner.close()
    assert elsewhere.closed


class ScriptedJobs:
    def __init__(self) -> None:
        self.jobs: list[list[Log]] = []
        self.go_on = asyncio.Event()
        self.cancelled = 0

    async def perform(self, terms: str, logs: Sequence[Log]) -> Mapping[Log, int | Exception]:
        self.jobs.append(list(logs))
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {log: log.partition for log in logs}


async def no_time(seconds: float) -> None:
    await asyncio.sleep(0)


async def test_what_is_asked_for_while_jobs_run_waits_for_the_next() -> None:
    jobs = ScriptedJobs()
    gathering: SharedJobs[str, int] = SharedJobs(jobs.perform, no_time)
    asked = [asyncio.create_task(gathering.ask("terms", LOGS[0]))]
    for log in LOGS[1:]:
        await settle()
        asked.append(asyncio.create_task(gathering.ask("terms", log)))
    await settle()
    assert len(jobs.jobs) == COMPACT_JOBS_AT_ONCE
    jobs.go_on.set()
    assert await asyncio.gather(*asked) == list(range(12))
    assert [len(job) for job in jobs.jobs] == [1, 1, 10]


async def test_requests_on_other_terms_are_another_job() -> None:
    jobs = ScriptedJobs()
    jobs.go_on.set()
    gathering: SharedJobs[str, int] = SharedJobs(jobs.perform, no_time)
    await asyncio.gather(gathering.ask("a", LOGS[0]), gathering.ask("b", LOGS[1]), gathering.ask("a", LOGS[2]))
    assert sorted(map(len, jobs.jobs)) == [1, 2]


async def test_a_job_goes_on_until_all_who_asked_have_given_up() -> None:
    jobs = ScriptedJobs()
    gathering: SharedJobs[str, int] = SharedJobs(jobs.perform, no_time)
    one, two = (asyncio.create_task(gathering.ask("terms", log)) for log in LOGS[:2])
    await settle()
    one.cancel()
    await settle()
    assert jobs.cancelled == 0
    two.cancel()
    await settle()
    assert jobs.cancelled == 1
    assert one.cancelled()
    assert two.cancelled()


async def test_a_job_that_fails_fails_all_that_wait_for_it_and_no_later_one() -> None:
    fails = True

    async def perform(terms: str, logs: Sequence[Log]) -> Mapping[Log, int | Exception]:
        if fails:
            raise ZeroDivisionError
        return dict.fromkeys(logs, 1)

    gathering: SharedJobs[str, int] = SharedJobs(perform, no_time)
    failed = await asyncio.gather(*(gathering.ask("terms", log) for log in LOGS[:3]), return_exceptions=True)
    assert [type(error) for error in failed] == [ZeroDivisionError] * 3
    fails = False
    assert await gathering.ask("terms", LOGS[0]) == 1


async def test_nothing_begins_after_the_close_and_what_runs_is_cancelled() -> None:
    jobs = ScriptedJobs()
    gathering: SharedJobs[str, int] = SharedJobs(jobs.perform, no_time)
    asked = []
    for log in LOGS[: COMPACT_JOBS_AT_ONCE + 2]:  # one job each, and two that no job has taken yet
        asked.append(asyncio.create_task(gathering.ask("terms", log)))
        await settle()
    await gathering.close()
    await settle()
    assert all(task.cancelled() for task in asked)
    with pytest.raises(LogBusy):
        await gathering.ask("terms", LOGS[0])


# -- joining Spark -----------------------------------------------------------------------------------------------------


async def test_work_goes_on_in_this_process_until_spark_has_joined() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(*LOGS)
    elsewhere, started = CountingRunner(context), asyncio.Event()
    states: list[str] = []

    async def join() -> Backend:
        await started.wait()
        return Backend(elsewhere, Sizing(2))

    tasks = Backends(context, join, on_state=states.append, local_bytes_max=0)
    runner = CompactorJobs(context, tasks)
    tasks.start()
    assert runner.spark_state == "starting"
    assert await runner.compact(LOGS[0], **TERMS) is not None
    assert elsewhere.runs == []
    started.set()
    await settle()
    assert runner.spark_state == "ready"
    assert await runner.compact(LOGS[1], **TERMS) is not None
    assert elsewhere.runs == [1]
    assert states == ["ready"]
    await runner.close()


async def test_without_spark_the_reason_is_shown_and_the_work_is_done_here() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(*LOGS)

    async def join() -> Backend:
        raise SparkNotInstalled("no module named pyspark")

    tasks = Backends(context, join)
    runner = CompactorJobs(context, tasks)
    tasks.start()
    await settle()
    assert runner.spark_state.startswith("unavailable (Spark cannot be used (no module named pyspark)")
    assert await runner.compact(LOGS[0], **TERMS) is not None
    await runner.close()


async def test_small_rounds_stay_in_this_process_and_others_go_to_spark() -> None:
    cluster = Cluster()
    context = cluster.open()
    elsewhere = CountingRunner(context)

    async def join() -> Backend:
        return Backend(elsewhere, Sizing(2))

    await Writer(context).append(*LOGS)
    [entry] = await entries_of(context, LOGS[0])
    one_log_bytes = entry.value.byte_length or 0
    tasks = Backends(context, join, local_bytes_max=2 * one_log_bytes)
    tasks.start()
    await settle()
    runner = CompactorJobs(context, tasks)
    assert await runner.compact(LOGS[0], **TERMS) is not None
    assert elsewhere.runs == [], "one log's slice is small"
    assert None not in await asyncio.gather(*(runner.compact(log, **TERMS) for log in LOGS[1:]))
    assert elsewhere.runs == [1], "those of eleven, in one job, are not"
    for _ in range(2):
        await Writer(context).append(LOGS[0])
        await runner.compact(LOGS[0], **TERMS)
    assert await runner.merge(LOGS[0], target_bytes=1 << 20, min_inputs=3) is not None
    assert elsewhere.runs == [1, 1], "a merge by its segments, which are larger than their slices"
    await runner.close()


async def test_a_spark_that_went_away_is_left_and_tried_again_later() -> None:
    cluster = Cluster()
    context = cluster.open(patient=True)
    await Writer(cluster.open()).append(*LOGS)
    elsewhere = CountingRunner(context)
    joins = 0

    async def join() -> Backend:
        nonlocal joins
        joins += 1
        return Backend(elsewhere, Sizing(2))

    tasks = Backends(context, join, local_bytes_max=0)
    runner = CompactorJobs(cluster.open(), tasks)
    tasks.start()
    await settle()
    elsewhere.failing = SparkJobFailed("somewhere", "the JVM is gone")
    with pytest.raises(SparkJobFailed):
        await runner.compact(LOGS[0], **TERMS)
    assert "the JVM is gone" in runner.spark_state
    assert await runner.compact(LOGS[0], **TERMS) is not None, "in this process"
    elsewhere.failing = None
    await cluster.clock.advance(COMPACT_SPARK_REJOIN_MS + 1_000)
    assert (runner.spark_state, joins) == ("ready", 2)
    assert elsewhere.closed, "the runner that was left, before the next was asked for"
    await runner.close()


async def test_a_spark_that_is_gone_between_jobs_is_told_of_and_replaced() -> None:
    """Jobs that are large enough for it may be hours apart."""
    cluster = Cluster()
    context = cluster.open(patient=True)
    states: list[str] = []
    gone, joins = False, 0

    async def check() -> None:
        if gone:
            raise SparkSessionFailed("local[2]", "its JVM is gone")

    async def join() -> Backend:
        nonlocal joins, gone
        joins, gone = joins + 1, False
        return Backend(CountingRunner(context), Sizing(2), check=check)

    tasks = Backends(context, join, on_state=states.append)
    tasks.start()
    await cluster.clock.advance(3 * COMPACT_SPARK_REJOIN_MS)
    assert (states, joins) == (["ready"], 1)
    gone = True
    await cluster.clock.advance(COMPACT_SPARK_REJOIN_MS + 1_000)
    assert (states, joins) == (["ready", "unavailable (no Spark session on local[2]: its JVM is gone)", "ready"], 2)
    await tasks.close()


async def test_a_task_that_fails_is_no_reason_to_leave_spark() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(*LOGS)

    class Failing(CountingRunner):
        async def run(self, task: Task[Any, Any], items: Sequence[Any], on_done: Any = None, **parts: Any) -> list[Any]:
            return [TaskFailed("ObjectStoreUnavailable", "down", True) for _ in items]

    async def join() -> Backend:
        return Backend(Failing(context), Sizing(2))

    tasks = Backends(context, join, local_bytes_max=0)
    tasks.start()
    await settle()
    runner = CompactorJobs(context, tasks)
    with pytest.raises(CompactionFailed, match="ObjectStoreUnavailable: down"):
        await runner.compact(LOGS[0], **TERMS)
    assert runner.spark_state == "ready"
    await runner.close()


# -- in the service ----------------------------------------------------------------------------------------------------


async def test_the_service_compacts_all_due_logs_in_one_job_and_shows_sparks_state() -> None:
    cluster = Cluster()
    context = cluster.open()
    for _ in range(2):
        await Writer(context).append(*LOGS)
    jobs = CountingRunner(context)

    async def join() -> Backend:
        return Backend(jobs, Sizing(2))

    tasks = Backends(cluster.open(patient=True), join, local_bytes_max=0)
    tasks.start()
    await settle()
    metrics = RememberingMetrics()
    settings = cluster.settings(compactor_min_age_ms=0, compactor_trigger_age_ms=0)
    service = CompactorService(
        cluster.open(1, patient=True), settings, metrics, jobs=CompactorJobs(cluster.open(9, patient=True), tasks)
    )
    await service.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while [await lag_of(context, log) for log in LOGS] != [0] * 12:
                await cluster.clock.advance(50)
                await asyncio.sleep(0.005)  # tasks compute in threads, by another clock
        await cluster.clock.advance(100)
        assert jobs.runs == [1]
        assert metrics.outcomes["compacted", "compact"] == 12
        assert service.health()["spark"] == "ready"
        assert max(busy for busy, _ in metrics.workers) == 1
    finally:
        stopping = asyncio.create_task(service.stop(timeout_ms=1_000))
        await cluster.clock.advance(2_000)
        await stopping
    assert jobs.closed
