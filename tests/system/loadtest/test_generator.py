"""The load generator as a run uses it, its processes and the driver, against small servers of the test."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from llog.errors import LoadTestError
from llog.loadtest.artifacts import BrokerPlace, ClientSummary, Loss, Phase, ResolvedConfig, StackRecord
from llog.loadtest.client.drive import run_load
from llog.loadtest.routing import plan_routes
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import Scenario
from llog.loadtest.scenario.read import parse_scenario
from tests.system.crashing import SOAK
from tests.unit.loadtest.fake_brokers import FakeBroker, FakeHttpBroker, FakeKafkaBroker, Store, serving

MODEST = """
name: modest
topics: [{name: load, partitions: 4}]
records: {bytes: 100}
load: {protocol: http, target_mb_per_s: 0.02, warm_up_s: 0.2, duration_s: 1}
producers: {clients: 4, records_per_request: 4, timeout_s: 5}
collect: {interval_s: 0.5}
"""
HASTY = """
name: hasty
topics: [{name: load, partitions: 64}]
records: {bytes: 96}
load: {protocol: http, target_mb_per_s: 500, warm_up_s: 0.2, duration_s: 1}
producers: {clients: 32, records_per_request: 64, partitions_per_request: 64, timeout_s: 5}
collect: {interval_s: 0.5}
"""


class Watched:
    """A run of a scenario against servers of this process."""

    def __init__(self, results: Path, scenario: Scenario, ports: Sequence[int]) -> None:
        self.run = RunDirectory.create(results, scenario.name)
        self.pids: dict[str, int] = {}
        self.phases: list[Phase] = []
        self.progress: list[str] = []
        places = [
            BrokerPlace(number, f"b{number}", "both", f"http://127.0.0.1:{port}", "127.0.0.1", port)
            for number, port in enumerate(ports)
        ]
        self.run.write("resolved-config.json", ResolvedConfig(self.run.run_id, scenario.name, (), scenario))
        self.run.write_stack(StackRecord(self.run.run_id, "up", scenario.name, os.getpid(), tuple(places)))
        self.run.write("routing-manifest.json", plan_routes(scenario, places))

    async def load(self) -> ClientSummary:
        return await run_load(
            self.run,
            on_phase=self.phases.append,
            on_process=lambda name, kind, pid, command: self.pids.setdefault(name, pid),
            on_progress=self.progress.append,
            restart_brokers=_no_restart,
        )

    @property
    def all_ended(self) -> bool:
        return not any(psutil.pid_exists(pid) for pid in self.pids.values())


async def _no_restart() -> None:
    raise AssertionError("the scenario wants no restart")


class CannedServer(asyncio.Protocol):
    """Answers HTTP requests of one length without reading them, so that the client is slower than the server."""

    ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"

    def __init__(self) -> None:
        self._length = self._total = self._answered = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._length:
            end = data.index(b"\r\n\r\n") + 4
            self._length = end + int(data[:end].lower().split(b"content-length:")[1].split()[0])
        self._total += len(data)
        answers = self._total // self._length - self._answered
        self._answered += answers
        self._transport.write(self.ANSWER * answers)


@asynccontextmanager
async def canned_server() -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(CannedServer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_run_goes_through_its_phases_and_leaves_its_files(tmp_path: Path) -> None:
    broker = FakeHttpBroker(Store())
    async with serving(broker):
        own = Watched(tmp_path, parse_scenario(MODEST), [broker.port])
        summary = await own.load()
    assert own.phases == ["warm_up", "measured", "after"]
    assert own.progress
    assert own.all_ended
    assert summary == own.run.client_summary()
    # A rate of 50 requests of 4 records a second.
    assert 45 <= summary.due_requests <= 55
    assert summary.records_acknowledged == summary.records_intended == sum(len(b.values) for b in broker.store.batches)
    assert summary.payload_bytes_acknowledged == 100 * summary.records_acknowledged
    assert summary.loss == Loss()
    assert {sample.phase for sample in own.run.client_samples()} == {"warm_up", "measured", "after"}


async def test_a_generator_that_cannot_keep_up_says_so(tmp_path: Path) -> None:
    async with canned_server() as port:
        summary = await Watched(tmp_path, parse_scenario(HASTY), [port]).load()
    assert summary.produced_mb_per_s < 0.9 * summary.offered_mb_per_s
    assert "producer-0 used" in summary.limited_by_generator


async def test_a_killed_generator_ends_the_run_with_an_error(tmp_path: Path) -> None:
    broker = FakeHttpBroker(Store())
    async with serving(broker):
        own = Watched(tmp_path, parse_scenario(MODEST, ["load.duration_s=600"]), [broker.port])
        loading = asyncio.create_task(own.load())
        while "measured" not in own.phases:
            await asyncio.wait([loading], timeout=0.02)
            assert not loading.done()
        os.kill(own.pids["producer-0"], signal.SIGKILL)
        with pytest.raises(LoadTestError, match="producer-0 was killed by signal 9"):
            await loading
    assert own.all_ended


async def test_a_generator_that_cannot_connect_says_where(tmp_path: Path) -> None:
    broker = FakeHttpBroker(Store())
    await broker.start()
    await broker.stop()
    own = Watched(tmp_path, parse_scenario(MODEST), [broker.port])
    with pytest.raises(LoadTestError, match=f"broker 0 at 127.0.0.1:{broker.port}"):
        await own.load()
    assert own.all_ended


async def test_a_cancelled_load_leaves_no_process(tmp_path: Path) -> None:
    broker = FakeHttpBroker(Store())
    async with serving(broker):
        own = Watched(tmp_path, parse_scenario(MODEST, ["load.duration_s=600"]), [broker.port])
        loading = asyncio.create_task(own.load())
        while "measured" not in own.phases:
            await asyncio.wait([loading], timeout=0.02)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
    assert own.all_ended


@pytest.mark.serial
@pytest.mark.skipif(not SOAK, reason="takes half a minute; LLOG_SOAK=1")
@pytest.mark.parametrize("protocol", ["http", "kafka"])
async def test_a_server_that_stalls_one_second_in_ten_has_a_p99_of_about_one_second(
    protocol: str, tmp_path: Path
) -> None:
    """The self-test of the generator in real time, with its processes."""
    broker: FakeBroker = FakeHttpBroker(Store()) if protocol == "http" else FakeKafkaBroker(Store())
    began_s = time.monotonic()

    async def stall() -> None:
        second = (time.monotonic() - began_s) % 10
        if second >= 9:
            await asyncio.sleep(10 - second)

    broker.pass_gate = stall
    changes = [f"load.protocol={protocol}", "load.duration_s=30", "load.target_mb_per_s=0.08"]
    async with serving(broker):
        summary = await Watched(tmp_path, parse_scenario(MODEST, changes), [broker.port]).load()
    assert 700 <= summary.latency.p99 <= 1_200
    assert summary.latency.p50 < 50
    assert summary.service.p50 < 50
    assert summary.service.p99 < 500, "without the open loop the stall would not be seen"
    assert summary.limited_by_generator == ""


@pytest.mark.skipif(not SOAK, reason="each step of the search takes two seconds; LLOG_SOAK=1")
async def test_the_search_finds_what_a_server_can_take(tmp_path: Path) -> None:
    """The server takes 100 requests of 400 bytes a second."""
    broker = FakeHttpBroker(Store())
    free_at_s = 0.0

    async def take_turns() -> None:
        nonlocal free_at_s
        free_at_s = max(time.monotonic(), free_at_s) + 0.01
        await asyncio.sleep(free_at_s - time.monotonic())

    broker.pass_gate = take_turns
    search = "{start_mb_per_s: 0.01, step_s: 2, precision: 0.2, produce_p99_ms_max: 500}"
    changes = ["load.target_mb_per_s=null", f"load.search={search}"]
    async with serving(broker):
        summary = await Watched(tmp_path, parse_scenario(MODEST, changes), [broker.port]).load()
    assert 0.02 <= summary.offered_mb_per_s <= 0.04
    assert any(not step.sustained for step in summary.search)
