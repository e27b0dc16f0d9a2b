"""`python -m llog.loadtest.client.producer RUN_DIR NAME`: a producer process of a run.

It follows the orders of the driver (`llog.loadtest.client.orders`) and leaves `acknowledged-NAME.bin` (a
`ProducedLedger`), `result-NAME.json`, its lines in `client-30s.jsonl` and `remap-events.jsonl`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from llog.errors import LoadTestError
from llog.loadtest.artifacts import Phase, StackRecord
from llog.loadtest.client.accounts import Accounts
from llog.loadtest.client.client import Address
from llog.loadtest.client.http_raw import HttpWire
from llog.loadtest.client.kafka_raw import KafkaWire
from llog.loadtest.client.librdkafka import LibrdkafkaLoad
from llog.loadtest.client.orders import GeneratorPlan, Order, ProducerResult, Report
from llog.loadtest.client.raw_load import Load, RawLoad
from llog.loadtest.client.schedule import Clock, PhaseClock
from llog.loadtest.client.stamp import run_hash
from llog.loadtest.client.streams import plan_streams
from llog.loadtest.client.wire import Wire
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import Scenario

TICK_S: Final = 0.05
"""Between two looks at the process itself and at requests that wait too long."""
PROGRESS_S: Final = 1.0
_log: Final = logging.getLogger("llog.loadtest.producer")


class ProducerProcess:
    def __init__(self, run: RunDirectory, name: str) -> None:
        plan, routes, stack = run.read(f"plan-{name}.json", GeneratorPlan), run.routes(), run.stack()
        if plan is None or routes is None or stack is None:
            raise LoadTestError(f"{run.path}: plan-{name}.json, routing-manifest.json or stack.json is missing")
        self._run, self._name, self._plan = run, name, plan
        self._scenario = run.config().scenario
        self._clock = Clock(plan.clock_offset_s)
        self._accounts = Accounts(name, run.path, self._scenario.records.bytes, PhaseClock(), self._clock.now_s)
        self._phase: Phase = "warm_up"
        streams = [
            stream
            for stream in plan_streams(self._scenario, routes.routes)
            if stream.client % plan.processes == plan.number
        ]
        if self._scenario.load.engine == "librdkafka":
            bootstrap = ",".join(f"{b.kafka_host}:{b.kafka_port}" for b in stack.brokers if b.role != "read")
            self._load: Load = LibrdkafkaLoad(
                streams,
                bootstrap,
                run_hash(run.run_id),
                self._scenario.records,
                self._accounts,
                self._clock.now_s,
                self._scenario.producers.timeout_s,
            )
        else:
            self._load = RawLoad(
                streams,
                _wire(self._scenario, run.run_id),
                _addresses(self._scenario, stack),
                self._accounts,
                self._clock.now_s,
                select=self._scenario.routing.select,
                in_flight_max=self._scenario.producers.in_flight,
                timeout_s=self._scenario.producers.timeout_s,
                record_bytes=self._scenario.records.bytes,
            )
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None

    async def work(self, orders: asyncio.StreamReader) -> None:
        """Follow orders until the last one is done. Raises `LoadTestError` when the load cannot go on."""
        asyncio.get_running_loop().set_exception_handler(self._note_failure)
        try:
            await self._load.open()
            say(Report("ready"))
            for step in (self._follow(orders), self._watch(), self._report()):
                self._spawn(step)
            await self._ended.wait()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._load.drain(self._clock.now_s())
        finally:
            self._load.close()
        self._cut(self._phase)
        if self._failure is not None:
            raise LoadTestError(f"the load failed: {self._failure!r}") from self._failure
        self._write_results()

    # -- orders --

    async def _follow(self, orders: asyncio.StreamReader) -> None:
        """Each order is done when its time has come; meanwhile the end of the orders is seen at once."""
        decoder = msgspec.json.Decoder(Order)
        while line := await orders.readline():
            order = decoder.decode(line)
            if order.order == "stop":
                break
            if order.order == "phase":
                self._accounts.phases.enter(order.phase, order.at_s)
            self._spawn(self._obey(order))
        self._ended.set()

    async def _obey(self, order: Order) -> None:
        if order.order != "begin":
            await asyncio.sleep(max(0.0, order.at_s - self._clock.now_s()))
        match order.order:
            case "begin":
                self._load.start(order.at_s, self._plan.mb_per_s)
                self._spawn(self._sample(order.at_s))
            case "phase":
                self._cut(order.phase)
            case "rate":
                self._count_due()
                self._load.start(order.at_s, order.mb_per_s)
            case "cut":
                self._cut(self._phase)
                say(self._progress("cut"))
            case "drain":
                self._count_due(order.at_s)
                self._load.stop()
                self._accounts.phases.enter("after", order.at_s)
                self._cut("after")
                await self._load.drain(order.until_s)
                self._ended.set()
            case _:
                raise LoadTestError(f"an order that producers do not know: {order}")

    # -- the process itself --

    async def _watch(self) -> None:
        while True:
            wake_s = self._clock.now_s() + TICK_S
            await asyncio.sleep(TICK_S)
            self._accounts.lag_s_max = max(self._accounts.lag_s_max, self._clock.now_s() - wake_s)
            self._load.check()

    async def _sample(self, begin_s: float) -> None:
        number = 0
        while True:
            number += 1
            next_s = begin_s + number * self._scenario.collect.interval_s
            await asyncio.sleep(max(0.0, next_s - self._clock.now_s()))
            self._cut(self._phase)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            say(self._progress("progress"))

    def _progress(self, event: Any) -> Report:
        return Report(event, self._accounts.records_acknowledged, self._accounts.payload_bytes_acknowledged)

    def _count_due(self, until_s: float | None = None) -> None:
        now_s = self._clock.now_s()
        self._accounts.due(self._load.count_due(min(now_s, until_s or now_s)), self._phase)

    def _cut(self, phase: Phase) -> None:
        """Write what happened since the last line; the time from now on belongs to `phase`."""
        self._count_due()
        self._accounts.cut(self._phase)
        self._phase = phase

    def _spawn(self, step: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(step)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._ended.set()

    def _note_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback: the load would go on without what the callback had to do."""
        self._failure = self._failure or context.get("exception") or LoadTestError(context["message"])
        _log.error("%s", context["message"], exc_info=context.get("exception"))
        self._ended.set()

    def _write_results(self) -> None:
        accounts = self._accounts
        accounts.ledger.save(self._run.path / f"acknowledged-{self._name}.bin", self._run.run_id)
        self._run.write(
            f"result-{self._name}.json",
            ProducerResult(
                accounts.records_sent,
                accounts.records_acknowledged,
                accounts.payload_bytes_acknowledged,
                accounts.ledger.records_uncertain,
            ),
        )


