"""The broker over HTTP, on the embedded stores: what it costs the processor, and whether its loop stays free.

Costs are processor seconds of the server process and its children, per gigabyte of payload: on a machine that is shared
they say more than a clock. Requests are prepared and sent over bare sockets (`http_load`): clients cost little.

Many requests are in flight, as from many producers; all else is as the broker comes, but for two things. Blobs are
removed soon after they were made, and the tail cache is small and full: in a virtual machine memory that is touched for
the first time costs several times what is done with it, and a broker that has run for a while has little of that.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import Final

from llog.limits import MIB
from llog.log.keys import OFFSET_MAX
from tests.benchmarks.harness import Cost, Duel, benchmark
from tests.benchmarks.http_load import Client, post, produce_request
from tests.benchmarks.http_servers import Server, baseline_server, llog_server, watched_server
from tests.benchmarks.log_setup import is_trial

TOPIC: Final = "orders"
PARTITIONS: Final = 16
RECORDS: Final = 200
RECORD_BYTES: Final = 1_024
REQUEST_BYTES: Final = RECORDS * RECORD_BYTES
CONNECTIONS: Final = 64
ROUND_REQUESTS: Final = 960
FETCH_BYTES: Final = 4 * MIB
FETCH_REQUESTS: Final = 24
FLUSH_PARTITIONS: Final = 1_024
FLUSH_PART: Final = 128
HELD_MS_MAX: Final = 50.0


class Rates:
    """Rates by the clock, beside the cost: reported, never judged."""

    def __init__(self) -> None:
        self._rates: dict[str, list[float]] = {}

    def add(self, name: str, megabytes: float, seconds: float) -> None:
        self._rates.setdefault(name, []).append(megabytes / seconds)

    def summary(self) -> str:
        lines = [
            f"{name} {statistics.median(rates):,.0f} MB/s ({min(rates):,.0f}–{max(rates):,.0f})"
            for name, rates in self._rates.items()
        ]
        return f"by the clock: {', '.join(lines)}"


class Load:
    """Sends prepared requests to one server; the cost of a round is the processor time of the server."""

    def __init__(self, name: str, server: Server, client: Client, rates: Rates) -> None:
        self._name, self._server, self._client, self._rates = name, server, client, rates

    async def run(self, requests: Sequence[bytes], megabytes: float) -> Cost:
        before, began = self._server.cpu_seconds(), time.perf_counter()
        async with self._server.vacuumed():
            await self._client.send_all(requests)
        self._rates.add(self._name, megabytes, time.perf_counter() - began)
        return Cost(self._server.cpu_seconds() - before)


def requests_of(count: int, *, spread: bool) -> list[bytes]:
    """Each for one of the partitions in turn, or `spread` over all of them."""
    every = list(range(PARTITIONS))
    different = [
        produce_request(TOPIC, every if spread else [every[n]], RECORDS, RECORD_BYTES, seed=n)
        for n in range(PARTITIONS)
    ]
    return [different[number % PARTITIONS] for number in range(count)]


@asynccontextmanager
async def produced(*, spread: bool) -> AsyncIterator[Duel]:
    count = 2 * PARTITIONS if is_trial() else ROUND_REQUESTS
    requests, megabytes, rates = requests_of(count, spread=spread), count * REQUEST_BYTES / 1e6, Rates()
    with llog_server("broker") as broker, baseline_server() as parser:
        clients = [await Client(server.urls, CONNECTIONS).open() for server in (broker, parser)]
        ours, baseline = Load("broker", broker, clients[0], rates), Load("parsing alone", parser, clients[1], rates)
        yield Duel(
            lambda: ours.run(requests, megabytes),
            lambda: baseline.run(requests, megabytes),
            megabytes,
            "MB",
            after_each=broker.tidy,
            per="CPU-s",
            remarks=rates.summary,
        )
        for client in clients:
            client.close()


@benchmark(
    "http_produce",
    against="CPU-s per GB of a server that parses the same JSON and answers (200 records of 1 KiB, 16 partitions)",
    at_most=2.0,
    rounds=11,
    goal="140 MB/s by the clock",
)
def http_produce() -> AbstractAsyncContextManager[Duel]:
    """A request has records of one partition; all requests together those of 16."""
    return produced(spread=False)


@benchmark(
    "http_produce_spread",
    against="CPU-s per GB of a server that parses the same JSON and answers (each request for all 16 partitions)",
    at_most=2.0,
    rounds=11,
    judged=False,
)
def http_produce_spread() -> AbstractAsyncContextManager[Duel]:
    """Twelve records for each of 16 partitions in every request: what the groups of a request cost."""
    return produced(spread=True)


@benchmark(
    "http_consume", against="CPU-s per GB of produce (from the tail cache, 16 partitions)", at_most=1.0, rounds=11
)
@asynccontextmanager
async def http_consume() -> AsyncIterator[Duel]:
    count = 2 * PARTITIONS if is_trial() else ROUND_REQUESTS
    fetches = 2 if is_trial() else FETCH_REQUESTS
    requests, megabytes, rates = requests_of(count, spread=False), count * REQUEST_BYTES / 1e6, Rates()
    with llog_server("broker") as broker:
        client = await Client(broker.urls, CONNECTIONS).open()
        reader = await Client(broker.urls, 4).open()
        await client.send_all(requests)
        writing, reading = Load("produce", broker, client, rates), Load("consume", broker, reader, rates)
        records = FETCH_BYTES // PARTITIONS // (RECORDS * (RECORD_BYTES + 16)) * RECORDS

        async def ours() -> Cost:
            newest = await newest_records(reader, records)
            fetched = await reader.ask(newest)
            found = sum(len(result["records"]) for result in fetched["results"])
            assert found == PARTITIONS * records, f"{found} records: the cache has not all of them"
            return await reading.run([newest] * fetches, fetches * found * RECORD_BYTES / 1e6)

        work = fetches * PARTITIONS * records * RECORD_BYTES / 1e6
        yield Duel(
            ours,
            lambda: writing.run(requests, megabytes),
            work,
            "MB",
            baseline_work=megabytes,
            after_each=broker.tidy,
            per="CPU-s",
            remarks=rates.summary,
        )
        client.close()
        reader.close()


async def newest_records(client: Client, count: int) -> bytes:
    """A request for the last `count` records of every partition. The error for an offset
    beyond the end states where the log ends."""
    logs = [{"topic": TOPIC, "partition": partition, "fetch_offset": OFFSET_MAX} for partition in range(PARTITIONS)]
    ends = await client.ask(post("/consume", {"topic_partitions": logs, "max_bytes": 1}))
    offsets = [result["high_watermark"] - count + 1 for result in ends["results"]]
    wanted = [dict(log, fetch_offset=offset) for log, offset in zip(logs, offsets, strict=True)]
    return post("/consume", {"topic_partitions": wanted, "max_bytes": 2 * FETCH_BYTES})


@benchmark(
    "http_flush_lag",
    against=f"{HELD_MS_MAX:.0f} ms (the longest that flushes of {FLUSH_PARTITIONS} partitions held the loop)",
    at_most=1.0,
    rounds=15,
    worst=True,
)
@asynccontextmanager
async def http_flush_lag() -> AsyncIterator[Duel]:
    """Once a single request names them all, once several that come together name a part each."""
    clock = [0.0]
    parts = [range(first, first + FLUSH_PART) for first in range(0, FLUSH_PARTITIONS, FLUSH_PART)]
    alone = [produce_request(TOPIC, range(FLUSH_PARTITIONS), 2 * FLUSH_PARTITIONS, 100, seed=0)]
    together = [produce_request(TOPIC, part, 2 * FLUSH_PART, 100, seed=1) for part in parts]
    with watched_server() as broker:
        client = await Client(broker.urls, len(parts)).open()
        await client.send_all(alone)

        async def ours() -> Cost:
            broker.held()
            await client.send_all(alone)
            await client.send_all(together)
            answer = broker.held()
            clock.append(answer["lag_ms"])
            return Cost(answer["held_ms"] / 1_000)

        def worst_by_the_clock() -> str:
            return f"by the clock: median {statistics.median(clock[1:]):.0f} ms, worst {max(clock):.0f} ms"

        yield Duel(
            ours,
            lambda: Cost(HELD_MS_MAX / 1_000),
            1.0,
            "flushes",
            after_each=broker.tidy,
            per="s held",
            remarks=worst_by_the_clock,
        )
        client.close()


@benchmark(
    "http_two_brokers",
    against="one broker (llog up --brokers 2; judged where there are 4 cores)",
    at_least=1.5,
    judged=(os.cpu_count() or 1) >= 4,
)
@asynccontextmanager
async def http_two_brokers() -> AsyncIterator[Duel]:
    count = 2 * PARTITIONS if is_trial() else ROUND_REQUESTS
    requests = requests_of(count, spread=False)
    with ExitStack() as stack:
        sides: list[Callable[[], object]] = []
        servers = [
            stack.enter_context(llog_server("up", "--brokers", str(n), "--port", "0", brokers=n)) for n in (2, 1)
        ]
        for server in servers:
            client = await Client(server.urls, CONNECTIONS).open()
            stack.callback(client.close)
            sides.append(lambda client=client: client.send_all(requests))  # type: ignore[misc]

        def tidy() -> None:
            for server in servers:
                server.tidy()

        yield Duel(sides[0], sides[1], count * REQUEST_BYTES / 1e6, "MB", after_each=tidy)
