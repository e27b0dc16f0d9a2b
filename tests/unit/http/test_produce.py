from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pytest

from llog.broker.produce.producer import TimedOutcomes, Timings
from llog.errors import AppendNotCommitted, AppendUncertain, LogError, LogFenced
from llog.log.append.append import EncodedGroup
from llog.log.fence import fence
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.topics.admin import create_topic
from tests.unit.http.broker_double import BrokerDouble, batch, client_of, consume_body, produce_body


async def test_records_of_two_partitions_get_offsets_from_1_and_say_where_they_are() -> None:
    async with client_of(BrokerDouble()) as client:
        body = produce_body(batch("orders", 0, "alpha", "beta"), batch("orders", 1, {"base64": "AAE="}))
        answer = await client.post("/produce", json=body)
    assert answer.status_code == 200
    page = answer.json()
    assert (page["success_count"], page["error_count"]) == (2, 0)
    first, second = page["results"]
    assert list(first) == ["topic", "partition", "ok", "start_offset", "end_offset", "count", "index_key", "wal_uri"]
    assert (first["topic"], first["partition"], first["ok"]) == ("orders", 0, True)
    assert (first["start_offset"], first["end_offset"], first["count"]) == (1, 2, 2)
    assert first["index_key"] == "llog/orders/partitions/0/index/00000000000000000002"
    assert "/llog/wal-shared/" in first["wal_uri"]
    assert first["wal_uri"] == second["wal_uri"]
    assert (second["partition"], second["start_offset"], second["end_offset"]) == (1, 1, 1)


async def test_one_log_named_twice_is_appended_in_order_with_an_outcome_each() -> None:
    async with client_of(BrokerDouble()) as client:
        body = produce_body(batch("t", 0, "a", "b"), batch("t", 1, "x"), batch("t", 0, "c"))
        page = (await client.post("/produce", json=body)).json()
        read = (await client.post("/consume", json=consume_body("t", 0, 1))).json()
    assert [(r["partition"], r["start_offset"], r["end_offset"]) for r in page["results"]] == [
        (0, 1, 2),
        (1, 1, 1),
        (0, 3, 3),
    ]
    assert [record["payload"] for record in read["results"][0]["records"]] == ["a", "b", "c"]


@pytest.mark.parametrize("encoding", ["kafka-v2", "bytes-batch-v1"])
async def test_both_encodings_take_plain_and_full_records_and_logs_named_twice(encoding: str) -> None:
    broker = BrokerDouble(encoding=encoding)
    async with client_of(broker) as client:
        for records in (["a", {"base64": "/w=="}], [{"key": "k", "value": "b"}]):
            answer = await client.post("/produce", json=produce_body(batch("t", 0, *records)))
            assert answer.status_code == 200, answer.text
        twice = await client.post("/produce", json=produce_body(batch("t", 0, "c"), batch("t", 0, "d")))
        assert twice.status_code == 200, twice.text
        read = (await client.post("/consume", json=consume_body("t", 0, 1))).json()
    payloads = [record["payload"] for record in read["results"][0]["records"]]
    assert payloads == ["a", {"base64": "/w=="}, "b", "c", "d"]


async def test_keys_headers_and_timestamps_come_back_and_plain_records_stay_plain() -> None:
    full = {
        "key": {"base64": "/wA="},
        "value": "v",
        "headers": {"a": "1", "b": ["2", {"base64": "/w=="}, None]},
        "timestamp_ms": 17,
    }
    async with client_of(BrokerDouble()) as client:
        records = (full, {"key": "k", "value": None}, {"base64": "AAE=", "key": "k"})
        await client.post(
            "/produce", json=produce_body(batch("t", 0, *records), batch("t", 1, "plain", {"value": "é"}))
        )
        answer = [
            (await client.post("/consume", json=consume_body("t", p, 1))).json()["results"][0]["records"]
            for p in (0, 1)
        ]
    assert answer[0][0] == {
        "offset": 1,
        "payload": "v",
        "key": {"base64": "/wA="},
        "headers": {"a": "1", "b": ["2", {"base64": "/w=="}, None]},
        "timestamp_ms": 17,
    }
    assert answer[0][1]["payload"] is None
    assert answer[0][1]["key"] == "k"
    assert "headers" not in answer[0][1]
    assert answer[0][2]["payload"] == {"base64": "AAE="}
    assert answer[1] == [{"offset": 1, "payload": "plain"}, {"offset": 2, "payload": "é"}]


