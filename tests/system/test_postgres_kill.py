"""PostgreSQL killed under concurrent writers: no acknowledged write is lost, none happens behind our back.

Every writer appends tokens to one shared record by compare-and-set and creates a record per token in the same atomic
group. Afterwards both must agree: acknowledged tokens are there once, refused ones are not, uncertain ones may be.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from llog.errors import MetadataMisconfigured, MetadataTimeout, MetadataUnavailable, MetadataUncertain, VersionConflict
from llog.stores.metadata.port import ABSENT, Key, Put, Record
from llog.stores.metadata.postgres import PostgresStore, open_from_url
from llog.testing.servers import PostgresServer
from tests.patience import until
from tests.servers import started

pytestmark = [pytest.mark.server, pytest.mark.slow]

SOAK = os.environ.get("LLOG_SOAK") == "1"
ROUNDS = 20 if SOAK else 2
WRITERS = 4
SECONDS_OF_LOAD = 1.0
LOGS = [Key(f"logs/{i}") for i in range(2)]


class Settings:
    client_identifier = "kill-test"
    request_timeout_ms = 5_000


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    yield from started(PostgresServer)


@dataclass
class Ledger:
    """What the writers were told."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    uncertain: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    stop: bool = False


async def read_patiently(store: PostgresStore, key: Key) -> Record:
    while True:
        try:
            record = await store.get(key, strict=True)
            assert record is not None
            return record
        except (MetadataUnavailable, MetadataTimeout):
            await asyncio.sleep(0.02)


async def append_tokens(store: PostgresStore, writer: int, ledger: Ledger) -> None:
    rng = random.Random(writer)
    number = 0
    while not ledger.stop:
        log = rng.choice(LOGS)
        record = await read_patiently(store, log)
        token = f"{writer}-{number}"
        number += 1
        value = record.value + token.encode() + b" "
        marker = Put(Key(f"tokens/{token}"), log.path.encode(), ABSENT)
        [outcome] = await store.write([(Put(log, value, record.version), marker)])
        if isinstance(outcome, tuple):
            ledger.acknowledged[token] = outcome[1]
        elif isinstance(outcome, MetadataUncertain):
            ledger.uncertain.add(token)
        else:
            assert isinstance(outcome, VersionConflict | MetadataUnavailable), repr(outcome)
            ledger.refused.add(token)


async def kill_a_backend(server: PostgresServer, rng: random.Random) -> None:
    """kill -9: the postmaster takes all other backends down and recovers."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as admin:
        cursor = await admin.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'kill-test'")
        pids = [pid for [pid] in await cursor.fetchall()]
    os.kill(rng.choice(pids), signal.SIGKILL)


async def restart(server: PostgresServer) -> None:
    """Down without a checkpoint, as in a crash of the machine, and up again with recovery."""
    await asyncio.to_thread(server.process.stop, signal.SIGQUIT)
    await asyncio.sleep(0.2)  # the outage
    await asyncio.to_thread(server.start)


async def check(store: PostgresStore, ledger: Ledger) -> None:
    tokens = [token for log in LOGS for token in (await read_patiently(store, log)).value.decode().split()]
    markers = {r.key.path.partition("/")[2]: r.version async for r in store.scan_tree("tokens")}
    assert len(tokens) == len(set(tokens)), "a write was applied twice"
    assert set(tokens) == markers.keys(), "a group was applied in part"
    assert ledger.acknowledged.keys() <= markers.keys(), "an acknowledged write is lost"
    assert {token: markers[token] for token in ledger.acknowledged} == ledger.acknowledged
    assert not markers.keys() & ledger.refused, "a write that was called refused happened"
    assert markers.keys() <= ledger.acknowledged.keys() | ledger.uncertain


async def test_acknowledged_writes_survive_kills_and_restarts(server: PostgresServer) -> None:
    rng, ledger = random.Random(7), Ledger()
    stores = [await open_from_url(server.url, Settings()) for _ in range(2)]
    try:
        await stores[0].write([(Put(log, b" "),) for log in LOGS])
        writers = [asyncio.ensure_future(append_tokens(stores[i % 2], i, ledger)) for i in range(WRITERS)]
        for turn in range(ROUNDS):
            await asyncio.sleep(SECONDS_OF_LOAD * rng.uniform(0.5, 1.5))
            before = len(ledger.acknowledged)
            await (kill_a_backend(server, rng) if turn % 2 == 0 else restart(server))
            await until(lambda before=before: len(ledger.acknowledged) >= before + 20)  # type: ignore[misc]
        ledger.stop = True
        await asyncio.gather(*writers)
        await check(stores[1], ledger)
        assert len(ledger.acknowledged) > 20 * ROUNDS
    finally:
        for store in stores:
            await store.close()


async def test_a_standby_is_refused(server: PostgresServer) -> None:
    async with await open_from_url(server.url, Settings()) as store:
        await store.put(Key("a"), b"1")
    server.stop()
    (server.data / "standby.signal").touch()
    server.start()
    settings = Settings()
    settings.request_timeout_ms = 1_000
    with pytest.raises(MetadataMisconfigured, match=r"read-only|standby"):
        await open_from_url(server.url, settings)
