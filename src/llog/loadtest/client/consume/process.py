"""`python -m llog.loadtest.client.consume.process RUN_DIR NAME`: a consumer process of a run.

It follows the orders of the driver (`llog.loadtest.client.orders`) and leaves `received-NAME.bin` (a `ReceivedLedger`),
`result-NAME.json`, its lines in `client-30s.jsonl` and `remap-events.jsonl`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from llog.errors import LoadTestError
from llog.loadtest.artifacts import Phase, RemapEvent
from llog.loadtest.client.consume import scan_kernels as kernels
from llog.loadtest.client.consume.http_raw import HttpEngine
from llog.loadtest.client.consume.kafka_raw import KafkaEngine
from llog.loadtest.client.consume.librdkafka import RdClient
from llog.loadtest.client.consume.link import Asking
from llog.loadtest.client.consume.places import Place, Places
from llog.loadtest.client.consume.reading import Client, Move
from llog.loadtest.client.consume.samples import Lag, Sampler
from llog.loadtest.client.consume.scan import Scanner
from llog.loadtest.client.consume.tally import Tally
from llog.loadtest.client.orders import ConsumerResult, GeneratorPlan, Order, Report
from llog.loadtest.client.schedule import Clock
from llog.loadtest.client.stamp import run_hash
from llog.loadtest.routing import Route
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import Scenario

PROGRESS_S: Final = 1.0
UNFINISHED_NAMED_MAX: Final = 100
"""Partitions whose end was not reached, by name; all are counted."""
_log: Final = logging.getLogger("llog.loadtest.consumer")


class Reading(Protocol):
    """A client of any engine."""

    async def warm_up(self) -> None: ...

    async def run(self) -> None: ...

    async def drain(self) -> None: ...


def plan_places(routes: Sequence[Route], scenario: Scenario, number: int, processes: int) -> dict[int, list[Place]]:
    """The partitions of each client of a process. Clients divide the partitions in the order of their preferred
    readers, so that each asks few brokers, for many partitions at once; client n runs in process n % processes."""
    numbers = {topic.name: position for position, topic in enumerate(scenario.topics)}
    ordered = sorted(routes, key=lambda route: (route.readers[0], numbers[route.topic], route.partition))
    clients = scenario.consumers.clients
    places: dict[int, list[Place]] = {}
    for position, route in enumerate(ordered):
        client = position * clients // len(ordered)
        if client % processes == number:
            places.setdefault(client, []).append(Place(numbers[route.topic], route.partition, route.readers))
    return places


class ConsumerProcess:
    def __init__(self, run: RunDirectory, name: str) -> None:
        plan, routes, stack = run.read(f"plan-{name}.json", GeneratorPlan), run.routes(), run.stack()
        if plan is None or routes is None or stack is None:
            raise LoadTestError(f"{run.path}: a plan for {name}, routes or stack.json is missing")
        self._run, self._name, self._scenario = run, name, run.config().scenario
        self._clock = Clock(plan.clock_offset_s)
        scanner = Scanner(run_hash(run.config().run_id), self._scenario.records.bytes)
        scanner.warm_up()
        self._tally = Tally(scanner, self._clock.now_s)
        self._scanner = scanner
        brokers = {broker.number: broker for broker in stack.brokers}
        topics = tuple(topic.name for topic in self._scenario.topics)
        counts = [topic.partitions for topic in self._scenario.topics]
        self._places: list[Places] = []
        self._clients: list[Reading] = []
        planned = plan_places(routes.routes, self._scenario, plan.number, plan.processes)
        load = self._scenario.load
        for client, some in planned.items():
            places = Places(some, counts)
            asking = Asking(topics, self._scenario.consumers, places, scanner)
            self._places.append(places)
            if load.engine == "librdkafka":
                self._clients.append(RdClient(asking, brokers, self._tally, f"{run.run_id}-{client}"))
            else:
                engine = HttpEngine() if load.protocol == "http" else KafkaEngine()
                self._clients.append(Client(asking, brokers, engine, self._tally, self._moved))
        self._lag = Lag()
        self._sampler = Sampler(name, self._tally, self._lag)
        self._phase: Phase = "warm_up"
        self._running: list[asyncio.Task[None]] = []
        """All that ends with the process."""
        self._reading: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()

    async def work(self, orders: asyncio.StreamReader) -> None:
        """Follow orders until the last one is done."""
        for client in self._clients[:1]:
            await client.warm_up()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(orders, group))
            beside = [group.create_task(self._lag.watch()), group.create_task(self._report_progress())]
            say(Report("ready"))
            await self._ended.wait()
            for task in (following, *beside, *self._running):
                task.cancel()
        self._cut(self._phase)
        self._write_results()

    async def _follow(self, orders: asyncio.StreamReader, group: asyncio.TaskGroup) -> None:
        decoder = msgspec.json.Decoder(Order)
        while line := await orders.readline():
            order = decoder.decode(line)
            if order.order == "stop":
                break
            self._running.append(group.create_task(self._obey(order, group)))
        self._ended.set()

    async def _obey(self, order: Order, group: asyncio.TaskGroup) -> None:
        await asyncio.sleep(max(order.at_s - self._clock.now_s(), 0.0))
        match order.order:
            case "begin":
                self._sampler = Sampler(self._name, self._tally, self._lag)
                self._reading = [group.create_task(client.run()) for client in self._clients]
                self._running += [*self._reading, group.create_task(self._sample())]
            case "phase":
                self._cut(order.phase)
            case "cut":
                self._cut(self._phase)
                say(self._report("cut"))
            case "drain":
                await self._drain(order.until_s)
            case _:
                pass  # `rate` is for producers

    async def _drain(self, until_s: float) -> None:
        """Until all clients have read to the ends of their logs, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(until_s - self._clock.now_s(), 0.0)):
                await asyncio.gather(*(client.drain() for client in self._clients))
                await asyncio.gather(*self._reading)
        self._ended.set()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self._scenario.collect.interval_s)
            self._cut(self._phase)

    def _cut(self, phase: Phase) -> None:
        """Write what was received since the last line; what comes belongs to `phase`."""
        self._run.append("client-30s.jsonl", self._sampler.take(self._phase))
        self._phase = phase

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            say(self._report("progress"))

    def _report(self, event: Literal["progress", "cut"]) -> Report:
        return Report(event, self._tally.records, self._tally.payload_bytes)

    def _moved(self, moves: Sequence[Move]) -> None:
        topics, at_s = self._scenario.topics, self._clock.now_s()
        for topic, partition, before, after, reason in moves:
            event = RemapEvent(at_s, self._name, topics[topic].name, partition, "read", before, after, reason)
            self._run.append("remap-events.jsonl", event)

    def _write_results(self) -> None:
        ledger, unfinished = self._tally.ledger, []
        for places in self._places:
            drained = places.drained().tolist()
            for topic, number, done in zip(places.topics.tolist(), places.numbers.tolist(), drained, strict=True):
                if done:
                    ledger.end(topic, number)
                else:
                    unfinished.append(f"{self._scenario.topics[topic].name}:{number}")
        sums = self._tally.scanner.sums.tolist()
        ledger.save(self._run.path / f"received-{self._name}.bin", self._run.run_id)
        self._run.write(
            f"result-{self._name}.json",
            ConsumerResult(
                records_received=self._tally.records,
                payload_bytes_received=self._tally.payload_bytes,
                partitions_unfinished=len(unfinished),
                unfinished=tuple(unfinished[:UNFINISHED_NAMED_MAX]),
                records_foreign=sums[kernels.FOREIGN] + sums[kernels.UNSTAMPED],
                records_misplaced=sums[kernels.MISPLACED],
                offset_gaps=sums[kernels.OFFSET_GAPS],
            ),
        )


def say(report: Report) -> None:
    print(msgspec.json.encode(report).decode(), flush=True)


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _main(run_directory: str, name: str) -> int:
    failure = ""
    try:
        await ConsumerProcess(RunDirectory(Path(run_directory)), name).work(await _standard_input())
    except* Exception as errors:
        _log.exception("the consumer process failed")
        failure = _first(errors)
    if failure:
        say(Report("failed", reason=failure))
    return 1 if failure else 0


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def main() -> int:
    import uvloop

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    run_directory, name = sys.argv[1:3]
    return uvloop.run(_main(run_directory, name))


if __name__ == "__main__":
    sys.exit(main())
