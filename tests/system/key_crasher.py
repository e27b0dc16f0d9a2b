"""A driver of key compaction that dies in the middle: `python -m tests.system.key_crasher DIRECTORY…`.

Directories are named by where their job ends itself, as `crashing` says. With `spark` in front of one directory the job
runs on Spark, says `started` and then a line for every step of its progress, and waits to be killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from llog.pipeline.key_compact.aggregate import LocalKeyAggregate
from llog.pipeline.key_compact.job import KeyCompactOptions, key_compact
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.wiring import Use, opened_log
from tests.system.crashing import Countdown, play, settings_at

OPTIONS: Final = KeyCompactOptions(force=True, bytes_per_second=None, target_bytes=500, scan_task_bytes=700)


async def run_job(directory: Path, _: str, countdown: Countdown) -> bool:
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        context = opened.context
        assert context.segments is not None
        countdown.watch(context.metadata, "write", "get_many", "scan")
        countdown.watch(context.segments, "put", "get", "get_ranges", "get_tail", "delete_many")
        tools = tools_of(context)
        report = await key_compact(context, LocalTasks(tools), LocalKeyAggregate(tools), options=OPTIONS)
        return report.ok


async def on_spark(directory: Path) -> None:
    from llog.spark.runner.key_aggregate import SparkKeyAggregate
    from llog.spark.runner.tasks import SparkTasks

    settings = settings_at(directory)
    runner = await SparkTasks.start(settings, master="local[2,4]")
    print("started", flush=True)
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
        aggregate = SparkKeyAggregate(runner.spark, settings, tools_of(opened.context))
        await key_compact(
            opened.context, runner, aggregate, options=OPTIONS, on_progress=lambda name, _: print(name, flush=True)
        )
    print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "spark":
        asyncio.run(on_spark(Path(sys.argv[2])))
    else:
        play(run_job)
