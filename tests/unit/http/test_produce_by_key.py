"""Produce without a partition: the keys choose, and the answer says where each record went."""

from __future__ import annotations

import random
from typing import Any

import pytest

from llog import partition_of_key
from llog.errors import MetadataUnavailable
from llog.http.json import produce_encode
from llog.log.fence import fence
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from tests.unit.http.broker_double import BrokerDouble, Client, batch, client_of, consume_body, produce_body

PARTITIONS = 5


def keyed(topic: str, *records: object, **more: object) -> dict[str, object]:
    return {"topic": topic, "records": list(records), **more}


async def broker_with(topic: str = "t", partitions: int = PARTITIONS) -> BrokerDouble:
    broker = BrokerDouble()
    await create_topic(broker.context, topic, partitions=partitions)
    return broker


async def read(client: Client, topic: str, partition: int) -> list[dict[str, Any]]:
    page = (await client.post("/consume", json=consume_body(topic, partition, 1))).json()
    return list(page["results"][0].get("records", []))


async def test_every_record_lands_in_the_partition_of_its_key_and_the_answer_says_where() -> None:
    rng = random.Random(1)
    records = [{"key": f"key-{rng.randrange(30)}", "value": f"v{number}"} for number in range(200)]
    async with client_of(await broker_with()) as client:
        answer = await client.post("/produce", json=produce_body(keyed("t", *records)))
        logs = {partition: await read(client, "t", partition) for partition in range(PARTITIONS)}
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [result["partition"] for result in results] == sorted({result["partition"] for result in results})
    seen: list[int] = []
    for result in results:
        assert result["batch"] == 0
        assert len(result["records"]) == result["count"] == result["end_offset"] - result["start_offset"] + 1
        assert result["records"] == sorted(result["records"]), "records of one key keep their order"
        stored = {record["offset"]: record for record in logs[result["partition"]]}
        for offset, number in enumerate(result["records"], start=result["start_offset"]):
            sent = records[number]
            assert (stored[offset]["key"], stored[offset]["payload"]) == (sent["key"], sent["value"])
            assert partition_of_key(sent["key"].encode(), PARTITIONS) == result["partition"]
        seen += result["records"]
    assert sorted(seen) == list(range(200))


async def test_batches_with_and_without_a_partition_stand_in_one_request() -> None:
    records = [{"key": {"base64": "/w=="}, "base64": "AAE=", "headers": {"h": "1"}, "timestamp_ms": 17}] * 2
    async with client_of(await broker_with()) as client:
        body = produce_body(batch("t", 0, "plain"), keyed("t", *records), batch("other", 1, {"value": "x"}))
        results = (await client.post("/produce", json=body)).json()["results"]
        partition = partition_of_key(b"\xff", PARTITIONS)
        stored = await read(client, "t", partition)
    assert [(result["topic"], result["batch"], result.get("records")) for result in results] == [
        ("t", 0, None),
        ("t", 1, [0, 1]),
        ("other", 2, None),
    ]
    assert results[1]["partition"] == partition
    assert stored[-1]["headers"] == {"h": "1"}
    assert stored[-1]["timestamp_ms"] == 17


async def test_without_such_a_batch_the_answer_is_as_it_was() -> None:
    async with client_of(await broker_with()) as client:
        [result] = (await client.post("/produce", json=produce_body(batch("t", 0, {"key": "k", "value": "v"})))).json()[
            "results"
        ]
    assert "batch" not in result
    assert "records" not in result


async def test_a_topic_that_does_not_exist_is_created_with_one_partition() -> None:
    async with client_of(BrokerDouble()) as client:
        body = produce_body(keyed("new", *({"key": str(n), "value": "v"} for n in range(20))))
        [result] = (await client.post("/produce", json=body)).json()["results"]
        assert (result["partition"], result["count"]) == (0, 20)
        for count in (3, 7):
            await client.post("/topics/new/partitions", json={"count": count})
            results = (await client.post("/produce", json=body)).json()["results"]
            expected = {partition_of_key(str(n).encode(), count) for n in range(20)}
            assert {result["partition"] for result in results} == expected, "added partitions count at once"


