"""A task that opens the store of segments where it runs, and does nothing: whoever ran one can run others.

Why it exists: a session on a cluster starts although its executors lack the package, another Python or the keys of the
store; the first job would find out, with claims in its hands. It also starts the processes that every later job needs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from llog.errors import SparkJobFailed
from llog.pipeline.runtime.tasks import Task, TaskFailed, TaskRunner, TaskTools


class Probe(msgspec.Struct, frozen=True):
    store_url: str


class Probed(msgspec.Struct, frozen=True):
    pass


async def probe(tools: TaskTools, item: Probe) -> Probed:
    await tools.open_store(item.store_url)
    return Probed()


PROBE: Final = Task(f"{__name__}:probe", Probe, Probed)


async def prove(runner: TaskRunner, store_url: str) -> None:
    """Raises what the runner raises, and `SparkJobFailed` where the task failed."""
    [outcome] = await runner.run(PROBE, [Probe(store_url)])
    if isinstance(outcome, TaskFailed):
        raise SparkJobFailed(PROBE.place, f"{outcome.error_type}: {outcome.error}")
