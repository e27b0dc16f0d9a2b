"""What the seeds say of `POST /consume` and the tail cache in front of it, against a running broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.clients.http_calls import (
    Json,
    Running,
    a_batch,
    consumed,
    payloads,
    post_consume,
    produced,
    refused_field,
    running,
    unused_topic,
    wanted,
)
from tests.patience import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow


def test_the_answer_is_exactly_as_the_contract_shows_it(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "alpha", {"base64": "AAE="}))
    answer = post_consume(http, wanted(topic, 0, 1))
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "results": [
            {
                "topic": topic,
                "partition": 0,
                "ok": True,
                "fetch_offset": 1,
                "high_watermark": 2,
                "next_fetch_offset": 3,
                "records": [{"offset": 1, "payload": "alpha"}, {"offset": 2, "payload": {"base64": "AAE="}}],
            }
        ],
        "success_count": 1,
        "error_count": 0,
    }


def test_the_examples_of_the_documentation_work_as_they_stand(http: httpx.Client) -> None:
    topic = unused_topic()
    produced(http, a_batch(topic, 0, "alpha", "beta"), a_batch(topic, 1, {"base64": "AAE="}))
    body = {
        "topic_partitions": [
            {"topic": topic, "partition": 0, "fetch_offset": 1, "partition_max_bytes": 1_048_576},
            {"topic": topic, "partition": 1, "fetch_offset": 1},
        ],
        "max_wait_ms": 250,
        "min_bytes": 1,
        "max_bytes": 4_194_304,
    }
    page = http.post("/consume", json=body).json()
    assert (page["success_count"], page["error_count"]) == (2, 0)
    assert [len(result["records"]) for result in page["results"]] == [2, 1]


def test_partitions_are_answered_in_the_order_they_were_asked_for(http: httpx.Client, topic: str) -> None:
    produced(http, *(a_batch(topic, partition, f"of {partition}") for partition in range(4)))
    results = consumed(http, *(wanted(topic, partition, 1) for partition in (2, 0, 3, 1)))
    assert [(result["partition"], result["records"][0]["payload"]) for result in results] == [
        (2, "of 2"), (0, "of 0"), (3, "of 3"), (1, "of 1"),
    ]  # fmt: skip


def test_the_high_watermark_is_the_last_offset_that_can_be_read(http: httpx.Client, topic: str) -> None:
    for count in range(1, 4):
        [landed] = produced(http, a_batch(topic, 0, f"record {count}"))
        [result] = consumed(http, wanted(topic, 0, 1))
        assert result["high_watermark"] == landed["end_offset"] == count


def test_next_fetch_offset_leads_through_all_records_once(http: httpx.Client, topic: str) -> None:
    sent = [f"record {number:03d}" for number in range(200)]
    for first in range(0, 200, 40):
        produced(http, a_batch(topic, 0, *sent[first : first + 40]))
    found: list[Any] = []
    offset = 1
    while len(found) < len(sent):
        [result] = consumed(http, wanted(topic, 0, offset, partition_max_bytes=300))
        assert [record["offset"] for record in result["records"]] == list(range(offset, result["next_fetch_offset"]))
        found += [record["payload"] for record in result["records"]]
        offset = result["next_fetch_offset"]
    assert found == sent


def test_a_fetch_in_the_middle_of_a_batch_begins_exactly_there(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, *"abcdef"))
    assert payloads(http, topic, fetch_offset=4) == ["d", "e", "f"]


def test_at_the_end_there_are_no_records_and_the_offset_stays(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    [result] = consumed(http, wanted(topic, 0, 2))
    assert (result["ok"], result["records"], result["next_fetch_offset"], result["high_watermark"]) == (True, [], 2, 1)


# -- failures of one partition ---------------------------------------------------------------------------------------


def test_a_partition_that_does_not_exist_fails_for_itself_in_an_answer_of_200(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    answer = post_consume(http, wanted(unused_topic(), 0, 1), wanted(topic, 0, 1))
    assert answer.status_code == 200
    body = answer.json()
    assert (body["success_count"], body["error_count"]) == (1, 1)
    missing, there = body["results"]
    assert (missing["ok"], missing["error_type"]) == (False, "PartitionNotInitialized")
    assert missing["error"]
    assert there["ok"]


@pytest.mark.parametrize("offset", [3, 1_000])
def test_an_offset_beyond_the_end_is_out_of_range_and_says_what_is_not(
    http: httpx.Client, topic: str, offset: int
) -> None:
    produced(http, a_batch(topic, 0, "x"))
    [result] = consumed(http, wanted(topic, 0, offset))
    assert (result["ok"], result["error_type"]) == (False, "OffsetOutOfRange")
    assert (result["log_start_offset"], result["high_watermark"]) == (1, 1)


def test_a_failing_partition_does_not_hold_up_a_long_poll(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    began = time.monotonic()
    consumed(http, wanted(topic, 0, 2), wanted(topic, 0x7FFF, 1), max_wait_ms=60_000)
    assert time.monotonic() - began < 50.0


_GOOD: Json = {"topic": "t", "partition": 0, "fetch_offset": 1}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({}, "topic_partitions"),
        ({"topic_partitions": []}, "topic_partitions"),
        ({"topic_partitions": [{"topic": "t", "partition": 0}]}, "topic_partitions[0].fetch_offset"),
        ({"topic_partitions": [_GOOD | {"fetch_offset": -1}]}, "topic_partitions[0].fetch_offset"),
        ({"topic_partitions": [_GOOD | {"fetch_offset": True}]}, "topic_partitions[0].fetch_offset"),
        ({"topic_partitions": [_GOOD | {"topic": ""}]}, "topic_partitions[0].topic"),
        ({"topic_partitions": [_GOOD | {"partition": -1}]}, "topic_partitions[0].partition"),
        ({"topic_partitions": [_GOOD | {"partition_max_bytes": 0}]}, "topic_partitions[0].partition_max_bytes"),
        ({"topic_partitions": [_GOOD], "max_wait_ms": -1}, "max_wait_ms"),
        ({"topic_partitions": [_GOOD], "max_wait_ms": 3_600_000}, "max_wait_ms"),
        ({"topic_partitions": [_GOOD], "min_bytes": False}, "min_bytes"),
        ({"topic_partitions": [_GOOD], "max_bytes": 0}, "max_bytes"),
        ({"topic_partitions": [_GOOD], "wait": 1}, "wait"),
        ({"topic_partitions": [_GOOD, _GOOD]}, "topic_partitions[1]"),
    ],
)
def test_an_invalid_shape_is_400_and_names_the_field(http: httpx.Client, body: Any, field: str) -> None:
    assert refused_field(http.post("/consume", json=body)) == field


# -- how much, and how long ------------------------------------------------------------------------------------------


def test_partition_max_bytes_bounds_one_partition_and_still_returns_one_record(http: httpx.Client, topic: str) -> None:
    for _ in range(5):
        produced(http, a_batch(topic, 0, "x" * 1_000))
    [result] = consumed(http, wanted(topic, 0, 1, partition_max_bytes=2_500))
    assert (len(result["records"]), result["next_fetch_offset"]) == (2, 3)
    [result] = consumed(http, wanted(topic, 0, 1, partition_max_bytes=1))
    assert [record["offset"] for record in result["records"]] == [1]


@pytest.mark.parametrize("keyed", [False, True], ids=["texts", "keyed"])
def test_a_limit_that_ends_inside_a_batch_divides_it(http: httpx.Client, topic: str, keyed: bool) -> None:
    texts = [f"{number:02d}" + "x" * 997 for number in range(20)]
    produced(http, a_batch(topic, 0, *({"key": "k", "value": text} if keyed else text + "y" for text in texts)))
    for offset in (1, 6, 11, 16):
        [result] = consumed(http, wanted(topic, 0, offset, partition_max_bytes=5_000))
        assert [int(record["payload"][:2]) for record in result["records"]] == list(range(offset - 1, offset + 4))
        assert (result["next_fetch_offset"], result["high_watermark"]) == (offset + 5, 20)
        assert consumed(http, wanted(topic, 0, offset), max_bytes=5_000)[0]["records"] == result["records"]


def test_max_bytes_bounds_the_whole_answer_and_still_returns_one_record(http: httpx.Client, topic: str) -> None:
    for partition in range(4):
        produced(http, a_batch(topic, partition, "x" * 1_000))
    asked = [wanted(topic, partition, 1) for partition in range(4)]
    assert sum(len(result["records"]) for result in consumed(http, *asked)) == 4
    assert sum(len(result["records"]) for result in consumed(http, *asked, max_bytes=2_500)) == 2
    assert sum(len(result["records"]) for result in consumed(http, *asked, max_bytes=1)) == 1


def test_without_max_wait_ms_an_empty_end_is_answered_at_once(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    began = time.monotonic()
    consumed(http, wanted(topic, 0, 2))
    assert time.monotonic() - began < 50.0  # the longest wait is a minute


def test_a_long_poll_waits_no_longer_than_max_wait_ms(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    began = time.monotonic()
    [result] = consumed(http, wanted(topic, 0, 2), max_wait_ms=400)
    assert result["records"] == []
    assert 0.39 <= time.monotonic() - began < 50.0  # the longest wait is a minute


def test_a_long_poll_ends_when_records_come(broker: Running, topic: str) -> None:
    http = broker.http
    produced(http, a_batch(topic, 0, "x"))
    before = _lookups_without_records(broker)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(consumed, http, wanted(topic, 0, 2), max_wait_ms=60_000)
        wait_until(lambda: _lookups_without_records(broker) > before, "a poll at the end of the log")
        assert not waiting.done()
        produced(http, a_batch(topic, 0, "y"))
        [result] = waiting.result(PATIENCE_SECONDS)
    assert result["records"] == [{"offset": 2, "payload": "y"}]


def test_a_long_poll_waits_until_min_bytes_are_there(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(consumed, http, wanted(topic, 0, 2), max_wait_ms=60_000, min_bytes=3_000)
        produced(http, a_batch(topic, 0, "y" * 1_000))
        time.sleep(0.3)  # no signal shows that a poll goes on waiting; an early answer would take milliseconds
        assert not waiting.done()
        produced(http, a_batch(topic, 0, "y" * 3_000))
        [result] = waiting.result(PATIENCE_SECONDS)
    assert [record["offset"] for record in result["records"]] == [2, 3]


def test_min_bytes_that_never_come_are_not_waited_for_beyond_max_wait_ms(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    [result] = consumed(http, wanted(topic, 0, 1), max_wait_ms=300, min_bytes=1_000_000)
    assert [record["payload"] for record in result["records"]] == ["x"]


def test_long_polls_wait_independently_of_each_other(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x"))
    began = time.monotonic()
    with ThreadPoolExecutor(20) as threads:
        asked = [threads.submit(consumed, http, wanted(topic, 0, 2), max_wait_ms=4_000) for _ in range(20)]
        assert all(result.result(PATIENCE_SECONDS)[0]["records"] == [] for result in asked)
    assert time.monotonic() - began < 40.0  # one after the other would take twice as long


# -- the tail cache --------------------------------------------------------------------------------------------------


def _store_reads(broker: Running) -> tuple[float, ...]:
    paths = ("log.read_gets", "s3.operations.get.requests", "s3.operations.range_get.requests")
    return tuple(broker.metric(path) for path in paths)


def _lookups_without_records(broker: Running) -> float:
    return broker.metric("tail_cache.events.empty") + broker.metric("tail_cache.events.miss")


def _metadata_reads(broker: Running) -> float:
    answer = broker.get("/metrics")["metadata"]["operations"]
    return float(sum(answer[operation]["calls"] for operation in ("get", "get_many", "ceiling", "scan")))


def test_a_hit_in_the_tail_cache_touches_no_object_and_no_metadata_but_the_shared_refresh(
    broker: Running, topic: str
) -> None:
    produced(broker.http, a_batch(topic, 0, "alpha", "beta"))
    before, metadata, hits = _store_reads(broker), _metadata_reads(broker), broker.metric("consume.records.cache")
    began = time.monotonic()
    for _ in range(100):
        assert payloads(broker.http, topic) == ["alpha", "beta"]
    assert broker.metric("consume.records.cache") == hits + 200
    assert _store_reads(broker) == before
    # What other brokers append must be seen within LLOG_TAIL_REFRESH_MS, which is 100 here.
    assert _metadata_reads(broker) - metadata <= (time.monotonic() - began) / 0.1 + 1


def test_a_known_empty_tail_keeps_long_polls_away_from_the_stores(broker: Running, topic: str) -> None:
    produced(broker.http, a_batch(topic, 0, "x"))
    before, metadata = _store_reads(broker), _metadata_reads(broker)
    with ThreadPoolExecutor(20) as threads:
        polls = [threads.submit(consumed, broker.http, wanted(topic, 0, 2), max_wait_ms=1_000) for _ in range(20)]
        assert all(poll.result(PATIENCE_SECONDS)[0]["records"] == [] for poll in polls)
    assert _store_reads(broker) == before, "an object was asked for"
    # One shared look per refresh (100 ms here), not one per poll.
    assert _metadata_reads(broker) - metadata < 60


def test_the_tail_cache_has_512_mib_unless_told(broker: Running) -> None:
    assert broker.get("/metrics")["broker"]["tail_cache"]["max_bytes"] == 536_870_912


@pytest.fixture(scope="module")
def uncached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("uncached")
    with running("broker", directory=directory, name="uncached", llog_tail_cache_max_bytes="0") as broker:
        yield broker


def test_with_the_cache_off_the_answers_are_the_same_and_come_from_the_stores(uncached: Running) -> None:
    topic = unused_topic()
    produced(uncached.http, a_batch(topic, 0, "alpha", {"base64": "AAE="}))
    [result] = consumed(uncached.http, wanted(topic, 0, 1))
    assert result["records"] == [{"offset": 1, "payload": "alpha"}, {"offset": 2, "payload": {"base64": "AAE="}}]
    assert (result["high_watermark"], result["next_fetch_offset"]) == (2, 3)
    assert uncached.metric("consume.records.cache") == 0
    assert uncached.metric("consume.records.store") >= 2
    assert uncached.metric("tail_cache.bytes") == 0


def test_partitions_in_one_wal_object_cost_one_fetch_of_it_per_request(uncached: Running) -> None:
    topic = unused_topic()
    batches = [a_batch(topic, partition, f"of {partition}") for partition in range(6)]
    landed = produced(uncached.http, *batches)
    assert len({result["wal_uri"] for result in landed}) == 1
    before = uncached.metric("log.read_gets")
    results = consumed(uncached.http, *(wanted(topic, partition, 1) for partition in range(6)))
    assert [result["records"][0]["payload"] for result in results] == [f"of {partition}" for partition in range(6)]
    assert uncached.metric("log.read_gets") - before == 1


def test_a_long_poll_works_without_the_cache(uncached: Running) -> None:
    topic = unused_topic()
    produced(uncached.http, a_batch(topic, 0, "x"))
    with ThreadPoolExecutor(1) as threads:
        before = _metadata_reads(uncached)
        waiting = threads.submit(consumed, uncached.http, wanted(topic, 0, 2), max_wait_ms=60_000)
        wait_until(lambda: _metadata_reads(uncached) > before, "a poll that has read the end of the log")
        produced(uncached.http, a_batch(topic, 0, "y"))
        [result] = waiting.result(PATIENCE_SECONDS)
    assert [record["payload"] for record in result["records"]] == ["y"]
