"""The ASGI 3 bridge: a framework's application answers an `Exchange` of our own connection.

Requests and answers of the `http` scope, streamed answers, and the client's disconnect; no lifespan, no websockets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from llog.listener.http1 import Exchange, Headers
from llog.telemetry.request_log import STATUS_PATHS, RequestRecord

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
_VERSIONS: Final = {"version": "3.0", "spec_version": "2.3"}


async def serve_asgi(app: AsgiApp, record: RequestRecord, more: Mapping[str, Any]) -> None:
    """Run the application for one request; `more` joins its scope."""
    exchange = record.exchange
    status, headers = 0, Headers()

    async def receive() -> Message:
        piece = await exchange.receive()
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            # It is written together with the first bytes of the body.
            status, headers = message["status"], [*message.get("headers", ()), _id_header(record)]
            record.status = status
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        record.response_bytes += len(body)
        if exchange.started:
            await exchange.send(body, more=not is_last)
        else:
            await exchange.start(status, headers, body, more=not is_last)

    await app({**scope_of(exchange), **more}, receive, send)


def scope_of(exchange: Exchange) -> dict[str, Any]:
    path = exchange.path.decode("ascii")
    return {
        "type": "http",
        "asgi": _VERSIONS,
        "http_version": exchange.version,
        "server": exchange.server,
        "client": exchange.client,
        "scheme": exchange.scheme,
        # The connection sends no body to a HEAD request.
        "method": "GET" if exchange.method == "HEAD" and path in STATUS_PATHS else exchange.method,
        "root_path": "",
        "path": unquote(path) if "%" in path else path,
        "raw_path": exchange.path,
        "query_string": exchange.query,
        "headers": exchange.headers,
        "state": {},
    }


def _id_header(record: RequestRecord) -> tuple[bytes, bytes]:
    return b"x-request-id", record.request_id.encode()