def _wire(scenario: Scenario, run_id: str) -> Wire:
    if scenario.load.protocol == "http":
        return HttpWire(run_hash(run_id), scenario.records)
    topics = [topic.name for topic in scenario.topics]
    return KafkaWire(run_hash(run_id), scenario.records, topics, scenario.producers.timeout_s)


def _addresses(scenario: Scenario, stack: StackRecord) -> list[Address]:
    brokers = sorted(stack.brokers, key=lambda broker: broker.number)
    if scenario.load.protocol == "kafka":
        return [Address(broker.kafka_host, broker.kafka_port) for broker in brokers]
    urls = [urlsplit(broker.http_url) for broker in brokers]
    return [Address(url.hostname or "127.0.0.1", url.port or 80) for url in urls]


def say(report: Report) -> None:
    print(msgspec.json.encode(report).decode(), flush=True)


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _main(run_directory: str, name: str) -> int:
    try:
        await ProducerProcess(RunDirectory(Path(run_directory)), name).work(await _standard_input())
    except Exception as error:
        _log.exception("the producer process failed")
        say(Report("failed", reason=f"{type(error).__name__}: {error}"))
        return 1
    return 0


def main() -> int:
    import uvloop

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    run_directory, name = sys.argv[1:3]
    return uvloop.run(_main(run_directory, name))


if __name__ == "__main__":
    sys.exit(main())
