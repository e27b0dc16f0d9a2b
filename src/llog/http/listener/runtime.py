"""What lives beside the routes while the front end runs: threads for large bodies, the word that it stops, open tails.

Routes find it through their request. What must stay true: nothing here outlives `close`; work is handed to a bounded
number of threads, and what waits for them is bounded by the memory pool that its bodies were taken from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

from litestar.connection import ASGIConnection

from llog.broker.produce.pool import MemoryPool
from llog.errors import RequestOverload
from llog.http.routes.request_log import RECORD, RequestRecord
from llog.http.routes.services import BrokerServices, StatusServices
from llog.limits import KIB, MIB

# Decoding or encoding more than this leaves the event loop; below, handing it over costs more than it saves.
HTTP_INLINE_BYTES_MAX: Final = 256 * KIB
HTTP_WORKER_THREADS: Final = 2
# What all answers with records hold together, from the first byte found to the last one taken by its client; who finds
# no room is told to come again. One answer alone may be larger.
HTTP_ANSWERS_BYTES_MAX: Final = 256 * MIB
# Streams of server-sent events at once, what each fetches at a time, and how often a silent one shows it is alive.
HTTP_TAILS_MAX: Final = 1_000


T = TypeVar("T")
RUNTIME: Final = "llog_runtime"
Connection = ASGIConnection[Any, Any, Any, Any]


class Access:
    """What a route asks of its caller, in the route's `opt`."""

    KEY: Final = "llog_access"
    OPEN: Final = "open"
    READ: Final = "read"
    WRITE: Final = "write"
    EITHER: Final = "either"


class Runtime:
    def __init__(self, services: StatusServices, broker: BrokerServices | None = None) -> None:
        self.services, self._broker = services, broker
        self.stopping = asyncio.Event()
        self._threads = ThreadPoolExecutor(HTTP_WORKER_THREADS, thread_name_prefix="llog-http")
        self._tails = 0
        self.answers = MemoryPool(HTTP_ANSWERS_BYTES_MAX)
        """What all answers with records hold together."""

    @property
    def broker(self) -> BrokerServices:
        assert self._broker is not None, "a route of brokers in an application without one"
        return self._broker

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work` on `size` bytes: here when they are few, in a thread when they would hold up others."""
        if size <= HTTP_INLINE_BYTES_MAX:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def enter_tail(self) -> None:
        """`RequestOverload` when there are too many; `leave_tail` must follow."""
        if self._tails >= HTTP_TAILS_MAX:
            raise RequestOverload(f"{HTTP_TAILS_MAX} tails are open: close one, or ask another broker")
        self._tails += 1

    def leave_tail(self) -> None:
        self._tails -= 1

    def close(self) -> None:
        self.stopping.set()
        self._threads.shutdown(wait=False)


def runtime_of(request: Connection) -> Runtime:
    known = cast(dict[str, Any], request.scope).get(RUNTIME)  # `hot_routes` puts it there
    return cast(Runtime, request.app.state[RUNTIME] if known is None else known)


def request_record(request: Connection) -> RequestRecord:
    return cast(RequestRecord, cast(dict[str, Any], request.scope)[RECORD])
