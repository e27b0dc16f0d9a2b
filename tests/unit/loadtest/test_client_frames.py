"""Prepared requests are what a broker expects, and answers are understood."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llog.http.json.plain_scan import scan
from llog.kafka.codec import decode, encode_bytes, read_request_head
from llog.kafka.codec.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from llog.kafka.error_codes import ErrorCode
from llog.loadtest.client.http_raw import HttpWire
from llog.loadtest.client.kafka_raw import PRODUCE_VERSION, KafkaWire
from llog.loadtest.client.stamp import parse_stamps, run_hash, stamp
from llog.loadtest.client.streams import Group, StreamPlan
from llog.loadtest.client.wire import Identity, Request, Stream, Verdict
from llog.loadtest.scenario.model import Records
from tests.unit.loadtest.fake_brokers import FakeKafkaBroker, Store, read_batch, topic_id

RUN = run_hash("run")
DUE_S = 1_750_000_000.25
PARTITIONS = (7, 70_000, 3)
IDENTITY = Identity(123_456_789_012_345_678, 2)


class Answering:
    """A connection to a broker in memory."""

    async def ask(self, request: bytes) -> bytes:
        import asyncio

        reader = asyncio.StreamReader()
        reader.feed_data(request)
        answer = await FakeKafkaBroker(Store())._answer(reader)
        assert answer is not None
        return answer[9:]


async def kafka_wire(records: Records) -> KafkaWire:
    wire = KafkaWire(RUN, records, ["other", "load"], 30.0)
    await wire.prepare(Answering())
    return wire


def sent(wire: Any, stream: Stream, sequence: int) -> bytes:
    stream.next_sequence = sequence
    request = Request(stream, DUE_S, DUE_S, IDENTITY, wire.frame(stream))
    wire.fill(request, 12)
    data = bytes(request.data)
    wire.give_back(request.frame)
    return data


def stream(batch_records: int = 100) -> Stream:
    return Stream(StreamPlan(0, Group(1, "load", PARTITIONS, (0,)), batch_records, 1.0, 0.0))


def expected_stamps(partition: int, sequence: int, count: int = 100) -> list[bytes]:
    due_us = round(DUE_S * 1e6)
    return [stamp(RUN, 12, 1, partition, sequence + number, due_us) for number in range(count)]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_a_kafka_frame_holds_valid_batches_for_its_partitions(compression: Any) -> None:
    own = stream()
    wire = await kafka_wire(Records(bytes=200, keys=50, compression=compression))
    for sequence in (0, 2**31 + 5):
        frame = sent(wire, own, sequence)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        head = read_request_head(frame[4:])
        message = decode(ProduceRequest, head.api_version, frame, 4 + head.body)
        assert message.acks == -1
        [topic] = message.topic_data
        assert bytes(topic.topic_id) == topic_id("load")
        assert tuple(data.index for data in topic.partition_data) == PARTITIONS
        for data in topic.partition_data:
            batch = read_batch("load", data.index, data.records)
            assert (batch.producer_id, batch.epoch, batch.sequence) == (*IDENTITY, sequence % 2**31)
            assert [value[:62] for value in batch.values] == expected_stamps(data.index, sequence)
            assert {len(value) for value in batch.values} == {200}
            assert all(key is not None and len(key) == 12 and int(key) < 50 for key in batch.keys)
            assert len(set(batch.keys)) > 10


async def test_a_kafka_batch_of_one_small_record_is_valid() -> None:
    own = stream(batch_records=1)
    frame = sent(await kafka_wire(Records(bytes=96)), own, 3)
    message = decode(ProduceRequest, PRODUCE_VERSION, frame, 4 + read_request_head(frame[4:]).body)
    for data in message.topic_data[0].partition_data:
        batch = read_batch("load", data.index, data.records)
        assert batch.values[0][:62] == expected_stamps(data.index, 3, 1)[0]
        assert batch.keys == [None]


def test_an_http_request_is_plain_json_with_stamped_records() -> None:
    own, wire = stream(), HttpWire(RUN, Records(bytes=200))
    for sequence in (0, 99_999):
        head, _, body = sent(wire, own, sequence).partition(b"\r\n\r\n")
        assert head.startswith(b"POST /produce HTTP/1.1\r\n")
        assert f"content-length: {len(body)}".encode() in head
        assert scan(body) is not None, "brokers read plain bodies faster than others"
        batches = json.loads(body)["topic_partitions"]
        assert tuple(batch["partition"] for batch in batches) == PARTITIONS
        for batch in batches:
            assert batch["topic"] == "load"
            assert (batch["producer_id"], batch["epoch"], batch["sequence"]) == (*IDENTITY, sequence)
            values = [record.encode() for record in batch["records"]]
            assert [value[:62] for value in values] == expected_stamps(batch["partition"], sequence)
            assert {len(value) for value in values} == {200}


def test_an_http_request_with_keys_has_a_key_for_every_record() -> None:
    body = sent(HttpWire(RUN, Records(bytes=96, keys=3)), stream(), 0).partition(b"\r\n\r\n")[2]
    records = [record for batch in json.loads(body)["topic_partitions"] for record in batch["records"]]
    assert {int(record["key"]) for record in records} == {0, 1, 2}
    assert {len(record["payload"]) for record in records} == {96}


@pytest.mark.parametrize("compressibility", [0.0, 0.5, 1.0])
def test_a_value_repeats_as_much_as_the_scenario_says(compressibility: float) -> None:
    body = sent(HttpWire(RUN, Records(bytes=1_062, compressibility=compressibility)), stream(1), 0)
    value = json.loads(body.partition(b"\r\n\r\n")[2])["topic_partitions"][0]["records"][0]
    assert value.endswith("x" * round(1_000 * compressibility))
    assert len(parse_stamps(value.encode(), RUN).sequence) == 1
    assert value.count(";") == 1


# -- answers -----------------------------------------------------------------------------------------------------------


def kafka_answer(*codes: int) -> bytearray:
    answers = [PartitionProduceResponse(number, code) for number, code in enumerate(codes)]
    body = encode_bytes(ProduceResponse([TopicProduceResponse(partition_responses=answers)]), PRODUCE_VERSION)
    return bytearray((len(body) + 5).to_bytes(4, "big") + bytes(5) + body)


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ((0, 0), Verdict.ACCEPTED),
        ((0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER), Verdict.ACCEPTED),
        ((0, ErrorCode.NOT_LEADER_OR_FOLLOWER), Verdict.RETRY),
        ((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0), Verdict.EARLIER_MISSING),
        ((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.NOT_ENOUGH_REPLICAS), Verdict.RETRY),
        ((ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.NOT_ENOUGH_REPLICAS), Verdict.FORGOTTEN),
        ((ErrorCode.MESSAGE_TOO_LARGE, 0), Verdict.REFUSED),
        ((12_345,), Verdict.REFUSED),
    ],
)
def test_the_worst_partition_decides_about_a_kafka_request(codes: tuple[int, ...], verdict: Verdict) -> None:
    wire, data = KafkaWire(RUN, Records(), ["load"], 30.0), kafka_answer(*codes)
    assert wire.measure(data[:3]) is None
    span = wire.measure(data + b"next")
    assert span == (9, len(data))
    assert wire.outcome(data, *span).verdict is verdict


def http_answer(status: int, content: object) -> bytearray:
    body = json.dumps(content).encode()
    return bytearray(b"HTTP/1.1 %d X\r\nServer: s\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)


@pytest.mark.parametrize(
    ("status", "errors", "verdict"),
    [
        (200, ["", ""], Verdict.ACCEPTED),
        (409, ["", "DuplicateSequence"], Verdict.ACCEPTED),
        (409, ["", "OutOfOrderSequence"], Verdict.EARLIER_MISSING),
        (409, ["AppendUncertain", "OutOfOrderSequence"], Verdict.RETRY),
        (409, ["UnknownProducer", "AppendUncertain"], Verdict.FORGOTTEN),
        (409, ["", "RecordTooLarge"], Verdict.REFUSED),
        (503, ["AppendNotCommitted"], Verdict.RETRY),
    ],
)
def test_the_worst_batch_decides_about_an_http_request(status: int, errors: list[str], verdict: Verdict) -> None:
    wire = HttpWire(RUN, Records())
    data = http_answer(status, {"results": [{"ok": not error, "error_type": error} for error in errors]})
    assert wire.measure(data[:20]) is None
    span = wire.measure(data)
    assert span is not None
    assert span[1] == len(data)
    assert wire.outcome(data, *span).verdict is verdict


@pytest.mark.parametrize(("status", "verdict"), [(503, Verdict.RETRY), (500, Verdict.RETRY), (413, Verdict.REFUSED)])
def test_an_http_error_names_its_status_and_type(status: int, verdict: Verdict) -> None:
    wire, data = HttpWire(RUN, Records()), http_answer(status, {"error_type": "SomeError", "error": "x"})
    span = wire.measure(data)
    assert span is not None
    assert wire.outcome(data, *span) == (verdict, f"{status} SomeError")
