"""An export on Spark, to be killed: `python -m tests.system.export_spark_driver DIRECTORY KIND`.

Says `started` once there is a session, `task` whenever one has ended, `commit` before each commit, `done` at the end.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from llog.pipeline.export.job import export
from llog.wiring import opened_log
from tests.system.crashing import settings_at
from tests.system.export_crasher import SIZES, target_at


def _print_task(more: int, _: str) -> None:
    if more:
        print("task", flush=True)


async def main(directory: Path, kind: str) -> None:
    from llog.spark.runner.tasks import SparkTasks

    settings = settings_at(directory)
    async with opened_log(settings) as opened:
        runner = await SparkTasks.start(settings, master="local[2,4]", on_progress=_print_task)
        print("started", flush=True)
        target: Any = await target_at(opened, directory, kind)
        commit = target.commit

        async def commit_reported(*arguments: Any) -> bool:
            print("commit", flush=True)
            done: bool = await commit(*arguments)
            return done

        target.commit = commit_reported
        await export(opened.context, runner, "orders", target, sizes=SIZES)
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
