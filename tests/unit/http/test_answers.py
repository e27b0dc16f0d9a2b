"""The memory of all answers is bounded, and returned."""

from __future__ import annotations

import pytest

from llog.broker.produce.pool import MemoryPool
from llog.errors import InvalidArgument, RequestOverload
from llog.http.json.decode import HTTP_BODY_STRINGS_MAX, decoded_produce
from llog.http.json.schemas import HTTP_CONSUME_BYTES_DEFAULT, HTTP_CONSUME_BYTES_MAX
from llog.http.routes.app import build_app
from llog.http.routes.runtime import (
    HTTP_ANSWERS_BYTES_MAX,
    HTTP_INLINE_BYTES_MAX,
    HTTP_SMALL_BODY_BYTES_MAX,
    AnswerShare,
)
from llog.http.routes.tail import HTTP_TAIL_BYTES
from llog.listener import http1
from llog.listener.connection import SEND_CHECK_MS_MIN, SEND_TIMEOUT_MS, Connection
from llog.listener.http1 import SEND_PIECE_BYTES
from tests.unit.http.broker_double import BrokerDouble, Client, batch, client_of, consume_body, produce_body


def test_an_answer_that_does_not_fit_is_refused_and_its_memory_is_returned() -> None:
    pool = MemoryPool(100)
    first, second = AnswerShare(pool), AnswerShare(pool)
    first.hold(60)
    with pytest.raises(RequestOverload):
        second.hold(50)
    assert pool.used == 60
    first.shrink(20)
    second.hold(50)
    second.hold(10)  # at least: it holds more already
    assert pool.used == 70
    first.give()
    first.give()
    second.give()
    assert pool.used == 0


def test_an_answer_larger_than_the_pool_gets_all_of_it_when_it_is_empty() -> None:
    pool = MemoryPool(100)
    share = AnswerShare(pool)
    share.hold(1_000)
    assert pool.used == 100
    with pytest.raises(RequestOverload):
        AnswerShare(pool).hold(1)
    share.give()
    assert pool.used == 0


async def test_a_consumer_is_refused_while_answers_use_all_memory_and_served_afterwards() -> None:
    app = build_app(BrokerDouble())
    pool = app.runtime.answers
    async with Client(app) as client:
        assert (await client.post("/produce", json=produce_body(batch("t", 0, "alpha")))).status_code == 200
        assert pool.try_take(HTTP_ANSWERS_BYTES_MAX)
        refused = await client.post("/consume", json=consume_body("t", 0, 1))
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert refused.json()["error_type"] == "RequestOverload"
        pool.give(HTTP_ANSWERS_BYTES_MAX)
        answer = await client.post("/consume", json=consume_body("t", 0, 1))
        assert [record["payload"] for record in answer.json()["results"][0]["records"]] == ["alpha"]
    assert pool.used == 0, "the memory of a taken answer was not returned"


async def test_a_large_answer_is_written_in_pieces_and_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    drains: list[int] = []
    drain = Connection.drain

    async def counted(connection: Connection) -> None:
        drains.append(connection.transport.get_write_buffer_size())
        await drain(connection)

    payload = "x" * (3 * SEND_PIECE_BYTES)
    async with client_of(BrokerDouble()) as client:
        assert (await client.post("/produce", json=produce_body(batch("t", 0, payload)))).status_code == 200
        monkeypatch.setattr(Connection, "drain", counted)
        answer = await client.post("/consume", json=consume_body("t", 0, 1))
        assert answer.json()["results"][0]["records"][0]["payload"] == payload
    assert len(drains) >= 4, "a connection that is given everything at once keeps it"
    assert max(drains) <= 2 * SEND_PIECE_BYTES


async def test_while_a_store_is_in_trouble_nothing_is_accepted_and_the_answer_says_so() -> None:
    broker = BrokerDouble()
    broker.trouble = "the object store is in trouble"
    async with client_of(broker) as client:
        refused = await client.post("/produce", json=produce_body(batch("t", 0, "alpha")))
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert "the object store is in trouble; nothing was accepted" in refused.json()["error"]
        broker.trouble = ""
        assert (await client.post("/produce", json=produce_body(batch("t", 0, "alpha")))).status_code == 200


def test_a_body_of_too_many_strings_is_refused_before_it_is_decoded() -> None:
    def body(records: int, record: bytes) -> bytes:
        listed = b",".join([record] * records)
        return b'{"topic_partitions":[{"topic":"t","partition":0,"records":[%b]}]}' % listed

    with pytest.raises(InvalidArgument, match="HTTP_BODY_STRINGS_MAX"):
        decoded_produce(body(HTTP_BODY_STRINGS_MAX + 10, b'"ab"'))
    # Quotes inside of a string are no strings.
    quoted = body(30, b'"' + b'\\"' * (HTTP_BODY_STRINGS_MAX // 10) + b'"')
    assert len(decoded_produce(quoted).topic_partitions[0].records) == 30


def test_limits_fit_each_other() -> None:
    assert HTTP_CONSUME_BYTES_DEFAULT <= HTTP_CONSUME_BYTES_MAX <= HTTP_ANSWERS_BYTES_MAX
    assert HTTP_TAIL_BYTES * 4 <= HTTP_ANSWERS_BYTES_MAX
    assert HTTP_INLINE_BYTES_MAX < HTTP_SMALL_BODY_BYTES_MAX
    assert SEND_CHECK_MS_MIN < SEND_TIMEOUT_MS
    assert http1.DISCARD_MS_MAX < http1.KEEP_ALIVE_MS
    assert http1.READ_AHEAD_BYTES_MAX <= HTTP_SMALL_BODY_BYTES_MAX
