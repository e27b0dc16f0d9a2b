from __future__ import annotations

import time

import pytest

from llog.log.keys import Log
from llog.log.topics.delete import delete_topic
from tests.unit.http.broker_double import BrokerDouble, batch, client_of, produce_body


async def test_a_topic_is_created_listed_described_altered_grown_and_deleted() -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        made = await client.post("/topics", json={"topic": "t", "partitions": 2, "config": {"retention.ms": 1_000}})
        assert made.status_code == 201
        assert (made.json()["partitions"], made.json()["config"]) == (2, {"retention.ms": "1000"})
        assert (await client.post("/topics", json={"topic": "t"})).status_code == 409
        assert [topic["topic"] for topic in (await client.get("/topics")).json()["topics"]] == ["t"]

        change = {"config": {"retention.ms": None, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.25}}
        altered = await client.patch("/topics/t", json=change)
        assert altered.status_code == 200
        assert altered.json()["config"] == {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.25"}

        assert (await client.post("/topics/t/partitions", json={"count": 3})).json()["partitions"] == 3
        assert (await client.post("/topics/t/partitions", json={"count": 1})).status_code == 400
        await client.post("/produce", json=produce_body(batch("t", 2, "a", "b")))
        described = (await client.get("/topics/t")).json()
        rows = [tuple(row.values()) for row in described["partitions"]]
        assert rows == [(0, "OPEN", 1, 1), (1, "OPEN", 1, 1), (2, "OPEN", 1, 3)]

        answer = await client.delete("/topics/t", params={"dry_run": "true"})
        assert answer.json() == {
            "topic": "t", "dry_run": True, "partitions": 3, "entries_removed": 1, "segments_removed": 0,
        }  # fmt: skip
        assert (await client.get("/topics/t")).status_code == 200
        assert broker.changed == []
        gone = await client.delete("/topics/t")
        assert gone.json()["dry_run"] is False
        assert gone.json()["entries_removed"] == 1
        assert broker.changed == [Log("t", 0), Log("t", 1), Log("t", 2)]
        assert (await client.get("/topics/t")).status_code == 404
        assert (await client.delete("/topics/t")).status_code == 404


async def test_a_misspelt_query_never_deletes() -> None:
    async with client_of(BrokerDouble()) as client:
        await client.post("/topics", json={"topic": "t"})
        for query in ("dryrun=true", "dry-run=1", "dry_run=maybe"):
            answer = await client.delete(f"/topics/t?{query}")
            assert answer.status_code == 400, query
            assert answer.json()["field"] == query.partition("=")[0]
        assert (await client.get("/topics/t")).status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"topic": "a/b"}, "topic"),
        ({"topic": "t", "partitions": 0}, "partitions"),
        ({"topic": "t", "partitions": True}, "partitions"),
        ({"topic": "t", "partitions": 9}, "partitions"),
        ({"topic": "t", "config": {"retention.ms": "soon"}}, "config retention.ms"),
        ({"topic": "t", "config": {"no.such": "1"}}, "config 'no.such'"),
        ({"topic": "t", "partition": 1}, "partition"),
        ({}, "topic"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused_and_the_field_named(body: object, field: str) -> None:
    async with client_of(BrokerDouble()) as client:
        answer = await client.post("/topics", json=body)
    assert answer.status_code == 400
    assert answer.json()["field"] == field


async def test_a_log_is_fenced_and_unfenced() -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        fenced = await client.post("/topics/t/partitions/0/fence", json={"reason": "moving"})
        assert fenced.json() == {"topic": "t", "partition": 0, "state": "FENCED", "epoch": 1}
        refused = await client.post("/produce", json=produce_body(batch("t", 0, "b")))
        assert refused.status_code == 409
        assert "moving" in refused.json()["results"][0]["error"]
        opened = await client.post("/topics/t/partitions/0/unfence")
        assert (opened.json()["state"], opened.json()["epoch"]) == ("OPEN", 2)
        # A repeat of the first fence, by epoch, changes nothing any more.
        again = await client.post("/topics/t/partitions/0/fence", json={"expected_epoch": 0})
        assert (again.json()["state"], again.json()["epoch"]) == ("OPEN", 2)
        assert (await client.post("/topics/t/partitions/5/fence")).status_code == 404
        assert (await client.post("/topics/t/partitions/-1/fence")).status_code == 400
        assert (await client.post("/topics/t/partitions/x/fence")).status_code == 404
    assert broker.changed[0] == Log("t", 0)


async def test_offsets_are_found_by_timestamp_and_records_deleted() -> None:
    async with client_of(BrokerDouble()) as client:
        records = [{"value": str(n), "timestamp_ms": 1_000 + n} for n in range(5)]
        await client.post("/produce", json=produce_body(batch("t", 0, *records)))
        assert (await client.get("/topics/t/partitions/0/offsets")).json() == {
            "topic": "t", "partition": 0, "log_start_offset": 1, "next_offset": 6,
        }  # fmt: skip
        found = (await client.get("/topics/t/partitions/0/offsets", params={"timestamp_ms": 1_002})).json()
        assert (found["timestamp_ms"], found["offset"], found["record_timestamp_ms"]) == (1_002, 3, 1_002)
        none = (await client.get("/topics/t/partitions/0/offsets", params={"timestamp_ms": 9_999})).json()
        assert none["offset"] is None
        for bad in ("-1", "x", "1.5"):
            answer = await client.get(f"/topics/t/partitions/0/offsets?timestamp_ms={bad}")
            assert answer.status_code == 400
            assert answer.json()["field"] == "timestamp_ms"

        done = await client.post("/topics/t/partitions/0/delete-records", json={"before_offset": 4})
        assert done.json()["log_start_offset"] == 4
        assert (
            await client.post("/topics/t/partitions/0/delete-records", json={"before_offset": 99})
        ).status_code == 416
        assert (await client.post("/topics/t/partitions/0/delete-records", json={})).json()["field"] == "before_offset"
        assert (await client.get("/topics/t/partitions/9/offsets")).status_code == 404


async def test_positions_of_a_group_are_kept_and_told() -> None:
    async with client_of(BrokerDouble()) as client:
        await client.post("/topics", json={"topic": "t", "partitions": 2})
        wanted = [
            {"topic": "t", "partition": 0, "offset": 5, "metadata": "here"},
            {"topic": "t", "partition": 1, "offset": 0},
        ]
        kept = await client.post("/offsets/commit", json={"group": "g", "offsets": wanted})
        assert kept.status_code == 200
        assert kept.json()["success_count"] == 2
        logs = [{"topic": "t", "partition": 0}, {"topic": "none", "partition": 0}]
        body = (await client.post("/offsets/fetch", json={"group": "g", "topic_partitions": logs})).json()
        assert (body["offsets"][0]["offset"], body["offsets"][0]["metadata"]) == (5, "here")
        assert body["offsets"][1]["offset"] is None
        all_of_them = (await client.post("/offsets/fetch", json={"group": "g"})).json()
        assert sorted(row["partition"] for row in all_of_them["offsets"]) == [0, 1]
        partly = await client.post(
            "/offsets/commit",
            json={"group": "g", "offsets": [wanted[0], {"topic": "none", "partition": 0, "offset": 1}]},
        )
        assert partly.status_code == 409
        assert [row["ok"] for row in partly.json()["results"]] == [True, False]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"offsets": []}, "offsets"),
        ({"group": "", "offsets": []}, "group"),
        ({"group": "g", "offsets": []}, "offsets"),
        ({"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": True}]}, "offsets[0].offset"),
        ({"group": "g", "offsets": [{"topic": "?", "partition": 0, "offset": 1}]}, "offsets[0].topic"),
        ({"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 1}] * 2}, "offsets[1]"),
        ({"group": "ß" * 100, "offsets": [{"topic": "t", "partition": 0, "offset": 1}]}, "group"),
    ],
)
async def test_positions_that_cannot_be_are_refused_and_the_field_named(body: object, field: str) -> None:
    async with client_of(BrokerDouble()) as client:
        answer = await client.post("/offsets/commit", json=body)
    assert answer.status_code == 400
    assert answer.json()["field"] == field


