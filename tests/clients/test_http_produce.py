"""What the seeds say of `POST /produce`, against a running broker."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from llog import partition_of_key
from tests.clients.http_calls import (
    Json,
    Running,
    a_batch,
    consumed,
    payloads,
    post_produce,
    produced,
    refused_field,
    running,
    unused_topic,
    wanted,
)
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow


# -- what is accepted ------------------------------------------------------------------------------------------------


def test_without_a_partition_the_key_chooses_it_as_the_command_line_does(broker: Running, topic: str) -> None:
    http = broker.http
    assert http.post("/topics", json={"topic": topic, "partitions": 6}).status_code == 201
    keys = [f"user-{number}" for number in range(303)]
    results = produced(http, {"topic": topic, "records": [{"key": key, "payload": "http"} for key in keys]})
    chosen = {keys[row]: result["partition"] for result in results for row in result["records"]}
    assert chosen == {key: partition_of_key(key.encode(), 6) for key in keys}
    lines = "".join(f"{key}:cli\n" for key in keys).encode()
    settings = {"LLOG_DATA_DIR": str(broker.directory / "data"), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "llog", "produce", topic, "--key-separator", ":"]
    subprocess.run(command, input=lines, env={**os.environ, **settings}, check=True, timeout=PATIENCE_SECONDS)
    for sent in results:
        records: list[Json] = []
        while len(records) < 2 * sent["count"]:
            [found] = consumed(http, wanted(topic, sent["partition"], len(records) + 1), max_wait_ms=1_000)
            records += found["records"]
        assert {chosen[record["key"]] for record in records} == {sent["partition"]}
        assert Counter(record["payload"] for record in records) == {"http": sent["count"], "cli": sent["count"]}


def test_one_request_carries_many_partitions_and_many_records_of_each(http: httpx.Client, topic: str) -> None:
    results = produced(http, a_batch(topic, 0, "a", "b"), a_batch(topic, 1, "c"), a_batch(f"{topic}-other", 7, "d"))
    assert [(result["topic"], result["partition"], result["count"]) for result in results] == [
        (topic, 0, 2),
        (topic, 1, 1),
        (f"{topic}-other", 7, 1),
    ]
    assert (payloads(http, topic, 0), payloads(http, topic, 1)) == (["a", "b"], ["c"])
    assert payloads(http, f"{topic}-other", 7) == ["d"]


def test_a_string_is_stored_as_its_utf_8_bytes(http: httpx.Client, topic: str) -> None:
    texts = ["plain", "größer", "日本語", "🜁", ""]
    produced(http, a_batch(topic, 0, *texts))
    assert payloads(http, topic) == texts
    encoded = {"base64": "Z3LDtsOfZXI="}  # the UTF-8 bytes of the second
    produced(http, a_batch(topic, 0, encoded))
    assert payloads(http, topic, fetch_offset=6) == ["größer"]


def test_a_base64_object_is_stored_as_the_bytes_it_stands_for(http: httpx.Client, topic: str) -> None:
    records = [{"base64": "AAE="}, {"base64": "/////w=="}, {"base64": ""}]
    produced(http, a_batch(topic, 0, *records))
    assert payloads(http, topic) == [{"base64": "AAE="}, {"base64": "/////w=="}, ""]


def test_strings_and_base64_objects_may_stand_in_one_batch(http: httpx.Client, topic: str) -> None:
    [result] = produced(http, a_batch(topic, 0, "alpha", {"base64": "AAE="}))
    assert result["count"] == 2
    assert payloads(http, topic) == ["alpha", {"base64": "AAE="}]


def test_the_content_type_of_a_request_does_not_matter(http: httpx.Client, topic: str) -> None:
    body = f'{{"topic_partitions": [{{"topic": "{topic}", "partition": 0, "records": ["x"]}}]}}'
    for content_type in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        assert http.post("/produce", content=body, headers={"content-type": content_type}).status_code == 200
    assert payloads(http, topic) == ["x"] * 3


# -- the answer ------------------------------------------------------------------------------------------------------


def test_the_answer_is_exactly_as_the_contract_shows_it(http: httpx.Client, topic: str) -> None:
    answer = post_produce(http, a_batch(topic, 0, "alpha", {"base64": "AAE="}))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["results", "success_count", "error_count"]
    assert (body["success_count"], body["error_count"]) == (1, 0)
    [result] = body["results"]
    wal_uri = result.pop("wal_uri")
    assert result == {
        "topic": topic,
        "partition": 0,
        "ok": True,
        "start_offset": 1,
        "end_offset": 2,
        "count": 2,
        "index_key": f"llog/{topic}/partitions/0/index/00000000000000000002",
    }
    assert "/llog/wal-shared/" in wal_uri


def test_the_wal_uri_names_an_object_that_is_there_under_a_uuid(broker: Running, topic: str) -> None:
    [result] = produced(broker.http, a_batch(topic, 0, "a record that can be found in its blob"))
    scheme, _, path = result["wal_uri"].partition("://")
    assert scheme == "file"
    uuid.UUID(path.rpartition("/")[2])
    with open(path, "rb") as blob:
        stored = blob.read()
    assert stored.startswith(b"LLS1")
    assert b"a record that can be found in its blob" in stored


def test_offsets_start_at_1_in_every_partition_and_go_on_without_gaps(http: httpx.Client, topic: str) -> None:
    for first, last in ((1, 3), (4, 6)):
        results = produced(http, a_batch(topic, 0, "a", "b", "c"), a_batch(topic, 1, "d", "e", "f"))
        assert [(result["start_offset"], result["end_offset"]) for result in results] == [(first, last)] * 2


def test_an_index_entry_is_keyed_by_the_end_offset_of_its_batch(http: httpx.Client, topic: str) -> None:
    for count in (1, 4, 2):
        [result] = produced(http, a_batch(topic, 5, *"x" * count))
        assert result["index_key"] == f"llog/{topic}/partitions/5/index/{result['end_offset']:020d}"
        assert result["end_offset"] - result["start_offset"] + 1 == result["count"] == count


def test_the_batches_of_one_request_share_one_wal_object(http: httpx.Client, topic: str) -> None:
    batches = [a_batch(topic, partition, "x") for partition in range(5)]
    produced(http, *batches)  # makes the logs; those that are met for the first time do not wait for each other
    assert len({result["wal_uri"] for result in produced(http, *batches)}) == 1


def test_one_log_may_be_named_by_several_batches_of_a_request_and_each_is_answered(
    http: httpx.Client, topic: str
) -> None:
    results = produced(http, a_batch(topic, 0, "a"), a_batch(topic, 1, "x"), a_batch(topic, 0, "b", "c"))
    assert [(result["partition"], result["start_offset"], result["end_offset"]) for result in results] == [
        (0, 1, 1),
        (1, 1, 1),
        (0, 2, 3),
    ]
    assert payloads(http, topic) == ["a", "b", "c"]


def test_what_is_acknowledged_can_be_read_at_once_at_its_offset(http: httpx.Client, topic: str) -> None:
    for number in range(10):
        [result] = produced(http, a_batch(topic, 0, f"record {number}"))
        [read] = consumed(http, wanted(topic, 0, result["start_offset"]))
        assert read["records"] == [{"offset": result["start_offset"], "payload": f"record {number}"}]


# -- partitions are made when they are first written to ----------------------------------------------------------------


def test_a_partition_is_initialized_by_its_first_write(http: httpx.Client, topic: str) -> None:
    [before] = consumed(http, wanted(topic, 0, 1))
    assert before["error_type"] == "PartitionNotInitialized"
    produced(http, a_batch(topic, 0, "x"))
    assert payloads(http, topic) == ["x"]


def test_later_writes_skip_looking_whether_the_partition_exists(broker: Running, topic: str) -> None:
    produced(broker.http, a_batch(topic, 0, "x"))
    before = broker.metric("metadata.operations.get.calls") + broker.metric("metadata.operations.get_many.items")
    for _ in range(20):
        produced(broker.http, a_batch(topic, 0, "x"))
    after = broker.metric("metadata.operations.get.calls") + broker.metric("metadata.operations.get_many.items")
    assert after - before < 10, "reads of metadata, for 20 appends"


def test_initialization_is_idempotent_for_writers_that_come_at_once(http: httpx.Client, topic: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        answer = list(threads.map(lambda n: produced(http, a_batch(topic, 0, f"record {n}"))[0], range(16)))
    assert sorted(result["start_offset"] for result in answer) == list(range(1, 17))


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"topic_partitions": [',
        b"not json",
        b'{"topic_partitions": [{"topic": "t", "partition": 0, "records": ["\xff"]}]}',
        b"[" * 100_000,
    ],
)
def test_malformed_json_is_400(http: httpx.Client, body: bytes) -> None:
    refused_field(http.post("/produce", content=body))


_GOOD: Json = {"topic": "t", "partition": 0, "records": ["x"]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ("text", "body"),
        ({}, "topic_partitions"),
        ({"topic_partitions": []}, "topic_partitions"),
        ({"topic_partitions": {}}, "topic_partitions"),
        ({"topic_partitions": [_GOOD], "extra": 1}, "extra"),
        ({"topic_partitions": [_GOOD | {"topic": ""}]}, "topic_partitions[0].topic"),
        ({"topic_partitions": [_GOOD | {"topic": 7}]}, "topic_partitions[0].topic"),
        ({"topic_partitions": [_GOOD | {"topic": "a/b"}]}, "topic_partitions[0].topic"),
        ({"topic_partitions": [_GOOD | {"topic": ".."}]}, "topic_partitions[0].topic"),
        ({"topic_partitions": [_GOOD | {"topic": "x" * 250}]}, "topic_partitions[0].topic"),
        ({"topic_partitions": [{"partition": 0, "records": ["x"]}]}, "topic_partitions[0].topic"),
        ({"topic_partitions": [_GOOD | {"partition": -1}]}, "topic_partitions[0].partition"),
        ({"topic_partitions": [_GOOD | {"partition": True}]}, "topic_partitions[0].partition"),
        ({"topic_partitions": [_GOOD | {"partition": "0"}]}, "topic_partitions[0].partition"),
        ({"topic_partitions": [_GOOD | {"partition": 0.5}]}, "topic_partitions[0].partition"),
        ({"topic_partitions": [_GOOD | {"partition": None}]}, "topic_partitions[0].partition"),
        ({"topic_partitions": [_GOOD | {"records": []}]}, "topic_partitions[0].records"),
        ({"topic_partitions": [_GOOD | {"records": "x"}]}, "topic_partitions[0].records"),
        ({"topic_partitions": [{"topic": "t", "partition": 0}]}, "topic_partitions[0].records"),
        ({"topic_partitions": [_GOOD | {"records": ["x", 7]}]}, "topic_partitions[0].records[1]"),
        ({"topic_partitions": [_GOOD | {"records": [None]}]}, "topic_partitions[0].records[0]"),
        ({"topic_partitions": [_GOOD | {"records": [{}]}]}, "topic_partitions[0].records[0].value"),
        ({"topic_partitions": [_GOOD | {"records": [{"base64": "!"}]}]}, "topic_partitions[0].records[0].base64"),
        ({"topic_partitions": [_GOOD | {"records": [{"base64": 7}]}]}, "topic_partitions[0].records[0].base64"),
        ({"topic_partitions": [_GOOD | {"records": [{"bytes": "x"}]}]}, "topic_partitions[0].records[0].bytes"),
    ],
)
def test_an_invalid_shape_is_400_and_names_the_field(http: httpx.Client, body: Any, field: str) -> None:
    assert refused_field(http.post("/produce", json=body)) == field


def test_a_malformed_request_is_refused_whole_and_nothing_of_it_is_stored(http: httpx.Client, topic: str) -> None:
    assert post_produce(http, a_batch(topic, 0, "good"), a_batch(topic, 1)).status_code == 400
    [result] = consumed(http, wanted(topic, 0, 1))
    assert result["error_type"] == "PartitionNotInitialized"


def test_a_partial_failure_is_409_and_does_not_roll_back_what_succeeded(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"), a_batch(topic, 1, "x"))
    assert http.post(f"/topics/{topic}/partitions/1/fence").status_code == 200
    answer = post_produce(http, a_batch(topic, 1, "refused"), a_batch(topic, 0, "kept"))
    assert answer.status_code == 409
    body = answer.json()
    assert (body["success_count"], body["error_count"]) == (1, 1)
    refused, kept = body["results"]
    assert set(refused) == {"topic", "partition", "ok", "error_type", "error"}
    assert (refused["topic"], refused["partition"], refused["ok"]) == (topic, 1, False)
    assert refused["error_type"] == "LogFenced"
    assert (kept["ok"], kept["start_offset"]) == (True, 2)
    assert payloads(http, topic, 0) == ["x", "kept"]
    assert payloads(http, topic, 1) == ["x"]


def test_a_full_failure_that_is_not_back_pressure_is_409(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    assert http.post(f"/topics/{topic}/partitions/0/fence").status_code == 200
    answer = post_produce(http, a_batch(topic, 0, "refused"))
    assert (answer.status_code, answer.json()["error_count"]) == (409, 1)
    assert "retry-after" not in answer.headers


def test_a_partition_beyond_the_limit_fails_for_itself(http: httpx.Client, topic: str) -> None:
    answer = post_produce(http, a_batch(topic, 0, "x"), a_batch(topic, 1_000_000, "y"))
    assert answer.status_code == 409
    assert [result["ok"] for result in answer.json()["results"]] == [True, False]
    assert answer.json()["results"][1]["error_type"] == "PartitionOutOfRange"


# -- batching --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker with small batches and a long delay."""
    settings = {"llog_batch_max_bytes": "64KiB", "llog_batch_max_delay_ms": "300ms"}
    with running("broker", directory=tmp_path_factory.mktemp("patient"), name="patient", **settings) as broker:
        yield broker