@pytest.mark.parametrize(
    ("wrong", "field", "reason"),
    [
        (keyed("t", {"key": "k", "value": "v"}, "text"), "records[1].key", "every record a key"),
        (keyed("t", {"key": "k", "value": "v"}, {"key": None, "value": "v"}), "records[1].key", "partition"),
        (keyed("t", "text"), "records[0].key", "partition"),
        (keyed("t", {"value": "v"}), "records[0].key", "partition"),
        (keyed("t", {"key": "k"}), "records[0].value", "missing"),
        (keyed("t", {"key": "k", "value": "v"}, producer_id=1, epoch=0, sequence=0), "partition", "one log"),
        (keyed("t", {"key": "k", "value": "v"}, sequence=0), "partition", "one log"),
        (keyed("t", {"key": "k", "value": "v"}, partition=None), "partition", "null"),
        (keyed("..", {"key": "k", "value": "v"}), "topic", ""),
    ],
)
async def test_a_batch_that_needs_a_partition_is_refused_and_nothing_is_stored(
    wrong: dict[str, object], field: str, reason: str
) -> None:
    broker = await broker_with()
    async with client_of(broker) as client:
        answer = await client.post("/produce", json=produce_body(batch("t", 0, "fine"), wrong))
        assert answer.status_code == 400
        assert answer.json()["field"] == f"topic_partitions[1].{field}"
        assert reason in answer.json()["error"]
        assert await read(client, "t", 0) == []


async def test_partitions_fail_by_themselves() -> None:
    broker = await broker_with()
    records = [{"key": str(number), "value": "v"} for number in range(40)]
    closed = partition_of_key(b"0", PARTITIONS)
    async with client_of(broker) as client:
        await client.post("/produce", json=produce_body(*(batch("t", number, "first") for number in range(PARTITIONS))))
        await fence(broker.context, Log("t", closed))
        answer = await client.post("/produce", json=produce_body(keyed("t", *records)))
    assert answer.status_code == 409
    page = answer.json()
    assert (page["success_count"], page["error_count"]) == (PARTITIONS - 1, 1)
    [failed] = [result for result in page["results"] if not result["ok"]]
    assert (failed["partition"], failed["error_type"], failed["batch"]) == (closed, "LogFenced", 0)
    assert 0 in failed["records"]


async def test_a_topic_that_cannot_be_read_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await broker_with()

    async def away(*_: object, **__: object) -> None:
        raise MetadataUnavailable("get", "topic")

    monkeypatch.setattr(broker.context.metadata, "get", away)
    async with client_of(broker) as client:
        answer = await client.post("/produce", json=produce_body(keyed("t", {"key": "k", "value": "v"})))
    assert (answer.status_code, answer.json()["error_type"]) == (503, "MetadataUnavailable")
    assert answer.headers["retry-after"]


async def test_keys_that_lead_to_too_many_partitions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_encode, "HTTP_TOPIC_PARTITIONS_MAX", 2)
    async with client_of(await broker_with()) as client:
        records = ({"key": str(number), "value": "v"} for number in range(40))
        answer = await client.post("/produce", json=produce_body(keyed("t", *records)))
    assert (answer.status_code, answer.json()["field"]) == (400, "topic_partitions")


@pytest.mark.parametrize("name", ["payload", "value"])
async def test_a_record_can_be_sent_as_it_was_received(name: str) -> None:
    sent = {"key": "k", name: "v", "headers": {"h": "1"}, "timestamp_ms": 5}
    async with client_of(await broker_with()) as client:
        assert (await client.post("/produce", json=produce_body(batch("t", 0, sent)))).status_code == 200
        [received] = await read(client, "t", 0)
        assert received.pop("offset") == 1
        assert (await client.post("/produce", json=produce_body(batch("t", 1, received)))).status_code == 200
        [again] = await read(client, "t", 1)
    assert {**again, "offset": 0} == {**received, "offset": 0}


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"payload": "a", "value": "a"}, "value"),
        ({"payload": "a", "base64": "AA=="}, "payload"),
        ({"payload": None, "value": None}, "value"),
        ({}, "value"),
    ],
)
async def test_a_record_has_one_payload(record: dict[str, object], field: str) -> None:
    async with client_of(await broker_with()) as client:
        answer = await client.post("/produce", json=produce_body(batch("t", 0, record)))
    assert (answer.status_code, answer.json()["field"]) == (400, f"topic_partitions[0].records[0].{field}")
