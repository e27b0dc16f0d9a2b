"""Tasks performed in Spark come to the same as in this process, whatever happens to a worker."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llog.errors import InvalidArgument, SparkJobFailed, SparkTaskFailed
from llog.pipeline.runtime.tasks import TaskFailed
from llog.settings import Settings
from llog.wiring import ObjectStores
from tests.patience import PATIENCE_SECONDS, until
from tests.spark.sample_tasks import OBEY, Order, Told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pyspark.sql import SparkSession

    from llog.spark.runner.tasks import SparkTasks

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({}, data_dir=tmp_path / "data")


@pytest.fixture
async def runner(spark: SparkSession, settings: Settings) -> AsyncIterator[SparkTasks]:
    from llog.spark.runner.tasks import SparkTasks

    runner = SparkTasks(spark, settings)
    yield runner
    await runner.close()


def told(outcome: Told | TaskFailed) -> Told:
    assert isinstance(outcome, Told), outcome
    return outcome


async def test_outcomes_come_in_the_order_of_items_and_a_foreseen_error_is_one_of_them(runner: SparkTasks) -> None:
    heard: list[int] = []
    items = [Order("echo", n, text="ä" * n) if n != 2 else Order("miss", n, text="gone") for n in range(5)]
    outcomes = await runner.run(OBEY, items, lambda number, _: heard.append(number))
    assert [told(one).facts["text"] for n, one in enumerate(outcomes) if n != 2] == ["", "ä", "äää", "ääää"]
    failed = outcomes[2]
    assert isinstance(failed, TaskFailed)
    assert (failed.error_type, failed.retriable) == ("ObjectNotFound", False)
    assert "gone" in failed.error
    assert sorted(heard) == [0, 1, 2, 3, 4]


async def test_each_outcome_is_told_as_soon_as_its_task_has_ended(runner: SparkTasks) -> None:
    began = time.monotonic()
    heard: dict[int, float] = {}
    await runner.run(OBEY, [Order("nap", 0), Order("nap", 20)], lambda n, _: heard.update({n: time.monotonic()}))
    assert heard[1] - heard[0] > 1.0, heard
    assert time.monotonic() - began >= 2.0


async def test_no_items_make_no_job(runner: SparkTasks) -> None:
    assert await runner.run(OBEY, []) == []


async def test_items_that_would_make_too_large_a_plan_make_several_jobs(
    runner: SparkTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llog.spark.runner.tasks.SPARK_JOB_ITEMS_MAX", 2)
    outcomes = await runner.run(OBEY, [Order("echo", n) for n in range(5)])
    assert [told(one).number for one in outcomes] == [0, 1, 2, 3, 4]


async def test_an_unforeseen_error_is_tried_again(runner: SparkTasks, tmp_path: Path) -> None:
    [outcome] = await runner.run(OBEY, [Order("break-once", 1, str(tmp_path))])
    assert told(outcome).facts["attempts"] == "2"


async def test_an_unforeseen_error_that_stays_fails_the_run_as_itself(runner: SparkTasks, tmp_path: Path) -> None:
    with pytest.raises(SparkTaskFailed) as raised:
        await runner.run(OBEY, [Order("echo"), Order("break", 1, str(tmp_path), "zero")])
    error = raised.value
    assert (error.error_type, error.error) == ("ZeroDivisionError", "by zero")
    assert "sample_tasks.py" in error.trace
    assert str(error) == f"{OBEY.place} failed: ZeroDivisionError: by zero"
    assert (tmp_path / "attempts-1").read_text() == "xxxx"


async def test_a_killed_worker_loses_nothing(runner: SparkTasks, tmp_path: Path) -> None:
    items = [Order("die-once", 0, str(tmp_path)), *(Order("echo", n) for n in range(1, 5))]
    outcomes = await runner.run(OBEY, items)
    assert [told(one).number for one in outcomes] == [0, 1, 2, 3, 4]
    assert told(outcomes[0]).facts["attempts"] == "2"


async def test_cancelling_a_run_ends_its_tasks_and_leaves_the_runner_usable(runner: SparkTasks, tmp_path: Path) -> None:
    run = asyncio.create_task(runner.run(OBEY, [Order("linger", n, str(tmp_path)) for n in range(2)]))
    await _come_alive(tmp_path, 2)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await _fall_silent(tmp_path)
    assert len(await runner.run(OBEY, [Order("echo")])) == 1


async def test_a_run_whose_listener_raises_ends_its_tasks(runner: SparkTasks, tmp_path: Path) -> None:
    def listen(number: int, _outcome: object) -> None:
        raise LookupError(f"number {number}")

    with pytest.raises(LookupError, match="number 0"):
        await runner.run(OBEY, [Order("echo"), Order("linger", 1, str(tmp_path))], listen)
    await _fall_silent(tmp_path)


async def _come_alive(directory: Path, tasks: int) -> None:
    await until(lambda: _signs(directory).count(".") >= tasks, f"signs of life of {tasks} tasks", pause_seconds=0.05)


async def _fall_silent(directory: Path) -> None:
    """Returns when no task has given a sign of life for a second."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        last, since = "", time.monotonic()
        while time.monotonic() - since < 1:
            await asyncio.sleep(0.1)
            if (seen := _signs(directory)) != last:
                last, since = seen, time.monotonic()