def test_requests_of_several_connections_go_into_one_wal_object(patient: Running) -> None:
    topic = unused_topic()
    logs = [a_batch(topic, partition, "x") for partition in range(16)]
    produced(patient.http, *logs)
    flushes = _flushes(patient)
    with ThreadPoolExecutor(16) as threads:
        answer = [results[0] for results in threads.map(lambda batch: produced(patient.http, batch), logs)]
    blobs = {result["wal_uri"] for result in answer}
    assert len(blobs) < len(logs), "each request went alone"
    assert _flushes(patient) - flushes == len(blobs)


def test_a_flush_starts_when_the_bytes_are_reached_before_the_delay(patient: Running) -> None:
    topic = unused_topic()
    produced(patient.http, a_batch(topic, 0, "x"))
    by_size = patient.metric("batching.flushes.size")
    produced(patient.http, a_batch(topic, 0, "x" * 100_000))
    assert patient.metric("batching.flushes.size") == by_size + 1


def test_the_batch_settings_are_those_that_were_set(patient: Running, broker: Running) -> None:
    answer = patient.get("/metrics")["broker"]["batch"]
    assert (answer["max_bytes"], answer["max_delay_seconds"]) == (64 * 1024, 0.3)
    answer = broker.get("/metrics")["broker"]["batch"]
    # 500 ms where a put costs money; on a local store 13 ms.
    assert (answer["max_bytes"], answer["max_delay_seconds"]) == (8 * 1024 * 1024, 0.013)


def _flushes(broker: Running) -> float:
    return float(sum(broker.get("/metrics")["batching"]["flushes"].values()))
