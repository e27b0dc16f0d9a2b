"""The application behind a real socket: starting, stopping, slow clients, large bodies, TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from llog.errors import ExposureRefused, SettingsError
from llog.http.routes.app import build_app
from llog.http.routes.runtime import Runtime
from llog.http.server import HttpServer
from llog.listener.connection import Connection
from llog.listener.http1 import BODY_PART_BYTES
from llog.settings import Settings
from llog.settings.listening import check_exposure, is_loopback
from tests.certificates import make_certificate
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.http.broker_double import BrokerDouble, batch, consume_body, produce_body


@asynccontextmanager
async def served(broker: BrokerDouble) -> AsyncIterator[HttpServer]:
    server = HttpServer(build_app(broker), broker.settings, port=0)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(at_once=True)


async def is_closed(server: HttpServer) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    except ConnectionError:
        return True
    writer.close()
    return False


async def test_a_stop_answers_requests_in_flight_and_accepts_no_more() -> None:
    broker = BrokerDouble()
    broker.hold = asyncio.Event()
    async with served(broker) as server, httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        under_way = asyncio.create_task(client.post("/produce", json=produce_body(batch("t", 0, "a"))))
        await until(lambda: bool(broker.in_pool))
        stopping = asyncio.create_task(server.stop())
        await until(lambda: is_closed(server), "no more connections accepted")
        assert not stopping.done()
        broker.hold.set()
        assert (await under_way).json()["results"][0]["start_offset"] == 1
        await asyncio.wait_for(stopping, PATIENCE_SECONDS)


async def test_a_stop_is_bounded_whatever_is_in_flight() -> None:
    broker = BrokerDouble(http_stop_timeout_ms=200)
    broker.hold = asyncio.Event()
    async with served(broker) as server, httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        under_way = asyncio.create_task(client.post("/produce", json=produce_body(batch("t", 0, "a"))))
        await until(lambda: bool(broker.in_pool))
        await asyncio.wait_for(server.stop(), PATIENCE_SECONDS)
        [answer] = await asyncio.gather(under_way, return_exceptions=True)
        assert not isinstance(answer, httpx.Response) or answer.status_code >= 500
        await server.stop()


async def test_a_head_that_never_ends_is_given_up() -> None:
    async with served(BrokerDouble(http_read_timeout_ms=200)) as server:
        for beginning in (b"", b"POST /produce HTTP/1.1\r\nhost: x\r\nx-slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(beginning)
            assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
            writer.close()


async def test_a_head_without_end_is_cut_off_by_its_size() -> None:
    async with served(BrokerDouble()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 100_000)
        assert (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).startswith(b"HTTP/1.1 431")
        writer.close()


async def test_requests_behind_each_other_on_one_connection_are_all_answered() -> None:
    async with served(BrokerDouble()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps(produce_body(batch("t", 0, "x" * 3_000))).encode()
        one = b"POST /produce HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        writer.write(one * 40)  # far more than one head may have
        for _ in range(40):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
            assert head.startswith(b"HTTP/1.1 200")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()


async def test_a_poll_ends_when_its_client_disconnects() -> None:
    broker = BrokerDouble()
    async with served(broker) as server, httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        poll = asyncio.create_task(client.post("/consume", json=consume_body("t", 0, 2, max_wait_ms=60_000)))
        await broker.poll_waits()
        poll.cancel()
        await until(lambda: any(route == "/consume" for route, *_ in broker.metrics.requests))


async def test_a_body_that_never_ends_is_given_up_and_its_memory_given_back() -> None:
    broker = BrokerDouble(http_read_timeout_ms=200)
    async with served(broker) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /produce HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        assert head.startswith(b"HTTP/1.1 408")
        assert broker.pool.used == 0
        writer.close()


@pytest.mark.parametrize("sent_bytes", [0, 8_000_000], ids=["from the start", "after many bytes"])
async def test_a_body_that_trickles_below_the_slowest_rate_is_given_up(sent_bytes: int) -> None:
    broker = BrokerDouble(http_read_timeout_ms=200)
    async with served(broker) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /produce HTTP/1.1\r\nhost: x\r\ncontent-length: 16000000\r\n\r\n" + b" " * sent_bytes)
        await writer.drain()
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        began = time.monotonic()
        while not answer.done():
            assert time.monotonic() - began < PATIENCE_SECONDS, "bytes that came fast earn no time for a later stall"
            writer.write(b" ")
            await asyncio.sleep(0.02)  # pacing: 50 bytes a second
        assert (await answer).startswith(b"HTTP/1.1 408")
        assert broker.pool.used == 0
        writer.close()


async def test_a_body_that_has_arrived_needs_no_share_of_the_incomplete_ones() -> None:
    broker = BrokerDouble(pool_bytes=4 * BODY_PART_BYTES)
    begun = b"POST /produce HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{"
    body = json.dumps(produce_body(batch("t", 0, "a"))).encode()
    whole = b"POST /produce HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with served(broker) as server:
        connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(4)]
        for _, writer in connections[:2]:
            writer.write(begun)
        await until(lambda: broker.pool.used == 2 * BODY_PART_BYTES, "the stalled bodies to begin")
        refused, written = connections[2]
        written.write(begun)
        head = await asyncio.wait_for(refused.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        assert head.startswith(b"HTTP/1.1 503"), "the client has its share, and one body more"
        reader, writer = connections[3]
        writer.write(whole)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        assert head.startswith(b"HTTP/1.1 200")
        for _, writer in connections:
            writer.close()


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async with served(BrokerDouble(http_body_max_bytes=1_024)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /produce HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)).startswith(b"HTTP/1.1 413")
        # The rest is thrown away for a while only.
        await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        writer.close()


async def read_to_the_end(reader: asyncio.StreamReader) -> int:
    taken = 0
    try:
        while chunk := await reader.read(65_536):
            taken += len(chunk)
    except ConnectionError:
        pass
    return taken


async def test_a_client_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "send_timeout_ms", 200)
    broker = BrokerDouble()
    async with served(broker) as server, httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        for _ in range(3):
            await client.post("/produce", json=produce_body(batch("t", 0, *["x" * 100_000] * 100)))
        body = json.dumps(consume_body("t", 0, 1)).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1_024)
        writer.write(b"POST /consume HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await until(lambda: any(route == "/consume" for route, *_ in broker.metrics.requests))
        taken = await asyncio.wait_for(read_to_the_end(reader), PATIENCE_SECONDS)
        assert taken < 30_000_000
        writer.close()


POSTS = """
import http.client, sys
port, turns, *paths = sys.argv[1:]
bodies = [open(path, "rb").read() for path in paths]
for turn in range(int(turns)):
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
    connection.request("POST", "/produce", bodies[turn % len(bodies)])
    assert connection.getresponse().status == 200
    connection.close()