def _signs(directory: Path) -> str:
    return " ".join(path.read_text() for path in sorted(directory.glob("alive-*")))


async def test_runs_overlap_and_a_small_one_does_not_wait_for_a_large_one(runner: SparkTasks) -> None:
    ended: list[int] = []
    items = [Order("nap", 20, text=str(n)) for n in range(6)]
    large = asyncio.create_task(runner.run(OBEY, items, lambda number, _: ended.append(number)))
    await until(lambda: ended, "the first task of the large run")
    await runner.run(OBEY, [Order("echo")])
    assert not large.done()
    assert len(await large) == 6


async def test_tasks_work_on_the_stores_that_were_sent_and_know_nothing_else_of_the_cluster(
    runner: SparkTasks, settings: Settings
) -> None:
    async with ObjectStores(settings) as objects:
        store = await objects.at(settings.objects_url)
        await store.put("source", [b"x" * 1_000])
        outcomes = await runner.run(
            OBEY, [Order("copy", n, settings.objects_url, f"{settings.objects_url}/source") for n in range(6)]
        )
        for n in range(6):
            assert bytes(await store.get(f"copies/{n}")) == b"x" * 1_000
    assert {told(one).facts["bytes"] for one in outcomes} == {"1000"}
    loops = {(told(one).process, told(one).facts["loop"]) for one in outcomes}
    assert len(loops) == len({process for process, _ in loops}), "one event loop per worker"
    assert not any("metadata" in text for text in runner._sent)


async def test_what_other_processes_cannot_open_is_refused(spark: SparkSession) -> None:
    from llog.spark.runner.tasks import SparkTasks

    for settings in (
        Settings.from_env({}, objects_url="memory://", metadata_url="memory://"),
        Settings.from_env({}, objects_url="memory://x", wal_url="file:///tmp/x", metadata_url="memory://"),
    ):
        with pytest.raises(InvalidArgument, match="memory://"):
            SparkTasks(spark, settings)


async def test_a_closed_runner_runs_nothing_more(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    from llog.spark.runner.tasks import SparkTasks

    runner = SparkTasks(spark, settings)
    run = asyncio.create_task(runner.run(OBEY, [Order("linger", 0, str(tmp_path))]))
    await _come_alive(tmp_path, 1)
    await runner.close()
    with pytest.raises(SparkJobFailed):
        await run
    with pytest.raises(SparkJobFailed, match="closed"):
        await runner.run(OBEY, [Order("echo")])


async def test_a_task_that_is_nowhere_is_told_by_its_name(runner: SparkTasks) -> None:
    from llog.pipeline.runtime.tasks import Task

    nowhere = Task("tests.spark.no_such_module:function", Order, Told)
    with pytest.raises(SparkTaskFailed, match="no_such_module"):
        await runner.run(nowhere, [Order("echo")])


async def test_a_cluster_that_has_no_executor_fails_the_run_and_says_so(
    runner: SparkTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llog.spark.runner.tasks.count_of", lambda _: lambda: 0)
    monkeypatch.setattr("llog.spark.sessions.session.SPARK_STARVED_POLL_MS", 10)
    monkeypatch.setattr("llog.spark.sessions.session.SPARK_STARVED_MS_MAX", 100)
    with pytest.raises(SparkJobFailed, match=r"local\[2,4\] has no executor for it"):
        await runner.run(OBEY, [Order("nap", 600)])
    assert not runner._watched, "its job goes on"
