from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.broker.consume.consume import PartitionFetched
from llog.broker.consume.request import decode_partition
from llog.errors import FormatError, InconsistentReadState, OffsetOutOfRange
from llog.formats.buffers import Buffer
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import Codec, patch_offsets, walk
from llog.http.json.consume_answer import PlainAnswer, answer_of, shown_columns, texts
from llog.http.json.schemas import ConsumedRecord
from llog.http.routes.app import build_app
from llog.log.keys import Log
from tests.patience import PATIENCE_SECONDS
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
        body = (await client.post("/consume", json=consume_body("t", 0, 1))).json()
    payloads = [record["payload"] for record in body["results"][0]["records"]]
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
    body = answer.json()
    assert answer.status_code == 200
    assert (body["success_count"], body["error_count"]) == (1, 3)
    assert [result.get("error_type") for result in body["results"]] == [
        None,
        "InconsistentReadState",
        "PartitionNotInitialized",
        "PartitionNotInitialized",
    ]
    assert all(result["ok"] is False and result["error"] for result in body["results"][1:])
    assert (out_of_range["error_type"], out_of_range["log_start_offset"], out_of_range["high_watermark"]) == (
        "OffsetOutOfRange",
        1,
        1,
    )


async def test_a_poll_waits_for_the_next_record() -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        poll = asyncio.create_task(client.post("/consume", json=consume_body("t", 0, 2, max_wait_ms=60_000)))
        await broker.poll_waits()
        await client.post("/produce", json=produce_body(batch("t", 0, "b")))
        body = (await asyncio.wait_for(poll, PATIENCE_SECONDS)).json()
    assert [record["payload"] for record in body["results"][0]["records"]] == ["b"]


async def test_a_stop_ends_polls_that_wait() -> None:
    broker = BrokerDouble()
    app = build_app(broker)
    async with Client(app) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        poll = asyncio.create_task(client.post("/consume", json=consume_body("t", 0, 2, max_wait_ms=60_000)))
        await broker.poll_waits()
        app.begin_stop()
        answer = await asyncio.wait_for(poll, 30)  # half of what it might wait
        assert answer.status_code == 200
        assert answer.json()["results"][0]["records"] == []
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


def untimed_batch(payloads: Sequence[bytes | None], offset: int = 0, *, untimed: bool = True, **more: Any) -> bytes:
    """Of records without a timestamp of their producer: the batch has the log's."""
    batch = bytearray(encode_records(payloads, timestamps_ms=5, **more))
    batch[22] |= 0x08 if untimed else 0
    patch_offsets(batch, walk(batch, "test"), offset, 0)
    return bytes(batch)


LETTERS = st.characters(max_codepoint=0x2FF) | st.sampled_from('"\\\n\t\r\x7f~ €😀')
PAYLOADS = st.text(alphabet=LETTERS, max_size=60).map(str.encode) | st.binary(max_size=20)


@settings(deadline=None)  # the first example may compile a kernel
@given(st.lists(st.lists(PAYLOADS, min_size=1, max_size=20), min_size=1, max_size=3), st.integers(0, 2**62), st.data())
def test_an_answer_is_the_same_made_from_batches_from_columns_and_record_by_record(
    batches: list[list[bytes]], start: int, data: st.DataObject
) -> None:
    encoded: list[Buffer] = []
    offset = start
    for payloads in batches:
        encoded.append(untimed_batch(payloads, offset))
        offset += len(payloads)
    fetch_offset = data.draw(st.integers(start, offset - 1))
    partition = PartitionFetched(Log("t", 0), fetch_offset, offset - 1, offset, batches=encoded)
    other = PartitionFetched(Log("t", 1), 9, error=OffsetOutOfRange("t", 1, 9, 1, 5))
    plain = PlainAnswer()
    records = plain([partition, other])
    decoded = decode_partition(partition)
    assert not isinstance(decoded, FormatError)
    runs = decoded.runs
    columns = [run.columns for run in runs]
    shown = [
        ConsumedRecord(*row) for run in columns for row in zip(run.offsets.tolist(), texts(run.values), strict=True)
    ]
    one_by_one = msgspec.json.encode(shown)
    partition.runs = runs
    answer = msgspec.json.encode(answer_of([partition, other]))
    assert msgspec.json.encode(msgspec.json.decode(answer)["results"][0]["records"]) == one_by_one
    if plain.text is None:
        assert records is None
        assert escaped(shown) or b"base64" in one_by_one
    else:
        assert bytes(plain.text) == answer
        assert records == len(shown)


def escaped(shown: Sequence[ConsumedRecord]) -> bool:
    """Tiny records, and those with much that is escaped, may take more room than an answer made in one go has."""
    return len(msgspec.json.encode(shown)) > 2 * sum(len(str(record.payload)) for record in shown)


def test_an_answer_that_grows_beyond_its_room_is_left_to_others() -> None:
    """Tiny records take several times their bytes: from some number of them on there is no room, wherever it ends."""
    made = set()
    for count in range(1, 80):
        batch = untimed_batch([b"x"] * count)
        partitions = [PartitionFetched(Log("t", p), 0, count - 1, count, batches=[batch]) for p in range(3)]
        plain = PlainAnswer()
        shown = plain(partitions)
        assert shown in (None, 3 * count)
        made.add(shown is not None)
        if plain.text is not None:
            assert len(msgspec.json.decode(plain.text)["results"][2]["records"]) == count
    assert made == {True, False}


@pytest.mark.parametrize(
    ("payload", "is_plain"),
    [(b"", True), (b"a b~", True), (b'"', True), (b"\\", True), (b"\t\r\n", True), ("ä€😀".encode(), True)]
    + [(text, False) for text in (b"\x7f", b"\x00", b"\x1f", b"\xff", "ä".encode()[:1], b"\xed\xa0\x80", b"\xc0\xaf")],
)
def test_texts_are_plain_and_bytes_are_not(payload: bytes, is_plain: bool) -> None:
    for before in range(9):  # at every place of a word
        columns = decode_records(encode_records([b"x" * before + payload, b"y" * 99], timestamps_ms=5), "test")
        assert (shown_columns(columns) is not None) is is_plain, payload


@pytest.mark.parametrize("keyed", ["key", "header", "time", "null", "compressed", "cut"])
def test_records_with_more_than_a_text_are_decoded(keyed: str) -> None:
    batch = untimed_batch(
        [b"x" * 200, None if keyed == "null" else b"y" * 200],
        keys=[None, b"k"] if keyed == "key" else None,
        headers=[[], [("h", b"v")]] if keyed == "header" else None,
        untimed=keyed != "time",
        codec=Codec.GZIP if keyed == "compressed" else Codec.NONE,
    )
    plain = PlainAnswer()
    batches: list[Buffer] = [batch[:-1] if keyed == "cut" else batch]
    assert plain([PartitionFetched(Log("t", 0), 0, 1, 2, batches=batches)]) is None
    assert plain.text is None
