"""kill -9 of a standalone Oxia (with fsync) under writers: nothing acknowledged is lost, nothing happens twice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from llog.errors import LlogError, MetadataTimeout, MetadataUnavailable, MetadataUncertain, VersionConflict
from llog.stores.metadata.oxia.client import OxiaClient, OxiaOptions
from llog.stores.metadata.oxia.store import OxiaStore
from llog.stores.metadata.port import ABSENT, Key, Put
from llog.testing.servers import OxiaServer
from tests.patience import until
from tests.servers import started
from tests.system.oxia_history import Attempt, History, Told, read_final

ROUNDS = 20 if os.environ.get("LLOG_SOAK") == "1" else 2
WRITERS = 4
ROUNDS_MORE_MAX = 20
"""A kill may hit no request; more of them, until one did."""
WRITES_SECONDS = 1.5
WRITES_PER_ROUND = 500
RECOVERY_SECONDS_MAX = 120.0
BATCH = 64

SHARED = Key("crash/shared", "crash")


@pytest.fixture
def server() -> Iterator[OxiaServer]:
    yield from started(lambda: OxiaServer(shards=1))


def told_by(error: LlogError) -> Told:
    match error:
        case MetadataUncertain():
            return Told.UNCERTAIN
        case MetadataUnavailable():
            return Told.UNAVAILABLE
        case VersionConflict():
            return Told.CONFLICT
        case _:
            raise error


async def create_fresh(store: OxiaStore, history: History, writer: int) -> None:
    """A batch of unconditional puts to keys never used before: a repeat would show as a modification."""
    tokens = [history.new_token() for _ in range(BATCH)]
    keys = [Key(f"crash/fresh/{writer}-{token}", "crash") for token in tokens]
    outcomes = await store.write([(Put(key, token.encode()),) for key, token in zip(keys, tokens, strict=True)])
    for key, token, outcome in zip(keys, tokens, outcomes, strict=True):
        if isinstance(outcome, tuple):
            history.creations.append(Attempt(key.path, token, Told.OK, outcome[0]))
        else:
            history.creations.append(Attempt(key.path, token, told_by(outcome)))


async def append_shared(store: OxiaStore, history: History) -> None:
    """One attempt to add a token to the value that all writers share."""
    token = history.new_token()
    try:
        record = await store.get(SHARED)
    except (MetadataTimeout, MetadataUnavailable):
        return
    held, expected = (record.value + b" ", record.version) if record else (b"", ABSENT)
    try:
        version = await store.put(SHARED, held + token.encode(), expected=expected)
        history.appends.append(Attempt(SHARED.path, token, Told.OK, version))
    except LlogError as error:
        history.appends.append(Attempt(SHARED.path, token, told_by(error)))


async def write_until(stop: asyncio.Event, store: OxiaStore, history: History, writer: int) -> None:
    while not stop.is_set():
        await create_fresh(store, history, writer)
        await append_shared(store, history)
        await asyncio.sleep(0.005)


async def wait_for_writes(store: OxiaStore) -> None:
    """Until one write is acknowledged again."""
    async with asyncio.timeout(RECOVERY_SECONDS_MAX):
        while True:
            try:
                await store.put(Key("crash/back", "crash"), b"1")
                return
            except (MetadataUnavailable, MetadataUncertain):
                await asyncio.sleep(0.05)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_killed_server_loses_no_acknowledged_write_and_repeats_none(server: OxiaServer) -> None:
    client = await OxiaClient.open(OxiaOptions(addresses=(server.address,), identity="crash", request_timeout_ms=5_000))
    history, stop = History(), asyncio.Event()
    async with OxiaStore(client, f"oxia://{server.address}") as store:
        writers = [asyncio.create_task(write_until(stop, store, history, i)) for i in range(WRITERS)]
        for number in range(1, ROUNDS + ROUNDS_MORE_MAX):
            if number > ROUNDS and history.told()[Told.UNCERTAIN]:
                break
            await asyncio.sleep(WRITES_SECONDS)
            await until(lambda number=number: history.told()[Told.OK] > WRITES_PER_ROUND * number)  # type: ignore[misc]
            await asyncio.to_thread(server.process.kill)
            await asyncio.sleep(0.1)  # the outage
            await asyncio.to_thread(server.start)
            await wait_for_writes(store)
        stop.set()
        await asyncio.gather(*writers)
    final = await read_final(server.address, 0, [SHARED.path, *(attempt.key for attempt in history.creations)])
    assert history.faults(final, SHARED.path) == []
    told = history.told()
    assert told[Told.OK] > WRITES_PER_ROUND * ROUNDS, told
    assert told[Told.UNCERTAIN] > 0, f"the kill hit no request; the test proves nothing: {told}"