"""


async def test_bodies_of_8_mib_are_decoded_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work on the loop delays every other request."""
    plain = produce_body(*(batch("t", p, *["x" * 1_024] * 1_000) for p in range(8)))
    coded = produce_body(batch("t", 0, *[{"base64": "eHh4" * 300}] * 6_500))
    paths = [tmp_path / "plain", tmp_path / "coded"]
    for path, body in zip(paths, (plain, coded), strict=True):
        path.write_bytes(json.dumps(body).encode())
        assert path.stat().st_size > 7_500_000
    async with served(BrokerDouble()) as server:

        async def held_seconds() -> float:
            """How long the loop computed. Its own time, so that nothing else on the machine counts."""
            arguments = [str(server.port), "4", *map(str, paths)]
            before = time.thread_time()
            # A process of its own: it must not be the sender that holds the interpreter.
            sender = await asyncio.create_subprocess_exec(sys.executable, "-c", POSTS, *arguments)
            assert await sender.wait() == 0
            return time.thread_time() - before

        await held_seconds()  # kernels are compiled, or loaded, by now
        beside = await held_seconds()

        async def here(_self: Runtime, _size: int, work: Callable[[], Any]) -> Any:
            return work()

        monkeypatch.setattr(Runtime, "off_loop", here)
        on_the_loop = await held_seconds()
    print(f"4 bodies of 8 MiB: the loop computed {beside:.3f} s; {on_the_loop:.3f} s where it decodes them itself")
    assert beside < on_the_loop / 2


# -- where it may listen -----------------------------------------------------------------------------------------------


def settings(**overrides: Any) -> Settings:
    return Settings.from_env({}, **overrides)


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("broker.example", False),
    ],
)
def test_which_addresses_are_loopback(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


def test_an_address_that_others_reach_needs_both_tokens_and_a_certificate(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.touch()
    key.touch()
    full = {
        "http_read_token": "r" * 16,
        "http_write_token": "w" * 16,
        "tls_cert_file": cert,
        "tls_key_file": key,
        "http_bind_host": "0.0.0.0",
    }
    check_exposure(settings(**full))
    check_exposure(settings(http_bind_host="0.0.0.0", insecure=True))
    for left_out in ("http_read_token", "http_write_token"):
        with pytest.raises(ExposureRefused) as refused:
            check_exposure(settings(**{name: value for name, value in full.items() if name != left_out}))
        assert refused.value.missing == (f"LLOG_{left_out.upper()}",)
    with pytest.raises(ExposureRefused, match="LLOG_INSECURE=1"):
        check_exposure(settings(http_bind_host="0.0.0.0"))
    with pytest.raises(SettingsError, match="LLOG_TLS_KEY_FILE"):
        check_exposure(settings(tls_cert_file=cert))
    with pytest.raises(SettingsError, match="must be a file"):
        check_exposure(settings(tls_cert_file=cert, tls_key_file=tmp_path / "none"))


async def test_an_exposed_server_does_not_bind() -> None:
    broker = BrokerDouble(http_bind_host="0.0.0.0")
    server = HttpServer(build_app(broker), broker.settings, port=0)
    with pytest.raises(ExposureRefused):
        await server.start()
    await server.stop()


async def test_the_error_for_a_taken_port_names_the_address() -> None:
    async with served(BrokerDouble()) as server:
        broker = BrokerDouble()
        with pytest.raises(SettingsError, match=rf"LLOG_HTTP_PORT=.{server.port}.*127.0.0.1"):
            await HttpServer(build_app(broker), broker.settings, port=server.port).start()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[Path, Path]]:
    return lambda: make_certificate(tmp_path_factory.mktemp("tls"))


async def test_tls_is_spoken_where_there_is_a_certificate(certificate: Callable[[], tuple[Path, Path]]) -> None:
    cert, key = certificate()
    async with served(BrokerDouble(tls_cert_file=cert, tls_key_file=key)) as server:
        assert server.url.startswith("https://")
        trust = ssl.create_default_context(cafile=cert)
        async with httpx.AsyncClient(base_url=server.url, verify=trust, timeout=PATIENCE_SECONDS) as client:
            answer = await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        assert answer.status_code == 200


async def test_a_key_that_is_none_is_refused_at_start(certificate: Callable[[], tuple[Path, Path]]) -> None:
    cert, _ = certificate()
    broker = BrokerDouble(tls_cert_file=cert, tls_key_file=cert)
    with pytest.raises(SettingsError, match="cannot be used"):
        await HttpServer(build_app(broker), broker.settings, port=0).start()
