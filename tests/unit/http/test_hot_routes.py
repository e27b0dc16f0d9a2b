"""Hot routes bypass the framework; the same path with a slash at its end goes through it. Both must answer alike."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from llog.http.routes import produce
from tests.unit.http.broker_double import BrokerDouble, batch, client_of, consume_body, produce_body

GOOD = produce_body(batch("orders", 0, "alpha"))


def shape(answer: httpx.Response) -> dict[str, Any]:
    """All but what differs between any two answers."""
    differing = ("x-request-id", "content-length", "date")
    headers = {name: value for name, value in answer.headers.items() if name not in differing}
    body = answer.json()
    body.pop("request_id", None)
    for result in body.get("results", ()):
        for name in ("start_offset", "end_offset", "index_key", "wal_uri"):
            result.pop(name, None)
    return {"status": answer.status_code, "headers": headers, "body": body}


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/produce", GOOD),
        ("/produce", {"topic_partitions": []}),
        ("/produce", {"topic_partitions": [{"topic": "..", "partition": 0, "records": ["x"]}]}),
        ("/consume", consume_body("absent", 0, 1)),
        ("/consume", {"topic_partitions": [{"topic": "t", "partition": True, "fetch_offset": 1}]}),
    ],
)
async def test_both_ways_answer_alike(path: str, content: dict[str, Any]) -> None:
    async with client_of(BrokerDouble()) as client:
        hot, cold = await client.post(path, json=content), await client.post(f"{path}/", json=content)
    assert shape(hot) == shape(cold)
    assert hot.headers["content-length"] == str(len(hot.content))


async def test_unexpected_errors_are_answered_alike_without_their_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(produce, "encoded_request", fails)
    async with client_of(BrokerDouble()) as client:
        hot, cold = await client.post("/produce", json=GOOD), await client.post("/produce/", json=GOOD)
    assert hot.status_code == 500
    assert shape(hot) == shape(cold)
    assert "secret" not in hot.text


async def test_the_guard_stands_before_both_ways() -> None:
    async with client_of(BrokerDouble(http_write_token="w" * 20, http_read_token="r" * 20)) as client:
        for path in ("/produce", "/produce/"):
            assert (await client.post(path, json=GOOD)).status_code == 401
            wrong = {"authorization": f"Bearer {'r' * 20}"}
            assert (await client.post(path, json=GOOD, headers=wrong)).status_code == 403
            right = {"authorization": f"Bearer {'w' * 20}"}
            assert (await client.post(path, json=GOOD, headers=right)).status_code == 200


async def test_other_methods_are_still_refused_by_the_framework() -> None:
    async with client_of(BrokerDouble()) as client:
        assert (await client.get("/produce")).status_code == 405
        assert "POST" in (await client.options("/produce")).headers["allow"]


async def test_both_ways_are_counted_under_the_same_route() -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        await client.post("/produce", json=GOOD)
        await client.post("/produce/", json=GOOD)
    assert [(route, method, status) for route, method, status, *_ in broker.metrics.requests] == [
        ("/produce", "POST", 200)
    ] * 2
