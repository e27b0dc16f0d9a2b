"""What the benchmarks of the log share: stores to run it on, record groups to append, and a store that counts."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from llog.errors import VersionConflict
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.keys import Log
from llog.settings import Settings
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.metadata.port import GroupOutcome, MetadataStore, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from llog.testing.servers import OxiaServer, PostgresServer
from llog.wiring import open_metadata_store

OpenStore = Callable[[], Awaitable[MetadataStore]]


def is_trial() -> bool:
    """A test asks whether the benchmark still runs: a small one will do."""
    return "PYTEST_CURRENT_TEST" in os.environ


@asynccontextmanager
async def stores_of(kind: str) -> AsyncIterator[OpenStore]:
    """A metadata store of that kind, empty; every call of what is yielded is a connection of its own."""
    async with AsyncExitStack() as stack:
        if kind == "lmdb":
            url = "lmdb://" + stack.enter_context(tempfile.TemporaryDirectory(prefix="llog-bench-")) + "/metadata"
        elif kind == "postgres":
            url = stack.enter_context(PostgresServer()).url
        else:
            assert kind == "oxia", kind
            url = f"oxia://{stack.enter_context(OxiaServer(shards=4)).address}"

        async def opened() -> MetadataStore:
            return await stack.enter_async_context(await open_store(url))

        yield opened


async def open_store(url: str) -> MetadataStore:
    return await open_metadata_store(url, Settings.from_env({}, metadata_url=url))


def record_batch(records: int, value_bytes: int) -> bytes:
    """One RecordBatch, as a producer sends it."""
    values: list[bytes | None] = [os.urandom(value_bytes) for _ in range(records)]
    return bytes(encode_records(values, timestamps_ms=1_760_000_000_000))


def group(log: Log, batch: bytes, records: int) -> EncodedGroup:
    return EncodedGroup(log, records, "kafka-v2", [batch], 1_760_000_000_000)


async def append_all(appender: Appender, groups: Sequence[EncodedGroup]) -> list[Appended]:
    """Every group lands, or this is no measurement."""
    landed = []
    for outcome in await appender.append(groups):
        assert isinstance(outcome, Appended), outcome
        landed.append(outcome)
    return landed


def lmdb_transactions(store: MetadataStore) -> int:
    """How many transactions have changed this LMDB, ever: it numbers them one by one."""
    assert isinstance(store, LmdbStore)
    return store.environment.read(lambda txn: int(txn.id()))


class CountingStore(ForwardingMetadataStore):
    """Counts what is written through it."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.writes = 0
        """Records put or deleted, or tried to be."""
        self.control_writes = 0
        self.conflicts = 0
        """Groups that were refused because somebody else had moved a record."""
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        self.writes += sum(map(len, groups))
        self.control_writes += sum(write.key.path.endswith("/meta/control") for group in groups for write in group)
        self._under_way += 1
        self._idle.clear()
        try:
            outcomes = await self.inner.write(groups)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        self.conflicts += sum(isinstance(outcome, VersionConflict) for outcome in outcomes)
        return outcomes

    async def settled(self) -> None:
        """What appends leave to be written after their answer is written too."""
        await asyncio.sleep(0)  # so that it has begun
        await self._idle.wait()