async def test_topics_are_listed_page_by_page() -> None:
    async with client_of(BrokerDouble()) as client:
        for name in ("d", "b", "a", "c"):
            await client.post("/topics", json={"topic": name})
        await client.delete("/topics/b")
        first = (await client.get("/topics", params={"limit": 2})).json()
        assert ([topic["topic"] for topic in first["topics"]], first["next_after"]) == (["a", "c"], "c")
        second = (await client.get("/topics", params={"limit": 2, "after": "c"})).json()
        assert [topic["topic"] for topic in second["topics"]] == ["d"]
        assert "next_after" not in second
        exactly = (await client.get("/topics", params={"limit": 3})).json()
        assert "next_after" not in exactly


async def test_a_record_larger_than_its_topic_takes_is_refused_for_its_batch_alone() -> None:
    async with client_of(BrokerDouble()) as client:
        await client.post("/topics", json={"topic": "t", "partitions": 2, "config": {"max.message.bytes": 500}})
        body = produce_body(batch("t", 0, "a"), batch("t", 0, "x" * 500), batch("t", 1, "b"), batch("t", 0, "c"))
        answer = await client.post("/produce", json=body)
        assert answer.status_code == 409
        page = [(row.get("start_offset"), row.get("error_type")) for row in answer.json()["results"]]
        assert page == [(1, None), (None, "RecordTooLarge"), (1, None), (2, None)]
        alone = await client.post("/produce", json=produce_body(batch("t", 1, "x" * 500)))
        assert (alone.status_code, alone.json()["error_count"]) == (409, 1)