async def test_a_repeat_of_a_numbered_batch_answers_the_first_offsets() -> None:
    async with client_of(BrokerDouble()) as client:
        body = produce_body(batch("t", 0, "a", "b", producer_id=7, epoch=0, sequence=0))
        first = (await client.post("/produce", json=body)).json()["results"][0]
        await client.post("/produce", json=produce_body(batch("t", 0, "other")))
        again = (await client.post("/produce", json=body)).json()["results"][0]
        skipped = await client.post(
            "/produce", json=produce_body(batch("t", 0, "c", producer_id=7, epoch=0, sequence=9))
        )
    assert (again["start_offset"], again["end_offset"]) == (first["start_offset"], first["end_offset"]) == (1, 2)
    assert again["repeated"] is True
    assert "repeated" not in first
    assert skipped.status_code == 409
    assert skipped.json()["results"][0]["error_type"] == "OutOfOrderSequence"


async def test_a_fenced_partition_fails_alone_with_409() -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        await fence(broker.context, Log("t", 0))
        answer = await client.post("/produce", json=produce_body(batch("t", 0, "b"), batch("t", 1, "c")))
    body = answer.json()
    assert answer.status_code == 409
    assert (body["success_count"], body["error_count"]) == (1, 1)
    assert list(body["results"][0]) == ["topic", "partition", "ok", "error_type", "error"]
    assert (body["results"][0]["ok"], body["results"][0]["error_type"]) == (False, LogFenced.__name__)
    assert body["results"][1]["ok"] is True


async def test_a_full_pool_is_answered_with_503_and_nothing_is_held() -> None:
    broker = BrokerDouble(pool_bytes=1_000)
    async with client_of(broker) as client:
        # The body fits, what it is encoded as does not.
        many = await client.post("/produce", json=produce_body(batch("t", 0, *["x"] * 150)))
        assert many.status_code == 503
        assert many.headers["retry-after"] == "1"
        assert [result["error_type"] for result in many.json()["results"]] == ["BackPressureRejected"]
        # Not even the body fits.
        huge = await client.post("/produce", json=produce_body(batch("t", 0, "x" * 2_000)))
        assert huge.status_code == 503
        assert huge.headers["retry-after"] == "1"
        assert broker.pool.used == 0
        assert broker.metrics.counted == {"batching_rejections": 1}, (
            "the producer counts rejections of its own, and never saw this one"
        )
        fine = await client.post("/produce", json=produce_body(batch("t", 0, "x")))
        assert fine.status_code == 200
        assert broker.pool.used == 0


async def test_a_body_is_not_counted_twice_while_it_is_appended() -> None:
    broker = BrokerDouble(pool_bytes=1_500)
    async with client_of(broker) as client:
        answer = await client.post("/produce", json=produce_body(batch("t", 0, "x" * 1_000)))
    assert answer.status_code == 200
    assert 1_000 < broker.in_pool[0] < 1_200


async def test_a_body_over_the_limit_is_answered_with_413() -> None:
    broker = BrokerDouble(http_body_max_bytes=1_024)
    async with client_of(broker) as client:
        declared = await client.post("/produce", json=produce_body(batch("t", 0, "x" * 2_000)))

        async def chunks() -> Any:
            for _ in range(4):
                yield b" " * 500

        streamed = await client.post("/produce", content=chunks())
    assert declared.status_code == streamed.status_code == 413
    assert declared.json()["error_type"] == "RequestTooLarge"
    assert "LLOG_HTTP_BODY_MAX_BYTES" in declared.json()["error"]
    assert broker.pool.used == 0


