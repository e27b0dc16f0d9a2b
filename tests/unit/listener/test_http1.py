"""HTTP/1.1 over real sockets: order, framing, limits, hostile bytes, and a graceful stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from llog.listener import http1
from llog.listener.http1 import HEADERS_MAX, Exchange, Handler, HttpConnection, Reply
from llog.listener.server import SocketListener
from llog.settings import Settings
from tests.patience import PATIENCE_SECONDS, until

HEAD_TIMEOUT_MS = 30_000


async def echo(exchange: Exchange) -> None:
    """Answers with the method, the path and the body."""
    body = b""
    while piece := await exchange.receive() or b"":
        body += piece
    if not exchange.is_complete:
        await exchange.answer(Reply(400, b"incomplete"))
        return
    await exchange.answer(Reply(200, b"%b %b %b" % (exchange.method.encode(), exchange.path, body), "text/plain"))


@asynccontextmanager
async def listening(handler: Handler, *, connections_max: int = 100) -> AsyncIterator[SocketListener]:
    listener = SocketListener(
        Settings.from_env({}, metadata_url="memory://", objects_url="memory://"),
        lambda peers: HttpConnection(peers, handler, HEAD_TIMEOUT_MS),
        host="127.0.0.1",
        port=0,
        variables="LLOG_HTTP",
        connections_max=connections_max,
    )
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop(at_once=True)


async def sent(listener: SocketListener, data: bytes, *, eof: bool = False) -> bytes:
    """All bytes of the answers until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        writer.write(data)
        if eof:
            writer.write_eof()
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def get(path: str = "/", *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: x", *headers, "", ""]).encode()


LAST = get("/last", "connection: close")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with listening(echo) as listener:
        answers = await sent(listener, get("/a") + get("/b") + LAST)
    assert [answers.index(b"GET /%b" % path) for path in (b"a", b"b", b"last")] == sorted(
        answers.index(b"GET /%b" % path) for path in (b"a", b"b", b"last")
    )
    assert answers.count(b"HTTP/1.1 200 OK") == 3


async def test_pipelined_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "PIPELINED_MAX", 3)
    async with listening(echo) as listener:
        answers = await sent(listener, get("/a") * 9)
    assert answers.count(b"HTTP/1.1 200") == 4
    assert answers.count(b"HTTP/1.1 429") == 1


async def test_a_head_request_gets_the_length_and_no_body() -> None:
    async with listening(echo) as listener:
        answers = await sent(listener, get("/a", "connection: close", method="HEAD"))
    assert b"content-length: 8\r\n" in answers
    assert answers.endswith(b"\r\n\r\n")


async def test_a_streamed_answer_is_chunked_and_ends_with_the_connection_for_http_1_0() -> None:
    async def stream(exchange: Exchange) -> None:
        await exchange.start(200, [(b"content-type", b"text/plain")], b"one", more=True)
        await exchange.send(b"two", more=True)
        await exchange.send(b"", more=False)

    async with listening(stream) as listener:
        chunked = await sent(listener, LAST)
        plain = await sent(listener, get(version="1.0"))
    assert chunked.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
    assert plain.endswith(b"\r\n\r\nonetwo")
    assert b"chunked" not in plain


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400"),  # a TLS client
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"GET a:443 HTTP/1.1\r\nhost: x\r\n\r\n", b"400"),
        (get("/\xe9"), b"400"),
        (get("/", "content-length: 1", "transfer-encoding: chunked"), b"400"),
        (get("/", "content-length: -1"), b"400"),
        (get("/", *[f"x-{number}: y" for number in range(HEADERS_MAX)]), b"431"),
        (get("/", f"x-long: {'y' * 100_000}")[:-4], b"431"),
        (get("/", f"x-long: {'y' * 100_000}"), b"431"),
    ],
)
async def test_bytes_that_are_no_request_are_refused(data: bytes, status: bytes) -> None:
    async with listening(echo) as listener:
        answer = await sent(listener, data)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in answer
    assert b'"error_type"' in answer


async def test_a_bad_request_behind_good_ones_is_refused_after_their_answers() -> None:
    async with listening(echo) as listener:
        answers = await sent(listener, get("/a") + get("/b") + b"nonsense\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200") == 2
    assert answers.count(b"HTTP/1.1 400") == 1
    assert answers.index(b"400") > answers.index(b"GET /b")


