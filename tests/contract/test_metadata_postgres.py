"""The metadata contract, kept by PostgreSQL on a real server, through a proxy that misbehaves."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from llog.stores.metadata.port import MetadataStore
from llog.stores.metadata.postgres import PostgresStore, open_from_url
from llog.testing.metadata_contract import MetadataStoreContract, OpenStore, ProxiedLink
from llog.testing.proxy import TcpProxy
from llog.testing.servers import PostgresServer
from tests.patience import PATIENCE_SECONDS
from tests.servers import started


class Settings:
    client_identifier = "contract"

    def __init__(self, request_timeout_ms: int) -> None:
        self.request_timeout_ms = request_timeout_ms


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    yield from started(PostgresServer)


@pytest.mark.server
class TestPostgresStore(MetadataStoreContract):
    @pytest.fixture
    def table(self) -> str:
        return f"t_{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    async def open_store(self, server: PostgresServer, table: str) -> AsyncIterator[OpenStore]:
        opened: list[PostgresStore] = []

        async def open_one() -> MetadataStore:
            opened.append(
                await open_from_url(f"{server.url}?llog_table={table}", Settings(int(PATIENCE_SECONDS * 1_000)))
            )
            return opened[-1]

        yield open_one
        for store in opened:
            await store.close()

    @pytest.fixture
    async def link(self, server: PostgresServer, table: str) -> AsyncIterator[ProxiedLink]:
        async with TcpProxy("127.0.0.1", server.port) as proxy:
            url = f"postgresql://llog@127.0.0.1:{proxy.port}/postgres?llog_table={table}"
            async with await open_from_url(url, Settings(2_000)) as store:
                yield ProxiedLink(store, proxy)
