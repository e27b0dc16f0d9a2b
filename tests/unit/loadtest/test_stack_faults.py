"""Faults happen at their times, leave lines, and end with the load; the object store's proxy stalls and refuses."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from llog.errors import StackFailed
from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.progress import Progress
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import Fault, Scenario
from llog.loadtest.stack import faults
from llog.loadtest.stack.object_proxy import obey, order_proxy
from llog.loadtest.stack.record import StackFile
from llog.testing.proxy import TcpProxy
from tests.patience import until

SCENARIO = Scenario("test")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[StackFile, subprocess.Popen[bytes]]]:
    """A stack whose broker-0 is a process that only sleeps."""
    stack = StackFile.create(RunDirectory.create(tmp_path, "test"), "test")
    child = subprocess.Popen(["sleep", "600"])
    stack.change(brokers=(BrokerPlace(0, "broker-0", "both", "http://127.0.0.1:9", "127.0.0.1", 9),))
    stack.add("broker-0", "broker", child.pid)
    yield stack, child
    child.kill()
    child.wait()


def events(stack: StackFile) -> list[tuple[str, str]]:
    return [(event.kind, event.phase) for event in stack.run.faults()]


async def test_a_paused_broker_goes_on(broker: tuple[StackFile, subprocess.Popen[bytes]]) -> None:
    stack, child = broker
    injector = faults.FaultInjector(stack, SCENARIO, Progress(quiet=True))
    injector.begin([Fault(at_s=0, kind="pause_broker", duration_s=0.2)])
    process = psutil.Process(child.pid)
    await until(lambda: process.status() == psutil.STATUS_STOPPED, "the pause")
    await until(lambda: events(stack)[-1] == ("pause_broker", "end"), "the end of the pause")
    assert process.status() == psutil.STATUS_SLEEPING
    assert events(stack) == [("pause_broker", "begin"), ("pause_broker", "end")]


async def test_the_end_of_the_load_ends_a_pause(broker: tuple[StackFile, subprocess.Popen[bytes]]) -> None:
    stack, child = broker
    injector = faults.FaultInjector(stack, SCENARIO, Progress(quiet=True))
    injector.begin([Fault(at_s=0, kind="pause_broker", duration_s=600), Fault(at_s=600, kind="kill_broker")])
    await until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, "the pause")
    await injector.end()
    await until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_SLEEPING, "the end of the pause")
    assert sorted(events(stack)) == [("kill_broker", "failed"), ("pause_broker", "begin"), ("pause_broker", "end")]


async def test_a_killed_broker_starts_again(
    broker: tuple[StackFile, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, child = broker
    started: list[str] = []
    monkeypatch.setattr(faults, "start_broker", lambda _stack, _scenario, place: started.append(place.broker_id))

    async def ready(*_: object) -> None:
        started.append("ready")

    monkeypatch.setattr(faults, "until_ready", ready)
    injector = faults.FaultInjector(stack, SCENARIO, Progress(quiet=True))
    injector.begin([Fault(at_s=0, kind="kill_broker", duration_s=0.01)])
    await until(lambda: len(events(stack)) == 2, "the end of the fault")
    assert events(stack)[-1] == ("kill_broker", "end")
    assert child.wait() == -signal.SIGKILL
    assert started == ["broker-0", "ready"]


async def test_a_fault_that_cannot_be_done_is_recorded(broker: tuple[StackFile, subprocess.Popen[bytes]]) -> None:
    stack, child = broker
    child.kill()
    child.wait()
    stack.change(ports={"object-proxy-control": 1})
    injector = faults.FaultInjector(stack, SCENARIO, Progress(quiet=True))
    injector.begin([Fault(at_s=0, kind="pause_broker"), Fault(at_s=0, kind="stall_objects")])
    await until(lambda: len(events(stack)) == 4, "both failures")
    failed = {event.kind: event.detail for event in stack.run.faults() if event.phase == "failed"}
    assert "does not run" in failed["pause_broker"]
    assert "did not take the order" in failed["stall_objects"]


# -- the proxy of the object store -----------------------------------------------------------------------------------


@asynccontextmanager
async def proxied_server(arrived: asyncio.Event, release: asyncio.Event) -> AsyncIterator[TcpProxy]:
    """A server that answers each request without a body with 200; `/slow` sets `arrived` and waits for `release`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            if b"/slow" in head:
                arrived.set()
                await release.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    def lost(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Task[None]:
        return asyncio.create_task(quiet(reader, writer))

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(lost, "127.0.0.1", 0)
    async with server, TcpProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


async def ask(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str = "/", body: bytes = b"") -> bytes:
    """The status line."""
    reader, writer = streams
    writer.write(b"PUT %s HTTP/1.1\r\nHost: x\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(body), body))
    answer = await reader.readuntil(b"\r\n\r\n")
    return answer.partition(b"\r\n")[0]


async def test_the_proxy_answers_503_from_the_next_request_on() -> None:
    arrived, release = asyncio.Event(), asyncio.Event()
    async with proxied_server(arrived, release) as proxy:
        idle = await asyncio.open_connection("127.0.0.1", proxy.port)
        busy = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await ask(idle) == b"HTTP/1.1 200 OK"
        slow = asyncio.create_task(ask(busy, "/slow"))
        await arrived.wait()
        assert obey(proxy, "refuse")
        fresh = await asyncio.open_connection("127.0.0.1", proxy.port)
        for streams in (idle, fresh):
            assert await ask(streams, body=b"x" * 300_000) == b"HTTP/1.1 503 Service Unavailable"
            assert (await streams[0].read()).endswith(b"</Error>")
        release.set()
        assert await slow == b"HTTP/1.1 200 OK"
        assert obey(proxy, "pass")
        assert await ask(await asyncio.open_connection("127.0.0.1", proxy.port)) == b"HTTP/1.1 200 OK"
        for _, writer in (idle, busy, fresh):
            writer.close()


async def test_the_proxy_stalls_until_it_passes_again() -> None:
    async with proxied_server(asyncio.Event(), asyncio.Event()) as proxy:
        streams = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await ask(streams) == b"HTTP/1.1 200 OK"
        assert obey(proxy, "stall")
        waiting = asyncio.create_task(ask(streams))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        assert obey(proxy, "pass")
        assert await waiting == b"HTTP/1.1 200 OK"
        streams[1].close()


async def test_an_unknown_order_changes_nothing() -> None:
    proxy = TcpProxy("127.0.0.1", 1)
    assert not obey(proxy, "explode")


async def test_an_order_without_a_proxy_is_an_error() -> None:
    with pytest.raises(StackFailed, match="object-proxy: it did not take the order stall"):
        await order_proxy(1, "stall")