async def test_a_body_that_breaks_the_framing_gets_one_answer() -> None:
    async with listening(echo) as listener:
        answers = await sent(listener, get("/", "transfer-encoding: chunked", method="POST") + b"3\r\nabc\r\nzz\r\n")
    assert answers.count(b"HTTP/1.1") == 1
    assert answers.endswith(b"incomplete")


async def test_an_upgrade_is_not_offered_and_the_request_is_answered() -> None:
    upgrade = ("connection: upgrade", "upgrade: h2c")
    async with listening(echo) as listener:
        answered = await sent(listener, get("/", *upgrade))
        refused = await sent(listener, get("/", *upgrade, "content-length: 3", method="POST") + b"abc")
    assert answered.endswith(b"GET / ")
    assert refused.startswith(b"HTTP/1.1 400")
    assert b"without an Upgrade header" in refused


async def test_connections_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    async with listening(echo, connections_max=1) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(get("/first"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await reader.readuntil(b"/first ")).startswith(b"HTTP/1.1 200")
        refused = await sent(listener, get("/second"))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in refused
        writer.write(get("/third"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.readuntil(b"/third ")
        writer.close()


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "KEEP_ALIVE_MS", 50)
    async with listening(echo) as listener:
        answer = await sent(listener, get("/a"))
    assert answer.endswith(b"GET /a ")


async def test_a_handler_that_fails_gets_500_and_half_an_answer_never_looks_whole() -> None:
    async def fail(exchange: Exchange) -> None:
        if exchange.path == b"/half":
            await exchange.start(200, [(b"content-length", b"10")], b"half", more=True)
        raise RuntimeError("secret")

    async with listening(fail) as listener:
        whole, half = await sent(listener, get("/")), await sent(listener, get("/half"))
    assert whole.startswith(b"HTTP/1.1 500")
    assert b"secret" not in whole
    assert not half.endswith(b"0\r\n\r\n")


async def test_a_header_with_a_line_end_is_never_sent() -> None:
    async def inject(exchange: Exchange) -> None:
        await exchange.start(200, [(b"x", b"y\r\nset-cookie: z")], b"", more=False)

    async with listening(inject) as listener:
        assert b"set-cookie" not in await sent(listener, LAST)


async def test_a_stop_closes_idle_connections_and_answers_requests_in_flight() -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        arrived.set()
        await go_on.wait()
        await echo(exchange)

    async with listening(wait) as listener:
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", listener.port)
        in_flight = asyncio.create_task(sent(listener, get("/in-flight")))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await arrived.wait()
            stopping = asyncio.create_task(listener.stop())
            assert await idle_reader.read() == b""
            assert not stopping.done()
            go_on.set()
            answer = await in_flight
            await stopping
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        idle_writer.close()


async def test_the_socket_is_not_read_beyond_what_the_reader_has_room_for() -> None:
    received: list[Exchange] = []
    go_on = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        received.append(exchange)
        await go_on.wait()
        await echo(exchange)

    size = 16 * 1024 * 1024
    async with listening(slow) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(get("/", f"content-length: {size}", method="POST") + bytes(size))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until(lambda: bool(received) and received[0].is_full, "a full buffer")
            before = received[0].received_bytes
            # Nothing signals that no more bytes come; a listener that kept reading would do so within milliseconds.
            await asyncio.sleep(0.05)
            assert received[0].received_bytes == before < size
            go_on.set()
            await reader.readuntil(b"POST / ")
        writer.close()


PARTS = st.one_of(
    st.sampled_from(
        [
            get("/a"), get("/b", "content-length: 3", method="POST") + b"abc", b"\r\n", b"GET ", b"POST / HTTP/1.1\r\n",
            b"transfer-encoding: chunked\r\n\r\n", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"content-length: 5\r\n\r\n",
            b"\x00", b"expect: 100-continue\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]
    ),
    st.binary(max_size=40),
)  # fmt: skip


@examples(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PARTS, min_size=1, max_size=8))
async def test_no_bytes_break_the_server(parts: list[bytes]) -> None:
    async with listening(echo) as listener:
        answers = await sent(listener, b"".join(parts), eof=True)
        assert b"HTTP/1.1 500" not in answers
        assert (await sent(listener, LAST)).startswith(b"HTTP/1.1 200"), "the server serves the next client"
