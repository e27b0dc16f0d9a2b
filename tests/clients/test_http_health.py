"""What the seeds say of a broker's paths, methods, health and roles, against running processes."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.clients.http_calls import (
    Running,
    a_batch,
    consumed,
    payloads,
    post_consume,
    post_produce,
    produced,
    refused_field,
    running,
    unused_topic,
    wanted,
)
from tests.patience import wait_until

pytestmark = pytest.mark.slow


class Roles:
    """A broker that only writes and one that only reads, on the same stores, sharing a tail cache."""

    def __init__(self, writing: Running, reading: Running) -> None:
        self.writing, self.reading = writing, reading


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    directory = tmp_path_factory.mktemp("roles")
    shared = {"llog_tail_cache_dir": str(directory / "tail-cache")}
    with (
        running("broker", "--role", "write", directory=directory, name="write", **shared) as writing,
        running("broker", "--role", "read", directory=directory, name="read", **shared) as reading,
    ):
        yield Roles(writing, reading)


# -- health ----------------------------------------------------------------------------------------------------------


def test_health_is_json_and_answers_200(http: httpx.Client) -> None:
    answer = http.get("/health")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"


def test_health_shows_status_broker_id_host_port_and_started_at_ms(broker: Running) -> None:
    answer = broker.get("/health")
    assert answer["status"] == "ok"
    assert answer["broker_id"] == "broker-1"
    assert f"http://{answer['host']}:{answer['port']}" == broker.url
    first, last = broker.started_between_ms
    assert type(answer["started_at_ms"]) is int
    assert first <= answer["started_at_ms"] <= last


def test_health_stays_the_same_from_call_to_call(broker: Running) -> None:
    assert broker.get("/health") == broker.get("/health")


def test_health_says_what_acknowledged_means(broker: Running) -> None:
    assert "durable" in broker.get("/health")["acknowledged_means"]


def test_a_broker_that_is_ok_is_ready(http: httpx.Client) -> None:
    answer = http.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "status": "ok", "reasons": []})


# -- paths and methods -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/nope", "/produce/x", "/healthz", "/metrics/json", "/topics/a/b"])
def test_an_unknown_path_is_404_and_says_so_in_json(http: httpx.Client, path: str) -> None:
    refused_field(http.get(path), 404)
    refused_field(http.post(path, json={}), 404)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/metrics/prometheus"])
def test_what_is_read_is_asked_for_with_get(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200
    refused = http.post(path, json={})
    assert refused.status_code == 405
    assert "GET" in refused.headers["allow"]


@pytest.mark.parametrize("path", ["/produce", "/consume"])
def test_produce_and_consume_are_posts(http: httpx.Client, path: str) -> None:
    refused = http.get(path)
    assert refused.status_code == 405
    assert "POST" in refused.headers["allow"]


def test_options_names_every_method_of_a_path(http: httpx.Client) -> None:
    for path, methods in {
        "/topics": {"GET", "POST", "OPTIONS"},
        "/topics/x": {"GET", "PATCH", "DELETE", "OPTIONS"},
        "/produce": {"POST", "OPTIONS"},
        "/health": {"GET", "OPTIONS"},
    }.items():
        answer = http.options(path)
        assert answer.status_code == 204
        assert set(answer.headers["allow"].split(", ")) == methods, path


# -- roles -----------------------------------------------------------------------------------------------------------


def test_both_roles_are_the_default(broker: Running, topic: str) -> None:
    assert broker.get("/health")["role"] == "both"
    produced(broker.http, a_batch(topic, 0, "x"))
    assert payloads(broker.http, topic) == ["x"]


def test_a_broker_that_only_writes_has_no_consume(roles: Roles) -> None:
    topic = unused_topic()
    produced(roles.writing.http, a_batch(topic, 0, "x"))
    refused_field(post_consume(roles.writing.http, wanted(topic, 0, 1)), 404)


def test_a_broker_that_only_reads_has_no_produce(roles: Roles) -> None:
    refused_field(post_produce(roles.reading.http, a_batch(unused_topic(), 0, "x")), 404)


def test_every_role_has_health_and_metrics(roles: Roles) -> None:
    for broker, role in ((roles.writing, "write"), (roles.reading, "read")):
        assert broker.get("/health")["role"] == role
        assert broker.get("/metrics")["broker"]["role"] == role
        assert broker.http.get("/metrics/prometheus").status_code == 200


def test_what_one_role_writes_the_other_reads(roles: Roles) -> None:
    topic = unused_topic()
    produced(roles.writing.http, a_batch(topic, 0, "alpha", {"base64": "AAE="}))
    [result] = consumed(roles.reading.http, wanted(topic, 0, 1), max_wait_ms=5_000)
    assert [record["payload"] for record in result["records"]] == ["alpha", {"base64": "AAE="}]


def test_a_shared_tail_cache_directory_gives_the_reading_process_hits_without_the_stores(roles: Roles) -> None:
    topic = unused_topic()
    produced(roles.writing.http, a_batch(topic, 0, "first"), a_batch(topic, 0, "second"))

    def come_from_the_cache() -> bool:
        before = [roles.reading.metric(path) for path in ("tail_cache.events.hit", "log.read_gets")]
        assert payloads(roles.reading.http, topic) == ["first", "second"]
        after = [roles.reading.metric(path) for path in ("tail_cache.events.hit", "log.read_gets")]
        return after == [before[0] + 1, before[1]]

    # A few milliseconds after the append; until then the stores answer.
    wait_until(come_from_the_cache, "the reading process has the appends in its cache")


# -- nothing is kept in the process ----------------------------------------------------------------------------------


def test_a_restarted_broker_goes_on_where_it_was_without_a_memory_of_its_own(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory, topic = tmp_path_factory.mktemp("restart"), unused_topic()
    with running("broker", directory=directory, name="first") as first:
        produced(first.http, a_batch(topic, 0, "a", "b"), a_batch(topic, 3, "c"))
    with running("broker", directory=directory, name="second") as second:
        [result] = produced(second.http, a_batch(topic, 0, "d"))
        assert (result["start_offset"], result["end_offset"]) == (3, 3)
        assert payloads(second.http, topic) == ["a", "b", "d"]
        assert payloads(second.http, topic, 3) == ["c"]
