"""What routes share: the broker behind them, worker threads, the memory of bodies and answers, open tails.

Bodies with records come out of the broker's pool as they arrive, a part at a time, and never more is read than it gave.
Bodies that have not arrived completely hold at most a share of the pool, and those of one client a share of that, so
clients that stall keep nobody else out; a client that sends slowly is given up. Answers share a pool too:
clients decide how many there are at once, and a client that does not read keeps its answer in memory. An answer counts
from the first byte found until the client has taken the last one, or is gone; waiting for records holds nothing. A
request that does not fit is refused with 503 and Retry-After.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar, cast

from litestar import Response
from litestar.connection import ASGIConnection

from llog.broker.consume.consume import ConsumeRequest, PartitionFetched
from llog.broker.consume.request import CONSUME_RECORD_BYTES
from llog.broker.groups.positions import GroupPositions
from llog.broker.produce.pool import IncompleteBody, MemoryPool
from llog.broker.produce.producer import REJECTIONS, TimedOutcomes
from llog.errors import ClientDisconnected, InvalidArgument, RequestOverload, RequestTooLarge, RequestTooSlow
from llog.http.json.decode import BODY, decoded
from llog.limits import KIB, MIB
from llog.listener.connection import SendPace
from llog.listener.http1 import JSON, Exchange, Reply, json_reply
from llog.listener.tokens import Tokens
from llog.log.append.append import EncodedGroup
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.known_topics import KnownTopics
from llog.security.certificates import principal_rules
from llog.security.security import Security
from llog.telemetry.request_log import HttpMetrics, RequestRecord
from llog.telemetry.status_pages import StatusServices

HTTP_INLINE_BYTES_MAX: Final = 256 * KIB
"""Larger bodies and answers are decoded and encoded in a thread; below, the hand-over costs more than it saves."""
HTTP_WORKER_THREADS: Final = 2
HTTP_ANSWERS_BYTES_MAX: Final = 256 * MIB
"""What all answers with records hold together. One answer alone may be larger."""
HTTP_TAILS_MAX: Final = 1_000
"""Streams of server-sent events at once."""
HTTP_READ_BYTES_PER_MS_MIN: Final = 8
"""A body that comes slower than this for LLOG_HTTP_READ_TIMEOUT_MS is given up. A stall anywhere in a body lasts at
most twice that timeout."""
HTTP_SMALL_BODY_BYTES_MAX: Final = 4 * MIB
"""Bodies without records; a consume request that names as many logs as it may has about a megabyte."""

RUNTIME: Final = "llog_runtime"
RECORD: Final = "llog.request"
T = TypeVar("T")
AnyRequest = ASGIConnection[Any, Any, Any, Any]


class FrontEndMetrics(HttpMetrics, Protocol):
    def http_validation_failure(self, route: str, field: str) -> None:
        """A request was refused because of `field`, named without its position (`topic_partitions[].partition`)."""

    def count(self, name: str, value: int = 1) -> None:
        """By the producer's names: a body that does not fit into the pool is a call that the producer never sees."""


class BrokerServices(StatusServices, Protocol):
    """What routes ask of the broker. Every call is made from the one event loop."""

    @property
    def metrics(self) -> FrontEndMetrics: ...

    @property
    def writes(self) -> bool:
        """The role includes producing."""

    @property
    def reads(self) -> bool:
        """The role includes consuming."""

    @property
    def context(self) -> LogContext: ...

    @property
    def positions(self) -> GroupPositions: ...

    @property
    def topics(self) -> KnownTopics: ...

    @property
    def pool(self) -> MemoryPool: ...

    @property
    def security(self) -> Security: ...

    def refusal(self) -> str:
        """Why no record can be accepted now; empty when records can be."""

    async def produce(self, groups: Sequence[EncodedGroup]) -> TimedOutcomes:
        """One outcome per group, in order; at most one group per log. The groups' bytes are taken from the pool before
        the first await."""

    async def consume(self, request: ConsumeRequest) -> Sequence[PartitionFetched]:
        """One answer per partition, in order."""

    def log_changed(self, log: Log) -> None:
        """An operator deleted, emptied or fenced the log: cached state about it may no longer hold."""


