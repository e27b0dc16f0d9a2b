"""Two services and a writer on real stores: everything is compacted, by one service at a time, and a dead one's work
is taken over when its session ran out.

As a program (`python -m tests.system.test_compactor_service HISTORY`) this file is one of the services: it writes down
when each job began and ended, and a job on a log whose name is in the file `HISTORY.stall` never ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from llog.api.aio import AsyncLeaderlessLogReader, AsyncLeaderlessLogWriter
from llog.api.groups import SharedAppendGroup
from llog.cli.serve import run_until_stopped
from llog.compactor.backends import Backends
from llog.compactor.jobs import CompactorJobs
from llog.compactor.service import serve
from llog.formats.values import CompactionRecord, ControlRecord, decode_value
from llog.log.cleanup.retention import Retained
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.rewrite.publish import Compacted
from llog.log.topics.delete import TopicDeleted
from llog.pipeline.runtime.log_choice import holder
from llog.settings import Settings
from llog.testing.servers import STOP_SECONDS_MAX, OxiaServer, ServerProcess
from tests.patience import PATIENCE_SECONDS, until
from tests.servers import started

ROOT: Final = Path(__file__).parents[2]
LOGS: Final = [Log("orders", 0), Log("orders", 1), Log("orders", 2), Log("visits", 0), Log("clicks", 0)]
SESSION_MS: Final = 10_000
"""Long enough for a machine that is busy with other tests."""
ROUNDS: Final = 60 if os.environ.get("LLOG_SOAK") == "1" else 12


# -- the service ---------------------------------------------------------------------------------------------------


class RecordingJobs(CompactorJobs):
    logs_per_worker = 1

    def __init__(self, context: LogContext, backends: Backends, history: Path) -> None:
        super().__init__(context, backends)
        self._file = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._stall = history.with_name(history.name + ".stall")

    def _note(self, what: str, log: Log) -> None:
        line = json.dumps({"at": time.monotonic_ns(), "what": what, "log": str(log)})
        os.write(self._file, line.encode() + b"\n")

    @contextmanager
    def _told(self, log: Log) -> Iterator[None]:
        self._note("begin", log)
        try:
            yield
        finally:
            self._note("end", log)

    async def compact(self, log: Log, *, max_offsets: int, target_bytes: int, min_age_ms: int) -> Compacted | None:
        with self._told(log):
            if self._stall.exists() and str(log) in self._stall.read_text().split():
                self._note("stall", log)
                await asyncio.Event().wait()
            await asyncio.sleep(0.02)  # long enough for two to meet, if they could
            return await super().compact(log, max_offsets=max_offsets, target_bytes=target_bytes, min_age_ms=min_age_ms)

    async def merge(self, log: Log, *, target_bytes: int, min_inputs: int) -> Compacted | None:
        with self._told(log):
            return await super().merge(log, target_bytes=target_bytes, min_inputs=min_inputs)

    async def retain(self, log: Log) -> Retained:
        with self._told(log):
            return await super().retain(log)

    async def delete_topic(self, topic: str, incarnation: int) -> TopicDeleted:
        return await super().delete_topic(topic, incarnation)


def main(history: str) -> None:
    async def serve_until(stop: asyncio.Event, at_once: asyncio.Event) -> None:
        await serve(
            Settings.from_env(),
            stop,
            at_once=at_once,
            make_jobs=lambda context, backends: RecordingJobs(context, backends, Path(history)),
            on_started=lambda url: print(f"started {url}", flush=True),
        )

    run_until_stopped(serve_until, log_level="info")


class Service:
    def __init__(self, name: str, directory: Path, env: dict[str, str]) -> None:
        self.name, self.history = name, directory / f"history-{name}"
        args = [sys.executable, "-m", "tests.system.test_compactor_service", str(self.history)]
        env = env | {"LLOG_COMPACTOR_ID": name, "PYTHONPATH": str(ROOT)}
        self.process = ServerProcess(args, log=directory / f"log-{name}", env=env, cwd=ROOT)
        self.process.start()

    def wait_started(self) -> str:
        """The address of its pages."""

        def lines() -> list[str]:
            return [line for line in self.process.log.read_text().splitlines() if line.startswith("started ")]

        self.process.wait_ready(f"service {self.name}", lambda: bool(lines()), PATIENCE_SECONDS)
        return lines()[-1].removeprefix("started ")

    def stall(self, logs: list[Log]) -> None:
        self.history.with_name(self.history.name + ".stall").write_text(" ".join(map(str, logs)))

    def events(self) -> list[dict[str, Any]]:
        text = self.history.read_text() if self.history.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def stalled(self) -> set[str]:
        """Logs that it holds and will not let go of. (What is under way otherwise may be past the place, and end.)"""
        return {event["log"] for event in self.events() if event["what"] == "stall"}

    def spans(self, died_at: int | None = None) -> list[tuple[str, int, int]]:
        """(log, begin, end) of each job; one that was cut off ended when its process did."""
        spans, begun = [], {}
        for event in self.events():
            if event["what"] == "begin":
                begun[event["log"]] = event["at"]
            elif event["what"] == "end":
                spans.append((event["log"], begun.pop(event["log"]), event["at"]))
        assert died_at is not None or not begun
        return spans + [(log, began, died_at or 0) for log, began in begun.items()]


# -- the test ------------------------------------------------------------------------------------------------------


def settings_env(directory: Path) -> dict[str, str]:
    return {
        "LLOG_METADATA_URL": f"lmdb://{directory}/metadata",
        "LLOG_OBJECTS_URL": f"file://{directory}/objects",
        "LLOG_SESSION_TIMEOUT_MS": str(SESSION_MS),
        "LLOG_COMPACTOR_PORT": "0",
        "LLOG_COMPACTOR_MIN_AGE_MS": "0",
        "LLOG_COMPACTOR_DISCOVERY_INTERVAL_MS": "300",
        "LLOG_COMPACTOR_IDLE_SLEEP_MS": "50",
        "LLOG_COMPACTOR_IDLE_JITTER_MS": "20",
        "LLOG_COMPACTOR_TRIGGER_AGE_MS": "100",
    }


async def lag_of(context: LogContext, log: Log) -> int:
    found = await context.metadata.get_many([context.keys.control(log), context.keys.compaction(log)])
    assert found[0] is not None
    assert found[1] is not None
    counter = decode_value(ControlRecord, found[0].value, str(log)).sequence_counter
    return counter - decode_value(CompactionRecord, found[1].value, str(log)).offset


async def wait_until(what: str, ready: Callable[[], Awaitable[bool]]) -> float:
    """How many seconds it took."""
    began = time.monotonic()
    await until(ready, what, pause_seconds=0.05)
    return time.monotonic() - began


async def all_compacted(context: LogContext, logs: list[Log]) -> bool:
    return not any([await lag_of(context, log) for log in logs])


async def append(writer: AsyncLeaderlessLogWriter, number: int) -> None:
    groups = [SharedAppendGroup(*log, [f"{log} {number}".encode()]) for log in LOGS]
    await writer.append_shared(groups)


async def check_pages(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as client:

        async def is_well() -> bool:
            return (await client.get("/ready")).status_code == 200

        await wait_until("a healthy service", is_well)
        health = (await client.get("/health")).json()
        assert health["discovery"]["targets"] == len(LOGS)
        page = (await client.get("/metrics")).json()
        assert page["compactor"]["discovery"]["targets"] == len(LOGS)
        assert page["compaction"]["runs"]["compact"]["compacted"] > 0
        assert page["compactor"]["claims"]["acquired"] > 0
        text = (await client.get("/metrics/prometheus")).text
        assert "llog_compaction_runs_total" in text
        assert "llog_compactor_workers 4.0" in text


def check_never_together(one: list[tuple[str, int, int]], two: list[tuple[str, int, int]]) -> None:
    for log, began, ended in one:
        for other, other_began, other_ended in two:
            assert log != other or ended <= other_began or other_ended <= began, f"{log} had two compactors at once"


@pytest.mark.slow
async def test_two_services_share_the_work_and_one_takes_over_from_the_dead(tmp_path: Path) -> None:
    await play(tmp_path, settings_env(tmp_path))


@pytest.mark.slow
@pytest.mark.server
async def test_the_same_on_a_compare_and_set_store(tmp_path: Path) -> None:
    with contextmanager(started)(lambda: OxiaServer(shards=2)) as metadata:
        await play(tmp_path, settings_env(tmp_path) | {"LLOG_METADATA_URL": f"oxia://{metadata.address}"})


async def play(tmp_path: Path, env: dict[str, str]) -> None:
    async with await AsyncLeaderlessLogWriter.open(Settings.from_env(env)) as writer:
        context = writer.context
        await append(writer, 0)
        services = [Service(name, tmp_path, env) for name in ("one", "two")]
        one, two = services
        try:
            urls = [service.wait_started() for service in services]
            for number in range(1, ROUNDS):
                await append(writer, number)
                await asyncio.sleep(0.25)
            await wait_until("everything compacted", lambda: all_compacted(context, LOGS))
            for service, url in zip(services, urls, strict=True):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not service.events():  # the other may have been quicker each time
                        await append(writer, ROUNDS)
                        await asyncio.sleep(0.3)
                await wait_until("its work done", partial(all_compacted, context, LOGS))
                await check_pages(url)

            one.stall(LOGS[:2])
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not one.stalled():  # until it got hold of something
                    await append(writer, -1)
                    await asyncio.sleep(0.3)
            stalled = [log for log in LOGS if str(log) in one.stalled()]
            assert stalled
            await append(writer, -2)
            await asyncio.sleep(1.5)  # no takeover has no signal; the other service looks at all logs several times
            for log in stalled:
                assert await lag_of(context, log) > 0, "its claim keeps the other away while it lives"
                claim = await holder(context, log)
                assert claim is not None
                assert claim.compactor_id.startswith("one/")
            one.process.kill()
            died_at = time.monotonic_ns()
            seconds = await wait_until("taken over", lambda: all_compacted(context, LOGS))
            print(f"taken over {seconds:.1f} s after the kill; the session lasts {SESSION_MS / 1_000} s")
            began = time.monotonic()
            two.process.stop()
            assert time.monotonic() - began < STOP_SECONDS_MAX / 2, "a stop without work under way does not wait"
            assert "Traceback" not in two.process.log.read_text()
            check_never_together(one.spans(died_at), two.spans())
            for log in LOGS:
                assert await holder(context, log) is None
        finally:
            for service in services:
                service.process.kill()
        await check_readable(env, writer)


async def check_readable(env: dict[str, str], writer: AsyncLeaderlessLogWriter) -> None:
    async with await AsyncLeaderlessLogReader.open(Settings.from_env(env)) as reader:
        for log in LOGS:
            payloads = [record.payload async for record in reader.iter_from(*log, 1)]
            assert payloads[:ROUNDS] == [f"{log} {number}".encode() for number in range(ROUNDS)]


if __name__ == "__main__":
    main(*sys.argv[1:])
