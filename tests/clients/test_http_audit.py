"""Audit lines of a running broker: each change over HTTP has one, with who, what and the outcome; refused ones too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.http_calls import Running, a_batch, post_produce, running, unused_topic
from tests.patience import wait_until

pytestmark = pytest.mark.slow
READ, WRITE = "r-secret-1234567890", "w-secret-1234567890"
AS_READER, AS_WRITER = ({"authorization": f"Bearer {token}"} for token in (READ, WRITE))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker with tokens that writes only errors, and no line per request."""
    settings = {
        "llog_http_read_token": READ,
        "llog_http_write_token": WRITE,
        "llog_log_level": "error",
        "llog_log_requests": "none",
    }
    with running("broker", directory=tmp_path_factory.mktemp("audit"), name="guarded", **settings) as broker:
        yield broker


def lines(broker: Running) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in broker.process.output().splitlines() if line.startswith('{"time"')]
    return [line for line in found if line["logger"] == "llog.audit"]


def line_of(broker: Running, action: str, subject: str, **fields: object) -> dict[str, Any]:
    """The one line of this action, once it is written."""

    def found() -> list[dict[str, Any]]:
        wanted = {"action": action, "object": subject, **fields}
        return [line for line in lines(broker) if all(line.get(name) == value for name, value in wanted.items())]

    wait_until(found, f"the line of {action} {subject}")
    [line] = found()
    return line


def test_each_change_over_http_has_a_line_with_its_principal(guarded: Running) -> None:
    http, topic = guarded.http, unused_topic()
    created = http.post("/topics", json={"topic": topic, "partitions": 1}, headers=AS_WRITER)
    assert created.status_code == 201, created.text
    line = line_of(guarded, "topic.create", topic)
    assert (line["principal"], line["client"], line["outcome"]) == ("write-token", "127.0.0.1", "done")
    assert line["request_id"] == created.headers["x-request-id"]
    assert line["after"]["partitions"] == 1

    assert http.patch(f"/topics/{topic}", json={"config": {"retention.ms": 9}}, headers=AS_WRITER).status_code == 200
    assert line_of(guarded, "topic.alter", topic)["after"] == {"retention.ms": "9"}
    assert http.post(f"/topics/{topic}/partitions", json={"count": 2}, headers=AS_WRITER).status_code == 200
    assert line_of(guarded, "topic.grow", topic)["before"] == {"partitions": 1}

    log, path = f"{topic}:0", f"/topics/{topic}/partitions/0"
    assert http.post(f"{path}/fence", json={"reason": "a\nb"}, headers=AS_WRITER).status_code == 200
    assert line_of(guarded, "log.fence", log)["after"] == {"log_state": "FENCED", "epoch": 1, "reason": "a\\nb"}
    assert http.post(f"{path}/unfence", headers=AS_WRITER).status_code == 200
    assert line_of(guarded, "log.unfence", log)["before"]["epoch"] == 1

    batch = {"topic_partitions": [a_batch(topic, 0, "one", "two", "three")]}
    assert http.post("/produce", json=batch, headers=AS_WRITER).status_code == 200
    assert http.post(f"{path}/delete-records", json={"before_offset": 3}, headers=AS_WRITER).status_code == 200
    deleted = line_of(guarded, "records.delete", log)
    assert (deleted["before"], deleted["after"]) == ({"log_start_offset": 1}, {"log_start_offset": 3})

    for offset in (2, 3):
        commit = {"group": topic, "offsets": [{"topic": topic, "partition": 0, "offset": offset}]}
        assert http.post("/offsets/commit", json=commit, headers=AS_READER).status_code == 200
    moved = line_of(guarded, "group.commit", topic, before={log: 2})
    assert (moved["principal"], moved["after"]) == ("read-token", {log: 3})

    assert http.delete(f"/topics/{topic}", headers=AS_WRITER).status_code == 200
    assert line_of(guarded, "topic.delete", topic, before={"state": "LIVE"})["principal"] == "write-token"
    assert line_of(guarded, "partition.delete", log)["principal"] == "write-token"


def test_a_topic_that_a_first_produce_creates_has_the_producers_principal(guarded: Running) -> None:
    topic = unused_topic()
    batch = {"topic_partitions": [a_batch(topic, 0, "one")]}
    assert guarded.http.post("/produce", json=batch, headers=AS_WRITER).status_code == 200
    line = line_of(guarded, "topic.create", topic)
    assert (line["principal"], line["client"], line["after"]["by"]) == ("write-token", "127.0.0.1", "first use")


def test_a_refused_change_has_a_line_with_the_reason(guarded: Running) -> None:
    http, topic = guarded.http, unused_topic()
    assert http.delete(f"/topics/{topic}").status_code == 401
    line = line_of(guarded, "topic.delete", topic, principal="anonymous")
    assert (line["outcome"], line["error_type"]) == ("refused", "RequestUnauthenticated")
    assert http.delete(f"/topics/{topic}", headers=AS_READER).status_code == 403
    assert line_of(guarded, "topic.delete", topic, principal="read-token")["error_type"] == "RequestForbidden"
    assert http.delete(f"/topics/{topic}", headers=AS_WRITER).status_code == 404
    assert line_of(guarded, "topic.delete", topic, principal="write-token")["error_type"] == "TopicNotFound"
    commit = {"group": topic, "offsets": [{"topic": topic, "partition": 0, "offset": 1}]}
    assert http.post("/offsets/commit", json=commit, headers=AS_READER).status_code == 409
    assert line_of(guarded, "group.commit", topic)["errors"] == {f"{topic}:0": "LogDeleted"}
    for _ in range(2):
        answer = http.post("/topics", json={"topic": topic, "partitions": 1}, headers=AS_WRITER)
    assert answer.status_code == 409
    assert line_of(guarded, "topic.create", topic, outcome="refused")["error_type"] == "TopicAlreadyExists"
    assert post_produce(http, a_batch(topic, 0, "x")).status_code == 401


def test_no_token_and_no_record_is_in_the_log(guarded: Running) -> None:
    batch = {"topic_partitions": [a_batch(unused_topic(), 0, "a-record-of-a-customer")]}
    assert guarded.http.post("/produce", json=batch, headers=AS_WRITER).status_code == 200
    wrong = {"authorization": "Bearer wrong-secret"}
    assert guarded.http.delete("/topics/some", headers=wrong).status_code == 401
    line_of(guarded, "topic.delete", "some")
    for secret in (READ, WRITE, "wrong-secret", "a-record-of-a-customer"):
        assert secret not in guarded.process.output()
