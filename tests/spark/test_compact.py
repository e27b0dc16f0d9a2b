"""The compaction job with its tasks in Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llog.api.opening import Use, opened_log
from llog.errors import LlogError
from llog.formats.records import encode_records
from llog.log.append import Appended, Appender, EncodedGroup
from llog.log.context import LogContext
from llog.log.invariants import check_log
from llog.log.keys import Log
from llog.log.read import iter_runs
from llog.log.records import LogRecord
from llog.pipeline.compact import CompactOptions, compact
from llog.pipeline.compact_plan import SegmentRules, Sizing
from llog.settings import Settings
from llog.spark.compaction import sizing_of
from llog.spark.runner import SparkRunner
from tests.unit.pipeline.compact_stage import entries_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
LOGS = [Log("wide", partition) for partition in range(64)]
BLOBS = 4


@asynccontextmanager
async def filled(directory: Path) -> AsyncIterator[tuple[LogContext, Settings]]:
    settings = Settings.from_env({"LLOG_DATA_DIR": str(directory)})
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
        appender = Appender(opened.context)
        for number in range(BLOBS):
            groups = []
            for log in LOGS:
                values: list[bytes | None] = [b"%d/%d/%d" % (log.partition, number, n) * 20 for n in range(number + 1)]
                groups.append(EncodedGroup(log, len(values), "kafka-v2", [encode_records(values, timestamps_ms=1)], 1))
            assert all(isinstance(outcome, Appended) for outcome in await appender.append(groups))
        await appender.close()
        yield opened.context, settings


async def read_all(context: LogContext) -> dict[Log, list[LogRecord]]:
    return {log: [record async for run in iter_runs(context, log, 1) for record in run.records()] for log in LOGS}


async def test_blobs_of_64_partitions_are_read_once_each_and_every_record_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with filled(tmp_path) as (context, settings):
        before = await read_all(context)
        runner = SparkRunner(spark, settings)
        report = await compact(context, runner)
        assert (report.objects_read, report.objects_planned, report.tasks) == (BLOBS, BLOBS, 1)
        assert report.count("compacted") == 64
        assert await read_all(context) == before
        assert (await check_log(context, LOGS[5], deep=True)).faults == ()
        await runner.close()


async def test_many_windows_and_merges_end_in_one_segment_per_log(spark: SparkSession, tmp_path: Path) -> None:
    sizing = Sizing(2, window_bytes_min=20_000, window_bytes_max=20_000)
    options = CompactOptions(rules=SegmentRules(target_bytes=5_000), sizing=sizing)
    async with filled(tmp_path) as (context, settings):
        before = await read_all(context)
        runner = SparkRunner(spark, settings)
        report = await compact(context, runner, options=options, merge=True)
        assert report.tasks > BLOBS
        assert await read_all(context) == before
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
        runner = SparkRunner(spark, settings)
        report = await compact(context, runner)
        [failed] = report.failed
        assert (failed.partition, failed.error_type) == (7, "ChecksumMismatch")
        assert report.count("compacted") == 63
        await runner.close()


async def test_a_session_that_is_closed_fails_the_job_and_the_next_does_its_work(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with filled(tmp_path) as (context, settings):
        closed = SparkRunner(spark, settings)
        await closed.close()
        with pytest.raises(LlogError, match="closed"):
            await compact(context, closed)
        runner = SparkRunner(spark, settings)
        assert (await compact(context, runner)).count("compacted") == 64
        await runner.close()


def test_windows_are_sized_for_the_cores_of_the_session(spark: SparkSession) -> None:
    assert sizing_of(spark).cores == 2
