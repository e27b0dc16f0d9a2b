"""A driver of the compaction job that dies in the middle: `python -m tests.system.compact_crasher DIRECTORY… `.

Each directory (a data directory of its own) gets a child process that runs the whole job in process and ends by
`os._exit` at a call of its stores, as if the machine had stopped. Directories are named by that call: `at-17-after`
dies when call 17 has been done and nobody was told, `at-17-before` right before it. `count` runs to the end and prints
how many calls there are. Children are forked, so that the imports are paid for once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from llog.api.opening import Use, opened_log
from llog.formats.records import encode_records, warm_up
from llog.limits import METADATA_SESSION_TIMEOUT_MS_MIN
from llog.pipeline.compact import CompactOptions, compact
from llog.pipeline.compact_plan import SegmentRules, Sizing
from llog.pipeline.compact_report import CompactReport
from llog.pipeline.windows_here import WindowsHere
from llog.pipeline.work import tools_of
from llog.settings import Settings

DIED: Final = 77
SESSION_MS: Final = METADATA_SESSION_TIMEOUT_MS_MIN
OPTIONS: Final = CompactOptions(
    rules=SegmentRules(target_bytes=30_000),
    sizing=Sizing(2, window_bytes_min=60_000, window_bytes_max=60_000),
    merge_bytes=200_000,
)
CALLS: Final = {"metadata": ("write", "get_many", "scan"), "objects": ("put", "get", "get_ranges")}


class Countdown:
    """Counts the calls of both stores, and ends the process at one of them."""

    def __init__(self, at: int, *, after: bool) -> None:
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


async def run_job(directory: Path, countdown: Countdown) -> CompactReport:
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        context = opened.context
        assert context.segments is not None
        for store, names in ((context.metadata, CALLS["metadata"]), (context.segments, CALLS["objects"])):
            for name in names:
                setattr(store, name, countdown.around(getattr(store, name)))
        runner = WindowsHere(tools_of(context), at_once=4)
        return await compact(context, runner, options=OPTIONS, merge=True, session_timeout_ms=SESSION_MS)


def countdown_of(name: str) -> Countdown:
    if name == "count":
        return Countdown(0, after=False)
    _, at, when = name.split("-")
    return Countdown(int(at), after=when == "after")


def in_child(directory: Path) -> None:
    countdown = countdown_of(directory.name)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            report = asyncio.run(run_job(directory, countdown))
            code = 0 if not report.failed else 2
            print(countdown.calls, flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    print(directory.name, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    warm_up()
    encode_records([b"warm"], timestamps_ms=0)
    for given in sys.argv[1:]:
        in_child(Path(given))
