"""The watch of LMDB beyond the contract: other processes, gaps of every kind, and what it costs writers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llog.stores.metadata.lmdb import LmdbStore, feed, watch
from llog.stores.metadata.lmdb.feed import FEED_PREFIX, LMDB_WATCH_LEASE_MS
from llog.stores.metadata.lmdb.layout import U64, VERSION_KEY, BootClock
from llog.stores.metadata.lmdb.transaction import keys_with
from llog.stores.metadata.lmdb.watch import LmdbWatcher
from llog.stores.metadata.port import Change, ChangeKind, Key, Put
from tests.patience import PATIENCE_SECONDS

WRITE_ONE = """
import asyncio, sys
from pathlib import Path
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.metadata.port import Key

async def main():
    async with await LmdbStore.open(Path(sys.argv[1])) as store:
        await store.put(Key("unit/other"), b"1")

asyncio.run(main())
"""


class MovableClock(BootClock):
    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def key(name: str) -> Key:
    return Key(f"unit/{name}")


async def following(changes: AsyncIterator[Change]) -> Change:
    return await asyncio.wait_for(anext(changes), PATIENCE_SECONDS)


def feed_length(store: LmdbStore) -> int:
    return len(store.environment.read(lambda txn: keys_with(txn, FEED_PREFIX)))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LmdbStore]:
    async with await LmdbStore.open(tmp_path / "db", clock=MovableClock()) as opened:
        yield opened


async def test_changes_of_another_process_are_seen(store: LmdbStore) -> None:
    async with store.watch("unit") as changes:
        command = [sys.executable, "-c", WRITE_ONE, str(store.environment.directory)]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=PATIENCE_SECONDS)
        assert await following(changes) == Change(ChangeKind.PUT, "unit/other")


async def test_without_a_watch_writers_write_no_feed_and_after_the_last_one_only_for_the_lease(
    store: LmdbStore,
) -> None:
    await store.put(key("a"), b"1")
    assert feed_length(store) == 0
    async with store.watch("unit"):
        await store.put(key("a"), b"2")
    assert feed_length(store) == 1
    clock = store.environment.clock
    assert isinstance(clock, MovableClock)
    clock.ahead_ms = LMDB_WATCH_LEASE_MS
    await store.put(key("a"), b"3")
    assert feed_length(store) == 1


async def test_a_transaction_adds_one_entry_to_the_feed_whatever_its_size(store: LmdbStore) -> None:
    async with store.watch("unit") as changes:
        await store.write([(Put(key(str(number)), b"1"), Put(key(f"{number}/x"), b"1")) for number in range(500)])
        assert feed_length(store) == 1
        seen = [(await following(changes)).path for _ in range(1_000)]
        assert len(set(seen)) == 1_000


async def test_a_transaction_that_only_deletes_is_reported(store: LmdbStore) -> None:
    await store.put(key("a"), b"1")
    async with store.watch("unit") as changes:
        await store.delete(key("absent"))
        await store.delete(key("a"))
        assert await following(changes) == Change(ChangeKind.DELETED, "unit/a")


async def test_the_feed_is_bounded_and_a_watcher_that_missed_entries_gets_a_resync(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LMDB_FEED_VERSIONS_MAX", 20)
    monkeypatch.setattr(watch, "LMDB_WATCH_POLL_MS", 3_600_000)  # the watcher reads when the test lets it
    async with store.watch("unit") as changes:
        assert isinstance(changes, LmdbWatcher)
        for number in range(100):
            await store.put(key(str(number)), b"1")
        assert feed_length(store) <= 22
        await changes._read()
        assert (await following(changes)).kind is ChangeKind.RESYNC
        await store.put(key("after"), b"1")
        await changes._read()
        assert await following(changes) == Change(ChangeKind.PUT, "unit/after")


async def test_a_watcher_that_slept_longer_than_its_lease_gets_a_resync(store: LmdbStore) -> None:
    clock = store.environment.clock
    assert isinstance(clock, MovableClock)
    async with store.watch("unit") as changes:
        clock.ahead_ms = LMDB_WATCH_LEASE_MS
        await store.put(key("unreported"), b"1")
        assert (await following(changes)).kind is ChangeKind.RESYNC
        await store.put(key("b"), b"1")
        assert (await following(changes)).path == "unit/b"


async def test_versions_given_without_the_feed_are_a_gap(store: LmdbStore) -> None:
    """A restore raises the versions; a process of an older release writes no feed."""
    async with store.watch("unit") as changes:
        await store.raise_versions(1_000)
        assert (await following(changes)).kind is ChangeKind.RESYNC
        await store.put(key("b"), b"1")
        assert (await following(changes)).path == "unit/b"

        def write_as_an_older_release() -> None:
            environment = store.environment
            with environment.gate.using(), environment.begin_write() as txn:
                txn.put(VERSION_KEY, U64.pack(5_000))

        await asyncio.to_thread(write_as_an_older_release)
        assert (await following(changes)).kind is ChangeKind.RESYNC


async def test_a_watcher_reads_nothing_while_nothing_is_committed(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = LmdbStore.read_feed

    async def counted(self: LmdbStore, work: object) -> object:
        nonlocal reads
        reads += 1
        return await read(self, work)  # type: ignore[arg-type]

    monkeypatch.setattr(LmdbStore, "read_feed", counted)
    monkeypatch.setattr(watch, "LMDB_WATCH_POLL_MS", 3_600_000)
    async with store.watch("unit") as changes:
        assert isinstance(changes, LmdbWatcher)
        for _ in range(20):
            await changes._read()
        assert reads == 1, "of the transaction that began the watch"
        await store.put(key("a"), b"1")
        for _ in range(20):
            await changes._read()
        assert reads == 2
        assert (await following(changes)).path == "unit/a"
