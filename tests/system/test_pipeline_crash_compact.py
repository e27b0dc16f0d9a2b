"""The compaction job dies at any call of its stores, or is killed with its Spark session: a rerun ends its work.

Nothing is lost, doubled or stuck: what was appended reads the same in the state that the dead left, while the next job
runs and afterwards; every log ends up compacted, with nothing in flight.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from llog.api.opening import Use, opened_log
from llog.formats.records import encode_records
from llog.log.append import Appended, Appender, EncodedGroup
from llog.log.context import LogContext
from llog.log.invariants import check_log
from llog.log.keys import Log
from llog.log.publish import load_compaction
from llog.log.read import iter_runs
from llog.log.records import LogRecord
from llog.pipeline.compact import compact
from llog.pipeline.work import InProcessRunner, tools_of
from tests.system.compact_crasher import DIED, OPTIONS, SESSION_MS, settings_at

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
POINTS: Final = 50 if SOAK else 25
ROOT: Final = Path(__file__).parents[2]
LOGS: Final = [Log("orders", partition) for partition in range(4)] + [Log("visits", 0)]
BLOBS: Final = 8
CLAIMS_END_SECONDS: Final = 30.0

Records = dict[Log, list[LogRecord]]


async def fill(directory: Path, *, blobs: int = BLOBS, size: int = 1_000) -> Records:
    """Blobs that hold a slice of most logs each."""
    rng = random.Random(3)
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        appender = Appender(opened.context)
        for _ in range(blobs):
            groups = []
            for log in rng.sample(LOGS, 4):
                values: list[bytes | None] = [rng.randbytes(size) for _ in range(rng.randint(1, 5))]
                body = [encode_records(values, timestamps_ms=1_760_000_000_000)]
                groups.append(EncodedGroup(log, len(values), "kafka-v2", body, 1_760_000_000_000))
            outcomes = await appender.append(groups)
            assert all(isinstance(outcome, Appended) for outcome in outcomes)
        await appender.close()
        return await read_all(opened.context)


async def read_all(context: LogContext) -> Records:
    return {log: [record async for run in iter_runs(context, log, 1) for record in run.records()] for log in LOGS}


def crash(directories: list[Path]) -> list[str]:
    """What the job said in each of them: name and exit code."""
    command = [sys.executable, "-m", "tests.system.compact_crasher", *map(str, directories)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


async def rerun_and_judge(directory: Path, expected: Records) -> None:
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        context = opened.context
        assert await read_all(context) == expected, "as the dead left it"
        runner = InProcessRunner(tools_of(context))
        deadline = time.monotonic() + CLAIMS_END_SECONDS
        while True:
            job = compact(context, runner, options=OPTIONS, merge=True, session_timeout_ms=SESSION_MS)
            report, during = await asyncio.gather(job, read_all(context))
            assert during == expected, "while the next job runs"
            assert not report.failed, report.failed
            if not report.count("claimed_elsewhere"):
                break
            assert time.monotonic() < deadline, "the claims of the dead do not end"
            await asyncio.sleep(0.2)
        assert await read_all(context) == expected, "afterwards"
        for log in LOGS:
            found = await check_log(context, log, deep=True)
            assert found.faults == ()
            record = await load_compaction(context, log, 1)
            assert (record.value.in_flight, record.value.offset) == (None, len(expected[log]) + 1)
        again = await compact(context, runner, options=OPTIONS, merge=True, session_timeout_ms=SESSION_MS)
        assert {log.outcome for log in again.logs} == {"idle"}


@pytest.mark.timeout(600)
async def test_a_driver_that_dies_at_any_call_of_its_stores_leaves_nothing_that_a_rerun_does_not_end(
    tmp_path: Path,
) -> None:
    template = tmp_path / "template"
    expected = await fill(template)
    shutil.copytree(template, tmp_path / "count")
    calls, _, code = await asyncio.to_thread(crash, [tmp_path / "count"])
    assert code == "0"
    assert int(calls) > 4 * POINTS, calls
    points = sorted(random.Random(7).sample(range(2, int(calls) - 5), POINTS))
    directories = []
    for number, point in enumerate(points):
        directories.append(tmp_path / f"at-{point}-{'before' if number % 2 else 'after'}")
        shutil.copytree(template, directories[-1])
    said = await asyncio.to_thread(crash, directories)
    # The order of calls is not the same each time, so the very last ones may not be reached.
    assert said.count(str(DIED)) >= POINTS - 1, said
    for directory in directories:
        await rerun_and_judge(directory, expected)


# -- a Spark driver, killed --------------------------------------------------------------------------------------------


def kill_after(directory: Path, line: str, count: int) -> None:
    """Start a driver on Spark and kill it -9 once it has said `line` so often."""
    command = [sys.executable, "-m", "tests.system.compact_spark_driver", str(directory)]
    with open(directory / "driver.log", "wb") as log:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    assert driver.stdout is not None
    with driver, driver.stdout as output:
        try:
            seen = 0
            for said in output:
                seen += said.split()[0] == line
                if seen == count:
                    break
            assert seen == count, f"it ended: {(directory / 'driver.log').read_text()[-3_000:]}"
        finally:
            driver.kill()


@pytest.mark.spark
@pytest.mark.skipif(not SOAK, reason="each kill costs a session's start: LLOG_SOAK=1")
@pytest.mark.timeout(600)
async def test_a_spark_driver_killed_at_work_leaves_nothing_that_a_rerun_does_not_end(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "leaderless-log[spark]"')
    from llog.errors import JavaUnusable
    from llog.spark.java import find_java

    try:
        find_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
    for number, (line, count) in enumerate([("run", 1), ("started", 1), ("run", 6)]):
        directory = tmp_path / f"killed-{number}"
        expected = await fill(directory)
        await asyncio.to_thread(kill_after, directory, line, count)
        await rerun_and_judge(directory, expected)