class Runtime:
    """Ends with `close`. Work in threads is bounded by the pool that its bodies were taken from."""

    def __init__(self, services: BrokerServices) -> None:
        self.services, self.tokens = services, Tokens(services.settings)
        self.principal_rules = principal_rules(services.settings)
        self.stopping = asyncio.Event()
        self.draining = False
        """`/ready` answers 503, and everything else is served."""
        self.answers = MemoryPool(HTTP_ANSWERS_BYTES_MAX)
        self.bodies = services.pool.incomplete
        self._threads = ThreadPoolExecutor(HTTP_WORKER_THREADS, thread_name_prefix="llog-http")
        self._tails = 0

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work` on `size` bytes, made in a thread when there are many."""
        if size <= HTTP_INLINE_BYTES_MAX:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def enter_tail(self) -> None:
        """`RequestOverload` when too many are open; `leave_tail` must follow."""
        if self._tails >= HTTP_TAILS_MAX:
            raise RequestOverload(f"{HTTP_TAILS_MAX} tails are open: close one, or use another broker")
        self._tails += 1

    def leave_tail(self) -> None:
        self._tails -= 1

    def close(self) -> None:
        self.stopping.set()
        self._threads.shutdown(wait=False)


class AnswerShare:
    """What one answer holds of the pool."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool, self._size = pool, 0

    def hold(self, size: int) -> None:
        """At least `size` bytes; an answer larger than the pool gets all of it, when it is empty. `RequestOverload`
        when there is no room."""
        size = min(size, self._pool.limit_bytes)
        if size <= self._size:
            return
        if not self._pool.try_take(size - self._size):
            raise RequestOverload("answers to other clients use all memory for answers: ask again")
        self._size = size

    def shrink(self, size: int) -> None:
        """At most `size` bytes."""
        if size < self._size:
            self._pool.give(self._size - size)
            self._size = size

    def give(self) -> None:
        self.shrink(0)


def held_bytes(fetched: Sequence[PartitionFetched]) -> int:
    """Memory of an answer that is about to be encoded: bytes as found and decoded, and the cost of each record."""
    found = sum(len(data) for partition in fetched for data in partition.batches)
    columns = [run.columns for partition in fetched for run in partition.runs]
    values = sum(column.values.data.nbytes + column.keys.data.nbytes for column in columns)
    # The values exist as columns, as text, and in the answer.
    return found + 3 * values + sum(map(len, columns)) * CONSUME_RECORD_BYTES


# -- bodies -----------------------------------------------------------------------------------------------------------


class Body:
    """A body in the pieces it came in."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.size += len(piece)

    def joined(self) -> bytes:
        """The whole body. The pieces are released, so that a large body is in memory once."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class TakenBody:
    """The body of a request that carries records; its bytes are taken from the pool until the block ends."""

    def __init__(self, runtime: Runtime, exchange: Exchange) -> None:
        self._exchange, self._services, self._bodies = exchange, runtime.services, runtime.bodies
        self._incomplete: IncompleteBody
        self._size = 0

    async def __aenter__(self) -> Body:
        settings = self._services.settings
        limit_bytes, timeout_ms = settings.http_body_max_bytes, settings.http_read_timeout_ms
        client = self._exchange.client
        self._incomplete = self._bodies.begin(client[0] if client else "")
        try:
            return await _read(self._exchange, self._take, limit_bytes, "LLOG_HTTP_BODY_MAX_BYTES", timeout_ms)
        except BaseException:
            self._services.pool.give(self._size)
            raise
        finally:
            self._incomplete.end()

    async def __aexit__(self, *_: object) -> None:
        self._services.pool.give(self._size)

    def _take(self, size: int) -> None:
        """Take `size` bytes in all. A body that has arrived takes no share of the incomplete ones."""
        taker = self._services.pool if self._exchange.is_complete else self._incomplete
        if not taker.try_take(size - self._size):
            self._services.metrics.count(REJECTIONS)
            raise RequestOverload(
                "the broker's buffer (LLOG_BATCH_MAX_BUFFER_BYTES) has no room: nothing was accepted, try again"
            )
        self._size = size


async def decoded_small_body(runtime: Runtime, exchange: Exchange, kind: type[T], *, default: T | None = None) -> T:
    timeout_ms = runtime.services.settings.http_read_timeout_ms
    body = await _read(exchange, _no_pool, HTTP_SMALL_BODY_BYTES_MAX, "HTTP_SMALL_BODY_BYTES_MAX", timeout_ms)
    if not body.size and default is not None:
        return default
    text = body.joined()
    return await runtime.off_loop(len(text), lambda: decoded(kind, text))


def _no_pool(_: int) -> None:
    """Room for a body without records, which is small."""


async def _read(
    exchange: Exchange, make_room: Callable[[int], None], limit_bytes: int, limit_name: str, timeout_ms: int
) -> Body:
    declared = _declared_length(exchange)
    if declared > limit_bytes:
        raise RequestTooLarge(limit_bytes, limit_name)
    now = asyncio.get_running_loop().time
    started = now()
    pace = SendPace(timeout_ms, HTTP_READ_BYTES_PER_MS_MIN, started * 1_000)
    pace.wait(started * 1_000, limit_bytes)

    def deadline(received_bytes: int) -> float:
        """Bytes that came fast earn no time for a later stall."""
        return now() + pace.check(now() * 1_000, limit_bytes - received_bytes) / 1_000

    body = Body()
    try:
        if declared:
            for piece in await exchange.read_body(declared, deadline, make_room):
                body.add(piece)
        else:
            while piece := await exchange.receive(deadline(body.size)) or b"":
                if body.size + len(piece) > limit_bytes:
                    raise RequestTooLarge(limit_bytes, limit_name)
                make_room(body.size + len(piece))
                body.add(piece)
    except TimeoutError:
        raise RequestTooSlow(round((now() - started) * 1_000)) from None
    if not exchange.is_complete:
        raise ClientDisconnected("the connection ended before the body was complete")
    return body


def _declared_length(exchange: Exchange) -> int:
    """0 when the request does not state it. A content-encoding is refused: what it unpacks to is not bounded."""
    length = 0
    for name, value in exchange.headers:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise InvalidArgument(BODY, "a content-encoding is not accepted: send the body uncompressed")
        if name == b"content-length" and value.isdigit():
            length = int(value[:20])
    return length


# -- for routes that the framework calls -------------------------------------------------------------------------------


def runtime_of(request: AnyRequest) -> Runtime:
    return cast(Runtime, request.app.state[RUNTIME])


def record_of(request: AnyRequest) -> RequestRecord:
    return cast(RequestRecord, cast(dict[str, Any], request.scope)[RECORD])


class _BytesResponse(Response[bytes]):
    def render(self, content: Any, *_: Any, **__: Any) -> bytes:
        """The bytes as they are, also out of a buffer."""
        return bytes(content)


def response_of(reply: Reply) -> Response[bytes]:
    # As a header, because Litestar adds a second charset to the media type of a text.
    headers = {"content-type": reply.media_type, **reply.headers}
    return _BytesResponse(cast(bytes, reply.body), status_code=reply.status, media_type=JSON, headers=headers)


def json_response(content: object, status: int = 200) -> Response[bytes]:
    return response_of(json_reply(content, status))


async def decoded_body(request: AnyRequest, kind: type[T], *, default: T | None = None) -> T:
    """The decoded body of a request without records; `default` stands for an empty one."""
    return await decoded_small_body(runtime_of(request), record_of(request).exchange, kind, default=default)