async def test_the_description_says_that_max_message_bytes_is_of_a_record_and_not_of_a_batch() -> None:
    async with client_of(BrokerDouble()) as client:
        schemas = (await client.get("/schema/openapi.json")).json()["components"]["schemas"]
    for name in ("TopicCreate", "TopicAlter"):
        words = schemas[name]["properties"]["config"]["description"]
        assert "`max.message.bytes` is the largest record" in words


async def test_a_timestamp_outside_the_window_of_its_topic_is_refused_for_its_batch_alone() -> None:
    now_ms = time.time_ns() // 1_000_000
    config = {"message.timestamp.before.max.ms": 60_000, "message.timestamp.after.max.ms": 60_000}
    async with client_of(BrokerDouble()) as client:
        await client.post("/topics", json={"topic": "t", "partitions": 2, "config": config})
        old, soon = stamped(now_ms - 120_000), stamped(now_ms + 120_000)
        batches = (batch("t", 0, "a"), batch("t", 0, old, stamped(now_ms)), batch("t", 1, stamped(now_ms), soon))
        answer = await client.post("/produce", json=produce_body(*batches, batch("t", 0, stamped(now_ms - 5_000))))
        assert answer.status_code == 409
        rows = answer.json()["results"]
        assert [(row.get("start_offset"), row.get("error_type")) for row in rows] == [
            (1, None), (None, "TimestampOutOfWindow"), (None, "TimestampOutOfWindow"), (2, None),
        ]  # fmt: skip
        assert f"t:0: a record has the timestamp {now_ms - 120_000}" in rows[1]["error"]
        assert "message.timestamp.before.max.ms=60000" in rows[1]["error"]
        assert f"t:1: a record has the timestamp {now_ms + 120_000}" in rows[2]["error"]
        alone = await client.post("/produce", json=produce_body(batch("t", 1, old)))
        assert alone.status_code == 409


async def test_a_record_more_than_an_hour_ahead_is_refused_by_default_and_an_old_one_is_not() -> None:
    now_ms = time.time_ns() // 1_000_000
    async with client_of(BrokerDouble()) as client:
        ahead = await client.post("/produce", json=produce_body(batch("t", 0, stamped(now_ms + 2 * 3_600_000))))
        assert ahead.json()["results"][0]["error_type"] == "TimestampOutOfWindow"
        old = await client.post("/produce", json=produce_body(batch("t", 0, stamped(0), stamped(now_ms + 60_000))))
        assert old.status_code == 200


def stamped(timestamp_ms: int) -> dict[str, object]:
    return {"value": "x", "timestamp_ms": timestamp_ms}


async def test_configs_without_effect_are_named_where_a_topic_is_shown() -> None:
    config = {"segment.bytes": 1_048_576, "retention.ms": 5, "compression.type": "zstd"}
    idle = ["compression.type", "segment.bytes"]
    async with client_of(BrokerDouble()) as client:
        made = await client.post("/topics", json={"topic": "t", "config": config})
        assert made.json()["without_effect"] == idle
        assert (await client.get("/topics/t")).json()["without_effect"] == idle
        assert (await client.get("/topics")).json()["topics"][0]["without_effect"] == idle
        altered = await client.patch("/topics/t", json={"config": {"segment.bytes": None}})
        assert altered.json()["without_effect"] == ["compression.type"]
        refused = await client.post("/topics", json={"topic": "u", "config": {"message.format.version": "2.8"}})
        assert refused.status_code == 400
        assert "Kafka 4.0 removed it" in refused.json()["error"]


async def test_produce_adds_partitions_only_to_a_topic_that_it_created() -> None:
    async with client_of(BrokerDouble()) as client:
        await client.post("/topics", json={"topic": "made", "partitions": 3})
        answer = await client.post("/produce", json=produce_body(batch("made", 50, "a")))
        assert (answer.status_code, answer.json()["results"][0]["error_type"]) == (409, "PartitionOutOfRange")
        assert "the topic has 3 partitions" in answer.json()["results"][0]["error"]
        assert len((await client.get("/topics/made")).json()["partitions"]) == 3

        assert (await client.post("/produce", json=produce_body(batch("own", 0, "a")))).status_code == 200
        assert (await client.post("/produce", json=produce_body(batch("own", 5, "a")))).status_code == 200
        described = (await client.get("/topics/own")).json()
        assert (len(described["partitions"]), described["auto_created"]) == (6, True)
        far = await client.post("/produce", json=produce_body(batch("far", 1_023, "a")))
        assert "would create it with 8 partitions (LLOG_TOPIC_PARTITIONS_MAX)" in far.json()["results"][0]["error"]
        assert (await client.get("/topics/far")).status_code == 404


async def test_the_first_produce_after_a_deletion_succeeds() -> None:
    broker = BrokerDouble()
    async with client_of(broker) as client:
        for number in range(3):
            answer = await client.post("/produce", json=produce_body(batch("t", 0, f"life-{number}")))
            assert answer.status_code == 200, answer.text
            assert answer.json()["results"][0]["start_offset"] == 1
            await delete_topic(broker.context, "t")  # by another process
