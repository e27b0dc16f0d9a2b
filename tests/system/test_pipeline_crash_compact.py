"""The compaction job dies at any call of its stores, or is killed with its Spark session: a rerun ends its work.

Nothing is lost, doubled or stuck: what was appended reads the same in the state that the dead left, while the next job
runs and afterwards; every log ends up compacted, with nothing in flight.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Final

import pytest

from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.rewrite.publish import load_compaction
from llog.pipeline.compact.job import compact
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.wiring import Use, opened_log
from tests.filling import Records, append, group_of, read_all
from tests.servers import need_spark
from tests.system.compact_crasher import OPTIONS, SESSION_MS
from tests.system.crashing import SOAK, crash_everywhere, judge_all, kill_after, kills_spark_drivers, settings_at

POINTS: Final = 50 if SOAK else 6
LOGS: Final = [Log("orders", partition) for partition in range(4)] + [Log("visits", 0)]
BLOBS: Final = 8
CLAIMS_END_SECONDS: Final = 120.0


async def fill(directory: Path, *, blobs: int = BLOBS, size: int = 1_000) -> Records:
    """Blobs that hold a slice of most logs each."""
    rng = random.Random(3)
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        for _ in range(blobs):
            logs = rng.sample(LOGS, 4)
            groups = [group_of(log, [rng.randbytes(size) for _ in range(rng.randint(1, 5))]) for log in logs]
            await append(opened.context, groups)
        return await read_all(opened.context, LOGS)


async def rerun_and_judge(directory: Path, expected: Records) -> None:
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        context = opened.context
        assert await read_all(context, LOGS) == expected, "as the dead left it"
        runner = LocalTasks(tools_of(context))
        deadline = time.monotonic() + CLAIMS_END_SECONDS
        while True:
            job = compact(context, runner, options=OPTIONS, merge=True, session_timeout_ms=SESSION_MS)
            report, during = await asyncio.gather(job, read_all(context, LOGS))
            assert during == expected, "while the next job runs"
            assert not report.failed, report.failed
            if not report.count("claimed_elsewhere"):
                break
            assert time.monotonic() < deadline, "the claims of the dead do not end"
            await asyncio.sleep(0.2)
        assert await read_all(context, LOGS) == expected, "afterwards"
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
    expected = await fill(tmp_path / "template")
    dead = await asyncio.to_thread(crash_everywhere, "compact_crasher", tmp_path / "template", {"compact": POINTS})
    await judge_all(dead, lambda one: rerun_and_judge(one.directory, expected))


@pytest.mark.spark
@kills_spark_drivers
@pytest.mark.timeout(600)
async def test_a_spark_driver_killed_at_work_leaves_nothing_that_a_rerun_does_not_end(tmp_path: Path) -> None:
    need_spark()
    for number, (line, count) in enumerate([("run", 1), ("started", 1), ("run", 6)]):
        directory = tmp_path / f"killed-{number}"
        expected = await fill(directory)
        await asyncio.to_thread(kill_after, ["compact_spark_driver", str(directory)], directory, line, count)
        await rerun_and_judge(directory, expected)
