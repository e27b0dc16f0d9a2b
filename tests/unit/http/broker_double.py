"""A broker small enough to see through: real append and read paths on stores in memory, no batching, no cache."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

import httpx

from llog.broker.consume.consume import ConsumeRequest, PartitionFetch, PartitionFetched
from llog.broker.groups.positions import GroupPositions
from llog.broker.produce.pool import MemoryPool
from llog.broker.produce.producer import TimedOutcomes, Timings
from llog.errors import BackPressureRejected, LlogError
from llog.http.routes.app import HttpApp, build_app
from llog.listener.server import SocketListener
from llog.log.append.append import Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.context import LogContext, LogOptions
from llog.log.keys import Keys, Log
from llog.log.read.read import iter_runs, view
from llog.log.topics.known_topics import KnownTopics
from llog.security.security import Security
from llog.settings import Settings
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.patience import PATIENCE_SECONDS, until


class MetricsDouble:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int, int, int]] = []
        self.fields: list[tuple[str, str]] = []
        self.counted: dict[str, int] = {}

    def observe_http(
        self, route: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        assert seconds >= 0
        self.requests.append((route, method, status, request_bytes, response_bytes))

    def http_validation_failure(self, route: str, field: str) -> None:
        self.fields.append((route, field))

    def count(self, name: str, value: int = 1) -> None:
        self.counted[name] = self.counted.get(name, 0) + value

    def snapshot(self) -> Mapping[str, object]:
        return {"http": {"requests": len(self.requests)}}

    def prometheus(self) -> bytes:
        return b"# HELP llog_requests Requests.\nllog_requests %d\n" % len(self.requests)


def memory_context(*, encoding: str = "kafka-v2", atomic: bool = True, partitions_max: int = 8) -> LogContext:
    objects = MemoryObjectStore(f"memory://http-{random.getrandbits(48):x}")

    async def find(uri: str) -> tuple[ObjectStore, str]:
        return objects, objects.name_of(uri)

    return LogContext(
        metadata=MemoryStore(MemoryBacking(shards=1, atomic_groups=atomic)),
        wal=objects,
        segments=objects,
        find_object=find,
        now_ms=lambda: time.time_ns() // 1_000_000,
        random_bits=random.Random(7).getrandbits,
        sleep=asyncio.sleep,
        keys=Keys("llog"),
        options=LogOptions(encoding=encoding, topic_partitions_max=partitions_max),
    )


class BrokerDouble:
    def __init__(self, *, writes: bool = True, reads: bool = True, pool_bytes: int = 1 << 30, **overrides: Any) -> None:
        self.settings = Settings.from_env({}, metadata_url="memory://", objects_url="memory://", **overrides)
        self.context = memory_context(encoding=self.settings.encoding)
        self.appender = Appender(self.context, growth=Growth.HTTP)
        self.positions = GroupPositions(self.context)
        self.trouble = ""
        self.topics = KnownTopics(self.context, lambda: time.monotonic() * 1_000)
        self.metrics, self.pool = MetricsDouble(), MemoryPool(pool_bytes)
        self.security = Security(self.settings, self.context, lambda: time.monotonic() * 1_000, self.metrics.count)
        self.writes, self.reads = writes, reads
        self.changed: list[Log] = []
        self.failing: dict[Log, LlogError] = {}
        self.is_ready = True
        self.produced = asyncio.Event()
        self.hold: asyncio.Event | None = None
        self.in_pool: list[int] = []

    def refusal(self) -> str:
        return self.trouble

    async def produce(self, groups: Sequence[EncodedGroup]) -> TimedOutcomes:
        if not groups:
            return TimedOutcomes([], Timings())
        size = sum(sum(len(memoryview(part)) for part in group.body) for group in groups)
        if not self.pool.try_take(size):
            return TimedOutcomes([BackPressureRejected(*group.log, "no room") for group in groups], Timings())
        try:
            self.in_pool.append(self.pool.used)
            if self.hold is not None:
                await self.hold.wait()
            outcomes = await self.appender.append(groups)
            self.produced.set()
            return TimedOutcomes(outcomes, Timings(1.0, 2.0, 3.0))
        finally:
            self.pool.give(size)

    async def consume(self, request: ConsumeRequest) -> list[PartitionFetched]:
        deadline = time.monotonic() + request.max_wait_ms / 1_000
        while True:
            found = [await self._fetch(wanted) for wanted in request.partitions]
            if any(part.runs or part.error for part in found) or time.monotonic() >= deadline:
                return found
            self.produced.clear()
            try:
                await asyncio.wait_for(self.produced.wait(), deadline - time.monotonic())
            except TimeoutError:
                continue

    async def poll_waits(self) -> None:
        """Until a poll that came after the last produce waits for the next."""
        await until(lambda: not self.produced.is_set(), "a poll that waits")

    async def _fetch(self, wanted: PartitionFetch) -> PartitionFetched:
        log, offset = wanted.log, wanted.fetch_offset
        try:
            if log in self.failing:
                raise self.failing[log]
            runs = []
            async with aclosing(iter_runs(self.context, log, offset)) as found:
                async for run in found:
                    runs.append(run)  # noqa: PERF401
            seen = await view(self.context, log)
        except LlogError as error:
            return PartitionFetched(log, offset, error=error)
        end = runs[-1].next_offset if runs else offset
        return PartitionFetched(log, offset, seen.next_offset - 1, end, runs)

    def health(self) -> Mapping[str, object]:
        status = "ok" if self.is_ready else "degraded"
        return {"status": status, "broker_id": "broker-1", "reasons": [] if self.is_ready else ["the store is away"]}

    def ready(self) -> bool:
        return self.is_ready

    def log_changed(self, log: Log) -> None:
        self.changed.append(log)


class Client(httpx.AsyncClient):
    """An HTTP client of the application, over a real socket."""

    def __init__(self, app: HttpApp, **more: Any) -> None:
        settings = app.runtime.services.settings
        self._listener = SocketListener(settings, app.connection, host="127.0.0.1", port=0, variables="LLOG_HTTP")
        super().__init__(timeout=PATIENCE_SECONDS, **more)

    async def __aenter__(self) -> Self:
        await self._listener.start()
        self.base_url = self._listener.url
        return await super().__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        await self._listener.stop(at_once=True)


def client_of(broker: BrokerDouble) -> Client:
    return Client(build_app(broker))


def batch(topic: str, partition: int, *records: object, **more: object) -> dict[str, object]:
    return {"topic": topic, "partition": partition, "records": list(records), **more}


def produce_body(*batches: dict[str, object]) -> dict[str, object]:
    return {"topic_partitions": list(batches)}


def consume_body(topic: str, partition: int, offset: int, **more: object) -> dict[str, object]:
    wanted = {"topic": topic, "partition": partition, "fetch_offset": offset}
    return {"topic_partitions": [wanted], **more}
