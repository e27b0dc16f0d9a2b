"""Clients that take their answers slowly: which are closed, and what they held is returned."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from llog.http.routes.app import build_app
from llog.http.server import HttpServer
from llog.listener.connection import Connection, SendPace
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.http.broker_double import BrokerDouble, batch, consume_body, produce_body

ANSWER_BYTES = 8_000_000


# -- the debt ----------------------------------------------------------------------------------------------------------


def looks(pace: SendPace, taken_per_look: Iterator[int], every_ms: int, waiting_bytes: int) -> float:
    """Look until it is cut off, or all is taken; when that was."""
    now_ms, left_bytes = 0.0, waiting_bytes
    pace.wait(now_ms, left_bytes)
    while left_bytes > 0:
        now_ms += every_ms
        left_bytes -= next(taken_per_look)
        if pace.check(now_ms, left_bytes) <= 0:
            break
    return now_ms


def always(taken: int) -> Iterator[int]:
    while True:
        yield taken


def test_a_client_that_takes_nothing_is_closed_after_the_grace() -> None:
    assert looks(SendPace(1_000, 10, 0), always(0), 100, 1) == 1_000


def test_a_client_above_the_rate_is_never_closed() -> None:
    assert looks(SendPace(1_000, 10, 0), always(1_001), 100, 10_000_000) > 900_000


def test_an_answer_takes_the_grace_and_its_bytes_at_the_rate_at_most() -> None:
    # Half the rate: each second costs half a second of the grace.
    assert looks(SendPace(1_000, 10, 0), always(500), 100, 10_000_000) == pytest.approx(2_000, abs=100)


def test_a_pause_of_the_client_is_forgiven_when_it_catches_up() -> None:
    pace = SendPace(1_000, 10, 0)
    pace.wait(0, 100_000)
    assert pace.check(900, 100_000) == pytest.approx(100)
    assert pace.check(1_000, 90_000) == pytest.approx(1_000)


def test_fast_reading_earns_no_credit() -> None:
    pace = SendPace(1_000, 10, 0)
    pace.wait(0, 1_000_000_000)
    assert pace.check(1_000, 0) == pytest.approx(1_000)
    pace.wait(1_000, 100)
    assert pace.check(2_000, 100) <= 0


def test_debts_go_on_from_piece_to_piece_and_are_forgotten_while_nothing_waits() -> None:
    pace = SendPace(1_000, 10, 0)
    for began_ms in (0, 600):  # each piece alone is within the grace
        patience_ms = pace.wait(began_ms, 1_000)
        pace.rest(began_ms + 600, 0)
    assert patience_ms == pytest.approx(500)
    assert pace.wait(1_200, 1_000) == pytest.approx(0)
    pace.rest(1_200, 1_000)
    assert pace.wait(1_200 + 5_000, 1_000) == pytest.approx(1_000)


# -- real sockets ------------------------------------------------------------------------------------------------------


def request_for_everything() -> bytes:
    body = json.dumps(consume_body("t", 0, 1)).encode()
    return b"POST /consume HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def slow_socket(port: int) -> socket.socket:
    """A socket with a small receive buffer, so that bytes not taken wait in the broker."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect(("127.0.0.1", port))
    client.settimeout(PATIENCE_SECONDS)
    return client


def take(port: int, piece_bytes: int, every_seconds: float, hurry: threading.Event | None = None) -> int:
    """Bytes taken of the answer until it is whole, or the connection gone. In a `hurry` there are no more pauses."""
    taken = 0
    hurry = threading.Event() if hurry is None else hurry
    with slow_socket(port) as client:
        client.sendall(request_for_everything())
        try:
            while taken < ANSWER_BYTES and (piece := client.recv(piece_bytes)):
                taken += len(piece)
                hurry.wait(every_seconds)
        except ConnectionError:
            pass
    return taken


class Served:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, grace_ms: int, bytes_per_ms_min: float) -> None:
        monkeypatch.setattr(Connection, "send_timeout_ms", grace_ms)
        monkeypatch.setattr(Connection, "send_bytes_per_ms_min", bytes_per_ms_min)
        broker = BrokerDouble()
        self.app = build_app(broker)
        self.server = HttpServer(self.app, broker.settings, port=0)

    async def __aenter__(self) -> Served:
        await self.server.start()
        async with httpx.AsyncClient(base_url=self.server.url, timeout=PATIENCE_SECONDS) as client:
            records = ["x" * 100_000] * (ANSWER_BYTES // 100_000)
            assert (await client.post("/produce", json=produce_body(batch("t", 0, *records)))).status_code == 200
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(at_once=True)

    async def until_held(self, *, some: bool) -> None:
        await until(lambda: (self.app.runtime.answers.used > 0) is some)


async def test_a_client_that_trickles_is_cut_off_and_what_it_held_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Served(monkeypatch, grace_ms=1_000, bytes_per_ms_min=100_000) as served:
        # It would have all of it in some seconds, and takes some all the while: what it has not is the rate.
        gone = threading.Event()
        trickling = asyncio.create_task(asyncio.to_thread(take, served.server.port, 32_768, 0.003, gone))
        try:
            await served.until_held(some=True)
            await served.until_held(some=False)
        finally:
            gone.set()
        assert await asyncio.wait_for(trickling, PATIENCE_SECONDS) < ANSWER_BYTES
        async with httpx.AsyncClient(base_url=served.server.url, timeout=PATIENCE_SECONDS) as client:
            assert (await client.get("/health")).status_code == 200


async def test_a_client_slower_than_the_grace_but_above_the_rate_gets_all_of_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A rate so low that any byte taken also pays for a pause of this process, which counts as the client's time here.
    async with Served(monkeypatch, grace_ms=500, bytes_per_ms_min=1) as served:
        began = time.monotonic()
        assert await asyncio.to_thread(take, served.server.port, 32_768, 0.001) >= ANSWER_BYTES
        assert time.monotonic() - began > 0.5, "too quick to prove anything"
        await served.until_held(some=False)
