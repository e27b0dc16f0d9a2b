"""Where a broker says no: bodies too large, clients too slow, buffers full. Against a broker with small limits."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.clients.http_calls import (
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
from tests.patience import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow
BUFFER_BYTES = 1 << 20
BODY_BYTES = 1_040_000
READ_TIMEOUT_S = 3.0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = {
        "llog_batch_max_bytes": "256KiB",
        "llog_batch_max_buffer_bytes": str(BUFFER_BYTES),
        "llog_http_body_max_bytes": str(BODY_BYTES),
        "llog_http_read_timeout_ms": f"{round(READ_TIMEOUT_S * 1_000)}ms",
    }
    with running("broker", directory=tmp_path_factory.mktemp("small"), name="small", **settings) as broker:
        yield broker


def _connected(broker: Running) -> socket.socket:
    return socket.create_connection(
        (broker.http.base_url.host, broker.http.base_url.port or 0), timeout=PATIENCE_SECONDS
    )


def _head(broker: Running, length: int) -> bytes:
    return f"POST /produce HTTP/1.1\r\nhost: {broker.http.base_url.host}\r\ncontent-length: {length}\r\n\r\n".encode()


def _answer(client: socket.socket) -> tuple[bytes, bytes]:
    """Head and body, once as many bytes as the head states have arrived."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += client.recv(65_536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += client.recv(65_536)
    return head, body


@contextmanager
def a_full_buffer(broker: Running) -> Iterator[None]:
    """A request whose body has nearly as many bytes as there is room for, and does not end."""
    with _connected(broker) as holding:
        holding.sendall(_head(broker, BODY_BYTES) + b" " * (BODY_BYTES - 100))
        over = threading.Event()
        trickle = threading.Thread(target=_trickle, args=(holding, over))
        trickle.start()
        try:
            wait_until(lambda: broker.http.get("/ready").status_code == 503, "the body to be taken from the buffer")
            yield
        finally:
            over.set()
            trickle.join()
    wait_until(lambda: broker.http.get("/ready").status_code == 200, "its room to be given back")


def _trickle(client: socket.socket, over: threading.Event) -> None:
    """So that it is not given up."""
    while not over.wait(READ_TIMEOUT_S / 6):
        client.sendall(b" ")


# -- size ------------------------------------------------------------------------------------------------------------


def test_a_body_above_the_limit_is_413_and_names_the_limit(small: Running) -> None:
    answer = post_produce(small.http, a_batch(unused_topic(), 0, "x" * BODY_BYTES))
    refused_field(answer, 413)
    assert answer.json()["error_type"] == "RequestTooLarge"
    assert "LLOG_HTTP_BODY_MAX_BYTES" in answer.json()["error"]
    assert str(BODY_BYTES) in answer.json()["error"]


def test_a_body_that_does_not_tell_its_length_is_413_when_it_passes_the_limit(small: Running) -> None:
    answer = small.http.post("/produce", content=(b"x" * 65_536 for _ in range(20)))
    refused_field(answer, 413)


def test_a_compressed_body_is_refused_because_its_size_is_unknown(small: Running) -> None:
    answer = small.http.post("/produce", content=b"x", headers={"content-encoding": "gzip"})
    assert refused_field(answer) == "body"


def test_a_head_without_end_is_cut_off(small: Running) -> None:
    with _connected(small) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n" + b"x-long: " + b"x" * 100_000)
        assert client.recv(64).startswith(b"HTTP/1.1 431 ")


# -- time ------------------------------------------------------------------------------------------------------------


def test_a_body_that_does_not_come_is_408_after_the_read_timeout(small: Running) -> None:
    with _connected(small) as client:
        client.sendall(_head(small, 1_000) + b'{"topic_part')
        began = time.monotonic()
        head, body = _answer(client)
        assert time.monotonic() - began > READ_TIMEOUT_S * 0.8
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error_type"] == "RequestTooSlow"


def test_a_head_that_does_not_come_ends_the_connection(small: Running) -> None:
    with _connected(small) as client:
        client.sendall(b"POST /produce HTT")
        assert client.recv(64) == b""


