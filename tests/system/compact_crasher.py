"""A driver of the compaction job that dies in the middle: `python -m tests.system.compact_crasher DIRECTORY…`.

Directories are named by where their job ends itself, as `crashing` says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llog.limits import METADATA_SESSION_TIMEOUT_MS_MIN
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.plan import SegmentRules, Sizing
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.wiring import Use, opened_log
from tests.system.crashing import Countdown, play, settings_at

SESSION_MS: Final = METADATA_SESSION_TIMEOUT_MS_MIN
OPTIONS: Final = CompactOptions(
    rules=SegmentRules(target_bytes=30_000),
    sizing=Sizing(2, window_bytes_min=60_000, window_bytes_max=60_000),
    merge_bytes=200_000,
)


async def run_job(directory: Path, _: str, countdown: Countdown) -> bool:
    async with opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT) as opened:
        context = opened.context
        assert context.segments is not None
        countdown.watch(context.metadata, "write", "get_many", "scan")
        countdown.watch(context.segments, "put", "get", "get_ranges")
        runner = LocalTasks(tools_of(context), at_once=4)
        report = await compact(context, runner, options=OPTIONS, merge=True, session_timeout_ms=SESSION_MS)
        return not report.failed


if __name__ == "__main__":
    play(run_job)
