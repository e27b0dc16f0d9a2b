"""The load of a producer process with a raw engine: all its clients on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from llog.errors import LoadTestError
from llog.loadtest.client.accounts import Accounts
from llog.loadtest.client.client import Address, Client, Surroundings
from llog.loadtest.client.connection import Connection
from llog.loadtest.client.schedule import Now, request_interval_s
from llog.loadtest.client.selection import Brokers, Select
from llog.loadtest.client.streams import StreamPlan
from llog.loadtest.client.wire import Outcome, Request, Stream, Wire

OPEN_TOGETHER_MAX: Final = 32
"""Clients that connect at the same time."""
OPEN_ATTEMPTS: Final = 6
OPEN_PAUSE_S: Final = 0.5


class Load(Protocol):
    """What a producer process does, whatever the engine."""

    async def open(self) -> None:
        """Connect. Raises `LoadTestError`."""
        ...

    def start(self, at_s: float, mb_per_s: float) -> None:
        """Requests become due from `at_s` on at this rate of all processes together; overdue ones are dropped."""
        ...

    def stop(self) -> None:
        """No request becomes due any more; overdue ones are dropped."""
        ...

    def count_due(self, until_s: float) -> int:
        """Requests that became due since the last call or start."""
        ...

    async def drain(self, until_s: float) -> None:
        """Wait for answers, give up what has none, and close."""
        ...

    def check(self) -> None:
        """Every `TICK_S` of the process."""
        ...

    def close(self) -> None:
        """At once."""
        ...


class RawLoad:
    def __init__(
        self,
        plans: Sequence[StreamPlan],
        wire: Wire,
        addresses: Sequence[Address],
        accounts: Accounts,
        now_s: Now,
        *,
        select: Select,
        in_flight_max: int,
        timeout_s: float,
        record_bytes: int,
    ) -> None:
        self._wire, self._addresses, self._now_s, self._record_bytes = wire, addresses, now_s, record_bytes
        self._brokers = Brokers(len(addresses), select, self._probe)
        around = Surroundings(wire, addresses, self._brokers, accounts, now_s, timeout_s)
        streams: dict[int, list[Stream]] = {}
        for plan in plans:
            streams.setdefault(plan.client, []).append(Stream(plan))
        self._streams = [stream for own in streams.values() for stream in own]
        self._clients = [Client(number, own, in_flight_max, around) for number, own in streams.items()]

    async def open(self) -> None:
        if not self._clients:
            return
        connection = await self._first_connection()
        await self._wire.prepare(connection)
        connection.fail("closed")
        for stream in self._streams:  # the first frame of a shape takes long to make
            self._wire.give_back(self._wire.frame(stream))
        together = asyncio.Semaphore(OPEN_TOGETHER_MAX)

        async def open_one(client: Client) -> None:
            async with together:
                await client.open()

        try:
            await asyncio.gather(*map(open_one, self._clients))
        except (OSError, TimeoutError) as error:
            raise LoadTestError(f"a client could not connect: {error or 'timeout'}") from error

    def start(self, at_s: float, mb_per_s: float) -> None:
        for stream in self._streams:
            plan = stream.plan
            request_bytes = plan.request_records * self._record_bytes
            stream.schedule.start(at_s, request_interval_s(mb_per_s, plan.byte_share, request_bytes), plan.phase)
        for client in self._clients:
            client.reschedule()

    def stop(self) -> None:
        for stream in self._streams:
            stream.schedule.stop()
        for client in self._clients:
            client.reschedule()

    def count_due(self, until_s: float) -> int:
        return sum(stream.schedule.count_due(until_s) for stream in self._streams)

    async def drain(self, until_s: float) -> None:
        await asyncio.gather(*(client.drain(until_s) for client in self._clients))
        self._brokers.close()

    def check(self) -> None:
        now_s = self._now_s()
        for client in self._clients:
            client.check_timeouts(now_s)

    def close(self) -> None:
        self._brokers.close()
        for client in self._clients:
            client.close()

    async def _first_connection(self) -> Connection:
        """To the first broker that any client uses."""
        broker = self._streams[0].plan.group.owners[0]
        for _ in range(OPEN_ATTEMPTS):
            try:
                return await self._connect(broker)
            except (OSError, TimeoutError) as error:
                failure = str(error) or "timeout"
                await asyncio.sleep(OPEN_PAUSE_S)
        raise LoadTestError(f"broker {broker} at {':'.join(map(str, self._addresses[broker]))}: {failure}")

    async def _probe(self, broker: int) -> None:
        connection = await self._connect(broker)
        try:
            await self._wire.probe(connection)
        finally:
            connection.fail("closed")

    async def _connect(self, broker: int) -> Connection:
        host, port = self._addresses[broker]
        return await Connection.open(self._wire, host, port, broker, _no_answer, _no_loss)


def _no_answer(connection: Connection, request: Request, outcome: Outcome) -> None:
    """This connection carries no load."""


def _no_loss(connection: Connection, requests: list[Request], reason: str) -> None:
    """This connection carries no load."""
