"""Jobs that die in the middle, and what a test of them needs: the frame that the crash tests of all jobs share.

Two sides meet here. The **child** (`python -m tests.system.…_crasher DIRECTORY…`, whose last line is `play(job)`) runs
the job once per directory, each time in a process of its own that ends by `os._exit` at a call of its stores, as if the
machine had stopped. The **test** asks it first how many calls there are, picks points among them, gives each a copy of
the same filled data directory, and judges what the dead left (`crash_everywhere`).

A directory's name says what happens in it: `iceberg-at-17-after` dies when call 17 of the job `iceberg` has been done
and nobody was told, `iceberg-at-17-before` right before it; `iceberg-count` runs to the end and tells its calls.
`kill_after` does the other half: a driver on Spark, killed -9 once it has told that it is far enough.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from llog.formats.records.encode import encode_records
from llog.formats.warm_up import warm_up
from llog.settings import Settings

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
DIED: Final = 77
ROOT: Final = Path(__file__).parents[2]
CHILD_SECONDS_MAX: Final = 500
JUDGED_AT_ONCE: Final = 6

T = TypeVar("T")


def settings_at(directory: Path) -> Settings:
    """The embedded stores below a directory."""
    return Settings.from_env({"LLOG_DATA_DIR": str(directory)})


# -- the child ---------------------------------------------------------------------------------------------------------


class Countdown:
    """Counts calls, and ends the process at one of them; at none where `at` is 0."""

    def __init__(self, at: int = 0, *, after: bool = False) -> None:
        self.calls, self._at, self._after = 0, at, after

    def enter(self) -> bool:
        """Is it this call behind which the process ends?"""
        self.calls += 1
        mine = self.calls == self._at
        if mine and not self._after:
            os._exit(DIED)
        return mine

    def around(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **named: Any) -> Any:
            mine = self.enter()
            answer = await call(*arguments, **named)
            if mine:
                os._exit(DIED)
            return answer

        return counted

    def around_blocking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            mine = self.enter()
            answer = call(*arguments, **named)
            if mine:
                os._exit(DIED)
            return answer

        return counted

    def watch(self, store: T, *names: str) -> T:
        """Count these calls of a store."""
        for name in names:
            setattr(store, name, self.around(getattr(store, name)))
        return store


Job = Callable[[Path, str, Countdown], Coroutine[Any, Any, bool]]
"""A whole job in a data directory, of the kind that the directory's name says; true if its report tells of no fault."""


def in_child(work: Callable[[], object]) -> int:
    """How a process ended that did this work: 0, 1 with an exception, 2 if it answered false."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 2 if work() is False else 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def prepare() -> None:
    """Children are forked, so that the imports and what is compiled are paid for once: here."""
    warm_up()
    encode_records([b"warm"], timestamps_ms=0)


def play(job: Job) -> None:
    """The program of a crasher: a line `calls` for whoever lived to the end, a line with the exit code for everyone."""
    prepare()
    for directory in map(Path, sys.argv[1:]):
        kind, *point = directory.name.split("-")
        countdown = Countdown() if point == ["count"] else Countdown(int(point[1]), after=point[2] == "after")

        def work(directory: Path = directory, kind: str = kind, countdown: Countdown = countdown) -> bool:
            ok = asyncio.run(job(directory, kind, countdown))
            print("calls", directory.name, countdown.calls, flush=True)
            return ok

        print("ended", directory.name, in_child(work), flush=True)


# -- the test ----------------------------------------------------------------------------------------------------------


class Dead(NamedTuple):
    """What a job left that died at some call; one or two of many may have come to their end before it."""

    directory: Path
    kind: str


def crash_everywhere(crasher: str, template: Path, points: Mapping[str, int]) -> list[Dead]:
    """So many deaths of each kind of a job, at calls spread over all that it makes, each in a copy of `template`.

    Every other one dies before its call, the others when it was done and nobody was told.
    """
    said = _play_in_copies(crasher, template, [f"{kind}-count" for kind in points])
    assert {said["ended", f"{kind}-count"] for kind in points} == {0}, said
    names: list[str] = []
    for kind, wanted in points.items():
        calls = said["calls", f"{kind}-count"]
        assert calls > 2 * wanted, f"{kind} makes {calls} calls: too few for {wanted} points"
        chosen = sorted(random.Random(7).sample(range(2, calls - 5), wanted))
        names += [f"{kind}-at-{at}-{'before' if number % 2 else 'after'}" for number, at in enumerate(chosen)]
    said = _play_in_copies(crasher, template, names)
    # The order of calls is not the same each time, so the very last ones may not be reached.
    assert sum(said["ended", name] == DIED for name in names) >= len(names) - len(points), said
    assert all(said["ended", name] in (DIED, 0) for name in names), said
    return [Dead(template.parent / name, name.split("-")[0]) for name in names]


async def judge_all(dead: Sequence[Dead], judge: Callable[[Dead], Awaitable[T]]) -> list[T]:
    """What the judge says of each; a few are judged at a time, since much of it is waiting for claims of the dead."""
    turns = asyncio.Semaphore(JUDGED_AT_ONCE)

    async def judged(one: Dead) -> T:
        async with turns:
            try:
                return await judge(one)
            except BaseException as error:
                error.add_note(f"in {one.directory.name}")
                raise

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(judged(one), name=one.directory.name) for one in dead]
    return [task.result() for task in tasks]


def _play_in_copies(crasher: str, template: Path, names: Sequence[str]) -> dict[tuple[str, str], int]:
    """What the crasher told of each directory: `("ended", name)` and `("calls", name)`."""
    directories = [template.parent / name for name in names]
    for directory in directories:
        shutil.copytree(template, directory)
    lines = run_crasher(crasher, *map(str, directories)).stdout.splitlines()
    return {(what, name): int(number) for what, name, number in map(str.split, lines)}


def run_crasher(crasher: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.system.<crasher>`, once it has ended well: what it said, and the troubles of its children."""
    command = [sys.executable, "-m", f"tests.system.{crasher}", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CHILD_SECONDS_MAX, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


# -- a Spark driver, killed --------------------------------------------------------------------------------------------

kills_spark_drivers = pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1: each kill costs the start of a Spark session")


def kill_after(driver: Sequence[str], directory: Path, line: str, count: int) -> None:
    """Start `python -m tests.system.<driver…>` and kill it -9 once lines that begin with this word came so often."""
    command = [sys.executable, "-m", f"tests.system.{driver[0]}", *driver[1:]]
    with open(directory / "driver.log", "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    with process, process.stdout as output:
        try:
            seen = 0
            for said in output:
                seen += said.split()[:1] == [line]
                if seen == count:
                    break
            assert seen == count, f"it ended: {(directory / 'driver.log').read_text()[-3_000:]}"
        finally:
            process.kill()
