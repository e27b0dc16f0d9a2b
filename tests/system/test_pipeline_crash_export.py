"""An export dies at any call of its stores or catalogue; after a rerun the target holds every record exactly once.

Also where more was appended, and everything was compacted, before the rerun: a plan that the dead left says offsets,
whose objects are others now.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from llog.log.keys import Log
from llog.pipeline.compact.once import compact_once
from llog.pipeline.export.iceberg import open_catalogue
from llog.wiring import OpenedLog, Use, opened_log
from tests.filling import append, group_of, read_all
from tests.servers import need_spark
from tests.system.crashing import (
    SOAK,
    Dead,
    crash_everywhere,
    judge_all,
    kill_after,
    kills_spark_drivers,
    settings_at,
)
from tests.system.export_crasher import run_export

POINTS: Final = {"parquet": 15 if SOAK else 5, "iceberg": 15 if SOAK else 6}
LOGS: Final = [Log("orders", partition) for partition in range(3)]
DAY_MS: Final = 86_400_000
FIRST_MS: Final = 20_000 * DAY_MS

Rows = list[tuple[int, int, bytes]]


async def fill(opened: OpenedLog, blobs: int, seed: int) -> None:
    """Blobs with a slice of each log."""
    rng = random.Random(seed)
    for _ in range(blobs):
        groups = []
        for log in LOGS:
            values = [rng.randbytes(4_000) for _ in range(rng.randint(1, 5))]
            groups.append(group_of(log, values, stamps_ms=[FIRST_MS + rng.randint(0, 1) * DAY_MS for _ in values]))
        await append(opened.context, groups)


async def written(opened: OpenedLog) -> Rows:
    records = await read_all(opened.context, LOGS)
    return sorted((log.partition, one.offset, one.payload or b"") for log, read in records.items() for one in read)


def exported(directory: Path, kind: str) -> Rows:
    """What a reader of the directory, or of the table, sees."""
    if kind == "parquet":
        table = pq.read_table(directory / "out" / "orders")
    else:
        table = open_catalogue(settings_at(directory)).load_table("shop.orders").scan().to_arrow()
    columns = (table[name].to_pylist() for name in ("partition", "offset", "value"))
    return sorted(zip(*columns, strict=True))


async def rerun_and_judge(directory: Path, kind: str, *, changed: bool) -> None:
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        if changed:
            await fill(opened, 2, seed=9)
            for log in LOGS:
                while await compact_once(opened.context, log) is not None:
                    pass
        await run_export(opened, directory, kind)
        assert exported(directory, kind) == await written(opened)
        again = await run_export(opened, directory, kind)
        assert (again.commits, again.records) == (0, 0)


@pytest.mark.timeout(600)
async def test_an_export_that_dies_anywhere_leaves_nothing_that_a_rerun_does_not_make_whole(tmp_path: Path) -> None:
    template = tmp_path / "template"
    async with opened_log(settings_at(template), blobs=Use.PUT, segments=Use.PUT) as opened:
        await fill(opened, 5, seed=3)
    dead = await asyncio.to_thread(crash_everywhere, "export_crasher", template, POINTS)

    async def judge(one: Dead) -> None:
        await rerun_and_judge(one.directory, one.kind, changed=dead.index(one) % 3 == 0)

    await judge_all(dead, judge)


@pytest.mark.spark
@kills_spark_drivers
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "line", "count"),
    [("parquet", "task", 2), ("parquet", "commit", 2), ("iceberg", "task", 3), ("iceberg", "commit", 1)],
)
async def test_a_spark_driver_killed_at_work_leaves_nothing_that_a_rerun_does_not_make_whole(
    tmp_path: Path, kind: str, line: str, count: int
) -> None:
    need_spark()
    async with opened_log(settings_at(tmp_path), blobs=Use.PUT, segments=Use.PUT) as opened:
        await fill(opened, 5, seed=3)
    await asyncio.to_thread(kill_after, ["export_spark_driver", str(tmp_path), kind], tmp_path, line, count)
    await rerun_and_judge(tmp_path, kind, changed=line == "commit")
