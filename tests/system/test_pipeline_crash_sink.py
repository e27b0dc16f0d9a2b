"""The sink's driver dies at any call of its stores or with its Spark session; after a replay each row is in a log once.

The replay splits the rows differently, and rows without a key or partition may then go to other logs: so a row that is
there twice, or not at all, means that two splits were mixed.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.read.read import iter_runs, view
from llog.log.topics.create import load_topic
from llog.wiring import opened_log
from tests.patience import wait_until
from tests.servers import need_spark
from tests.system.crashing import DIED, ROOT, SOAK, kills_spark_drivers, run_crasher, settings_at
from tests.system.sink_crasher import ROWS, TOPICS

POINTS: Final = 200 if SOAK else 6
KILLS: Final = 3
START_SECONDS_MAX: Final = 120.0


def crash(*directories: Path) -> str:
    return run_crasher("sink_crasher", *map(str, directories)).stdout


async def rows_in(directory: Path, *topics: str) -> list[str]:
    """Every record of the topics; their logs keep the protocol's promises."""
    found: list[str] = []
    async with opened_log(settings_at(directory)) as opened:
        for topic in topics:
            record = await load_topic(opened.context, topic)
            assert record is not None
            for partition in range(record[0].partition_count):
                log = Log(topic, partition)
                if await opened.context.metadata.get(opened.context.keys.control(log)) is None:
                    continue
                assert (await check_log(opened.context, log)).faults == ()
                start = (await view(opened.context, log)).control.log_start_offset
                runs = iter_runs(opened.context, log, start)
                found += [(r.payload or b"").decode() async for run in runs for r in run.records()]
    return found


def test_a_driver_dies_at_any_call_of_its_stores_and_a_replay_finishes_its_batch(tmp_path: Path) -> None:
    calls = int(crash(tmp_path / "sink-count").split()[-1])
    rng = random.Random(7)
    points = rng.sample(range(1, calls + 1), min(POINTS, calls))
    directories = [tmp_path / f"sink-at-{at}-{'after' if number % 2 else 'before'}" for number, at in enumerate(points)]
    output = crash(*directories)
    wanted = sorted(f"{batch}-{row}" for batch in range(2) for row in range(ROWS))
    for directory in directories:
        codes = re.search(rf"^ended {directory.name} (.*)$", output, re.MULTILINE)
        assert codes is not None, output
        assert codes[1] == f"{DIED} 0 0", f"{directory.name}: {output}"
        assert sorted(asyncio.run(rows_in(directory, *TOPICS))) == wanted, directory.name


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@kills_spark_drivers
def test_a_killed_spark_driver_is_followed_by_one_that_writes_every_row_once(tmp_path: Path) -> None:
    need_spark()
    inbox = tmp_path / "in"
    inbox.mkdir()
    files = 6 * KILLS
    for number in range(files):
        (inbox / f"{number}.txt").write_text("\n".join(f"{number}-{row}" for row in range(20)))
    rng = random.Random(3)
    for kill in range(KILLS):
        with _stream(tmp_path) as driver:
            wait_for_batches(tmp_path, driver, (kill + 1) * 2)
            time.sleep(rng.uniform(0.0, 0.6))  # somewhere in a batch
    with _stream(tmp_path) as last:
        assert last.wait(timeout=120) == 0, (tmp_path / "driver.log").read_text()[-3_000:]
    found = asyncio.run(rows_in(tmp_path / "data", "orders"))
    assert sorted(found) == sorted(f"{number}-{row}" for number in range(files) for row in range(20))


@contextmanager
def _stream(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Killed in the end, if it still runs: with its JVM and its Python workers, which are of its group."""
    with (directory / "driver.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.system.sink_stream", str(directory)]
        driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        yield driver
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def wait_for_batches(directory: Path, driver: subprocess.Popen[bytes], batches: int) -> None:
    commits = directory / "checkpoint" / "commits"

    def are_committed() -> bool:
        assert driver.poll() is None, (directory / "driver.log").read_text()[-3_000:]
        return len([path for path in commits.glob("[0-9]*") if path.name.isdecimal()]) >= batches

    wait_until(are_committed, f"{batches} batches of the stream", seconds=START_SECONDS_MAX, pause_seconds=0.02)