def test_slow_clients_do_not_delay_others(small: Running) -> None:
    topic = unused_topic()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(test_a_body_that_does_not_come_is_408_after_the_read_timeout, small)
        meanwhile = 0
        while not waiting.done():
            produced(small.http, a_batch(topic, 0, f"record {meanwhile}"))
            meanwhile += 1
        waiting.result()
    assert meanwhile > 1, "each waited for the slow one"
    assert len(payloads(small.http, topic)) == meanwhile


# -- back-pressure ---------------------------------------------------------------------------------------------------


def test_a_request_that_meets_a_full_buffer_is_503_with_retry_after_and_nothing_is_stored(small: Running) -> None:
    topic = unused_topic()
    batches = [a_batch(topic, partition, "x") for partition in range(12)]
    with a_full_buffer(small):
        answer = post_produce(small.http, *batches)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert consumed(small.http, wanted(topic, 0, 1))[0]["error_type"] == "PartitionNotInitialized"
    produced(small.http, *batches)


def test_a_body_that_finds_no_room_is_503_with_retry_after(small: Running) -> None:
    with a_full_buffer(small):
        answer = post_produce(small.http, a_batch(unused_topic(), 0, "x" * 20_000))
    assert (answer.status_code, answer.json()["error_type"]) == (503, "RequestOverload")
    assert int(answer.headers["retry-after"]) >= 1


def test_health_and_ready_report_full_buffers_and_reading_goes_on(small: Running) -> None:
    topic = unused_topic()
    produced(small.http, a_batch(topic, 0, "x"))
    with a_full_buffer(small):
        health = small.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert health.json()["reasons"]
        ready = small.http.get("/ready")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert "retry-after" in ready.headers
        assert payloads(small.http, topic) == ["x"]


def test_under_a_storm_every_request_is_stored_whole_or_refused_whole(small: Running) -> None:
    topic = unused_topic()
    produced(small.http, a_batch(topic, 0, "first"))

    def send(number: int) -> tuple[int, int]:
        answer = post_produce(small.http, a_batch(topic, 0, f"{number}:" + "x" * 150_000))
        return number, answer.status_code

    with ThreadPoolExecutor(24) as threads:
        shown = list(threads.map(send, range(72)))
    assert {status for _, status in shown} <= {200, 503}
    stored = [text.partition(":")[0] for text in payloads(small.http, topic)[1:]]
    assert sorted(stored) == sorted(str(number) for number, status in shown if status == 200)


def test_the_memory_is_given_back(small: Running) -> None:
    wait_until(lambda: small.metric("batching.buffered_bytes") == 0, "the buffer to be empty")
    assert small.http.get("/health").json()["status"] == "ok"


def test_clients_that_ask_in_pieces_are_understood(small: Running) -> None:
    topic = unused_topic()
    body = json.dumps({"topic_partitions": [a_batch(topic, 0, "x")]}).encode()
    with _connected(small) as client:
        for piece in (_head(small, len(body))[:20], _head(small, len(body))[20:], body[:10], body[10:]):
            client.sendall(piece)
            time.sleep(0.05)  # pacing, so that the pieces arrive one by one
        assert client.recv(64).startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order(broker: Running) -> None:
    host = broker.http.base_url.host
    with _connected(broker) as client:
        client.sendall(
            f"GET /health HTTP/1.1\r\nhost: {host}\r\n\r\n"
            f"GET /nope HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode()
        )
        answer = b""
        while piece := client.recv(65_536):
            answer += piece
    assert answer.index(b"HTTP/1.1 200 ") < answer.index(b"HTTP/1.1 404 ")


def test_a_client_that_goes_away_takes_nothing_with_it(small: Running) -> None:
    with _connected(small) as client:
        client.sendall(_head(small, 100_000) + b"x" * 1_000)
    assert httpx.get(f"{small.url}/health", timeout=PATIENCE_SECONDS).status_code == 200
    wait_until(lambda: small.http.get("/ready").status_code == 200, "the room to be given back")
