"""Conditional puts to one shard of a real Oxia with fsync: batched and pipelined against one at a time.

The store's whole path is measured (checks, routing, requests of 128, up to 8 in flight), creating keys if absent.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llog.stores.metadata.oxia.client import OxiaClient, OxiaOptions
from llog.stores.metadata.oxia.store import OxiaStore
from llog.stores.metadata.port import ABSENT, Key, Put
from llog.testing.servers import OxiaServer
from tests.benchmarks.harness import Duel, benchmark

PUTS = 16_384
PUTS_ONE_BY_ONE = 400
VALUE = b"x" * 200


@benchmark("oxia_puts", against="the same puts awaited one by one", at_least=10, goal="≥ 40,000 puts/s")
@asynccontextmanager
async def oxia_puts() -> AsyncIterator[Duel]:
    with OxiaServer(shards=1) as server:
        client = await OxiaClient.open(OxiaOptions(addresses=(server.address,), identity="bench"))
        async with OxiaStore(client, f"oxia://{server.address}") as store:
            numbers = itertools.count()

            def fresh(count: int) -> list[Put]:
                return [Put(Key(f"bench/index/{next(numbers):020d}", "bench:0"), VALUE, ABSENT) for _ in range(count)]

            async def batched() -> None:
                outcomes = await store.write([(put,) for put in fresh(PUTS)])
                assert all(isinstance(outcome, tuple) for outcome in outcomes)

            async def one_by_one() -> None:
                for key, value, expected, _ in fresh(PUTS_ONE_BY_ONE):
                    await store.put(key, value, expected=expected)

            yield Duel(batched, one_by_one, PUTS, "puts", PUTS_ONE_BY_ONE)
