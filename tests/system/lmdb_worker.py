"""A process of the LMDB system tests: `python -m tests.system.lmdb_worker ROLE DIRECTORY SEED`.

It writes one line of JSON to standard output for every write that was acknowledged, and is killed at any moment.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from llog.errors import SessionLost, VersionConflict
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.metadata.port import ABSENT, Key, Put, Record

COUNTERS = 4
ROUTE = "system"


def counter_key(number: int) -> Key:
    return Key(f"counters/{number}", ROUTE)


def pair_keys(number: int) -> tuple[Key, Key]:
    return Key(f"pairs/{number}/left", ROUTE), Key(f"pairs/{number}/right", ROUTE)


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def next_put(key: Key, record: Record | None) -> Put:
    """One more, on condition that nobody was faster."""
    count, version = (int(record.value), record.version) if record else (0, ABSENT)
    return Put(key, str(count + 1).encode(), version)


async def count(store: LmdbStore, rng: random.Random) -> None:
    """Increment shared counters, alone and in pairs that must always be equal."""
    while True:
        number = rng.randrange(COUNTERS)
        keys = [counter_key(number), *pair_keys(number)]
        single, left, right = [
            next_put(key, record) for key, record in zip(keys, await store.get_many(keys), strict=True)
        ]
        one, both = await store.write([(single,), (left, right)])
        for name, put, outcome in (("counter", single, one), ("pair", left, both)):
            if isinstance(outcome, tuple):
                say(kind=name, number=number, value=int(put.value), version=outcome[0])
            else:
                assert isinstance(outcome, VersionConflict), outcome


async def fill(store: LmdbStore, rng: random.Random) -> None:
    """Write large values until the map has grown several times."""
    for i in range(60):
        key = Key(f"fill/{rng.random()}", ROUTE)
        version = await store.put(key, rng.randbytes(1) * 900_000, expected=ABSENT)
        say(kind="fill", number=i, path=key.path, version=version)
    say(kind="map", value=store.environment.map_bytes())


async def hold(store: LmdbStore, rng: random.Random) -> None:
    """Hold a claim; tell when it is lost, and what a late write with it gets."""
    lost = asyncio.Event()
    session = await store.open_session(timeout_ms=2_000, on_lost=lost.set)
    await store.put(Key("claim", ROUTE), b"mine", session=session)
    say(kind="holding")
    await lost.wait()
    say(kind="lost", value=session.lost)
    try:
        await store.put(Key("claim", ROUTE), b"late", session=session)
        say(kind="written")
    except SessionLost:
        say(kind="refused")


async def main(role: str, directory: str, seed: str) -> None:
    rng = random.Random(int(seed))
    async with await LmdbStore.open(Path(directory)) as store:
        await {"count": count, "fill": fill, "hold": hold}[role](store, rng)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
