"""A driver of the vacuum job that dies in the middle: `python -m tests.system.vacuum_crasher DIRECTORY POINTS`.

DIRECTORY holds `template`, a data directory as it was before. For every point it is copied to `live` (always the same
path, since entries name objects by it) and two children are forked: one runs the whole job in process and ends by
`os._exit` at a call of its stores, as if the machine had stopped; the other judges what it left, runs the job again and
judges that. A line tells of each: the point, how the first ended, and what the second found.

Points are spread over the calls of a job that nobody stops, which is run first; every other one dies before its call,
the others when the call was done and nobody was told.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.pipeline.audit.job import audit
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.sink.commit import commit_batch
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.vacuum.job import VacuumReport, vacuum
from llog.stores.objects.port import Buffer, ByteRange, ObjectMeta, ObjectStore
from llog.stores.objects.wrappers import ForwardingObjectStore
from llog.wiring import OpenedLog, Use, Wrapping, opened_log
from tests.system.crashing import DIED, Countdown, in_child, prepare, settings_at

LOGS: Final = [Log("orders", 0), Log("orders", 1), Log("visits", 0)]
PLANNED: Final = SinkBatch("left", 0)
"""A batch of the sink that is planned, and waits for its driver."""
PLANNED_ROWS: Final = [b"planned", b"long ago"]
METADATA_CALLS: Final = ("write", "get_many", "scan", "server_time_ms")


class Expected(msgspec.Struct):
    """What must be so, whoever dies."""

    records: dict[str, list[tuple[int, bytes]]]
    objects: list[str] = []
    """Names that are left after two whole jobs."""


class CountedObjects(ForwardingObjectStore):
    def __init__(self, inner: ObjectStore, countdown: Countdown) -> None:
        super().__init__(inner)
        self._countdown = countdown

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self._countdown.around(self.inner.put)(name, buffers, if_absent=if_absent)

    async def get(self, name: str) -> Buffer:
        answer: Buffer = await self._countdown.around(self.inner.get)(name)
        return answer

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        answer: list[Buffer] = await self._countdown.around(self.inner.get_ranges)(name, ranges)
        return answer

    async def head(self, name: str) -> ObjectMeta:
        answer: ObjectMeta = await self._countdown.around(self.inner.head)(name)
        return answer

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        mine = self._countdown.enter()
        async for meta in self.inner.list(prefix, start_after=start_after):
            yield meta
        if mine:
            os._exit(DIED)

    async def delete_many(self, names: Sequence[str]) -> None:
        await self._countdown.around(self.inner.delete_many)(names)


def opened(directory: Path, countdown: Countdown | None = None) -> Any:
    wrapping = None
    if countdown is not None:
        wrapping = Wrapping(
            lambda store: countdown.watch(store, *METADATA_CALLS), lambda store: CountedObjects(store, countdown)
        )
    return opened_log(settings_at(directory), blobs=Use.PUT, segments=Use.PUT, wrapping=wrapping)


async def run_job(directory: Path, countdown: Countdown | None = None) -> VacuumReport:
    stores: OpenedLog
    async with opened(directory, countdown) as stores:
        return await vacuum(stores.context, LocalTasks(tools_of(stores.context)))


async def records_of(context: LogContext) -> dict[str, list[tuple[int, bytes]]]:
    return {
        str(log): [(r.offset, r.payload or b"") async for run in iter_runs(context, log, 1) for r in run.records()]
        for log in LOGS
    }


async def names_in(context: LogContext) -> list[str]:
    """Blobs and segments. (An object that a clock was read from may be left; it goes when it is old.)"""
    assert context.wal is not None
    kinds = ("blob", "segment_object")
    found = [meta.name async for meta in context.wal.list("")]
    return [name for name in found if (parsed := context.keys.parse_object(name)) and parsed.kind in kinds]


async def judge(directory: Path, expected: Expected) -> None:
    """As it was left, and after the next job: nothing lost, nothing damaged, and in the end nothing left over."""
    stores: OpenedLog
    async with opened(directory) as stores:
        context, runner = stores.context, LocalTasks(tools_of(stores.context))
        assert await records_of(context) == expected.records, "as it was left"
        report = await audit(context, runner)
        assert report.clean, report.findings
        await vacuum(context, runner)
        assert (await vacuum(context, runner)).blobs_deleted == 0, "a second job finds nothing to do"
        assert await records_of(context) == expected.records, "after the next job"
        assert (await audit(context, runner)).findings == []
        assert await names_in(context) == expected.objects, "whoever died, the same is left"
        done = await commit_batch(context, PLANNED, [])
        assert done.slices.appended == len(PLANNED_ROWS), "what a plan names was kept for it"


def whole_job(directory: Path, expected_file: Path, calls_file: Path) -> None:
    """Nobody stops this one: how many calls it makes, and what is left after it and another."""
    countdown = Countdown()
    names = asyncio.run(_two_jobs(directory, countdown))
    calls_file.write_text(str(countdown.calls))
    expected = msgspec.json.decode(expected_file.read_bytes(), type=Expected)
    expected.objects = names
    expected_file.write_bytes(msgspec.json.encode(expected))


async def _two_jobs(directory: Path, countdown: Countdown) -> list[str]:
    await run_job(directory, countdown)
    await run_job(directory)
    stores: OpenedLog
    async with opened(directory) as stores:
        return await names_in(stores.context)


def main(directory: Path, points: int) -> None:
    template, live = directory / "template", directory / "live"
    expected_file, calls_file = directory / "expected.json", directory / "calls"

    def restored() -> Path:
        shutil.rmtree(live, ignore_errors=True)
        shutil.copytree(template, live)
        return live

    restored()
    assert in_child(lambda: whole_job(live, expected_file, calls_file)) == 0
    calls = int(calls_file.read_text())
    expected = msgspec.json.decode(expected_file.read_bytes(), type=Expected)
    print("calls", calls, flush=True)
    for number in range(points):
        at = 1 + number * (calls - 1) // (points - 1)
        countdown = Countdown(at, after=number % 2 == 0)
        restored()
        died = in_child(lambda countdown=countdown: asyncio.run(run_job(live, countdown)))  # type: ignore[misc]
        judged = in_child(lambda: asyncio.run(judge(live, expected)))
        print("point", at, died, judged, flush=True)


if __name__ == "__main__":
    prepare()
    main(Path(sys.argv[1]), int(sys.argv[2]))
