"""The proxy between brokers and their S3 server in scenarios with faults of the object store:
`python -m llog.loadtest.stack.object_proxy PORT CONTROL_PORT TARGET_PORT`.

Orders come as a line to the control port (`order_proxy`), so that any orchestrator of the run can give them.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, Literal

from llog.errors import StackFailed
from llog.testing.proxy import TcpProxy

NAME: Final = "object-proxy"
HOST: Final = "127.0.0.1"
ORDER_SECONDS_MAX: Final = 10.0
Order = Literal["stall", "refuse", "pass"]

_BODY: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


async def order_proxy(control_port: int, order: Order) -> None:
    """Returns when the order is in force. Raises `StackFailed`."""
    try:
        async with asyncio.timeout(ORDER_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(HOST, control_port)
            try:
                writer.write(order.encode() + b"\n")
                answer = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise StackFailed(NAME, f"it did not take the order {order}: {error or type(error).__name__}") from None
    if answer != b"ok\n":
        raise StackFailed(NAME, f"it refused the order {order}")


def obey(proxy: TcpProxy, order: str) -> bool:
    """Whether there is such an order."""
    if order not in ("stall", "refuse", "pass"):
        return False
    proxy.heal()
    if order == "stall":
        proxy.stall_requests = proxy.stall_replies = True
    elif order == "refuse":
        proxy.http_answer = _REFUSAL
    return True


async def serve(port: int, control_port: int, target_port: int) -> None:
    proxy = TcpProxy(HOST, target_port)
    proxy.port = port

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order = (await reader.readline()).decode(errors="replace").strip()
        writer.write(b"ok\n" if obey(proxy, order) else b"no\n")
        await writer.drain()
        writer.close()

    async with proxy, await asyncio.start_server(control, HOST, control_port) as controlling:
        await controlling.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:])))
