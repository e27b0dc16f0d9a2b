"""Uploads that stall: what they hold of the broker's memory is what has arrived, so they keep no other client out."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from llog.limits import MIB
from tests.clients.http_calls import Running, a_batch, payloads, post_produce, unused_topic
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow
ATTACKERS = 17
DECLARED_BYTES = 32 * MIB
"""Of each; together more than LLOG_BATCH_MAX_BUFFER_BYTES, which is 512 MiB."""


@contextmanager
def stalled_uploads(broker: Running, count: int, sent: bytes, source: str = "") -> Iterator[list[socket.socket]]:
    """Connections from the address `source` that have begun a body each."""
    address = (broker.http.base_url.host, broker.http.base_url.port or 0)
    head = f"POST /produce HTTP/1.1\r\nhost: {address[0]}\r\ncontent-length: {DECLARED_BYTES}\r\n\r\n".encode()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(address, PATIENCE_SECONDS, (source, 0))) for _ in range(count)
        ]
        for client in clients:
            client.sendall(head + sent)
        yield clients


def test_clients_that_declare_more_than_the_buffer_and_send_a_byte_at_a_time_keep_nobody_out(broker: Running) -> None:
    topic, stored = unused_topic(), 0
    with stalled_uploads(broker, ATTACKERS, b"{") as clients:
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            for client in clients:
                client.sendall(b" ")
            for size in (10, 50_000, 500_000):
                answer = post_produce(broker.http, a_batch(topic, 0, "x" * size))
                assert answer.status_code == 200, answer.text
                stored += 1
        assert broker.get("/ready")["ready"] is True
    assert len(payloads(broker.http, topic)) == stored


def test_uploads_that_stall_after_many_bytes_hold_the_share_of_their_client(broker: Running) -> None:
    topic = unused_topic()
    with stalled_uploads(broker, 8, b" " * (20 * MIB), source="127.0.0.2"):
        for _ in range(20):
            answer = post_produce(broker.http, a_batch(topic, 0, "x" * 1_000))
            assert answer.status_code == 200, answer.text
        assert broker.get("/ready")["ready"] is True
