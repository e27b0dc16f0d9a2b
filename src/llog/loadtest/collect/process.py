"""The collector process: `python -m llog.loadtest.collect.process RUN_DIR`.

Every `collect.interval_s` it appends a line to `metrics-30s.jsonl`: the pages of all brokers and compactors in
stack.json, all processes of the run, and the host. stack.json is read before each sample, because a broker that a fault
killed comes back with another pid. Orders are JSON lines on standard input:

    {"order": "phase", "phase": "measured"}    a sample at once, which begins that phase
    {"order": "final"}                         the last sample, then the process ends

The end of standard input ends the process at once, without a sample: its orchestrator is gone. An interrupt from the
terminal is ignored; the orchestrator, which gets it too, still orders the last sample.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from llog.errors import RunNotFound
from llog.loadtest.artifacts import MetricsSample, Phase, StackRecord
from llog.loadtest.collect.machine import sample_host, sample_processes
from llog.loadtest.collect.scrape import scrape_all
from llog.loadtest.run_directory import RunDirectory

METRICS_FILE: Final = "metrics-30s.jsonl"
ORDERS_WAITING_MAX: Final = 100
ORDER_BYTES_MAX: Final = 64 * 1024

_log = logging.getLogger("llog.loadtest.collect")


class CollectorOrder(msgspec.Struct, frozen=True):
    order: Literal["phase", "final"]
    phase: Phase = "warm_up"


class Collector:
    """Samples of one run."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._stack: StackRecord | None = None
        self.phase: str = "warm_up"

    async def sample(self, *, final: bool = False) -> None:
        """Append one line. The processes are read first: that takes milliseconds, while a page may take seconds."""
        stack, at_s = self._read_stack(), time.time()
        places = () if stack is None else stack.processes
        processes, host = await asyncio.to_thread(sample_processes, places), sample_host()
        pages = await scrape_all({} if stack is None else urls_of(stack))
        self._run.append(METRICS_FILE, MetricsSample(at_s, final, self.phase, pages, processes, host))

    def _read_stack(self) -> StackRecord | None:
        """The last one that could be read."""
        try:
            self._stack = self._run.stack() or self._stack
        except RunNotFound as error:
            _log.warning("%s", error)
        return self._stack


def urls_of(stack: StackRecord) -> dict[str, str]:
    """Of the pages, by the names of the processes."""
    brokers = {f"broker-{broker.number}": broker.http_url for broker in stack.brokers}
    return brokers | {f"compactor-{compactor.number}": compactor.http_url for compactor in stack.compactors}


async def collect(run: RunDirectory, orders: asyncio.Queue[CollectorOrder | None], interval_s: float) -> None:
    """Sample until the final order, or None for the end of input."""
    collector, loop = Collector(run), asyncio.get_running_loop()
    due_s = loop.time()
    while True:
        try:
            order = await asyncio.wait_for(orders.get(), max(0.0, due_s - loop.time()))
        except TimeoutError:
            due_s += interval_s
            await collector.sample()
            due_s = max(due_s, loop.time())  # a slow sample delays the next ones, which do not pile up
            continue
        if order is None:
            return
        if order.order == "final":
            await collector.sample(final=True)
            return
        collector.phase = order.phase
        await collector.sample()
        due_s = max(due_s, loop.time())


async def read_orders(orders: asyncio.Queue[CollectorOrder | None]) -> bool:
    """Read standard input to its end; returns whether the final order came."""
    reader = asyncio.StreamReader(limit=ORDER_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    decoder, final = msgspec.json.Decoder(CollectorOrder), False
    while line := await reader.readline():
        try:
            order = decoder.decode(line)
        except msgspec.DecodeError as error:
            _log.warning("an order cannot be read: %r: %s", line, error)
            continue
        final = final or order.order == "final"
        await orders.put(order)
    return final


async def serve(run: RunDirectory) -> None:
    orders: asyncio.Queue[CollectorOrder | None] = asyncio.Queue(ORDERS_WAITING_MAX)
    reading = asyncio.create_task(read_orders(orders))
    collecting = asyncio.create_task(collect(run, orders, run.config().scenario.collect.interval_s))
    await asyncio.wait([reading, collecting], return_when=asyncio.FIRST_COMPLETED)
    if reading.done() and not reading.result():
        collecting.cancel()
    else:
        reading.cancel()
    for task in (reading, collecting):
        with contextlib.suppress(asyncio.CancelledError):
            await task


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(serve(RunDirectory(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
