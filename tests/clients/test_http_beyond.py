"""What HTTP offers beyond the seeds: richer records, retry-safe producing, positions, tails, the description of it all.

Topics are in test_http_topics.py, limits and slow clients in test_http_limits.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.clients.http_calls import (
    Running,
    a_batch,
    consumed,
    events_of,
    payloads,
    post_produce,
    produced,
    refused_field,
    wanted,
)

pytestmark = pytest.mark.slow


def _records(http: httpx.Client, topic: str) -> list[Mapping[str, Any]]:
    [result] = consumed(http, wanted(topic, 0, 1))
    return list(result["records"])


# -- records with more than a payload --------------------------------------------------------------------------------


def test_keys_headers_and_timestamps_come_back_as_they_were_sent(http: httpx.Client, topic: str) -> None:
    sent = [
        {"key": "k", "value": "v", "headers": {"trace": "1", "raw": {"base64": "AAE="}},
         "timestamp_ms": 1_700_000_000_000},
        {"key": {"base64": "/w=="}, "base64": "AAE=", "timestamp_ms": 1_700_000_000_001},
        {"value": {"base64": "AAI="}, "headers": {"many": ["a", None, "b"]}, "timestamp_ms": 1_700_000_000_002},
    ]  # fmt: skip
    produced(http, a_batch(topic, 0, *sent))
    assert _records(http, topic) == [
        {"offset": 1, "payload": "v", "key": "k", "headers": sent[0]["headers"], "timestamp_ms": 1_700_000_000_000},
        {"offset": 2, "payload": {"base64": "AAE="}, "key": {"base64": "/w=="}, "timestamp_ms": 1_700_000_000_001},
        {"offset": 3, "payload": {"base64": "AAI="}, "headers": {"many": ["a", None, "b"]},
         "timestamp_ms": 1_700_000_000_002},
    ]  # fmt: skip


def test_a_null_value_is_a_tombstone(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, {"key": "gone", "value": None}))
    assert _records(http, topic) == [{"offset": 1, "payload": None, "key": "gone"}]


def test_a_record_that_has_nothing_beside_its_payload_shows_nothing_beside_it(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, {"value": "x"}))
    assert _records(http, topic) == [{"offset": 1, "payload": "x"}]


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"value": "x", "base64": "AAE="}, "value"),
        ({"key": "k"}, "value"),
        ({"value": "x", "key": 7}, "key"),
        ({"value": "x", "timestamp_ms": -1}, "timestamp_ms"),
        ({"value": "x", "timestamp_ms": True}, "timestamp_ms"),
        ({"value": "x", "headers": ["a"]}, "headers"),
        ({"value": "x", "header": {}}, "header"),
    ],
)
def test_a_record_that_cannot_be_is_refused_by_the_name_of_its_field(
    http: httpx.Client, topic: str, record: Mapping[str, Any], field: str
) -> None:
    answer = refused_field(post_produce(http, a_batch(topic, 0, "good", record)))
    assert answer == f"topic_partitions[0].records[1].{field}"


# -- retry-safe producing --------------------------------------------------------------------------------------------


def test_a_batch_sent_again_is_stored_once_and_answered_with_its_first_offsets(http: httpx.Client, topic: str) -> None:
    batch = a_batch(topic, 0, "a", "b", producer_id=77, epoch=0, sequence=0)
    [first] = produced(http, batch)
    assert "repeated" not in first
    [again] = produced(http, batch)
    assert (again["start_offset"], again["end_offset"], again["repeated"]) == (1, 2, True)
    produced(http, a_batch(topic, 0, "c", producer_id=77, epoch=0, sequence=2))
    assert payloads(http, topic) == ["a", "b", "c"]


def test_a_batch_sent_many_times_at_once_is_stored_once(http: httpx.Client, topic: str) -> None:
    batch = a_batch(topic, 0, "a", producer_id=78, epoch=0, sequence=0)
    with ThreadPoolExecutor(8) as threads:
        answer = [results[0] for results in threads.map(lambda _: produced(http, batch), range(16))]
    assert {result["start_offset"] for result in answer} == {1}
    assert sum("repeated" not in result for result in answer) == 1
    assert payloads(http, topic) == ["a"]


def test_a_skipped_sequence_is_refused(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "a", producer_id=79, epoch=0, sequence=0))
    answer = post_produce(http, a_batch(topic, 0, "c", producer_id=79, epoch=0, sequence=2))
    assert (answer.status_code, answer.json()["results"][0]["error_type"]) == (409, "OutOfOrderSequence")
    assert payloads(http, topic) == ["a"]


def test_a_newer_epoch_shuts_out_the_older_one(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "a", producer_id=80, epoch=1, sequence=0))
    answer = post_produce(http, a_batch(topic, 0, "b", producer_id=80, epoch=0, sequence=1))
    assert (answer.status_code, answer.json()["results"][0]["error_type"]) == (409, "ProducerEpochFenced")


def test_producer_id_epoch_and_sequence_come_together(http: httpx.Client, topic: str) -> None:
    for claim in ({"producer_id": 1}, {"producer_id": 1, "epoch": 0}, {"epoch": 0, "sequence": 0}):
        field = refused_field(post_produce(http, a_batch(topic, 0, "x", **claim)))
        assert field.removeprefix("topic_partitions[0].") in {"producer_id", "epoch", "sequence"} - set(claim)


# -- positions -------------------------------------------------------------------------------------------------------


def test_a_group_finds_the_positions_it_committed(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"), a_batch(topic, 1, "x"))
    group = f"group of {topic}"
    offsets = [{"topic": topic, "partition": 0, "offset": 2, "metadata": "mine"}]
    answer = http.post("/offsets/commit", json={"group": group, "offsets": offsets})
    assert (answer.status_code, answer.json()["success_count"]) == (200, 1)
    logs = [{"topic": topic, "partition": partition} for partition in (0, 1)]
    body = http.post("/offsets/fetch", json={"group": group, "topic_partitions": logs}).json()
    first, second = body["offsets"]
    assert (first["offset"], first["metadata"]) == (2, "mine")
    assert abs(first["committed_at_ms"] - time.time_ns() // 1_000_000) < 60_000
    assert second["offset"] is None
    everything = http.post("/offsets/fetch", json={"group": group}).json()
    assert [(row["topic"], row["partition"]) for row in everything["offsets"]] == [(topic, 0)]


def test_the_last_commit_of_a_position_wins_and_groups_do_not_mix(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, *"abc"))
    for group, offset in (("one", 1), ("two", 3), ("one", 2)):
        offsets = [{"topic": topic, "partition": 0, "offset": offset}]
        answer = http.post("/offsets/commit", json={"group": f"{group}-{topic}", "offsets": offsets})
        assert answer.status_code == 200
    found = [http.post("/offsets/fetch", json={"group": f"{group}-{topic}"}).json() for group in ("one", "two")]
    assert [result["offsets"][0]["offset"] for result in found] == [2, 3]


def test_a_position_in_a_log_that_is_not_there_fails_for_itself(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    offsets = [{"topic": topic, "partition": 0, "offset": 1}, {"topic": f"{topic}-no", "partition": 0, "offset": 1}]
    answer = http.post("/offsets/commit", json={"group": topic, "offsets": offsets})
    assert answer.status_code == 409
    assert [result["ok"] for result in answer.json()["results"]] == [True, False]


# -- server-sent events ----------------------------------------------------------------------------------------------


def test_a_tail_shows_records_as_events_with_their_offset_as_id(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "a", {"key": "k", "value": "b"}))
    with http.stream("GET", f"/topics/{topic}/partitions/0/tail", params={"start": "earliest"}) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        events = events_of(lines, 2)
        assert [event["id"] for event in events] == ["1", "2"]
        assert [json.loads(event["data"]) for event in events] == [
            {"offset": 1, "payload": "a"}, {"offset": 2, "payload": "b", "key": "k"},
        ]  # fmt: skip
        produced(http, a_batch(topic, 0, "later"))
        [event] = events_of(lines, 1)
        assert json.loads(event["data"])["payload"] == "later"


def test_a_tail_goes_on_behind_the_last_event_that_was_seen(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, *"abcd"))
    path = f"/topics/{topic}/partitions/0/tail"
    with http.stream("GET", path, headers={"last-event-id": "2"}) as stream:
        assert [event["id"] for event in events_of(stream.iter_lines(), 2)] == ["3", "4"]
    with http.stream("GET", path, params={"offset": 4}) as stream:
        assert [event["id"] for event in events_of(stream.iter_lines(), 1)] == ["4"]


def test_a_tail_of_nothing_is_refused_before_it_begins(http: httpx.Client, topic: str) -> None:
    refused_field(http.get(f"/topics/{topic}/partitions/0/tail"), 404)
    produced(http, a_batch(topic, 0, "x"))
    refused_field(http.get(f"/topics/{topic}/partitions/0/tail", params={"offset": 99}), 416)
    assert refused_field(http.get(f"/topics/{topic}/partitions/0/tail", params={"start": "middle"})) == "start"


# -- request ids -----------------------------------------------------------------------------------------------------


def test_every_answer_has_a_request_id_and_a_callers_own_is_kept(http: httpx.Client) -> None:
    first, second = (http.get("/health").headers["x-request-id"] for _ in range(2))
    assert first != second
    assert http.get("/nope", headers={"x-request-id": "mine-7"}).headers["x-request-id"] == "mine-7"


def test_an_id_that_could_forge_a_log_line_is_not_taken_over(http: httpx.Client) -> None:
    for forged in ("a b", "x" * 65, '"}', "ä".encode().decode("latin-1")):
        answer = http.get("/health", headers={b"x-request-id": forged.encode("latin-1")}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", answer), forged


def test_a_request_is_one_json_line_in_the_log_with_its_id_status_and_stages(broker: Running, topic: str) -> None:
    answer = broker.http.post(
        "/produce", json={"topic_partitions": [a_batch(topic, 0, "a secret")]}, headers={"x-request-id": f"id-{topic}"}
    )
    assert answer.status_code == 200
    mark = f'"event":"request","request_id":"id-{topic}"'
    broker.process.wait(lambda: mark in broker.process.output(), "log the request")
    [line] = [json.loads(line) for line in broker.process.output().splitlines() if mark in line]
    assert (line["method"], line["route"], line["status"], line["batches"]) == ("POST", "/produce", 200, 1)
    assert {"duration_ms", "request_bytes", "response_bytes", "queue_ms", "upload_ms", "commit_ms"} <= set(line)
    assert "a secret" not in broker.process.output()


# -- the description -------------------------------------------------------------------------------------------------


def test_the_description_at_schema_names_every_path_of_the_contract(http: httpx.Client) -> None:
    page = http.get("/schema/openapi.json")
    assert page.status_code == 200
    described = page.json()
    assert described["openapi"].startswith("3.")
    paths = described["paths"]
    assert {"/health", "/ready", "/metrics", "/metrics/prometheus", "/produce", "/consume", "/topics"} <= set(paths)
    assert {"/offsets/commit", "/offsets/fetch", "/topics/{topic}", "/topics/{topic}/partitions"} <= set(paths)
    log = "/topics/{topic}/partitions/{partition}"
    assert {f"{log}/{what}" for what in ("fence", "unfence", "offsets", "delete-records", "tail")} <= set(paths)
    assert http.get("/schema").status_code == 200
