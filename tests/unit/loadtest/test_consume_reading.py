"""A client between brokers that fail and come back: nothing is read twice, nothing is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.client.consume import reading
from llog.loadtest.client.consume.link import Asking, BrokerRefuses, Read
from llog.loadtest.client.consume.places import Longs, Place, Places
from llog.loadtest.client.consume.reading import Client, Move, first_available
from llog.loadtest.client.consume.scan import Scanner
from llog.loadtest.client.consume.tally import Tally
from llog.loadtest.scenario.model import Consumers
from tests.patience import until
from tests.unit.loadtest.consuming import RUN, VALUE_BYTES

BROKERS = {number: BrokerPlace(number, f"b{number}", "both", "", "", 0) for number in range(3)}


class Brokers:
    """Logs that all brokers serve, each `per_read` records at a time; a broker in `down` fails."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = np.array(lengths)
        self.down: set[int] = set()
        self.read: list[tuple[int, int, int]] = []
        """Broker, row, offset: of records that were handed out."""
        self.asked: dict[int, int] = {}
        self.log_starts = np.zeros(len(lengths), np.int64)
        self.errors: dict[str, int] = {}

    async def connect(self, broker: BrokerPlace, asking: Asking) -> BrokerLink:
        await asyncio.sleep(0)
        if broker.number in self.down:
            raise ConnectionRefusedError("down")
        return BrokerLink(self, broker.number, asking)


class BrokerLink:
    def __init__(self, brokers: Brokers, number: int, asking: Asking) -> None:
        self.brokers, self.number, self.places = brokers, number, asking.places

    async def read(self, rows: Longs) -> Read:
        brokers, at = self.brokers, self.places
        await asyncio.sleep(0.001)
        if self.number in brokers.down:
            raise BrokerRefuses("down")
        brokers.asked[self.number] = brokers.asked.get(self.number, 0) + 1
        outside = rows[at.offsets[rows] < brokers.log_starts[rows]]
        inside = rows[at.offsets[rows] >= brokers.log_starts[rows]]
        behind = np.minimum(at.offsets[inside] + 1, brokers.lengths[inside])
        for row, first, stop in zip(inside.tolist(), at.offsets[inside].tolist(), behind.tolist(), strict=True):
            brokers.read += [(self.number, row, offset) for offset in range(first, stop)]
        return Read(inside, behind, brokers.lengths[inside], outside, brokers.log_starts[outside], brokers.errors)

    async def ends(self, rows: Longs) -> Longs:
        await asyncio.sleep(0)
        ends: Longs = self.brokers.lengths[rows]
        return ends

    def close(self) -> None:
        pass


class Run:
    def __init__(self, brokers: Brokers, readers: list[tuple[int, ...]]) -> None:
        self.brokers = brokers
        self.places = Places([Place(0, row, some) for row, some in enumerate(readers)], [len(readers)])
        scanner = Scanner(RUN, VALUE_BYTES)
        self.tally = Tally(scanner, lambda: 0.0)
        self.moves: list[Move] = []
        asking = Asking(("load",), Consumers(), self.places, scanner)
        self.client = Client(asking, BROKERS, brokers, self.tally, self.moves.extend)

    async def during(self, scene: Callable[[], Awaitable[None]]) -> None:
        """Run the client beside a scene, and drain it."""
        async with asyncio.timeout(60):
            running = asyncio.create_task(self.client.run())
            await scene()
            await self.client.drain()
            await running

    def check_all_read_once(self) -> None:
        read = sorted((row, offset) for _, row, offset in self.brokers.read)
        assert read == [(row, n) for row, length in enumerate(self.brokers.lengths.tolist()) for n in range(length)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RETRY_PAUSE_S", 0.002)
    monkeypatch.setattr(reading, "ERROR_PAUSE_S", 0.001)


async def nothing() -> None:
    pass


async def test_partitions_are_read_from_their_preferred_brokers_to_the_end() -> None:
    run = Run(Brokers([5, 7, 0]), [(0,), (1, 0), (1,)])
    await run.during(nothing)
    run.check_all_read_once()
    assert {(broker, row) for broker, row, _ in run.brokers.read} == {(0, 0), (1, 1)}
    assert run.moves == []


async def test_records_appended_before_the_order_to_drain_are_read() -> None:
    run = Run(Brokers([3, 3]), [(0,), (1,)])

    async def append_more() -> None:
        await until(lambda: run.places.offsets.tolist() == [3, 3])
        run.brokers.lengths = np.array([9, 4])

    await run.during(append_more)
    run.check_all_read_once()


async def test_a_broker_that_fails_is_replaced_inside_the_owner_set_only() -> None:
    run = Run(Brokers([40, 40, 40]), [(0, 1), (0, 2), (1, 2)])

    async def fail() -> None:
        await until(lambda: len(run.brokers.read) > 10)
        run.brokers.down.add(0)
        await until(lambda: len(run.moves) == 2)

    await run.during(fail)
    run.check_all_read_once()
    moves = {(move.partition, move.from_broker, move.to_broker) for move in run.moves}
    assert moves == {(0, 0, 1), (1, 0, 2)}
    assert {move.reason for move in run.moves} <= {"down"}
    assert run.tally.retried["down"] + run.tally.retried["ConnectionRefusedError"] > 0


async def test_partitions_return_to_a_broker_that_is_back() -> None:
    run = Run(Brokers([400, 400]), [(0, 1), (1,)])

    async def fail_for_a_while() -> None:
        await until(lambda: run.brokers.asked.get(0, 0) > 2)
        run.brokers.down.add(0)
        await until(lambda: run.moves)
        run.brokers.down.clear()
        await until(lambda: len(run.moves) == 2)
        asked = run.brokers.asked[0]
        await until(lambda: run.brokers.asked[0] > asked)

    await run.during(fail_for_a_while)
    run.check_all_read_once()
    assert [(move.from_broker, move.to_broker) for move in run.moves] == [(0, 1), (1, 0)]


async def test_the_only_reader_of_a_partition_is_asked_until_it_is_back() -> None:
    run = Run(Brokers([30]), [(0,)])

    async def fail_for_a_while() -> None:
        await until(lambda: run.brokers.asked)
        run.brokers.down.add(0)
        await until(lambda: run.tally.retried.total() > 3)
        run.brokers.down.clear()

    await run.during(fail_for_a_while)
    run.check_all_read_once()
    assert run.moves == []


async def test_a_log_that_begins_later_is_read_from_its_first_offset() -> None:
    run = Run(Brokers([9]), [(0,)])
    run.brokers.log_starts[0] = 1
    await run.during(nothing)
    assert [offset for _, _, offset in run.brokers.read] == list(range(1, 9))
    assert run.tally.retried.total() == 0


async def test_errors_of_partitions_are_counted_by_name() -> None:
    run = Run(Brokers([2]), [(0,)])
    run.brokers.errors = {"KAFKA_STORAGE_ERROR": 2}
    await run.during(nothing)
    assert run.tally.retried["KAFKA_STORAGE_ERROR"] >= 4


def test_the_first_reader_that_is_not_down_is_chosen() -> None:
    cases: list[Any] = [((0, 1, 2), set(), 0), ((0, 1, 2), {0}, 1), ((0, 1, 2), {0, 1}, 2), ((0, 1), {0, 1}, 9)]
    for readers, down, expected in cases:
        assert first_available(readers, down, 9) == expected
