"""A program that runs tasks through Spark Connect. `test_connect` starts it: a process has one kind of session only."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from llog.errors import SparkTaskFailed
from llog.pipeline.runtime.tasks import TaskFailed
from llog.settings import Settings
from llog.spark.runner.tasks import SparkTasks
from llog.spark.sessions.session import is_connect, prepare_environment
from tests.patience import until
from tests.spark.sample_tasks import OBEY, Order, Told


async def main(directory: Path) -> dict[str, object]:
    from pyspark.sql import SparkSession

    prepare_environment("local[2]")
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    runner = SparkTasks(spark, Settings.from_env({}, data_dir=directory))
    heard: list[int] = []
    items = [Order("echo", 0), Order("miss", 1, text="gone"), Order("nap", 2)]
    outcomes = await runner.run(OBEY, items, lambda number, _: heard.append(number))
    facts: dict[str, object] = {
        "connect": is_connect(spark),
        "heard": heard,
        "numbers": [one.number if isinstance(one, Told) else one.error_type for one in outcomes],
    }
    try:
        await runner.run(OBEY, [Order("break", 3, str(directory), "zero")])
    except SparkTaskFailed as error:
        facts["error"] = [error.error_type, error.error]
    facts["cancelled_after_s"] = await cancelled(runner, directory)
    [last] = await runner.run(OBEY, [Order("echo", 9)])
    facts["last"] = "failed" if isinstance(last, TaskFailed) else last.number
    await runner.close()
    return facts


async def cancelled(runner: SparkTasks, directory: Path) -> float:
    """How long after a cancellation a task was still alive."""
    run = asyncio.create_task(runner.run(OBEY, [Order("linger", 4, str(directory))]))
    sign = directory / "alive-4"
    await until(sign.exists, "a sign of life of the task")
    run.cancel()
    gave_up = time.time()
    await asyncio.wait([run])
    await asyncio.sleep(1)  # a task that went on would leave ten more signs of life
    told = ""
    while not told:  # it is written again and again, and empty meanwhile
        told = await asyncio.to_thread(sign.read_text)
    return max(0.0, float(told) - gave_up)


if __name__ == "__main__":
    print("FACTS " + json.dumps(asyncio.run(main(Path(sys.argv[1])))), flush=True)
    os._exit(0)  # the server that came with the session would be waited for
