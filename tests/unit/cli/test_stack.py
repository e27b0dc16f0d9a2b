"""`llog up --brokers N`: which processes it starts, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from llog.cli import stack, supervisor
from llog.cli.stack import compact_patiently, read_messages, run_stack
from llog.cli.supervisor import MESSAGE_BYTES_MAX, RESTARTS_MAX, describe_end, plan_exit_code
from llog.compactor import service
from llog.errors import LlogError, MetadataUnavailable, ObjectStoreMisconfigured
from llog.settings import Settings
from tests.patience import PATIENCE_SECONDS, until


def settings(**given: object) -> Settings:
    return Settings.from_env({}, client_identifier="here", data_dir="/nowhere", **given)


def test_a_process_that_a_signal_ended_has_the_exit_code_that_a_shell_reports() -> None:
    assert [plan_exit_code(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]


# A child that notes when it is ready, and when it got SIGTERM. It waits for the signal itself: a
# handler that the signal calls just before the child begins to read runs only after that read.
PATIENT = """
import pathlib, signal, sys
notes = pathlib.Path(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.alarm(300)  # if no signal ever comes
notes.write_text("ready")
signal.sigwait([signal.SIGTERM])
notes.write_text("stopped")
"""


def patient(notes: Path) -> list[str]:
    return [sys.executable, "-c", PATIENT, str(notes)]


async def until_ready(notes: Path) -> None:
    await until(lambda: notes.exists() and notes.read_text() == "ready", "the child")


def in_memory(name: str) -> Settings:
    """For the compactor, which runs in this process."""
    url = f"memory://{name}"
    return settings(metadata_url=url, objects_url=url, compactor_port=0)


# A child that notes its start and then ends as it is told.
ENDING = """
import os, pathlib, sys
notes = pathlib.Path(sys.argv[1])
notes.write_text((notes.read_text() if notes.exists() else "") + "started ")
"""


def ending(notes: Path, how: str) -> list[str]:
    return [sys.executable, "-c", ENDING + how, str(notes)]


@pytest.fixture
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_DELAY_MS_MIN", 1)


@pytest.mark.parametrize(
    ("how", "reason"), [("os.kill(os.getpid(), 9)", "SIGKILL"), ("sys.exit(3)", "exit code 3"), ("", "exit code 0")]
)
async def test_a_broker_that_ends_is_started_again_and_the_others_keep_running(
    tmp_path: Path, quick_restarts: None, caplog: pytest.LogCaptureFixture, how: str, reason: str
) -> None:
    notes, starts, stop, at_once = tmp_path / "notes", tmp_path / "starts", asyncio.Event(), asyncio.Event()
    twice = f"if notes.read_text().count('started') < 3: {how or 'sys.exit(0)'}\n"
    commands = [patient(notes), ending(starts, twice + PATIENT.replace("import pathlib, signal, sys", "import signal"))]
    running = asyncio.ensure_future(
        run_stack(in_memory(f"again-{len(how)}"), commands, stop, at_once, on_compactor=lambda _url: None)
    )
    await until_ready(notes)
    await until_ready(starts)
    lines = [record.__dict__["llog"] for record in caplog.records if record.name == "llog.supervisor"]
    assert [line["restart"] for line in lines] == [1, 2]
    assert all(line["reason"].startswith(reason) and line["broker"] == str(starts) for line in lines)
    assert notes.read_text() == "ready"
    stop.set()
    assert await running == 0
    assert notes.read_text() == "stopped"


async def test_a_broker_that_keeps_ending_is_given_up_and_the_others_keep_running(
    tmp_path: Path, quick_restarts: None, caplog: pytest.LogCaptureFixture
) -> None:
    notes, starts, stop, at_once = tmp_path / "notes", tmp_path / "starts", asyncio.Event(), asyncio.Event()
    commands = [patient(notes), ending(starts, "sys.exit(3)")]
    running = asyncio.ensure_future(
        run_stack(in_memory("given-up"), commands, stop, at_once, on_compactor=lambda _url: None)
    )
    await until(lambda: "it is not started again" in caplog.text, "the supervisor gives up")
    assert starts.read_text().count("started") == RESTARTS_MAX + 1
    await until_ready(notes)
    assert not running.done()
    stop.set()
    assert await running == 3, "a stack that lost a broker does not end with success"


@pytest.mark.parametrize(("how", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
async def test_a_stack_without_brokers_ends_with_their_exit_code(
    tmp_path: Path, quick_restarts: None, how: str, code: int
) -> None:
    stop, at_once = asyncio.Event(), asyncio.Event()
    commands = [ending(tmp_path / "starts", how)]
    assert await run_stack(in_memory(f"none-{code}"), commands, stop, at_once, on_compactor=lambda _url: None) == code
    assert stop.is_set()


@pytest.mark.parametrize("code", [2, 4])
async def test_a_first_start_that_no_restart_cures_ends_the_stack(tmp_path: Path, code: int) -> None:
    notes, stop, at_once = tmp_path / "notes", asyncio.Event(), asyncio.Event()
    commands = [patient(notes), ending(tmp_path / "starts", f"sys.exit({code})")]
    assert await run_stack(in_memory(f"cure-{code}"), commands, stop, at_once, on_compactor=lambda _url: None) == code
    assert (tmp_path / "starts").read_text().count("started") == 1


def test_the_reason_of_an_end_names_the_signal() -> None:
    assert [describe_end(code) for code in (0, 3, -15)] == ["exit code 0", "exit code 3", "SIGTERM"]
    assert "memory" in describe_end(-9)


async def test_a_stop_is_passed_on_to_every_child_and_ends_with_0(tmp_path: Path) -> None:
    notes = [tmp_path / "one", tmp_path / "other"]
    stop, at_once = asyncio.Event(), asyncio.Event()
    compactors: list[str] = []
    running = asyncio.ensure_future(
        run_stack(in_memory("stack"), [patient(one) for one in notes], stop, at_once, on_compactor=compactors.append)
    )
    for one in notes:
        await until_ready(one)
    stop.set()
    assert await running == 0
    assert [one.read_text() for one in notes] == ["stopped", "stopped"]


async def test_a_stop_while_children_have_not_begun_ends_with_0(tmp_path: Path) -> None:
    """They take a second to load; until then the signal ends them."""
    begun, stop, at_once = tmp_path / "begun", asyncio.Event(), asyncio.Event()
    loading = [sys.executable, "-c", f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(300)"]
    running = asyncio.ensure_future(
        run_stack(in_memory("loading"), [loading], stop, at_once, on_compactor=lambda _url: None)
    )
    await until(begun.exists, "the child")
    stop.set()
    assert await running == 0


# A child that copies its standard input to a file.
LISTENING = """
import sys
with open(sys.argv[1], "w", buffering=1) as notes:
    for line in sys.stdin:
        notes.write(line)
"""


async def test_every_broker_is_told_how_spark_is_and_when_that_changes(tmp_path: Path) -> None:
    notes = [tmp_path / "one", tmp_path / "other"]
    stop, at_once, states = asyncio.Event(), asyncio.Event(), asyncio.Queue[str]()
    commands = [[sys.executable, "-c", LISTENING, str(one)] for one in notes]
    running = asyncio.ensure_future(
        run_stack(
            # Spark's processes could not see such stores: it is not even started.
            in_memory("messages"),
            commands,
            stop,
            at_once,
            on_compactor=lambda _url: None,
            on_spark=states.put_nowait,
        )
    )
    changed = await asyncio.wait_for(states.get(), PATIENCE_SECONDS)
    assert changed.startswith("unavailable (")
    assert "memory://" in changed
    for one in notes:
        await until(partial(last_message_is, one, {"spark": changed}), "the last message")
    stop.set()
    await running


def last_message_is(notes: Path, message: dict[str, str]) -> bool:
    return notes.exists() and notes.read_text().splitlines()[-1:] == [json.dumps(message, separators=(",", ":"))]


# -- a compactor with unreachable stores -------------------------------------------------------------------------------

AWAY = MetadataUnavailable("open", "oxia://nowhere", "connection refused")


class Compactor:
    """Replaces the service: it fails with each of the given errors, then runs until the stop."""

    def __init__(self, *failures: LlogError, after_start: LlogError | None = None, silent: bool = False) -> None:
        self.failures, self.after_start, self.silent = list(failures), after_start, silent
        self.began, self.ended = asyncio.Event(), False

    async def serve(
        self, _: Settings, stop: asyncio.Event, *, on_started: Callable[[str], None], **spark: object
    ) -> None:
        if self.failures:
            raise self.failures.pop(0)
        try:
            self.began.set()
            if self.silent:
                await asyncio.Event().wait()
            on_started("http://compactor")
            if self.after_start is not None:
                raise self.after_start
            await stop.wait()
        finally:
            self.ended = True


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[Compactor], Compactor]:
    monkeypatch.setattr(stack, "STORE_PROBE_MS", 1)

    def install(compactor: Compactor) -> Compactor:
        monkeypatch.setattr(service, "serve", compactor.serve)
        return compactor

    return install


async def test_a_compactor_starts_once_its_store_is_reachable(
    impatient: Callable[[Compactor], Compactor],
) -> None:
    compactor = impatient(Compactor(AWAY, AWAY))
    stop, urls = asyncio.Event(), asyncio.Queue[str]()
    running = asyncio.ensure_future(compact_patiently(settings(), stop, on_started=urls.put_nowait))
    assert await asyncio.wait_for(urls.get(), PATIENCE_SECONDS) == "http://compactor"
    stop.set()
    await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert compactor.ended


@pytest.mark.parametrize(
    "compactor",
    [Compactor(ObjectStoreMisconfigured("open", "s3://bucket", "no such bucket")), Compactor(after_start=AWAY)],
    ids=["what waiting does not help against", "after the start"],
)
async def test_a_compactor_that_fails_otherwise_ends_with_its_reason(
    impatient: Callable[[Compactor], Compactor], compactor: Compactor
) -> None:
    impatient(compactor)
    running = compact_patiently(settings(), asyncio.Event(), on_started=lambda _url: None)
    with pytest.raises((ObjectStoreMisconfigured, MetadataUnavailable)):
        await asyncio.wait_for(running, PATIENCE_SECONDS)


async def test_a_stop_does_not_wait_for_a_store_that_is_silent(impatient: Callable[[Compactor], Compactor]) -> None:
    compactor = impatient(Compactor(silent=True))
    stop = asyncio.Event()
    running = asyncio.ensure_future(compact_patiently(settings(), stop, on_started=lambda _url: None))
    await asyncio.wait_for(compactor.began.wait(), PATIENCE_SECONDS)
    stop.set()
    await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert compactor.ended


# -- messages from the supervisor ------------------------------------------------------------------------------------


async def test_messages_arrive_however_they_are_split_and_the_end_is_reported_once() -> None:
    read_end, write_end = os.pipe()
    messages: asyncio.Queue[Mapping[str, object]] = asyncio.Queue()
    ended = asyncio.Event()
    read_messages(asyncio.get_running_loop(), messages.put_nowait, on_end=ended.set, descriptor=read_end)
    os.write(write_end, b'{"spark": "starting"}\n{"spark": "re')
    assert await messages.get() == {"spark": "starting"}
    os.write(write_end, b'ady"}\n')
    assert await messages.get() == {"spark": "ready"}
    assert not ended.is_set()
    os.close(write_end)
    await ended.wait()
    os.close(read_end)


async def test_lines_that_are_too_long_or_no_message_are_skipped() -> None:
    read_end, write_end = os.pipe()
    messages: asyncio.Queue[Mapping[str, object]] = asyncio.Queue()
    ended = asyncio.Event()
    read_messages(asyncio.get_running_loop(), messages.put_nowait, on_end=ended.set, descriptor=read_end)
    for _ in range(3):
        os.write(write_end, b"x" * (MESSAGE_BYTES_MAX - 1))
        await asyncio.sleep(0)
    os.write(write_end, b'\nhello\n[1]\n{"spark": "ready"}\n')
    assert await messages.get() == {"spark": "ready"}
    os.close(write_end)
    await ended.wait()
    assert messages.empty()
    os.close(read_end)
