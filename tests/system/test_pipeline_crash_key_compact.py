"""Key compaction dies at any call of its stores, or is killed with its Spark session: a rerun ends its work.

In the state that the dead left nothing is lost and nothing has come back: whoever reads the log from its beginning ends
up with the same value of every key. After a rerun the log holds what the plainest reference says.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final

import pytest

from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.read.records import LogRecord
from llog.log.rewrite.publish import load_compaction
from llog.log.topics.admin import create_topic
from llog.pipeline.compact.once import compact_once
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate
from llog.pipeline.key_compact.job import key_compact
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.wiring import Use, opened_log
from tests.filling import Records, append, group_of, read_all
from tests.servers import need_spark
from tests.system.crashing import (
    SOAK,
    crash_everywhere,
    judge_all,
    kill_after,
    kills_spark_drivers,
    settings_at,
)
from tests.system.key_crasher import OPTIONS

POINTS: Final = 50 if SOAK else 6
LOGS: Final = [Log("prices", 0), Log("prices", 1)]
KEYS: Final = [b"k%d" % number for number in range(12)]


async def fill(directory: Path) -> Records:
    """Some segments per log; tombstones may go at once."""
    rng = random.Random(5)
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        context = opened.context
        config = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
        await create_topic(context, "prices", partitions=len(LOGS), config=config)
        for _ in range(6):
            groups = []
            for log in LOGS:
                keys = [rng.choice(KEYS) for _ in range(5)]
                values = [None if rng.random() < 0.3 else rng.randbytes(30) for _ in keys]
                groups.append(group_of(log, values, keys=keys))
            await append(context, groups)
        for log in LOGS:
            while await compact_once(context, log, max_offsets=8) is not None:
                pass
        return await read_all(context, LOGS)


def folded(records: list[LogRecord]) -> dict[bytes | None, bytes]:
    """What a reader that keeps the last value of every key holds in the end."""
    last = {record.key: record.payload for record in records}
    return {key: value for key, value in last.items() if value is not None}


def survivors(records: list[LogRecord]) -> list[LogRecord]:
    last = {record.key: record.offset for record in records}
    return [record for record in records if last[record.key] == record.offset and record.payload is not None]


async def rerun_and_judge(directory: Path, written: Records) -> bool:
    """Was there something left to do?"""
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        context = opened.context
        for log, records in (await read_all(context, LOGS)).items():
            assert folded(records) == folded(written[log]), "lost, or come back"
            assert {*records} <= {*written[log]}, "never written, or elsewhere"
        tools = tools_of(context)
        both = context, LocalTasks(tools), LocalKeyAggregate(tools)
        report = await key_compact(*both, options=OPTIONS)
        assert report.ok, report.logs
        expected = {log: survivors(records) for log, records in written.items()}
        assert await read_all(context, LOGS) == expected
        for log in LOGS:
            assert (await check_log(context, log, deep=True)).faults == ()
            assert (await load_compaction(context, log, 1)).value.in_flight is None
        again = await key_compact(*both, options=OPTIONS)
        assert sum(one.segments_written for one in again.logs) == 0, "a second run found something to do"
        return any(one.segments_written for one in report.logs)


@pytest.mark.timeout(600)
async def test_a_driver_that_dies_at_any_call_of_its_stores_loses_and_resurrects_nothing(tmp_path: Path) -> None:
    written = await fill(tmp_path / "template")
    dead = await asyncio.to_thread(crash_everywhere, "key_crasher", tmp_path / "template", {"key": POINTS})
    left = await judge_all(dead, lambda one: rerun_and_judge(one.directory, written))
    assert left.count(True) > POINTS // 2, "most died when everything was done: the test proved less than it says"


@pytest.mark.spark
@kills_spark_drivers
@pytest.mark.timeout(900)
async def test_a_spark_driver_killed_at_work_loses_and_resurrects_nothing(tmp_path: Path) -> None:
    need_spark()
    for number, (line, count) in enumerate([("rewrite", 1), ("scan", 3), ("rewrite", 4)]):
        directory = tmp_path / f"killed-{number}"
        written = await fill(directory)
        await asyncio.to_thread(kill_after, ["key_crasher", "spark", str(directory)], directory, line, count)
        await rerun_and_judge(directory, written)
