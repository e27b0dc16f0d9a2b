"""A runner is proven by a task that opens the store where tasks run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llog.errors import SparkJobFailed
from llog.pipeline.runtime.tasks import LocalTasks, Task, prove, tools_of
from tests.unit.compactor.stage import Cluster


async def test_a_runner_whose_tasks_open_the_store_is_proven() -> None:
    cluster = Cluster()
    runs: list[str] = []

    class Counting(LocalTasks):
        async def run(self, task: Task[Any, Any], items: Sequence[Any], on_done: Any = None, **parts: Any) -> list[Any]:
            runs.append(task.place)
            return await super().run(task, items, on_done, **parts)

    await prove(Counting(tools_of(cluster.open())), cluster.objects.url)
    assert runs == ["llog.pipeline.runtime.tasks:probe"]


async def test_one_whose_tasks_cannot_is_refused_with_their_reason() -> None:
    with pytest.raises(SparkJobFailed, match="s3://elsewhere"):
        await prove(LocalTasks(tools_of(Cluster().open())), "s3://elsewhere")
