"""Drivers of the sink that die in the middle: `python -m tests.system.sink_crasher DIRECTORY…`.

Each directory (a data directory of its own) gets a child process that writes a batch and ends by `os._exit` at a call
of its stores, as if the machine had stopped: `at-17-after` dies when call 17 has been done and nobody was told,
`at-17-before` right before it. Then another child replays the batch with its rows split differently, and writes the
next one. `count` only writes the batch, and prints how many calls there are. Children are forked, so that the imports
are paid for once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from llog.api.opening import Use, opened_log
from llog.formats.records import warm_up
from llog.pipeline.sink import Batch, commit_batch, sink_order, upload
from llog.pipeline.sink_rows import Router, Turns, joined
from llog.pipeline.work import tools_of
from llog.settings import Settings

DIED: Final = 77
QUERY: Final = "crashing"
ROWS: Final = 21
TOPICS: Final = ("orders", "visits")
CALLS: Final = {"metadata": ("write", "get_many", "scan"), "objects": ("put", "get_ranges")}


class Countdown:
    """Counts the calls of both stores, and ends the process at one of them."""

    def __init__(self, at: int = 0, *, after: bool = False) -> None:
        self.calls, self._at, self._after = 0, at, after

    def around(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            mine = self.calls == self._at
            if mine and not self._after:
                os._exit(DIED)
            answer = await call(*args, **kwargs)
            if mine:
                os._exit(DIED)
            return answer

        return counted


def settings_at(directory: Path) -> Settings:
    return Settings.from_env({"LLOG_DATA_DIR": str(directory)})


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
        for store, names in ((context.metadata, CALLS["metadata"]), (context.wal, CALLS["objects"])):
            for name in names:
                setattr(store, name, countdown.around(getattr(store, name)))
        order, rows = await sink_order(context), table(number)
        share = -(-ROWS // tasks)
        slices: list[Any] = []
        for task in range(tasks):
            part = rows.slice(task * share, share)
            slices += (await upload(tools_of(context), order, part.to_batches(), task)).slices
        await commit_batch(context, Batch(QUERY, number), slices)


def in_child(directory: Path, number: int, tasks: int, countdown: Countdown) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(write_batch(directory, number, tasks, countdown))
            code = 0
            print(countdown.calls, flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def play(directory: Path) -> None:
    if directory.name == "count":
        assert in_child(directory, 0, 7, Countdown()) == 0
        return
    _, at, when = directory.name.split("-")
    codes = [
        in_child(directory, 0, 7, Countdown(int(at), after=when == "after")),
        in_child(directory, 0, 3, Countdown()),
        in_child(directory, 1, 2, Countdown()),
    ]
    print(directory.name, *codes, flush=True)


if __name__ == "__main__":
    warm_up()
    list(Router(None, {}, Turns()).split(joined(table(0).to_batches())))  # loads all that takes long to load
    for given in sys.argv[1:]:
        play(Path(given))
