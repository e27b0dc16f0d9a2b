"""Where a contract of the log runs: one mixin per metadata store, each provides `open_store`.

class TestVacuumOnLmdb(OnLmdb, VacuumContract): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from llog.settings import Settings
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import MetadataStore
from llog.testing.servers import OxiaServer, PostgresServer
from llog.wiring import open_metadata_store
from tests.patience import PATIENCE_SECONDS
from tests.servers import started

OpenStore = Callable[[], Awaitable[MetadataStore]]


async def from_url(url: str) -> MetadataStore:
    settings = Settings.from_env({}, metadata_url=url, request_timeout_ms=int(PATIENCE_SECONDS * 1_000))
    return await open_metadata_store(url, settings)


def _on_model(backing: MemoryBacking) -> OpenStore:
    async def opened() -> MetadataStore:
        return MemoryStore(backing)

    return opened


class OnAtomicModel:
    @pytest.fixture
    async def open_store(self) -> OpenStore:
        return _on_model(MemoryBacking(shards=1, atomic_groups=True))


class OnCompareAndSetModel:
    @pytest.fixture
    async def open_store(self) -> OpenStore:
        return _on_model(MemoryBacking(shards=4, atomic_groups=False))


class OnLmdb:
    @pytest.fixture
    async def open_store(self, tmp_path: Path) -> AsyncIterator[OpenStore]:
        async with AsyncExitStack() as stack:

            async def opened() -> MetadataStore:
                return await stack.enter_async_context(await LmdbStore.open(tmp_path / "metadata"))

            yield opened


class _OnServer:
    """One server for all tests of a class; each has a root of its own."""

    @pytest.fixture
    async def open_store(self, server: OxiaServer | PostgresServer) -> AsyncIterator[OpenStore]:
        url = server.url if isinstance(server, PostgresServer) else f"oxia://{server.address}"
        async with AsyncExitStack() as stack:

            async def opened() -> MetadataStore:
                return await stack.enter_async_context(await from_url(url))

            yield opened


@pytest.mark.server
class OnPostgres(_OnServer):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[PostgresServer]:
        yield from started(PostgresServer)


@pytest.mark.server
class OnOxia(_OnServer):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[OxiaServer]:
        yield from started(lambda: OxiaServer(shards=4))
