"""Drivers of the sink that die in the middle: `python -m tests.system.sink_crasher DIRECTORY…`.

Directories are named by where a driver ends itself while it writes a batch, as `crashing` says. Then another replays
the batch with its rows split differently, and a third writes the next one; `sink-count` only writes the batch, and
tells how many calls there are.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from llog.log.keys import Log
from llog.log.topics.create import initialize
from llog.pipeline.runtime.tasks import tools_of
from llog.pipeline.sink.commit import commit_batch
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.sink.rows import RoundRobin, Router, join_batches
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import upload
from llog.wiring import Use, opened_log
from tests.system.crashing import Countdown, in_child, prepare, settings_at

QUERY: Final = "crashing"
ROWS: Final = 21
TOPICS: Final = ("orders", "visits")


def table(batch: int) -> pa.Table:
    return pa.table(
        {
            "value": [f"{batch}-{row}" for row in range(ROWS)],
            "topic": [TOPICS[row % 2] for row in range(ROWS)],
            "key": [None if row % 3 else f"{row}" for row in range(ROWS)],
            "partition": pa.array([row % 2 if row % 7 else None for row in range(ROWS)], pa.int32()),
        }
    )


async def write_batch(directory: Path, number: int, tasks: int, countdown: Countdown) -> None:
    """As a driver with so many tasks does."""
    async with opened_log(settings_at(directory), blobs=Use.PUT) as opened:
        context = opened.context
        assert context.wal is not None
        countdown.watch(context.metadata, "write", "get_many", "scan")
        countdown.watch(context.wal, "put", "get_ranges")
        order, rows = await sink_order(context), table(number)
        share = -(-ROWS // tasks)
        slices: list[Any] = []
        for task in range(tasks):
            part = rows.slice(task * share, share)
            slices += (await upload(tools_of(context), order, part.to_batches(), task)).slices
        await commit_batch(context, SinkBatch(QUERY, number), slices)


def driver(directory: Path, number: int, tasks: int, countdown: Countdown) -> int:
    """The exit code; if the driver survived, a line says how many calls it made."""

    def work() -> None:
        asyncio.run(write_batch(directory, number, tasks, countdown))
        print("calls", directory.name, countdown.calls, flush=True)

    return in_child(work)


async def create_topics(directory: Path) -> None:
    """With both partitions, because a sink adds none; the drivers finish the first log of each."""
    async with opened_log(settings_at(directory)) as opened:
        for topic in TOPICS:
            await initialize(opened.context, Log(topic, 1))


def play_batches(directory: Path) -> None:
    assert in_child(lambda: asyncio.run(create_topics(directory))) == 0
    if directory.name == "sink-count":
        assert driver(directory, 0, 7, Countdown()) == 0
        return
    _, _, at, when = directory.name.split("-")
    codes = [
        driver(directory, 0, 7, Countdown(int(at), after=when == "after")),
        driver(directory, 0, 3, Countdown()),
        driver(directory, 1, 2, Countdown()),
    ]
    print("ended", directory.name, *codes, flush=True)


if __name__ == "__main__":
    prepare()
    list(Router(None, {}, RoundRobin()).split(join_batches(table(0).to_batches())))  # loads all that takes long to load
    for given in sys.argv[1:]:
        play_batches(Path(given))
