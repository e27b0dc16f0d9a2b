"""A program that runs tasks on executors of their own (`local-cluster`); `test_cluster` starts it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import llog.spark
from llog.pipeline.runtime.tasks import TaskFailed
from llog.settings import Settings
from llog.spark.runner.tasks import SparkTasks
from llog.wiring import ObjectStores
from tests.spark.sample_tasks import OBEY, Order, Told

MASTER = "local-cluster[2,1,1024]"


async def main(directory: Path) -> dict[str, object]:
    settings = Settings.from_env({}, data_dir=directory)
    async with ObjectStores(settings) as objects:
        store = await objects.at(settings.objects_url)
        await store.put("source", [b"x" * 1_000])
    # What a machine of the cluster has in its environment must not matter.
    wrong = {"spark.executorEnv.LLOG_METADATA_URL": "oxia://nowhere:1", "spark.executorEnv.LLOG_OBJECTS_URL": "s3://no"}
    spark = llog.spark.session(settings, master=MASTER, config={**wrong, "spark.executor.memory": "512m"})
    runner = SparkTasks(spark, settings)
    copies = [Order("copy", n, settings.objects_url, f"{settings.objects_url}/source") for n in range(8)]
    copied = await runner.run(OBEY, copies)
    survived = await runner.run(OBEY, [Order("die-once", 20, str(directory)), Order("echo", 21)])
    described = await runner.run(OBEY, [Order("describe", n) for n in range(4)])
    facts: dict[str, object] = {
        "copied": [one.facts.get("bytes") for one in told(copied)],
        "survived": [one.number for one in told(survived)],
        "preloaded": all(one.facts["loaded_by"] == one.facts["parent"] for one in told(described)),
        "executors": len({one.facts["parent"] for one in told([*described])}),
    }
    await runner.close()
    await asyncio.to_thread(spark.stop)
    return facts


def told(outcomes: list[Told | TaskFailed]) -> list[Told]:
    assert all(isinstance(one, Told) for one in outcomes), outcomes
    return [one for one in outcomes if isinstance(one, Told)]


if __name__ == "__main__":
    print("FACTS " + json.dumps(asyncio.run(main(Path(sys.argv[1])))), flush=True)
    os._exit(0)
