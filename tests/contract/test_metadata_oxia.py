"""The metadata contract on a real Oxia: one shard, and four."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from llog.stores.metadata.oxia.client import OxiaClient, OxiaOptions
from llog.stores.metadata.oxia.store import OxiaStore
from llog.testing.metadata_contract import MetadataStoreContract, OpenStore, ProxiedLink, StoreLink
from llog.testing.proxy import TcpProxy
from llog.testing.servers import OxiaServer
from tests.patience import PATIENCE_SECONDS
from tests.servers import started

TIMEOUT_MS = int(PATIENCE_SECONDS * 1_000)
# What waits for silence waits this long.
SILENCE_TIMEOUT_MS = 1_500


async def opened(port: int, timeout_ms: int) -> OxiaStore:
    address = f"127.0.0.1:{port}"
    client = await OxiaClient.open(
        OxiaOptions(addresses=(address,), identity="contract", request_timeout_ms=timeout_ms)
    )
    return OxiaStore(client, f"oxia://{address}")


class OxiaContract(MetadataStoreContract):
    @pytest.fixture
    async def open_store(self, server: OxiaServer) -> AsyncIterator[OpenStore]:
        stores: list[OxiaStore] = []

        async def open_one() -> OxiaStore:
            stores.append(await opened(server.port, TIMEOUT_MS))
            return stores[-1]

        yield open_one
        for store in stores:
            await store.close()

    @pytest.fixture
    async def link(self, server: OxiaServer) -> AsyncIterator[StoreLink]:
        async with TcpProxy("127.0.0.1", server.port) as proxy:
            store = await opened(proxy.port, SILENCE_TIMEOUT_MS)
            yield ProxiedLink(store, proxy)
            proxy.heal()
            await store.close()


@pytest.mark.server
class TestOxiaWithOneShard(OxiaContract):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[OxiaServer]:
        yield from started(lambda: OxiaServer(shards=1))


@pytest.mark.server
class TestOxiaWithFourShards(OxiaContract):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[OxiaServer]:
        yield from started(lambda: OxiaServer(shards=4))
