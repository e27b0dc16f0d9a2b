"""PostgreSQL, fsync on: what one round trip for many conditional puts is worth."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llog.stores.metadata.port import Key, MetadataStore, Put
from llog.stores.metadata.postgres import open_from_url
from llog.testing.servers import PostgresServer
from tests.benchmarks.harness import Duel, benchmark

PUTS = 1_024
PUTS_ONE_BY_ONE = 64
VALUE = b"x" * 300


class Settings:
    client_identifier = "benchmark"
    request_timeout_ms = 30_000


class Control:
    """A control record per partition, moved by compare-and-set as appends do."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.keys = [Key(f"llog/orders/partitions/{i}/meta/control", f"orders:{i}") for i in range(PUTS)]
        self.versions: list[int] = []

    async def move(self, count: int, *, together: bool) -> None:
        puts = [(Put(self.keys[i], VALUE, self.versions[i]),) for i in range(count)]
        calls = [puts] if together else [[put] for put in puts]
        answers = [outcome for call in calls for outcome in await self.store.write(call)]
        for i, outcome in enumerate(answers):
            assert isinstance(outcome, tuple), outcome
            self.versions[i] = outcome[0]


@benchmark("postgres_batch", against="one by one", at_least=10)
@asynccontextmanager
async def postgres_batch() -> AsyncIterator[Duel]:
    with PostgresServer() as server:
        async with await open_from_url(server.url, Settings()) as store:
            control = Control(store)
            created = await store.write([(Put(key, VALUE),) for key in control.keys])
            control.versions = [outcome[0] for outcome in created if isinstance(outcome, tuple)]
            yield Duel(
                ours=lambda: control.move(PUTS, together=True),
                baseline=lambda: control.move(PUTS_ONE_BY_ONE, together=False),
                work=PUTS,
                baseline_work=PUTS_ONE_BY_ONE,
                unit_of_work="puts",
            )