@pytest.mark.parametrize("body_bytes", [100, 3_000_000])
@pytest.mark.parametrize(
    ("record", "field"),
    [
        (5, "topic_partitions[1].records[2]"),
        (None, "topic_partitions[1].records[2]"),
        ({"base64": "A*E="}, "topic_partitions[1].records[2].base64"),
        ({"base64": "AAE"}, "topic_partitions[1].records[2].base64"),
        ({"base64": 5}, "topic_partitions[1].records[2].base64"),
        ({"base64": "AAE=", "value": "x"}, "topic_partitions[1].records[2].value"),
        ({"key": "k"}, "topic_partitions[1].records[2].value"),
        ({"valu": "k"}, "topic_partitions[1].records[2].valu"),
        ({"value": "v", "timestamp_ms": True}, "topic_partitions[1].records[2].timestamp_ms"),
        ({"value": "v", "timestamp_ms": -1}, "topic_partitions[1].records[2].timestamp_ms"),
        ({"value": "v", "headers": {"a": 5}}, "topic_partitions[1].records[2].headers[...]"),
        ({"value": "v", "key": {"base64": "*"}}, "topic_partitions[1].records[2].key.base64"),
    ],
)
async def test_a_bad_record_is_named_whatever_the_size_of_the_body(record: object, field: str, body_bytes: int) -> None:
    broker = BrokerDouble()
    filler = "x" * (body_bytes // 2)
    async with client_of(broker) as client:
        body = produce_body(batch("t", 0, filler), batch("t", 1, filler, "b", record))
        answer = await client.post("/produce", json=body)
        read = await client.post("/consume", json=consume_body("t", 0, 1))
    assert answer.status_code == 400, answer.text
    assert answer.json()["field"] == field
    # Refused whole: the batch before it was not appended either.
    assert read.json()["results"][0]["error_type"] == "PartitionNotInitialized"


GOOD = batch("t", 0, "a")


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({**GOOD, "partition": True}, "topic_partitions[1].partition"),
        ({**GOOD, "partition": -1}, "topic_partitions[1].partition"),
        ({**GOOD, "partition": 1.0}, "topic_partitions[1].partition"),
        ({**GOOD, "partition": "0"}, "topic_partitions[1].partition"),
        ({**GOOD, "partition": 2**31}, "topic_partitions[1].partition"),
        ({**GOOD, "topic": ""}, "topic_partitions[1].topic"),
        ({**GOOD, "topic": "a/b"}, "topic_partitions[1].topic"),
        ({**GOOD, "topic": ".."}, "topic_partitions[1].topic"),
        ({**GOOD, "topic": "wal-shared"}, "topic_partitions[1].topic"),
        ({**GOOD, "topic": "x" * 250}, "topic_partitions[1].topic"),
        ({**GOOD, "records": []}, "topic_partitions[1].records"),
        ({**GOOD, "records": "a"}, "topic_partitions[1].records"),
        ({"topic": "t", "partition": 0}, "topic_partitions[1].records"),
        ({"partition": 0, "records": ["a"]}, "topic_partitions[1].topic"),
        ({**GOOD, "extra": 1}, "topic_partitions[1].extra"),
        ({**GOOD, "producer_id": 1}, "topic_partitions[1].epoch"),
        ({**GOOD, "producer_id": 1, "epoch": 0}, "topic_partitions[1].sequence"),
        ({**GOOD, "producer_id": 1, "epoch": 2**15, "sequence": 0}, "topic_partitions[1].epoch"),
        ("text", "topic_partitions[1]"),
    ],
)
async def test_a_bad_batch_is_named(bad: Any, field: str) -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        answer = await client.post("/produce", json={"topic_partitions": [GOOD, bad]})
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert (body["field"], body["error_type"]) == (field, "InvalidArgument")
    assert body["error"].startswith(field)
    [(route, label)] = broker.metrics.fields
    assert route == "/produce"
    assert "[1]" not in label
    assert "extra" not in label


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"null", "body"),
        (b"\xff", "body"),
        (b'{"topic_partitions": [{"topic": "t", "partition": 0, "records": ["\xff"]}]}', "body"),
        (
            b'{"topic_partitions": [{"topic": "t", "partition": 0, "records": ["\\ud800"]}]}',
            "topic_partitions[0].records[0]",
        ),
        (b"{}", "topic_partitions"),
        (b'{"topic_partitions": []}', "topic_partitions"),
        (b'{"topic_partitions": {}}', "topic_partitions"),
        (b'{"topic_partition": []}', "topic_partition"),
        (b'{"topic_partitions": ' + b"[" * 100_000, "topic_partitions[0]"),
        (b'{"x": ' + b"[" * 5_000_000, "x"),
    ],
)
async def test_a_body_that_is_no_request_is_refused_with_400(text: bytes, field: str) -> None:
    async with client_of(BrokerDouble()) as client:
        answer = await client.post("/produce", content=text)
    assert answer.status_code == 400
    assert answer.json()["field"] == field


