"""Producers of the raw engines against small brokers: an open loop, and what they do when brokers fail.

Time jumps, so these tests take as long as their work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from llog.loadtest.artifacts import ClientSample, Loss, RemapEvent
from llog.loadtest.client.accounts import Accounts
from llog.loadtest.client.client import Address
from llog.loadtest.client.histograms import merge, percentiles
from llog.loadtest.client.http_raw import HttpWire
from llog.loadtest.client.kafka_raw import KafkaWire
from llog.loadtest.client.ledger import ReceivedLedger, compare, runs
from llog.loadtest.client.merge import of_phase
from llog.loadtest.client.raw_load import RawLoad
from llog.loadtest.client.schedule import PhaseClock
from llog.loadtest.client.stamp import parse_stamps, run_hash
from llog.loadtest.client.streams import plan_streams
from llog.loadtest.routing import Route
from llog.loadtest.scenario.model import Load, Producers, Records, Routing, Scenario, Topic
from tests.unit.loadtest.fake_brokers import (
    FakeBroker,
    FakeHttpBroker,
    FakeKafkaBroker,
    Store,
    run_jumping,
    serving,
)

RUN = run_hash("run")
Now = Callable[[], float]
Protocol = Literal["http", "kafka"]
KINDS: dict[Protocol, type[FakeBroker]] = {"http": FakeHttpBroker, "kafka": FakeKafkaBroker}


class Running:
    """A load and its brokers, while it runs."""

    def __init__(self, scenario: Scenario, brokers: list[FakeBroker], run: Path, now_s: Now) -> None:
        self.scenario, self.brokers, self.store, self._run = scenario, brokers, brokers[0].store, run
        owners = tuple(range(len(brokers)))
        routes = [Route("load", partition, owners, owners) for partition in range(scenario.partitions)]
        self.accounts = Accounts("producer-0", run, scenario.records.bytes, PhaseClock(), now_s)
        self.accounts.phases.enter("measured", 0.0)
        producers, records = scenario.producers, scenario.records
        wire = HttpWire(RUN, records) if scenario.load.protocol == "http" else KafkaWire(RUN, records, ["load"], 30.0)
        self.load = RawLoad(
            plan_streams(scenario, routes),
            wire,
            [Address("127.0.0.1", broker.port) for broker in brokers],
            self.accounts,
            now_s,
            select=scenario.routing.select,
            in_flight_max=producers.in_flight,
            timeout_s=producers.timeout_s,
            record_bytes=records.bytes,
        )

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.load.check()

    def received(self) -> ReceivedLedger:
        """What a consumer of the store receives."""
        ledger = ReceivedLedger()
        for batch in self.store.batches:
            for key, first, count in runs(parse_stamps(b"".join(batch.values), RUN)):
                ledger.receive_run(key, first, count)
        for partition in range(self.scenario.partitions):
            ledger.end(0, partition)
        return ledger

    def loss(self) -> Loss:
        losses = compare(self.accounts.ledger, self.received(), ["load"])
        return losses.get("load:0", Loss())

    def sample(self) -> ClientSample:
        self.accounts.cut("measured")
        samples = [msgspec.json.decode(line, type=ClientSample) for line in self._lines("client-30s.jsonl")]
        [sample] = of_phase(samples, "producer")
        return sample

    def remaps(self) -> list[RemapEvent]:
        return [msgspec.json.decode(line, type=RemapEvent) for line in self._lines("remap-events.jsonl")]

    def _lines(self, name: str) -> list[bytes]:
        path = self._run / name
        return path.read_bytes().splitlines() if path.exists() else []


@asynccontextmanager
async def running(
    run: Path,
    now_s: Now,
    protocol: Protocol = "kafka",
    brokers: int = 1,
    select: Literal["round_robin", "least_inflight"] = "round_robin",
    **producers: Any,
) -> AsyncIterator[Running]:
    """Connected, and not started."""
    store = Store()
    servers = [KINDS[protocol](store) for _ in range(brokers)]
    scenario = Scenario(
        "test",
        topics=(Topic(partitions=producers.pop("partitions", 1)),),
        records=Records(bytes=100),
        load=Load(protocol=protocol, target_mb_per_s=1),
        producers=Producers(**{"clients": 1, "records_per_request": 4, "timeout_s": 8.0, **producers}),
        routing=Routing(owners=brokers, select=select),
    )
    async with serving(*servers):
        own = Running(scenario, servers, run, now_s)
        ticking = asyncio.create_task(own.tick())
        try:
            await own.load.open()
            yield own
        finally:
            own.load.close()
            ticking.cancel()


def requests_per_s(count: float) -> float:
    """In MB/s, of requests of 4 records of 100 bytes."""
    return count * 400 / 1e6


# -- the open loop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["http", "kafka"])
def test_a_server_that_stalls_one_second_in_ten_has_a_p99_of_about_one_second(
    protocol: Protocol, tmp_path: Path
) -> None:
    """The self-test of the load generator. Its opposite, the service time, counts only the few requests that are under
    way when the server stalls."""

    async def work(now_s: Now) -> None:
        async with running(tmp_path, now_s, protocol, clients=4, partitions=4) as own:
            began_s = now_s()

            async def stall() -> None:
                second = (now_s() - began_s) % 10
                if second >= 9:
                    await asyncio.sleep(10 - second)

            own.brokers[0].pass_gate = stall
            own.load.start(began_s, requests_per_s(50))
            await asyncio.sleep(21)
            own.load.stop()
            await own.load.drain(now_s() + 5)
            sample = own.sample()
            latency, service = (percentiles(merge([text])) for text in (sample.latency, sample.service))
            assert 800 < latency.p99 <= 1_030
            assert latency.p50 < 5
            assert service.p50 < 5
            assert service.p99 < 50, "without the open loop the stall would not be seen"
            assert sample.generator.late_requests == 0
            assert 1_045 <= sample.requests <= 1_052
            assert own.loss() == Loss()

    run_jumping(work)


def test_requests_are_due_at_the_rate_of_the_order(tmp_path: Path) -> None:
    async def work(now_s: Now) -> None:
        async with running(tmp_path, now_s, clients=3, partitions=2) as own:
            own.load.start(now_s(), requests_per_s(30))
            await asyncio.sleep(2)
            assert 58 <= own.load.count_due(now_s()) <= 62
            own.load.start(now_s(), requests_per_s(90))
            await asyncio.sleep(2)
            assert 178 <= own.load.count_due(now_s()) <= 183
            own.load.stop()
            await own.load.drain(now_s() + 5)
            assert 236 <= own.sample().requests <= 246

    run_jumping(work)


def test_overdue_requests_are_dropped_when_the_load_ends(tmp_path: Path) -> None:
    async def work(now_s: Now) -> None:
        async with running(tmp_path, now_s) as own:

            async def slow() -> None:
                await asyncio.sleep(0.5)

            own.brokers[0].pass_gate = slow
            own.load.start(now_s(), requests_per_s(20))
            await asyncio.sleep(5)
            assert 99 <= own.load.count_due(now_s()) <= 101
            own.load.stop()
            await own.load.drain(now_s() + 5)
            assert 9 <= own.sample().requests <= 11

    run_jumping(work)


def test_a_client_keeps_several_requests_in_flight(tmp_path: Path) -> None:
    async def work(now_s: Now) -> None:
        async with running(tmp_path, now_s, in_flight=5) as own:
            opened = asyncio.Event()
            own.brokers[0].pass_gate = opened.wait  # type: ignore[assignment]
            own.load.start(now_s(), requests_per_s(50))
            await asyncio.sleep(1)
            assert own.accounts.records_sent == 5 * 4
            opened.set()
            await asyncio.sleep(1)
            assert own.accounts.records_acknowledged > 60 * 4

    run_jumping(work)


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["http", "kafka"])
@pytest.mark.parametrize("select", ["round_robin", "least_inflight"])
def test_clients_go_on_at_another_owner_when_a_broker_is_gone(
    protocol: Protocol, select: Literal["round_robin", "least_inflight"], tmp_path: Path
) -> None:
    async def work(now_s: Now) -> None:
        in_flight = 1 if protocol == "http" else 3
        async with running(tmp_path, now_s, protocol, 2, select, clients=2, in_flight=in_flight) as own:
            own.load.start(now_s(), requests_per_s(50))
            await asyncio.sleep(2)
            port = own.brokers[0].port
            await own.brokers[0].stop()
            await asyncio.sleep(4)
            before = own.brokers[0].requests
            await own.brokers[0].start(port)
            await asyncio.sleep(4)
            own.load.stop()
            await own.load.drain(now_s() + 5)
            assert own.brokers[0].requests > before, "the broker is used again once it answers"
            sample = own.sample()
            assert not sample.failed
            assert own.accounts.records_acknowledged == own.accounts.records_sent > 490 * 4
            assert own.loss() == Loss()
            [event] = own.remaps()
            assert (event.from_broker, event.to_broker, event.kind, event.partition) == (0, 1, "write", 0)
            assert event.reason

    run_jumping(work)


@pytest.mark.parametrize("protocol", ["http", "kafka"])
def test_a_request_whose_answer_is_lost_is_stored_once(protocol: Protocol, tmp_path: Path) -> None:
    async def work(now_s: Now) -> None:
        async with running(tmp_path, now_s, protocol, in_flight=1 if protocol == "http" else 4) as own:
            own.load.start(now_s(), requests_per_s(100))
            for _ in range(5):
                await asyncio.sleep(1)
                own.brokers[0].loses_answers = 1
            await asyncio.sleep(1)
            own.load.stop()
            await own.load.drain(now_s() + 5)
            sample = own.sample()
            assert own.store.repeats >= 5
            assert sum(sample.retried.values()) >= 5
            assert not sample.failed
            assert own.accounts.records_acknowledged == own.accounts.records_sent
            assert own.loss() == Loss()

    run_jumping(work)


@pytest.mark.parametrize("protocol", ["http", "kafka"])
def test_a_broker_that_refuses_is_asked_again_until_it_takes_requests(protocol: Protocol, tmp_path: Path) -> None:
    async def work(now_s: Now) -> None:
        async with running(tmp_path, now_s, protocol) as own:
            own.load.start(now_s(), requests_per_s(20))
            await asyncio.sleep(1)
            own.brokers[0].refuses = True
            await asyncio.sleep(4)
            own.brokers[0].refuses = False
            await asyncio.sleep(4)
            own.load.stop()
            await own.load.drain(now_s() + 5)
            sample = own.sample()
            assert not sample.failed
            assert 3 <= sum(sample.retried.values()) <= 12, "the pauses between attempts grow"
            assert own.accounts.records_acknowledged == own.accounts.records_sent > 170 * 4
            assert own.remaps() == []
            assert own.loss() == Loss()

    run_jumping(work)


@pytest.mark.parametrize("protocol", ["http", "kafka"])
def test_a_request_without_any_answer_is_uncertain_and_the_client_goes_on(protocol: Protocol, tmp_path: Path) -> None:
    async def work(now_s: Now) -> None:
        async with running(tmp_path, now_s, protocol) as own:
            own.load.start(now_s(), requests_per_s(10))
            await asyncio.sleep(1)
            own.brokers[0].drops_requests = 1
            await asyncio.sleep(20)
            own.load.stop()
            await own.load.drain(now_s() + 5)
            sample = own.sample()
            assert sample.failed == {"timeout": 1}
            assert own.accounts.ledger.records_uncertain == 4
            assert own.accounts.records_acknowledged == own.accounts.records_sent - 4 > 150 * 4
            assert {batch.producer_id for batch in own.store.batches} == {
                batch.producer_id for batch in own.store.batches
            }
            assert len({batch.producer_id for batch in own.store.batches}) == 2, "it has a new identity"
            assert own.loss() == Loss()

    run_jumping(work)


def test_a_silent_broker_loses_its_requests_to_another_owner(tmp_path: Path) -> None:
    async def work(now_s: Now) -> None:
        async with running(tmp_path, now_s, brokers=2, in_flight=2) as own:
            stuck = asyncio.Event()
            own.brokers[0].pass_gate = stuck.wait  # type: ignore[assignment]
            own.load.start(now_s(), requests_per_s(20))
            await asyncio.sleep(10)
            own.load.stop()
            await own.load.drain(now_s() + 5)
            sample = own.sample()
            assert not sample.failed
            assert set(sample.retried) == {"timeout"}
            assert own.accounts.records_acknowledged == own.accounts.records_sent > 190 * 4
            assert {event.reason for event in own.remaps()} == {"timeout"}
            assert own.loss() == Loss()

    run_jumping(work)


def test_answers_that_do_not_come_before_the_end_leave_records_uncertain(tmp_path: Path) -> None:
    async def work(now_s: Now) -> None:
        async with running(tmp_path, now_s, in_flight=3) as own:
            own.brokers[0].pass_gate = asyncio.Event().wait  # type: ignore[assignment]
            own.load.start(now_s(), requests_per_s(20))
            await asyncio.sleep(1)
            own.load.stop()
            await own.load.drain(now_s() + 2)
            assert own.sample().failed == {"no answer before the end": 3}
            assert own.accounts.ledger.records_uncertain == 3 * 4
            assert own.loss() == Loss(unacknowledged=4)

    run_jumping(work)
