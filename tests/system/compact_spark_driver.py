"""A driver of the compaction job on Spark, to be killed: `python -m tests.system.compact_spark_driver DIRECTORY`.

It says `started` when its session is there, and a line for every run that was published; then it is at its parent's
mercy.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from llog.pipeline.compact.job import compact
from llog.spark.runner.tasks import SparkTasks
from llog.wiring import Use, opened_log
from tests.system.compact_crasher import OPTIONS, SESSION_MS
from tests.system.crashing import settings_at


async def main(directory: Path) -> None:
    settings = settings_at(directory)
    runner = await SparkTasks.start(settings, master="local[2,4]")
    print("started", flush=True)
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
        await compact(
            opened.context,
            runner,
            options=OPTIONS,
            merge=True,
            session_timeout_ms=SESSION_MS,
            on_run=lambda run: print("run", run.log, run.end_offset, flush=True),
        )
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
