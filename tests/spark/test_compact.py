"""The compaction job with its tasks in Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from llog.errors import LlogError
from llog.log.context import LogContext
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.plan import SegmentRules, Sizing
from llog.settings import Settings
from llog.spark.runner.tasks import SparkTasks
from llog.spark.sessions.session import COMPACT_CORES_UNKNOWN, resize_of, sizing_of
from llog.wiring import Use, opened_log
from tests.filling import append, group_of, read_all
from tests.unit.pipeline.compact.compact_stage import entries_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
LOGS = [Log("wide", partition) for partition in range(64)]
BLOBS = 4


@asynccontextmanager
async def filled(directory: Path) -> AsyncIterator[tuple[LogContext, Settings]]:
    settings = Settings.from_env({"LLOG_DATA_DIR": str(directory)})
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
        for number in range(BLOBS):
            rows = range(number + 1)
            groups = [group_of(log, [b"%d/%d/%d" % (log.partition, number, n) * 20 for n in rows]) for log in LOGS]
            await append(opened.context, groups)
        yield opened.context, settings


async def test_blobs_of_64_partitions_are_read_once_each_and_every_record_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with filled(tmp_path) as (context, settings):
        before = await read_all(context, LOGS)
        runner = SparkTasks(spark, settings)
        report = await compact(context, runner)
        assert (report.objects_read, report.objects_planned, report.tasks) == (BLOBS, BLOBS, 1)
        assert report.count("compacted") == 64
        assert await read_all(context, LOGS) == before
        assert (await check_log(context, LOGS[5], deep=True)).faults == ()
        await runner.close()


async def test_many_windows_and_merges_end_in_one_segment_per_log(spark: SparkSession, tmp_path: Path) -> None:
    sizing = Sizing(2, window_bytes_min=20_000, window_bytes_max=20_000)
    options = CompactOptions(rules=SegmentRules(target_bytes=5_000), sizing=sizing)
    async with filled(tmp_path) as (context, settings):
        before = await read_all(context, LOGS)
        runner = SparkTasks(spark, settings)
        report = await compact(context, runner, options=options, merge=True)
        assert report.tasks > BLOBS
        assert await read_all(context, LOGS) == before
        for log in LOGS:
            [entry] = await entries_of(context, log)
            assert (entry.value.type, entry.value.msg_count) == ("COMPACTED", len(before[log]))
        await runner.close()


async def test_a_damaged_slice_comes_back_as_the_failure_of_its_log_alone(spark: SparkSession, tmp_path: Path) -> None:
    async with filled(tmp_path) as (context, settings):
        damaged = (await entries_of(context, LOGS[7]))[2].value
        store, name = await context.find_object(damaged.data_key)
        content = bytearray(await store.get(name))
        assert damaged.byte_offset is not None
        content[damaged.byte_offset + 70] ^= 1
        await store.delete(name)
        await store.put(name, [content])
        runner = SparkTasks(spark, settings)
        report = await compact(context, runner)
        [failed] = report.failed
        assert (failed.partition, failed.error_type) == (7, "ChecksumMismatch")
        assert report.count("compacted") == 63
        await runner.close()


async def test_a_session_that_is_closed_fails_the_job_and_the_next_does_its_work(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with filled(tmp_path) as (context, settings):
        closed = SparkTasks(spark, settings)
        await closed.close()
        with pytest.raises(LlogError, match="closed"):
            await compact(context, closed)
        runner = SparkTasks(spark, settings)
        assert (await compact(context, runner)).count("compacted") == 64
        await runner.close()


def test_windows_are_sized_for_the_cores_of_the_session(spark: SparkSession) -> None:
    assert sizing_of(spark).cores == 2
    assert resize_of(spark) is None, "they stay as they are"


async def test_a_cluster_is_asked_anew_and_is_never_taken_for_none(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llog.spark.sessions.session.count_of", lambda _: lambda: 0)
    resize = resize_of(spark)
    assert resize is not None
    assert (await resize()).cores == COMPACT_CORES_UNKNOWN
    gone = resize_of(cast("SparkSession", object()))
    assert gone is not None
    assert (await gone()).cores == COMPACT_CORES_UNKNOWN, "what is wrong is told by the job"
