from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from llog.http.routes import tail
from llog.http.routes.app import build_app
from llog.http.server import HttpServer
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.http.broker_double import BrokerDouble, batch, produce_body


@pytest.fixture
async def broker() -> BrokerDouble:
    return BrokerDouble(http_stop_timeout_ms=3_000)


@pytest.fixture
async def server(broker: BrokerDouble) -> AsyncIterator[HttpServer]:
    server = HttpServer(build_app(broker), broker.settings, port=0)
    await server.start()
    yield server
    await server.stop()


async def events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if not line and event:
            yield event
            event = {}
        elif name in ("id", "data", "event"):
            event[name] = json.loads(value) if name == "data" else value


async def test_a_tail_shows_what_is_there_and_what_comes(server: HttpServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a", "b")))
        async with client.stream("GET", "/topics/t/partitions/0/tail?start=earliest") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            shown = events(answer)
            assert await anext(shown) == {"id": "1", "data": {"offset": 1, "payload": "a"}}
            assert (await anext(shown))["id"] == "2"
            await client.post("/produce", json=produce_body(batch("t", 0, "c")))
            assert (await asyncio.wait_for(anext(shown), PATIENCE_SECONDS))["data"] == {"offset": 3, "payload": "c"}


async def test_a_tail_goes_on_behind_the_last_event_seen(server: HttpServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a", "b", "c")))
        seen = {"last-event-id": "2"}
        async with client.stream("GET", "/topics/t/partitions/0/tail?offset=1", headers=seen) as answer:
            assert (await anext(events(answer)))["id"] == "3"


async def test_a_tail_that_cannot_begin_has_a_status(server: HttpServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        assert (await client.get("/topics/t/partitions/0/tail")).status_code == 404
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        assert (await client.get("/topics/t/partitions/0/tail?offset=99")).status_code == 416
        assert (await client.get("/topics/t/partitions/0/tail?offset=-1")).status_code == 400
        assert (await client.get("/topics/t/partitions/0/tail?start=soon")).status_code == 400
        wrong = await client.get("/topics/t/partitions/0/tail", headers={"last-event-id": "9" * 5_000})
        assert wrong.status_code == 400
        assert wrong.json()["field"] == "Last-Event-ID"


async def test_a_silent_tail_shows_it_is_alive_and_a_stop_ends_it(
    broker: BrokerDouble, server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "HTTP_TAIL_HEARTBEAT_MS", 30)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        async with client.stream("GET", "/topics/t/partitions/0/tail") as answer:
            lines = answer.aiter_lines()
            beats = 0
            while beats < 3:
                beats += (await asyncio.wait_for(anext(lines), PATIENCE_SECONDS)).startswith(":")
            stopping = asyncio.create_task(server.stop())
            async for _ in lines:
                pass
            await asyncio.wait_for(stopping, PATIENCE_SECONDS)


async def test_tails_are_counted_and_given_back(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.http.routes.runtime.HTTP_TAILS_MAX", 1)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        async with client.stream("GET", "/topics/t/partitions/0/tail") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            refused = await client.get("/topics/t/partitions/0/tail")
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"

        async def is_accepted() -> bool:
            async with client.stream("GET", "/topics/t/partitions/0/tail") as answer:
                return answer.status_code == 200

        await until(is_accepted, "the place of the ended tail")
