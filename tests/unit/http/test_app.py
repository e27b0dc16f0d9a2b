"""Properties of every route: statuses, tokens, logs, metrics, the description."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from llog import errors
from llog.errors import LlogError, MetadataUnavailable, MetadataUncertain, RequestUnauthenticated
from llog.http.routes.app import build_app
from llog.http.routes.errors import STATUSES, status_of
from llog.http.routes.openapi import openapi_config
from llog.listener.http1 import Exchange
from llog.listener.server import SocketListener
from llog.listener.tokens import Access, Tokens
from llog.log.fence import fence
from llog.log.keys import Log
from llog.telemetry.process_logs import LOG_LINES_WAITING_MAX, GatheredLines, configure_logging
from llog.telemetry.request_log import STATUS_PATHS, RequestLog, RequestRecord
from llog.telemetry.status_pages import StatusPages
from tests.patience import until
from tests.unit.http.broker_double import BrokerDouble, batch, client_of, consume_body, produce_body


def test_every_error_class_has_exactly_one_status() -> None:
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LlogError)}
    listed = [kind for kinds in STATUSES.values() for kind in kinds]
    assert sorted(kind.__name__ for kind in classes - set(listed)) == []
    assert len(listed) == len(set(listed))


def test_an_error_outside_the_table_takes_the_status_of_its_nearest_base_class() -> None:
    class Far(MetadataUnavailable):
        pass

    assert status_of(Far("get", "k")) == 503


async def test_health_metrics_and_readiness() -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        assert (await client.get("/health")).json()["broker_id"] == "broker-1"
        assert (await client.get("/ready")).json() == {"ready": True, "status": "ok", "reasons": []}
        assert "http" in (await client.get("/metrics")).json()
        page = await client.get("/metrics/prometheus")
        assert page.headers["content-type"].startswith("text/plain")
        assert "llog_requests" in page.text
        broker.is_ready = False
        assert (await client.get("/health")).status_code == 200
        refused = await client.get("/ready")
        assert refused.status_code == 503
        assert refused.json()["reasons"] == ["the store is away"]
        assert refused.headers["retry-after"] == "1"


async def test_unknown_paths_and_methods_are_answered_in_json() -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        unknown = await client.get("/nothing/here")
        wrong = await client.get("/produce")
    assert (unknown.status_code, wrong.status_code) == (404, 405)
    assert unknown.json()["request_id"] == unknown.headers["x-request-id"]
    assert [(route, status) for route, _, status, *_ in broker.metrics.requests] == [
        ("unmatched", 404),
        ("unmatched", 405),
    ]


async def test_a_broker_without_a_role_has_no_such_path() -> None:
    async with client_of(BrokerDouble(reads=False)) as writer, client_of(BrokerDouble(writes=False)) as reader:
        assert (await writer.post("/consume", json=consume_body("t", 0, 1))).status_code == 404
        assert (await writer.post("/produce", json=produce_body(batch("t", 0, "a")))).status_code == 200
        assert (await reader.post("/produce", json=produce_body(batch("t", 0, "a")))).status_code == 404
        assert (await reader.post("/consume", json=consume_body("t", 0, 1))).status_code == 200


async def test_status_pages_alone_have_the_form_of_the_brokers() -> None:
    broker = BrokerDouble(http_read_token="r-secret-of-readers")
    address: Any = {"host": "127.0.0.1", "port": 0, "variables": "LLOG_HTTP"}
    pages = SocketListener(broker.settings, StatusPages(broker).connection, **address)
    await pages.start()
    async with client_of(broker) as of_broker, httpx.AsyncClient(base_url=pages.url) as alone:
        for path in ("/health", "/ready", "/metrics"):
            ours, theirs = await alone.get(path), await of_broker.get(path)
            assert (ours.status_code, set(ours.json())) == (theirs.status_code, set(theirs.json()))
        assert (await alone.get("/topics")).json()["error_type"] == "NotFoundException"
        assert (await alone.post("/health")).status_code == 405
        head = await alone.head("/health")
        assert (head.status_code, head.content) == (200, b"")
    await pages.stop()


# -- tokens ------------------------------------------------------------------------------------------------------------


async def test_each_token_opens_its_own_kind_and_nothing_else() -> None:
    broker = BrokerDouble(http_read_token="r-secret-of-readers", http_write_token="w-secret-of-writers")
    read, write = {"authorization": "Bearer r-secret-of-readers"}, {"authorization": "bearer w-secret-of-writers"}
    body, poll = produce_body(batch("t", 0, "a")), consume_body("t", 0, 1)
    async with client_of(broker) as client:
        bare = await client.post("/produce", json=body)
        assert bare.status_code == 401
        assert bare.headers["www-authenticate"].startswith("Bearer")
        assert (await client.post("/produce", json=body, headers={"authorization": "Bearer x"})).status_code == 401
        assert (
            await client.post("/produce", json=body, headers={"authorization": "Basic r-secret-of-readers"})
        ).status_code == 401
        assert (await client.post("/produce", json=body, headers=read)).status_code == 403
        assert (await client.post("/produce", json=body, headers=write)).status_code == 200
        assert (await client.post("/consume", json=poll, headers=write)).status_code == 403
        assert (await client.post("/consume", json=poll, headers=read)).status_code == 200
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/schema/openapi.json")).status_code == 401
        assert (await client.get("/schema/openapi.json", headers=write)).status_code == 200
        assert (await client.get("/health")).status_code == (await client.get("/ready")).status_code == 200


async def test_a_kind_without_a_token_is_open() -> None:
    broker = BrokerDouble(http_write_token="w-secret-of-writers")
    async with client_of(broker) as client:
        assert (await client.post("/produce", json=produce_body(batch("t", 0, "a")))).status_code == 401
        assert (await client.post("/consume", json=consume_body("t", 0, 1))).status_code == 200
    tokens = Tokens(broker.settings)
    with pytest.raises(RequestUnauthenticated):
        tokens.check(Access.WRITE, tokens.sent(b"Bearer "))


@pytest.mark.parametrize("path", sorted(STATUS_PATHS))
async def test_a_status_page_answers_head_without_a_body(path: str) -> None:
    async with client_of(BrokerDouble()) as client:
        head = await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 0


# -- logs and metrics --------------------------------------------------------------------------------------------------


@pytest.fixture
def lines() -> Iterator[Any]:
    stream = io.StringIO()
    handler = configure_logging(stream, logging.DEBUG)

    def read() -> list[dict[str, Any]]:
        handler.flush()
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    yield read
    for name in ("llog",):
        logger = logging.getLogger(name)
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


async def test_a_request_is_one_json_line_with_its_id_and_stages(lines: Any) -> None:
    broker = BrokerDouble(http_write_token="w-secret-of-writers", log_requests="all")
    headers = {"authorization": "Bearer w-secret-of-writers", "x-request-id": "trace-42"}
    async with client_of(broker) as client:
        answer = await client.post("/produce", json=produce_body(batch("t", 0, "payload-xyz")), headers=headers)
        assert answer.headers["x-request-id"] == "trace-42"
        await client.get("/health", headers={"x-request-id": "no way" + "x" * 300})
    produced, health = (line for line in lines() if line["event"] == "request")
    assert (produced["event"], produced["level"], produced["request_id"]) == ("request", "info", "trace-42")
    assert (produced["route"], produced["status"], produced["batches"]) == ("/produce", 200, 1)
    assert (produced["queue_ms"], produced["upload_ms"], produced["commit_ms"]) == (1.0, 2.0, 3.0)
    assert produced["request_bytes"] > 0
    assert produced["response_bytes"] > 0
    assert produced["duration_ms"] >= 0
    assert health["level"] == "debug"
    assert re.fullmatch(r"[0-9a-f]{16}", health["request_id"])
    text = json.dumps([produced, health])
    assert "secret" not in text
    assert "payload-xyz" not in text


@pytest.mark.parametrize(
    ("setting", "statuses"), [("all", [200, 404, 409]), ("errors", [404, 409]), ("slow", [404, 409]), ("none", [])]
)
async def test_requests_that_get_a_line_are_a_setting_and_a_failed_one_says_why(
    lines: Any, setting: str, statuses: list[int]
) -> None:
    broker = BrokerDouble(log_requests=setting, log_slow_ms="10min")
    async with client_of(broker) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        await client.get("/topics/missing")
        await fence(broker.context, Log("t", 0), reason="moving away")
        await client.post("/produce", json=produce_body(batch("t", 0, "b"), batch("t", 1, "c")))
    logged = [line for line in lines() if line["event"] == "request"]
    assert [line["status"] for line in logged] == statuses
    for line in logged[-2:] if statuses else []:
        expected = {404: "missing", 409: "1 of 2 failed, the first with: t:0: "}[line["status"]]
        assert expected in line["error"]


async def test_a_slow_request_gets_a_line_and_the_wait_of_a_long_poll_is_not_slow(lines: Any) -> None:
    now = [0.0]
    log = RequestLog(BrokerDouble().metrics, lambda: now[0], lines="slow", slow_ms=100)
    for duration_ms, wait_ms in ((99, 0), (100, 0), (300, 250), (350, 250)):
        exchange = SimpleNamespace(headers=[], method="GET", received_bytes=0, client=None)
        record = RequestRecord(cast(Exchange, exchange), now[0])
        record.status, record.wait_ms = 200, wait_ms
        now[0] += duration_ms / 1_000
        log.finish(record)
    assert [(round(line["duration_ms"]), line.get("max_wait_ms")) for line in lines()] == [(100, None), (350, 250)]


async def test_a_page_that_a_process_does_not_serve_is_logged_with_the_reason(lines: Any) -> None:
    pages = StatusPages(BrokerDouble())
    listener = SocketListener(
        BrokerDouble().settings, pages.connection, host="127.0.0.1", port=0, variables="LLOG_HTTP"
    )
    await listener.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as client:
            assert (await client.get("/topics")).status_code == 404
    finally:
        await listener.stop()
    [line] = [line for line in lines() if line["event"] == "request"]
    assert "/health" in line["error"]


async def test_the_route_is_the_template_never_the_path() -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        await client.get("/topics/some-topic")
    [(route, method, status, _, sent)] = broker.metrics.requests
    assert (route, method, status) == ("/topics/{topic}", "GET", 404)
    assert sent > 0


async def test_an_unexpected_error_is_logged_with_its_traceback_and_answered_without(lines: Any) -> None:
    class Broken(BrokerDouble):
        async def consume(self, request: object) -> Any:
            raise ZeroDivisionError("inner secret")

    async with client_of(Broken()) as client:
        answer = await client.post("/consume", json=consume_body("t", 0, 1))
    assert answer.status_code == 500
    assert "inner" not in answer.text
    failed = next(line for line in lines() if line["event"] == "request failed")
    assert "ZeroDivisionError" in failed["traceback"]
    assert failed["request_id"] == answer.json()["request_id"]


@pytest.mark.parametrize(
    ("error", "again"), [(MetadataUnavailable("get", "k"), "1"), (MetadataUncertain("put", "k"), None)]
)
async def test_retry_after_is_sent_only_when_nothing_happened(error: LlogError, again: str | None) -> None:
    class Away(BrokerDouble):
        async def consume(self, request: object) -> Any:
            raise error

    async with client_of(Away()) as client:
        answer = await client.post("/consume", json=consume_body("t", 0, 1))
    assert answer.status_code == 503
    assert answer.headers.get("retry-after") == again


def test_lines_for_a_terminal_are_for_people() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    handler = configure_logging(stream)
    try:
        logging.getLogger("llog.http").info("listening", extra={"llog": {"url": "http://x"}})
    finally:
        for name in ("llog",):
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).propagate = True
    assert stream.getvalue().endswith("info    listening url=http://x\n")


async def test_lines_of_a_loop_go_out_together_and_a_warning_takes_them_along() -> None:
    stream = io.StringIO()
    handler = GatheredLines(stream, delay_ms=5)

    def log(level: int, message: str) -> None:
        handler.handle(logging.LogRecord("llog", level, "", 0, message, None, None))

    log(logging.INFO, "first")
    log(logging.INFO, "second")
    assert stream.getvalue() == ""
    await until(stream.getvalue, "the first lines")
    assert stream.getvalue() == "first\nsecond\n"
    log(logging.INFO, "third")
    log(logging.WARNING, "fourth")
    assert stream.getvalue().endswith("third\nfourth\n")
    log(logging.INFO, "fifth")
    await asyncio.to_thread(log, logging.INFO, "from a thread: no loop there")
    await until(lambda: stream.getvalue().count("\n") == 6, "the line of the loop and the line of the thread")


async def test_lines_that_wait_are_bounded() -> None:
    stream = io.StringIO()
    handler = GatheredLines(stream, delay_ms=60_000)
    for number in range(LOG_LINES_WAITING_MAX):
        handler.handle(logging.LogRecord("llog", logging.INFO, "", 0, str(number), None, None))
    assert stream.getvalue().count("\n") == LOG_LINES_WAITING_MAX


# -- the description ---------------------------------------------------------------------------------------------------


async def test_the_description_names_every_route_and_its_bodies() -> None:
    async with client_of(BrokerDouble()) as client:
        body = (await client.get("/schema/openapi.json")).json()
    assert {"/produce", "/consume", "/health", "/ready", "/metrics", "/metrics/prometheus", "/offsets/commit"} <= set(
        body["paths"]
    )
    produce = body["paths"]["/produce"]["post"]
    reference = produce["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    name = reference.rpartition("/")[2]
    assert body["components"]["schemas"][name]["required"] == ["topic_partitions"]
    assert {"200", "400", "409", "413", "503"} <= set(produce["responses"])
    references = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(body)))
    assert references <= set(body["components"]["schemas"])


def test_the_description_has_a_page_for_people() -> None:
    assert openapi_config("llog", "1").path == "/schema"


def test_an_application_can_be_built_again() -> None:
    broker = BrokerDouble()
    assert build_app(broker) is not build_app(broker)
