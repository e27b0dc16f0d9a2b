"""Processes of a run are found by record or by mark, ended whatever their state, and never mistaken for others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from llog.loadtest.artifacts import ProcessPlace, ResolvedConfig
from llog.loadtest.run_directory import RUN_DIR_VARIABLE, RunDirectory
from llog.loadtest.scenario import Scenario
from llog.loadtest.stack.processes import (
    end_processes,
    find_all,
    find_marked,
    find_recorded,
    is_alive,
    mark_of,
    recorded_process,
)
from llog.loadtest.stack.record import StackFile
from llog.loadtest.stack.teardown import take_down
from tests.patience import wait_until

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path, "test")
    made.write("resolved-config.json", ResolvedConfig(made.run_id, "test", (), Scenario("test")))
    return made


@contextmanager
def sleeping(command: Sequence[str] = ("sleep", "600"), mark: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    environment = dict(os.environ) if mark is None else os.environ | {RUN_DIR_VARIABLE: str(mark)}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    try:
        # The kernel shows the new environment a moment after it has begun the new program.
        wait_until(lambda: psutil.Process(child.pid).environ(), "the environment of the process")
        yield child
    finally:
        child.kill()
        child.communicate()


def place_of(pid: int) -> ProcessPlace:
    return ProcessPlace("it", "server", pid, psutil.Process(pid).create_time(), "logs/it.log")


def pids(found: Sequence[psutil.Process]) -> set[int]:
    return {process.pid for process in found}


def test_a_recorded_process_counts_only_with_its_start_time() -> None:
    with sleeping() as child:
        place = place_of(child.pid)
        assert find_recorded([place])["it"].pid == child.pid
        assert not find_recorded([replace(place, started_s=place.started_s - 60)])
    assert recorded_process(place.pid, place.started_s) is None


def test_a_marked_process_is_found_for_its_run_only(run: RunDirectory, tmp_path: Path) -> None:
    with sleeping(mark=run.path) as ours, sleeping(mark=tmp_path / f"{run.run_id}-other"), sleeping():
        assert pids(list(find_marked(run))) == {ours.pid}


def test_a_mark_is_the_same_for_every_spelling_of_the_path(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run.path)
    with sleeping(mark=Path(mark_of(run.path))) as ours:
        for spelling in (tmp_path / "link", run.path / "logs" / ".."):
            assert pids(list(find_marked(RunDirectory(spelling)))) == {ours.pid}


def test_descendants_are_found_also_without_the_mark(run: RunDirectory) -> None:
    shell = f"env -u {RUN_DIR_VARIABLE} sleep 600 & wait"
    with sleeping(["sh", "-c", shell], mark=run.path) as parent:
        children = wait_until(lambda: psutil.Process(parent.pid).children(), "a child")
        assert pids(find_all(run, [])) == {parent.pid, children[0].pid}
        end_processes(children, 5)


def test_this_process_and_its_ancestors_are_never_found(run: RunDirectory) -> None:
    own = [place_of(os.getpid()), place_of(os.getppid())]
    with sleeping(mark=run.path) as spared:
        found = {process.pid for process in find_all(run, own, spare=[spared.pid])}
        # Beside other tests, their controller has other children.
        assert found.isdisjoint({os.getpid(), os.getppid(), spared.pid})


def test_a_stopped_process_ends_by_sigterm() -> None:
    with sleeping() as child:
        child.send_signal(signal.SIGSTOP)
        assert end_processes([psutil.Process(child.pid)], 60) == []
        assert child.wait() == -signal.SIGTERM


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    with sleeping(["sh", "-c", STUBBORN]) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert end_processes([psutil.Process(child.pid)], 0.05) == []
        assert child.wait() == -signal.SIGKILL


def test_a_zombie_counts_as_gone() -> None:
    with sleeping() as child:
        process = psutil.Process(child.pid)
        child.kill()
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, "the end of the process")
        assert not is_alive(process)


def test_down_ends_what_is_recorded_and_what_is_only_marked(run: RunDirectory) -> None:
    stack = StackFile.create(run, "test")
    with sleeping() as recorded, sleeping(mark=run.path) as marked, sleeping() as other:
        stack.add("server", "server", recorded.pid)
        (run.data / "file").write_bytes(b"x")
        taken = take_down(run)
        assert set(taken.ended) == {"server", f"pid {marked.pid}"}
        assert taken.data_removed
        assert not run.data.exists()
        assert recorded.wait() == marked.wait() == -signal.SIGTERM
        assert other.poll() is None
    found = run.stack()
    assert found is not None
    assert found.state == "down"
    assert take_down(run).ended == ()


@pytest.mark.parametrize("content", [None, b"", b'{"run_id": "x", "sta', b"\xff\x00"])
def test_down_works_without_a_readable_stack_json(run: RunDirectory, content: bytes | None) -> None:
    if content is not None:
        (run.path / "stack.json").write_bytes(content)
    with sleeping(mark=run.path) as marked:
        assert take_down(run).ended == (f"pid {marked.pid}",)
        assert marked.wait() == -signal.SIGTERM
    found = run.stack()
    assert found is not None
    assert found.state == "down"
    assert "missing or damaged" in found.reason


def test_down_leaves_a_process_alone_that_got_the_id_of_a_recorded_one(run: RunDirectory) -> None:
    stack = StackFile.create(run, "test")
    with sleeping() as other:
        stack.add("server", "server", other.pid)
        [place] = stack.record.processes
        stack.change(processes=(replace(place, started_s=place.started_s - 3_600),))
        assert take_down(run).ended == ()
        assert other.poll() is None
