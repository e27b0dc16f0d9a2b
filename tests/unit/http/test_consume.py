from __future__ import annotations

import asyncio
import base64
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import InconsistentReadState
from llog.formats.record_batch import patch_offsets, walk
from llog.formats.records import decode_records, encode_records
from llog.http.app import build_app
from llog.http.consume import texts
from llog.http.plain_show import is_plain_json, shown_plain
from llog.http.schemas import ConsumedRecord
from llog.log.keys import Log
from tests.unit.http.broker_double import BrokerDouble, Client, batch, client_of, consume_body, produce_body


async def test_the_answer_is_the_documented_one() -> None:
    async with client_of(BrokerDouble()) as client:
        await client.post("/produce", json=produce_body(batch("orders", 0, "alpha", {"base64": "/wE="})))
        answer = await client.post("/consume", json=consume_body("orders", 0, 1, max_wait_ms=250, min_bytes=1))
    assert answer.status_code == 200
    assert answer.json() == {
        "results": [
            {
                "topic": "orders",
                "partition": 0,
                "ok": True,
                "fetch_offset": 1,
                "high_watermark": 2,
                "next_fetch_offset": 3,
                "records": [{"offset": 1, "payload": "alpha"}, {"offset": 2, "payload": {"base64": "/wE="}}],
            }
        ],
        "success_count": 1,
        "error_count": 0,
    }


async def test_text_comes_as_text_and_bytes_that_happen_to_decode_as_base64() -> None:
    umlauts = base64.b64encode("Käse\n\t1".encode()).decode()
    records = ({"base64": umlauts}, {"base64": "AAE="}, "plain", {"base64": "/w=="})
    async with client_of(BrokerDouble()) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, *records)))
        told = (await client.post("/consume", json=consume_body("t", 0, 1))).json()
    payloads = [record["payload"] for record in told["results"][0]["records"]]
    assert payloads == ["Käse\n\t1", {"base64": "AAE="}, "plain", {"base64": "/w=="}]


async def test_failing_partitions_do_not_harm_their_neighbours() -> None:
    broker = BrokerDouble()
    broker.failing[Log("t", 1)] = InconsistentReadState("t", 1, "torn")
    async with client_of(broker) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a"), batch("t", 1, "b")))
        wanted = [
            {"topic": "t", "partition": 0, "fetch_offset": 1},
            {"topic": "t", "partition": 1, "fetch_offset": 1},
            {"topic": "t", "partition": 2, "fetch_offset": 1},
            {"topic": "none", "partition": 0, "fetch_offset": 1},
        ]
        out_of_range = (await client.post("/consume", json=consume_body("t", 0, 9))).json()["results"][0]
        answer = await client.post("/consume", json={"topic_partitions": wanted})
    told = answer.json()
    assert answer.status_code == 200
    assert (told["success_count"], told["error_count"]) == (1, 3)
    assert [result.get("error_type") for result in told["results"]] == [
        None,
        "InconsistentReadState",
        "PartitionNotInitialized",
        "PartitionNotInitialized",
    ]
    assert all(result["ok"] is False and result["error"] for result in told["results"][1:])
    assert (out_of_range["error_type"], out_of_range["log_start_offset"], out_of_range["high_watermark"]) == (
        "OffsetOutOfRange",
        1,
        1,
    )


async def test_a_poll_waits_for_the_next_record() -> None:
    async with client_of(BrokerDouble()) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        poll = asyncio.create_task(client.post("/consume", json=consume_body("t", 0, 2, max_wait_ms=10_000)))
        await asyncio.sleep(0.05)
        assert not poll.done()
        await client.post("/produce", json=produce_body(batch("t", 0, "b")))
        told = (await asyncio.wait_for(poll, 5)).json()
    assert [record["payload"] for record in told["results"][0]["records"]] == ["b"]


async def test_a_stop_ends_polls_that_wait() -> None:
    app = build_app(BrokerDouble())
    async with Client(app) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        started = time.monotonic()
        poll = asyncio.create_task(client.post("/consume", json=consume_body("t", 0, 2, max_wait_ms=30_000)))
        await asyncio.sleep(0.05)
        app.begin_stop()
        answer = await asyncio.wait_for(poll, 5)
        assert answer.status_code == 200
        assert answer.json()["results"][0]["records"] == []
        assert time.monotonic() - started < 5
        assert (await client.get("/ready")).status_code == 503
        assert (await client.post("/produce", json=produce_body(batch("t", 0, "b")))).status_code == 503


GOOD = {"topic": "t", "partition": 0, "fetch_offset": 1}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "topic_partitions"),
        ({"topic_partitions": []}, "topic_partitions"),
        ({"topic_partitions": [{"topic": "t", "partition": 0}]}, "topic_partitions[0].fetch_offset"),
        ({"topic_partitions": [GOOD, {**GOOD, "fetch_offset": False}]}, "topic_partitions[1].fetch_offset"),
        ({"topic_partitions": [GOOD, {**GOOD, "fetch_offset": -1}]}, "topic_partitions[1].fetch_offset"),
        ({"topic_partitions": [{**GOOD, "topic": "a b"}]}, "topic_partitions[0].topic"),
        ({"topic_partitions": [{**GOOD, "partition_max_bytes": 0}]}, "topic_partitions[0].partition_max_bytes"),
        ({"topic_partitions": [GOOD, GOOD]}, "topic_partitions[1]"),
        ({"topic_partitions": [GOOD], "max_wait_ms": True}, "max_wait_ms"),
        ({"topic_partitions": [GOOD], "max_wait_ms": -1}, "max_wait_ms"),
        ({"topic_partitions": [GOOD], "max_wait_ms": 10**9}, "max_wait_ms"),
        ({"topic_partitions": [GOOD], "min_bytes": "1"}, "min_bytes"),
        ({"topic_partitions": [GOOD], "max_bytes": 0}, "max_bytes"),
        ({"topic_partitions": [GOOD], "max_byte": 5}, "max_byte"),
    ],
)
async def test_a_malformed_request_is_refused_and_the_field_named(body: object, field: str) -> None:
    async with client_of(BrokerDouble()) as client:
        answer = await client.post("/consume", json=body)
    assert answer.status_code == 400
    assert answer.json()["field"] == field


@settings(deadline=None)  # the first example may compile a kernel
@given(
    st.lists(st.text(alphabet=st.characters(max_codepoint=0x100), max_size=40), min_size=1, max_size=20),
    st.integers(0, 2**62),
    st.integers(0, 19),
)
def test_plain_records_are_shown_alike_with_and_without_an_object_each(
    payloads: list[str], first: int, skipped: int
) -> None:
    batch = bytearray(encode_records([text.encode() for text in payloads], timestamps_ms=5))
    patch_offsets(batch, walk(batch, "test"), first, 0)
    columns = decode_records(batch, "test").from_row(skipped % len(payloads))
    one_by_one = msgspec.json.encode(list(map(ConsumedRecord, columns.offsets.tolist(), texts(columns.values))))
    if is_plain_json(columns.values):
        assert b"[%b]" % bytes(shown_plain(columns)) == one_by_one
    else:
        assert any(ord(letter) >= 0x7F or ord(letter) < 0x20 or letter in '"\\' for letter in "".join(payloads))


def test_what_json_escapes_is_not_plain() -> None:
    for text, plain in (
        ("", True),
        ("a b~", True),
        ('"', False),
        ("\\", False),
        ("\t", False),
        ("\x7f", False),
        ("ä", False),
    ):
        columns = decode_records(encode_records([b"x", text.encode(), b"y"], timestamps_ms=5), "test")
        assert is_plain_json(columns.values) is plain, text
