"""An export dies at any call of its stores or of its catalogue: after a rerun every record is there exactly once.

Also where more was appended, and everything was compacted, before the rerun: a plan that the dead left says offsets,
whose objects are others now.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llog.api.opening import OpenedLog, Use, opened_log
from llog.formats.records import encode_records
from llog.log.append import Appended, Appender, EncodedGroup
from llog.log.compact import compact_once
from llog.log.keys import Log
from llog.log.read import iter_runs
from llog.pipeline.iceberg import open_catalogue
from tests.system.export_crasher import DIED, run_export, settings_at

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
POINTS: Final = {"parquet": 60 if SOAK else 12, "iceberg": 60 if SOAK else 13}
ROOT: Final = Path(__file__).parents[2]
LOGS: Final = [Log("orders", partition) for partition in range(3)]
DAY_MS: Final = 86_400_000
FIRST_MS: Final = 20_000 * DAY_MS

Rows = list[tuple[int, int, bytes]]


async def append(opened: OpenedLog, blobs: int, seed: int) -> None:
    """Blobs with a slice of each log."""
    rng = random.Random(seed)
    appender = Appender(opened.context)
    for _ in range(blobs):
        groups = []
        for log in LOGS:
            values: list[bytes | None] = [rng.randbytes(4_000) for _ in range(rng.randint(1, 5))]
            stamps = [FIRST_MS + rng.randint(0, 1) * DAY_MS for _ in values]
            body = [encode_records(values, timestamps_ms=stamps)]
            groups.append(EncodedGroup(log, len(values), "kafka-v2", body, max(stamps)))
        assert all(isinstance(outcome, Appended) for outcome in await appender.append(groups))
    await appender.close()


async def written(opened: OpenedLog) -> Rows:
    rows: Rows = []
    for log in LOGS:
        async for run in iter_runs(opened.context, log, 1):
            rows += [(log.partition, record.offset, record.payload or b"") for record in run.records()]
    return sorted(rows)


def exported(directory: Path, kind: str) -> Rows:
    """What a reader of the directory, or of the table, sees."""
    if kind == "parquet":
        files = sorted((directory / "out" / "orders").rglob("*.parquet"))
        table = pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
    else:
        table = open_catalogue(settings_at(directory)).load_table("shop.orders").scan().to_arrow()
    columns = (table[name].to_pylist() for name in ("partition", "offset", "value"))
    return sorted(zip(*columns, strict=True))


def run_crasher(directories: list[Path]) -> list[str]:
    command = [sys.executable, "-m", "tests.system.export_crasher", *map(str, directories)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


async def rerun_and_judge(directory: Path, kind: str, *, changed: bool) -> None:
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        if changed:
            await append(opened, 2, seed=9)
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
        await append(opened, 5, seed=3)
    whole = [tmp_path / f"{kind}-count" for kind in POINTS]
    for directory in whole:
        shutil.copytree(template, directory)
    told = await asyncio.to_thread(run_crasher, whole)
    assert told[1::2] == [f"{kind}-count 0" for kind in POINTS]
    directories: list[tuple[Path, str]] = []
    for (kind, wanted), calls in zip(POINTS.items(), map(int, told[::2]), strict=True):
        assert calls > 2 * wanted, calls
        points = sorted(random.Random(7).sample(range(2, calls - 1), wanted))
        directories += [
            (tmp_path / f"{kind}-at-{point}-{'before' if number % 2 else 'after'}", kind)
            for number, point in enumerate(points)
        ]
    for directory, _ in directories:
        shutil.copytree(template, directory)
    lines = await asyncio.to_thread(run_crasher, [directory for directory, _ in directories])
    codes = {line.split()[0]: int(line.split()[-1]) for line in lines}
    # The order of calls is not the same each time, so the very last ones may not be reached.
    assert sum(code == DIED for code in codes.values()) >= len(directories) - 2, codes
    for number, (directory, kind) in enumerate(directories):
        await rerun_and_judge(directory, kind, changed=number % 3 == 0)


# -- a Spark driver, killed --------------------------------------------------------------------------------------------


def kill_after(directory: Path, kind: str, line: str, count: int) -> None:
    """Start a driver on Spark and kill it -9 once it has said `line` so often."""
    command = [sys.executable, "-m", "tests.system.export_spark_driver", str(directory), kind]
    with open(directory / "driver.log", "wb") as log:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert driver.stdout is not None
        seen = 0
        for said in driver.stdout:
            seen += said.strip() == line
            if seen == count:
                break
        assert seen == count, f"it ended: {(directory / 'driver.log').read_text()[-3_000:]}"
    finally:
        driver.kill()
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not SOAK, reason="starts Spark several times: LLOG_SOAK=1")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "line", "count"),
    [("parquet", "task", 2), ("parquet", "commit", 2), ("iceberg", "task", 3), ("iceberg", "commit", 1)],
)
async def test_a_spark_driver_killed_at_work_leaves_nothing_that_a_rerun_does_not_make_whole(
    tmp_path: Path, kind: str, line: str, count: int
) -> None:
    async with opened_log(settings_at(tmp_path), blobs=Use.PUT, segments=Use.PUT) as opened:
        await append(opened, 5, seed=3)
    await asyncio.to_thread(kill_after, tmp_path, kind, line, count)
    await rerun_and_judge(tmp_path, kind, changed=line == "commit")
