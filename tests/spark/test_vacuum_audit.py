"""Vacuum and audit on Spark: tasks in other processes list, read and compare; the driver decides and deletes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from llog.log.context import LogContext
from llog.log.keys import Log
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.once import compact_once
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.vacuum.job import vacuum
from llog.settings import Settings
from llog.stores.objects.port import ObjectMeta
from llog.wiring import OpenedLog, Use, opened_log
from tests.filling import append, group_of
from tests.patience import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
ROOT: Final = Path(__file__).parents[2]
LOGS: Final = [Log("orders", partition) for partition in range(3)]
HOURS_AGO_MS: Final = 2 * 3_600_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({}, data_dir=tmp_path / "data")


@pytest.fixture
async def opened(settings: Settings) -> AsyncIterator[OpenedLog]:
    """Two hours old: blobs of three logs, of which the first one is compacted."""
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as stores:
        await fill(stores.context, blobs=20)
        yield stores


async def fill(context: LogContext, *, blobs: int) -> None:
    assert context.wal is not None
    then_ms = time.time_ns() // 1_000_000 - HOURS_AGO_MS
    earlier = replace(context, now_ms=lambda: then_ms)
    for number in range(blobs):
        logs = LOGS if number % 4 == 0 else LOGS[:1]
        await append(earlier, [group_of(log, [b"%d" % number, b"x" * 100], stamps_ms=5) for log in logs])
    while await compact_once(earlier, LOGS[0], max_offsets=16):
        pass
    make_old(Path(context.wal.url.removeprefix("file://")), then_ms / 1_000)


def make_old(directory: Path, then: float) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


async def test_audit_and_vacuum_come_to_the_same_on_spark(
    spark: SparkSession, settings: Settings, opened: OpenedLog
) -> None:
    from llog.spark.runner.tasks import SparkTasks

    context, here = opened.context, LocalTasks(tools_of(opened.context))
    there = SparkTasks(spark, settings)
    try:
        looked, seen_here = await audit(context, there), await audit(context, here)
        assert (looked.clean, looked.counts) == (True, {"leftover: orphan": 15})
        assert (looked.entries, looked.objects, looked.requests) == (13, 8, 8), "each object is read once"
        orphans = {finding.object for finding in looked.findings}
        assert orphans == {finding.object for finding in seen_here.findings}
        planned, done = await vacuum(context, here, dry_run=True), await vacuum(context, there)
        assert (done.blobs_deleted, done.segments_deleted, done.kept_unchecked) == (15, 0, 0)
        assert set(done.names) == set(planned.names) == orphans
        assert (await audit(context, here)).findings == []
        harmed = harm_a_segment(context, [meta.name async for meta in listed_segments(context)])
        [finding] = (await audit(context, there, logs=LOGS[:1])).findings
        assert (finding.kind, finding.log, finding.object) == ("checksum", "orders:0", harmed)
    finally:
        await there.close()


def listed_segments(context: LogContext) -> AsyncIterator[ObjectMeta]:
    assert context.segments is not None
    return context.segments.list(context.keys.segment_objects(LOGS[0]))


def harm_a_segment(context: LogContext, names: list[str]) -> str:
    """The URI of the first of them, in which a bit is another now."""
    assert context.segments is not None
    path = Path(context.segments.url.removeprefix("file://")) / names[0]
    data = bytearray(path.read_bytes())
    data[80] ^= 4
    path.chmod(0o644)
    path.write_bytes(data)
    return context.segments.uri(names[0])


# -- a Spark driver, killed ------------------------------------------------------------------------------------------


def kill_at_work(directory: Path, after_deletes: int) -> None:
    """Start a vacuum on Spark and kill it -9 once it has deleted so many blobs (0: as soon as it has begun)."""
    blobs = directory / "objects" / "llog" / "wal-shared"
    before = len(list(blobs.iterdir()))
    environ = {**os.environ, "LLOG_DATA_DIR": str(directory), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "llog", "pipeline", "vacuum", "--yes", "--master", "local[2,4]"]
    with open(directory / "driver.log", "wb") as log:
        driver = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
    try:

        def is_at_work() -> bool:
            assert driver.poll() is None, f"it ended: {(directory / 'driver.log').read_text()[-3_000:]}"
            return before - len(list(blobs.iterdir())) >= after_deletes and clock_was_read(directory)

        wait_until(is_at_work, "a vacuum at work")
        assert driver.poll() is None, "it ended before it could be killed"
    finally:
        driver.kill()
        driver.wait()


def clock_was_read(directory: Path) -> bool:
    """The first thing that vacuum writes, and only vacuum does."""
    return (directory / "objects" / "llog" / "@cluster" / "clock").exists()


@pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1 kills Spark drivers; each takes a quarter of a minute")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("after_deletes", [0, 1, 300])
async def test_a_vacuum_driver_killed_at_work_harms_nothing(java: None, tmp_path: Path, after_deletes: int) -> None:
    directory = tmp_path / "data"
    settings = Settings.from_env({}, data_dir=directory)
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as stores:
        await fill(stores.context, blobs=600)
    await asyncio.to_thread(kill_at_work, directory, after_deletes)
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as stores:
        runner = LocalTasks(tools_of(stores.context))
        report = await audit(stores.context, runner)
        assert report.clean, report.findings
        assert report.count_of("leftover") <= 450
        done = await vacuum(stores.context, runner)
        assert done.blobs_deleted == report.count_of("leftover")
        assert (await audit(stores.context, runner)).findings == []
