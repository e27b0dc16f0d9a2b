"""Topics over HTTP: made, listed, altered, limited, grown, fenced, searched by time, cut and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.clients.http_calls import (
    Json,
    a_batch,
    consumed,
    payloads,
    post_produce,
    produced,
    refused_field,
    wanted,
)

pytestmark = pytest.mark.slow


def _create(http: httpx.Client, topic: str, partitions: int = 1, **config: Any) -> Json:
    named = {name.replace("_", "."): value for name, value in config.items()}
    answer = http.post("/topics", json={"topic": topic, "partitions": partitions, "config": named})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


# -- make, look, change, delete --------------------------------------------------------------------------------------


def test_a_topic_is_created_described_altered_grown_and_deleted(http: httpx.Client, topic: str) -> None:
    made = _create(http, topic, 2, retention_ms=60_000, cleanup_policy="compact,delete")
    assert made["config"] == {"retention.ms": "60000", "cleanup.policy": "compact,delete"}
    body = http.get(f"/topics/{topic}").json()
    assert [(row["partition"], row["state"], row["next_offset"]) for row in body["partitions"]] == [
        (0, "OPEN", 1), (1, "OPEN", 1),
    ]  # fmt: skip
    altered = http.patch(f"/topics/{topic}", json={"config": {"retention.ms": None, "retention.bytes": 1 << 30}})
    assert altered.json()["config"] == {"cleanup.policy": "compact,delete", "retention.bytes": str(1 << 30)}
    assert http.post(f"/topics/{topic}/partitions", json={"count": 3}).json()["partitions"] == 3
    produced(http, a_batch(topic, 2, "x"))
    dry = http.delete(f"/topics/{topic}", params={"dry_run": "true"}).json()
    assert (dry["dry_run"], dry["partitions"], dry["entries_removed"]) == (True, 3, 1)
    assert payloads(http, topic, 2) == ["x"]
    assert http.delete(f"/topics/{topic}").json()["dry_run"] is False
    refused_field(http.get(f"/topics/{topic}"), 404)
    [gone] = consumed(http, wanted(topic, 2, 1))
    assert gone["ok"] is False


def test_a_topic_that_exists_is_not_created_again(http: httpx.Client, topic: str) -> None:
    _create(http, topic)
    refused_field(http.post("/topics", json={"topic": topic}), 409)


def test_a_deleted_topic_can_be_created_again_and_begins_anew(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "of the first life"))
    first = http.get(f"/topics/{topic}").json()["topic_id"]
    assert http.delete(f"/topics/{topic}").status_code == 200
    assert _create(http, topic)["topic_id"] != first
    [result] = produced(http, a_batch(topic, 0, "of the second"))
    assert result["start_offset"] == 1
    assert payloads(http, topic) == ["of the second"]


def test_partitions_only_grow(http: httpx.Client, topic: str) -> None:
    _create(http, topic, 3)
    assert refused_field(http.post(f"/topics/{topic}/partitions", json={"count": 2})) == "partitions"
    assert http.post(f"/topics/{topic}/partitions", json={"count": 3}).status_code == 200


@pytest.mark.parametrize(
    "config",
    [
        {"cleanup.policy": "shred"},
        {"retention.ms": -2},
        {"retention.ms": "a week"},
        {"retention.bytes": 1.5},
        {"delete.retention.ms": -1},
        {"min.compaction.lag.ms": "1_000"},
        {"min.cleanable.dirty.ratio": 1.1},
        {"max.message.bytes": -1},
        {"max.message.bytes": 1 << 40},
        {"no.such.config": 1},
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name_when_it_is_created_or_altered(
    http: httpx.Client, topic: str, config: Mapping[str, Any]
) -> None:
    [name] = config
    assert name in refused_field(http.post("/topics", json={"topic": topic, "config": config}))
    refused_field(http.get(f"/topics/{topic}"), 404)
    _create(http, topic)
    assert name in refused_field(http.patch(f"/topics/{topic}", json={"config": config}))
    assert http.get(f"/topics/{topic}").json()["config"] == {}


# -- listing ---------------------------------------------------------------------------------------------------------


def test_topics_are_listed_by_name_page_by_page_without_deleted_ones(http: httpx.Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(5)]
    for name in reversed(names):
        _create(http, name)
    assert http.delete(f"/topics/{names[2]}").status_code == 200
    wanted_names, found, after = [*names[:2], *names[3:]], [], topic
    while True:
        page = http.get("/topics", params={"limit": 2, "after": after}).json()
        assert len(page["topics"]) <= 2
        found += [result["topic"] for result in page["topics"]]
        after = page.get("next_after", "")
        if not after or not after.startswith(topic):
            break
    assert [name for name in found if name.startswith(topic)] == wanted_names
    assert found == sorted(found)


def test_a_list_that_is_complete_has_no_next_page(http: httpx.Client, topic: str) -> None:
    _create(http, topic)
    page = http.get("/topics").json()
    assert topic in [result["topic"] for result in page["topics"]]
    assert "next_after" not in page
    last = page["topics"][-1]["topic"]
    assert http.get("/topics", params={"after": last}).json() == {"topics": []}


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=10001", "limit=x", "after=a/b", "offset=3"])
def test_a_page_that_cannot_be_is_refused(http: httpx.Client, query: str) -> None:
    field = refused_field(http.get(f"/topics?{query}"))
    assert field == ("topic" if query.startswith("after") else query.partition("=")[0])


# -- max.message.bytes -----------------------------------------------------------------------------------------------


def test_a_record_above_max_message_bytes_is_refused_with_the_limit_and_no_other_batch(
    http: httpx.Client, topic: str
) -> None:
    _create(http, topic, 2, max_message_bytes=1_000)
    answer = post_produce(http, a_batch(topic, 0, "x", "y" * 1_000), a_batch(topic, 1, "z" * 900))
    assert answer.status_code == 409
    refused, kept = answer.json()["results"]
    assert (refused["ok"], refused["error_type"]) == (False, "RecordTooLarge")
    assert "max.message.bytes of 1000" in refused["error"]
    assert kept["ok"]
    assert consumed(http, wanted(topic, 0, 1))[0]["high_watermark"] == 0
    assert payloads(http, topic, 1) == ["z" * 900]


def test_the_limit_counts_key_value_and_headers_of_one_record(http: httpx.Client, topic: str) -> None:
    _create(http, topic, max_message_bytes=1_000)
    for record in (
        {"key": "k" * 500, "value": "v" * 500},
        {"value": "v" * 500, "headers": {"h" * 250: "x" * 250}},
        {"base64": "A" * 2_000},
    ):
        [result] = post_produce(http, a_batch(topic, 0, record)).json()["results"]
        assert result["error_type"] == "RecordTooLarge"
    # Many records that fit are a larger batch, and the broker's own business.
    produced(http, a_batch(topic, 0, *(["x" * 900] * 10)))


def test_the_limit_is_a_record_that_is_a_batch_of_its_own(http: httpx.Client, topic: str) -> None:
    """61 bytes of header, then length, three bytes, no key, the value with its length, no headers."""
    _create(http, topic, max_message_bytes=61 + 2 + 3 + 1 + 2 + 500 + 1)
    produced(http, a_batch(topic, 0, "x" * 500))
    assert post_produce(http, a_batch(topic, 0, "x" * 501)).status_code == 409


def test_a_batch_refused_for_its_size_leaves_others_of_the_same_log_alone(http: httpx.Client, topic: str) -> None:
    _create(http, topic, max_message_bytes=1_000)
    answer = post_produce(http, a_batch(topic, 0, "a"), a_batch(topic, 0, "x" * 2_000), a_batch(topic, 0, "b"))
    assert [result["ok"] for result in answer.json()["results"]] == [True, False, True]
    assert payloads(http, topic) == ["a", "b"]


def test_an_altered_limit_holds_from_the_next_request_on(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x" * 2_000))
    for limit, status in ((1_000, 409), (10_000, 200), (None, 200)):
        assert http.patch(f"/topics/{topic}", json={"config": {"max.message.bytes": limit}}).status_code == 200
        assert post_produce(http, a_batch(topic, 0, "x" * 2_000)).status_code == status


def test_without_a_config_the_limit_is_kafkas_default(http: httpx.Client, topic: str) -> None:
    produced(http, a_batch(topic, 0, "x" * 1_048_000))
    [result] = post_produce(http, a_batch(topic, 0, "x" * 1_049_000)).json()["results"]
    assert (result["error_type"], "1048588" in result["error"]) == ("RecordTooLarge", True)


# -- fencing ---------------------------------------------------------------------------------------------------------


def test_a_fenced_log_refuses_appends_until_it_is_unfenced_and_is_read_meanwhile(
    http: httpx.Client, topic: str
) -> None:
    produced(http, a_batch(topic, 0, "a"))
    fenced = http.post(f"/topics/{topic}/partitions/0/fence", json={"reason": "a look at it"}).json()
    assert (fenced["state"], fenced["partition"]) == ("FENCED", 0)
    [result] = post_produce(http, a_batch(topic, 0, "b")).json()["results"]
    assert result["error_type"] == "LogFenced"
    assert payloads(http, topic) == ["a"]
    opened = http.post(f"/topics/{topic}/partitions/0/unfence").json()
    assert (opened["state"], opened["epoch"] >= fenced["epoch"]) == ("OPEN", True)
    produced(http, a_batch(topic, 0, "c"))
    assert payloads(http, topic) == ["a", "c"]


def test_a_log_that_is_not_there_cannot_be_fenced(http: httpx.Client, topic: str) -> None:
    refused_field(http.post(f"/topics/{topic}/partitions/0/fence"), 404)


# -- offsets by time, and the beginning ------------------------------------------------------------------------------


def test_offsets_by_timestamp_find_the_first_record_that_is_as_new(http: httpx.Client, topic: str) -> None:
    records = [{"value": str(number), "timestamp_ms": 1_000_000 + number * 10} for number in range(5)]
    produced(http, a_batch(topic, 0, *records))
    path = f"/topics/{topic}/partitions/0/offsets"
    assert http.get(path).json() == {"topic": topic, "partition": 0, "log_start_offset": 1, "next_offset": 6}
    for asked, offset in ((0, 1), (1_000_010, 2), (1_000_011, 3), (1_000_040, 5)):
        body = http.get(path, params={"timestamp_ms": asked}).json()
        assert (body["timestamp_ms"], body["offset"]) == (asked, offset)
        assert body["record_timestamp_ms"] >= asked
    assert http.get(path, params={"timestamp_ms": 1_000_041}).json()["offset"] is None
    assert refused_field(http.get(path, params={"timestamp_ms": -1})) == "timestamp_ms"


def test_deleted_records_are_gone_and_the_log_begins_behind_them(http: httpx.Client, topic: str) -> None:
    for record in "abcde":
        produced(http, a_batch(topic, 0, record))
    path = f"/topics/{topic}/partitions/0/delete-records"
    result = http.post(path, json={"before_offset": 3}).json()
    assert result["log_start_offset"] == 3
    [gone] = consumed(http, wanted(topic, 0, 1))
    assert (gone["error_type"], gone["log_start_offset"]) == ("OffsetOutOfRange", 3)
    assert payloads(http, topic, fetch_offset=3) == ["c", "d", "e"]
    refused_field(http.post(path, json={"before_offset": 100}), 416)
    assert http.post(path, json={"before_offset": -1}).json()["log_start_offset"] == 6
    [result] = produced(http, a_batch(topic, 0, "f"))
    assert result["start_offset"] == 6
