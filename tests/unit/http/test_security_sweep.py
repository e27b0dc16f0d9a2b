"""Every HTTP route where authorization is on: without rights nothing is done, and nothing is learned."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from litestar.handlers import HTTPRouteHandler

from llog.http.routes.app import READ_ROUTES, STATUS_ROUTES, TOPIC_ROUTES, WRITE_ROUTES
from llog.log.topics.admin import create_topic
from llog.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from llog.security.changes import add_token, create_acls, create_user, revoke_token
from llog.security.requirements import HTTP
from tests.unit.http.broker_double import BrokerDouble, client_of

HIDDEN, MISSING = "hidden-0123456789", "missing-012345678"
LOG = "/topics/{topic}/partitions/0"
BODIES: dict[str, Any] = {
    "POST /produce": {"topic_partitions": [{"topic": "{topic}", "partition": 0, "records": ["x"]}]},
    "POST /consume": {"topic_partitions": [{"topic": "{topic}", "partition": 0, "fetch_offset": 1}]},
    "POST /offsets/commit": {"group": "g", "offsets": [{"topic": "{topic}", "partition": 0, "offset": 1}]},
    "POST /offsets/fetch": {"group": "g", "topic_partitions": [{"topic": "{topic}", "partition": 0}]},
    "POST /topics": {"topic": "{topic}", "partitions": 1},
    "PATCH /topics/{topic}": {"config": {"retention.ms": "1000"}},
    "POST /topics/{topic}/partitions": {"count": 5},
    "POST /topics/{topic}/partitions/{partition}/delete-records": {"before_offset": 1},
}
OPEN = ("GET /health", "GET /ready", "GET /topics")


def rows() -> set[str]:
    found = set()
    for handler in (*STATUS_ROUTES, *TOPIC_ROUTES, *READ_ROUTES, *WRITE_ROUTES):
        assert isinstance(handler, HTTPRouteHandler)
        for path in handler.paths:
            plain = path.replace(":str}", "}").replace(":int}", "}")
            found |= {f"{method} {plain}" for method in handler.http_methods if method not in ("HEAD", "OPTIONS")}
    return found


def test_every_route_has_a_row() -> None:
    assert rows() == set(HTTP)


def filled(value: Any, topic: str) -> Any:
    if isinstance(value, str):
        return value.replace("{topic}", topic)
    if isinstance(value, dict):
        return {name: filled(one, topic) for name, one in value.items()}
    return [filled(one, topic) for one in value] if isinstance(value, list) else value


async def ask(http: httpx.AsyncClient, row: str, topic: str, token: str | None) -> httpx.Response:
    method, path = row.split(" ")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    body = filled(BODIES[row], topic) if row in BODIES else None
    url = path.replace("{topic}", topic).replace("{partition}", "0")
    return await http.request(method, url, json=body, headers=headers | {"x-request-id": "same"})


async def guarded() -> BrokerDouble:
    broker = BrokerDouble(
        authorization=True, super_users=("User:write-token",), http_read_token="r" * 20, http_write_token="w" * 20
    )
    await create_topic(broker.context, HIDDEN, partitions=1)
    return broker


async def user(broker: BrokerDouble, name: str, *rights: tuple[ResourceType, str, Operation]) -> str:
    """A user with these rights; its token."""
    await create_user(broker.context, name, {})
    acls = [Acl(f"User:{name}", "*", kind, on, PatternType.LITERAL, op, Permission.ALLOW) for kind, on, op in rights]
    await create_acls(broker.context, acls)
    token = await add_token(broker.context, name, "first")
    await broker.security.changed()
    return token


@pytest.mark.parametrize("row", sorted(HTTP))
async def test_a_principal_without_rights_gets_nothing_and_learns_nothing(row: str) -> None:
    broker = await guarded()
    token = await user(broker, "mallory")
    async with client_of(broker) as http:
        for sent, status in ((token, 403), (None, 401), ("r" * 20, 403)):
            answers = [await ask(http, row, topic, sent) for topic in (HIDDEN, MISSING)]
            if row in OPEN:
                assert HIDDEN not in answers[0].text
                continue
            assert [answer.status_code for answer in answers] == [status, status], answers[0].text
            first, second = (
                answer.text.replace(topic, "T") for answer, topic in zip(answers, (HIDDEN, MISSING), strict=True)
            )
            assert first == second
        wrong = await ask(http, row, HIDDEN, "x" * 20)
        assert wrong.status_code == (200 if row in ("GET /health", "GET /ready") else 401), wrong.text
        described = await ask(http, "GET /topics/{topic}", HIDDEN, "w" * 20)
        assert described.json()["config"] == {}
        assert len(described.json()["partitions"]) == 1


async def test_a_right_opens_its_own_routes_and_no_others() -> None:
    broker = await guarded()
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    token = await user(broker, "ada", (topic, HIDDEN, Operation.READ), (group, "g", Operation.READ))
    async with client_of(broker) as http:
        for row in HTTP:
            if "tail" in row:
                continue
            answer = await ask(http, row, HIDDEN, token)
            opened = row in OPEN or row in (
                "POST /consume",
                "POST /offsets/commit",
                "POST /offsets/fetch",
                "GET /topics/{topic}",
                "GET /topics/{topic}/partitions/{partition}/offsets",
            )
            assert (answer.status_code == 403) is not opened, (row, answer.text)
        assert HIDDEN in (await ask(http, "GET /topics", HIDDEN, token)).text


async def test_writing_does_not_create_without_the_right_to() -> None:
    broker = await guarded()
    everything = (ResourceType.TOPIC, "*", Operation.WRITE)
    token = await user(broker, "ada", everything)
    async with client_of(broker) as http:
        assert (await ask(http, "POST /produce", HIDDEN, token)).status_code == 200
        assert (await ask(http, "POST /produce", MISSING, token)).status_code == 403
        assert (await ask(http, "GET /topics/{topic}", MISSING, "w" * 20)).status_code == 404
        assert (await ask(http, "POST /produce", MISSING, "w" * 20)).status_code == 200


async def test_tokens_are_changed_while_the_broker_runs() -> None:
    broker = await guarded()
    token = await user(broker, "ada", (ResourceType.TOPIC, HIDDEN, Operation.READ))
    async with client_of(broker) as http:
        other = await add_token(broker.context, "ada", "second")
        await revoke_token(broker.context, "ada", "first")
        await broker.security.changed()
        assert (await ask(http, "POST /consume", HIDDEN, token)).status_code == 401
        assert (await ask(http, "POST /consume", HIDDEN, other)).status_code == 200
