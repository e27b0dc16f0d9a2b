from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.clients.http_calls import Running, running, unused_topic


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One broker with both roles on the embedded stores, for all claims that need no settings of their own."""
    directory = tmp_path_factory.mktemp("broker")
    arguments = ("broker", "--broker-id", "broker-1")
    with running(*arguments, directory=directory, name="both", llog_log_requests="all") as it:
        yield it


@pytest.fixture
def http(broker: Running) -> httpx.Client:
    return broker.http


@pytest.fixture
def topic() -> str:
    """An unused name."""
    return unused_topic()
