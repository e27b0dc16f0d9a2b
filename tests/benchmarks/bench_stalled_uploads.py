"""A producer while other clients stall their uploads: each declares a large body and sends a byte of it now and then.

Both sides are the same producer on the same broker, right after each other: with the attack, and without. What is
compared is the 99th percentile of its latency; p50 and p99 of both sides are reported.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from llog.limits import MIB
from tests.benchmarks.harness import Cost, Duel, benchmark
from tests.benchmarks.http_load import Client, produce_request
from tests.benchmarks.http_servers import llog_server
from tests.benchmarks.log_setup import is_trial

ATTACKERS: Final = 17
DECLARED_BYTES: Final = 32 * MIB
"""Together more than LLOG_BATCH_MAX_BUFFER_BYTES: a broker that reserved what clients declare would refuse the rest."""
TRICKLE_SECONDS: Final = 1.0
REQUESTS: Final = 300
RECORDS: Final = 10
RECORD_BYTES: Final = 1_024
SLOWDOWN_MAX: Final = 2.0


@asynccontextmanager
async def stalled_uploads(url: str) -> AsyncIterator[None]:
    """Connections that have begun a body each and go on by a byte at a time, while the block runs."""
    place, writers = urlsplit(url), list[asyncio.StreamWriter]()
    head = f"POST /produce HTTP/1.1\r\nhost: bench\r\ncontent-length: {DECLARED_BYTES}\r\n\r\n".encode()
    for _ in range(ATTACKERS):
        _, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(head + b"{")
        await writer.drain()
        writers.append(writer)

    async def trickle() -> None:
        while True:
            await asyncio.sleep(TRICKLE_SECONDS)
            for writer in writers:
                writer.write(b" ")

    trickling = asyncio.create_task(trickle())
    try:
        yield
    finally:
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)
        assert not any(writer.is_closing() for writer in writers), "the broker ended the attack"
        for writer in writers:
            writer.close()


class Latencies:
    """Percentiles of each round, in milliseconds."""

    def __init__(self) -> None:
        self._rounds: dict[str, list[tuple[float, float]]] = {}

    def add(self, name: str, seconds: list[float]) -> Cost:
        cuts = statistics.quantiles(seconds, n=100, method="inclusive")
        self._rounds.setdefault(name, []).append((cuts[49] * 1_000, cuts[98] * 1_000))
        return Cost(cuts[98])

    def summary(self) -> str:
        shown = []
        for name, rounds in self._rounds.items():
            p50, p99 = (statistics.median(one) for one in zip(*rounds, strict=True))
            shown.append(f"{name} p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        return "; ".join(shown)


@benchmark(
    "http_stalled_uploads",
    against=f"p99 of the same producer without {ATTACKERS} stalled uploads of {DECLARED_BYTES // MIB} MiB",
    at_most=SLOWDOWN_MAX,
    rounds=11,
)
@asynccontextmanager
async def http_stalled_uploads() -> AsyncIterator[Duel]:
    count, latencies = 20 if is_trial() else REQUESTS, Latencies()
    request = produce_request("orders", [0], RECORDS, RECORD_BYTES, seed=1)
    with llog_server("broker") as broker:
        client = await Client(broker.urls, 1).open()

        async def produce(name: str) -> Cost:
            seconds = []
            for _ in range(count):
                began = time.perf_counter()
                await client.connections[0].ask(request)  # any status but 200 is an error
                seconds.append(time.perf_counter() - began)
            return latencies.add(name, seconds)

        async def attacked() -> Cost:
            async with stalled_uploads(broker.urls[0]):
                return await produce("with the attack")

        yield Duel(
            attacked,
            lambda: produce("without"),
            1.0,
            "requests at p99",
            after_each=lambda: broker.tidy(8),
            remarks=latencies.summary,
        )
        client.close()
