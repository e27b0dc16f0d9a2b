"""The collector: what it scrapes and samples, which orders it takes, and that nothing that a process does breaks it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from llog.loadtest.artifacts import BrokerPlace, CompactorPlace, ProcessPlace, StackRecord
from llog.loadtest.collect.machine import sample_host, sample_processes
from llog.loadtest.collect.process import Collector, CollectorOrder, collect, urls_of
from llog.loadtest.collect.scrape import scrape, scrape_all
from llog.loadtest.run_directory import RunDirectory
from tests.patience import PATIENCE_SECONDS, until, wait_until
from tests.unit.loadtest.artefacts import write_run

OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{"a": \r\n2\r\n1}\r\n0\r\n\r\n'


def answer(page: bytes) -> bytes:
    return OK % (len(page), page)


@asynccontextmanager
async def serving(reply: bytes | None, requests: list[bytes] | None = None) -> AsyncIterator[str]:
    """A server with one answer, or none ever; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if requests is not None:
            requests.append(head)
        if reply is None:
            await reader.read()
        else:
            writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


# -- pages -------------------------------------------------------------------------------------------------------------


async def test_a_page_is_read_whole_or_in_chunks() -> None:
    requests: list[bytes] = []
    async with serving(answer(b'{"log": {"append_records": 7}}'), requests) as url:
        page = await scrape("broker-0", url)
    assert (page.name, page.ok, page.error, page.page) == ("broker-0", True, "", {"log": {"append_records": 7}})
    assert requests[0].startswith(b"GET /metrics HTTP/1.1\r\n")
    async with serving(CHUNKED) as url:
        assert (await scrape("broker-0", url)).page == {"a": 1}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}", "status 503"),
        (answer(b"{}")[:-1], "the answer broke off"),
        (b"", "the answer broke off"),
        (answer(b"[]"), "Expected `object`"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "HttpParser"),
        (answer(b" " * 1_001), "the page exceeds 1000 bytes"),
    ],
    ids=["refused", "half", "nothing", "no page", "no HTTP", "too large"],
)
async def test_a_page_that_cannot_be_read_is_a_sample_with_the_reason(
    reply: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llog.loadtest.collect.scrape.PAGE_BYTES_MAX", 1_000)
    async with serving(reply) as url:
        page = await scrape("broker-0", url)
    assert not page.ok
    assert page.page == {}
    assert reason in page.error


async def test_a_broker_that_does_not_answer_holds_up_no_other() -> None:
    async with serving(answer(b"{}")) as well, serving(None) as stalled:
        page = await scrape("broker-1", stalled, timeout_s=0.05)
        assert (page.ok, page.error) == (False, "no answer within 0.05 s")
        gone = "http://127.0.0.1:1"
        pages = await scrape_all({"broker-0": well, "broker-2": gone})
    assert [(page.name, page.ok) for page in pages] == [("broker-0", True), ("broker-2", False)]
    assert "ConnectionRefusedError" in pages[1].error


# -- processes and host ------------------------------------------------------------------------------------------------


def place(pid: int, started_s: float | None = None) -> ProcessPlace:
    started_s = psutil.Process(pid).create_time() if started_s is None else started_s
    return ProcessPlace("broker-0", "broker", pid, started_s, "logs/broker-0.log")


def test_a_process_is_sampled_with_its_children() -> None:
    # The parent waits for a child, which holds the memory.
    child = [sys.executable, "-c", "x = b'x' * 50_000_000; print('up', flush=True); input()"]
    script = f"import subprocess, sys; sys.exit(subprocess.run({child!r}).returncode)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        [sample] = sample_processes([place(parent.pid)])
        own = psutil.Process(parent.pid)
        assert sample.alive
        assert sample.rss_bytes >= own.memory_info().rss + 50_000_000
        assert sample.threads >= 2
        assert sample.descriptors > own.num_fds()
        assert sample.cpu_s > 0
        parent.communicate("\n")


def test_processor_time_of_ended_children_stays_counted() -> None:
    busy = "import time\nwhile time.process_time() < 0.15: pass"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        [sample] = sample_processes([place(parent.pid)])
        assert sample.cpu_s >= 0.15
        parent.communicate("\n")


def test_another_process_with_the_pid_is_not_taken_for_it() -> None:
    [sample] = sample_processes([place(os.getpid(), started_s=1.0)])
    assert (sample.alive, sample.cpu_s, sample.started_s) == (False, 0.0, 1.0)


def test_a_process_that_ended_is_not_alive_also_while_nobody_waited_for_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = place(process.pid)
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not sample_processes([known])[0].alive, "a zombie"
    process.wait()
    assert not sample_processes([known])[0].alive


def test_the_host_is_sampled() -> None:
    host = sample_host()
    assert host.cpu_count == psutil.cpu_count()
    assert 0 < host.cpu_busy_s <= sum(psutil.cpu_times())
    assert host.memory_available_bytes > 0


# -- orders ------------------------------------------------------------------------------------------------------------


def stack_of(run: RunDirectory, url: str) -> StackRecord:
    broker = BrokerPlace(0, "broker-0", "both", url, "127.0.0.1", 1)
    return StackRecord(run.run_id, "up", "synthetic", 1, (broker,), (), (place(os.getpid()),))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = write_run(tmp_path)
    (run.path / "metrics-30s.jsonl").unlink()
    return run


def test_brokers_and_compactors_are_scraped_by_the_names_of_their_processes() -> None:
    broker, compactor = BrokerPlace(1, "b", "both", "http://b", "h", 1), CompactorPlace(0, "http://c")
    stack = StackRecord("run", "up", "s", 1, (broker,), (compactor,))
    assert urls_of(stack) == {"broker-1": "http://b", "compactor-0": "http://c"}


async def test_stack_json_is_read_again_for_every_sample(run: RunDirectory) -> None:
    collector = Collector(run)
    async with serving(answer(b'{"n": 1}')) as first, serving(answer(b'{"n": 2}')) as second:
        run.write_stack(stack_of(run, first))
        await collector.sample()
        run.write_stack(stack_of(run, second))
        await collector.sample()
        (run.path / "stack.json").write_text("{ half")
        await collector.sample()
    assert [sample.pages[0].page["n"] for sample in run.metrics_samples()] == [1, 2, 2]
    assert all(sample.processes[0].alive for sample in run.metrics_samples())


async def test_a_run_without_a_stack_has_samples_of_the_host(run: RunDirectory) -> None:
    (run.path / "stack.json").unlink()
    await Collector(run).sample()
    [sample] = run.metrics_samples()
    assert (sample.pages, sample.processes) == ((), ())
    assert sample.host.cpu_count > 0


async def test_the_first_sample_is_taken_at_once_a_phase_begins_with_one_and_the_final_one_ends(
    run: RunDirectory,
) -> None:
    orders: asyncio.Queue[CollectorOrder | None] = asyncio.Queue()
    for order in (CollectorOrder("phase", "measured"), CollectorOrder("phase", "after"), CollectorOrder("final")):
        orders.put_nowait(order)
    (run.path / "stack.json").unlink()
    await asyncio.wait_for(collect(run, orders, interval_s=3_600), PATIENCE_SECONDS)
    assert [(sample.phase, sample.final) for sample in run.metrics_samples()] == [
        ("warm_up", False),
        ("measured", False),
        ("after", False),
        ("after", True),
    ]


async def test_samples_follow_each_other_in_the_interval(run: RunDirectory) -> None:
    orders: asyncio.Queue[CollectorOrder | None] = asyncio.Queue()
    (run.path / "stack.json").unlink()
    collecting = asyncio.create_task(collect(run, orders, interval_s=0.01))
    await until(lambda: len(list(run.metrics_samples())) >= 3)
    orders.put_nowait(None)
    await asyncio.wait_for(collecting, PATIENCE_SECONDS)
    assert {(sample.phase, sample.final) for sample in run.metrics_samples()} == {("warm_up", False)}


# -- the process -------------------------------------------------------------------------------------------------------


class Process:
    def __init__(self, run: RunDirectory) -> None:
        command = [sys.executable, "-m", "llog.loadtest.collect.process", str(run.path)]
        self.run = run
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def order(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def ended(self) -> str:
        """What it wrote to standard error."""
        _, errors = self.child.communicate(timeout=PATIENCE_SECONDS)
        assert self.child.returncode == 0, errors
        return errors


def test_the_process_takes_orders_until_the_final_one(run: RunDirectory) -> None:
    run.write_stack(replace(stack_of(run, "http://127.0.0.1:1"), processes=()))
    process = Process(run)
    wait_until(lambda: len(list(run.metrics_samples())) == 1)
    process.child.send_signal(signal.SIGINT)
    process.order("nonsense")
    process.order('{"order": "phase", "phase": "measured"}')
    process.order('{"order": "final"}')
    assert "an order cannot be read: b'nonsense" in process.ended()
    samples = list(run.metrics_samples())
    assert [(sample.phase, sample.final) for sample in samples] == [
        ("warm_up", False),
        ("measured", False),
        ("measured", True),
    ]
    assert [page.ok for sample in samples for page in sample.pages] == [False] * 3


def test_the_end_of_input_ends_the_process_at_once_without_a_final_sample(run: RunDirectory) -> None:
    async def end_while_a_broker_stalls() -> None:
        async with serving(None) as url:
            run.write_stack(stack_of(run, url))
            process = Process(run)
            assert process.child.stdin is not None
            process.child.stdin.close()
            await asyncio.to_thread(process.child.wait, PATIENCE_SECONDS)
            assert process.child.stderr is not None
            assert process.child.stderr.read() == ""
            process.child.stderr.close()
            assert process.child.returncode == 0

    asyncio.run(end_while_a_broker_stalls())
    assert list(run.metrics_samples()) == []
