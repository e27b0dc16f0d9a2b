"""A driver of key compaction that dies in the middle: `python -m tests.system.key_crasher DIRECTORY…`.

Directories are named by where their child ends itself, as `compact_crasher` says; the calls that delete and list count
here too. With `spark` in front of one directory the job runs on Spark, says `started` and then a line for every group
that was written, and waits to be killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from llog.api.opening import Use, opened_log
from llog.formats.records import encode_records, warm_up
from llog.log.context import LogContext
from llog.pipeline.key_aggregate import InProcessAggregate, KeyAggregate
from llog.pipeline.key_compact import KeyCompactOptions, KeyCompactReport, key_compact
from llog.pipeline.work import InProcessRunner, Runner, tools_of
from tests.system.compact_crasher import CALLS, Countdown, countdown_of, settings_at

OPTIONS: Final = KeyCompactOptions(force=True, bytes_per_second=None, target_bytes=500, scan_task_bytes=700)
OBJECT_CALLS: Final = (*CALLS["objects"], "get_tail", "delete_many")


async def run_job(directory: Path, countdown: Countdown) -> KeyCompactReport:
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        context = opened.context
        assert context.segments is not None
        for store, names in ((context.metadata, CALLS["metadata"]), (context.segments, OBJECT_CALLS)):
            for name in names:
                setattr(store, name, countdown.around(getattr(store, name)))
        tools = tools_of(context)
        return await key_compact(context, InProcessRunner(tools), InProcessAggregate(tools), options=OPTIONS)


def in_child(directory: Path) -> None:
    countdown = countdown_of(directory.name)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            report = asyncio.run(run_job(directory, countdown))
            code = 0 if report.ok else 2
            print(countdown.calls, flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    print(directory.name, os.waitstatus_to_exitcode(status), flush=True)


async def on_spark(directory: Path) -> None:
    from llog.spark.key_aggregate import SparkKeyAggregate
    from llog.spark.runner import SparkRunner

    settings = settings_at(directory)
    runner = await SparkRunner.start(settings, master="local[2,4]")
    print("started", flush=True)
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
        aggregate = SparkKeyAggregate(runner.spark, settings, tools_of(opened.context))
        await _told(opened.context, runner, aggregate)
    print("done", flush=True)


async def _told(context: LogContext, runner: Runner, aggregate: KeyAggregate) -> None:
    await key_compact(
        context, runner, aggregate, options=OPTIONS, on_progress=lambda name, _bytes: print(name, flush=True)
    )


if __name__ == "__main__":
    if sys.argv[1] == "spark":
        asyncio.run(on_spark(Path(sys.argv[2])))
    else:
        warm_up()
        encode_records([b"warm"], timestamps_ms=0)
        for given in sys.argv[1:]:
            in_child(Path(given))