async def test_an_encoded_body_is_refused() -> None:
    async with client_of(BrokerDouble()) as client:
        answer = await client.post("/produce", content=b"x", headers={"content-encoding": "gzip"})
    assert answer.status_code == 400
    assert "content-encoding" in answer.json()["error"]


async def test_a_large_request_keeps_every_record_in_its_place() -> None:
    payloads = [[f"{p}-{n}-" + "x" * 1_000 for n in range(600)] for p in range(3)]
    raw = [{"base64": base64.b64encode(f"{n}\xff".encode("latin-1") * 300).decode()} for n in range(800)]
    async with client_of(BrokerDouble()) as client:
        body = produce_body(*(batch("t", p, *payloads[p]) for p in range(3)), batch("t", 3, *raw))
        assert (await client.post("/produce", json=body)).status_code == 200
        wanted = [{"topic": "t", "partition": p, "fetch_offset": 1} for p in range(4)]
        page = (await client.post("/consume", json={"topic_partitions": wanted})).json()["results"]
    assert [[record["payload"] for record in page[p]["records"]] for p in range(3)] == payloads
    assert [record["payload"] for record in page[3]["records"]] == raw


class FailingAppends(BrokerDouble):
    """Partition 0 fails with `error`; the others land."""

    def __init__(self, error: type[LogError]) -> None:
        super().__init__()
        self._error = error

    async def produce(self, groups: Sequence[EncodedGroup]) -> TimedOutcomes:
        kept = [group for group in groups if group.log.partition]
        landed = iter((await super().produce(kept)).outcomes if kept else ())
        outcomes = [next(landed) if group.log.partition else self._error(*group.log, "store away") for group in groups]
        return TimedOutcomes(outcomes, Timings(1.0, 2.0, 3.0))


@pytest.mark.parametrize(
    ("error", "partitions", "status", "again"),
    [
        (AppendNotCommitted, [0], 503, "1"),
        (AppendUncertain, [0], 503, None),  # it may have happened
        (AppendNotCommitted, [0, 1], 409, None),  # repeating the request would store partition 1 twice
        (LogFenced, [0], 409, None),
    ],
)
async def test_a_store_that_fails_every_batch_is_503_from_the_first_failure(
    error: type[LogError], partitions: list[int], status: int, again: str | None
) -> None:
    async with client_of(FailingAppends(error)) as client:
        body = produce_body(*[batch("t", partition, "a") for partition in partitions])
        answer = await client.post("/produce", json=body)
    assert (answer.status_code, answer.headers.get("retry-after")) == (status, again)
    assert answer.json()["results"][0]["error_type"] == error.__name__


async def test_a_topic_with_log_append_time_sets_the_time_of_the_write() -> None:
    broker = BrokerDouble()
    config = {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "1"}
    await create_topic(broker.context, "t", partitions=2, config=config)
    async with client_of(broker) as client:
        before_ms = broker.context.now_ms()
        stamped = {"value": "v", "key": "k", "timestamp_ms": 17}
        for body in (batch("t", 0, stamped, "plain"), batch("t", 0, stamped), batch("t", 0, "plain")):
            answer = await client.post("/produce", json=produce_body(body))
            assert answer.status_code == 200, answer.text
        read = (await client.post("/consume", json=consume_body("t", 0, 1))).json()["results"][0]["records"]
    runs = [run async for run in iter_runs(broker.context, Log("t", 0), 1)]
    times = [record.timestamp_ms for run in runs for record in run.records()]
    assert len(times) == len(read) == 4
    assert all(before_ms <= time_ms <= broker.context.now_ms() for time_ms in times)
