"""A server that a test plays itself, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from llog.stores.metadata.oxia.client import OxiaClient
from tests.unit.oxia.fake_server import FakeOxia


@pytest.fixture
async def server() -> AsyncIterator[FakeOxia]:
    async with FakeOxia() as server:
        yield server


@pytest.fixture
async def client(server: FakeOxia) -> AsyncIterator[OxiaClient]:
    client = await server.client()
    yield client
    await client.close()
