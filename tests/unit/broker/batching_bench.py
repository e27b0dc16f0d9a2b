"""Shared by the tests of batching: a producer over stores that hold, fail and finish puts on request."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from llog.broker.produce.flush import Pacing
from llog.broker.produce.pool import MemoryPool
from llog.broker.produce.producer import BATCH_UPLOADS_MAX, BatchingProducer, CommittedBatch
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_records
from llog.limits import MIB
from llog.log.append.append import Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.append.pieces import Piece
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.producers import ProducerClaim
from llog.log.read.read import iter_runs
from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import Buffer, ObjectStore
from llog.stores.objects.wrappers import ForwardingObjectStore
from tests.patience import PATIENCE_SECONDS

A, B, C = Log("orders", 0), Log("orders", 1), Log("visits", 0)
_names = itertools.count()


class HeldStore(ForwardingObjectStore):
    """While `held`, a put waits until the test releases it or makes it fail."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore(f"memory://batching-{time.time_ns()}-{next(_names)}"))
        self.held = False
        self.puts: list[asyncio.Future[None]] = []
        self.blobs: list[list[Buffer]] = []
        self._begun = asyncio.Condition()

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self.blobs.append(list(buffers))
        release: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.held:
            self.puts.append(release)
        async with self._begun:
            self._begun.notify_all()
        if self.held:
            await release
        await super().put(name, buffers, if_absent=if_absent)

    async def begun(self, count: int) -> None:
        """Wait until `count` puts have begun."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._begun:
            await self._begun.wait_for(lambda: len(self.blobs) >= count)


class Flushed(NamedTuple):
    reason: str
    groups: int
    records: int
    byte_length: int
    queue_wait_ms: float
    upload_ms: float
    commit_ms: float


class Metrics:
    def __init__(self) -> None:
        self.flushes: list[Flushed] = []
        self.buffered: tuple[int, int] = (0, 0)
        self.counted: dict[str, int] = {}
        self.appended: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def observe_flush(
        self,
        reason: str,
        groups: int,
        records: int,
        byte_length: int,
        queue_wait_ms: float,
        upload_ms: float,
        commit_ms: float,
    ) -> None:
        self.flushes.append(Flushed(reason, groups, records, byte_length, queue_wait_ms, upload_ms, commit_ms))

    def observe_appends(
        self, groups: int, records: int, byte_length: int, failures: Mapping[str, int], payload_bytes: int = 0
    ) -> None:
        self.appended += Counter({"groups": groups, "records": records, "bytes": byte_length})
        self.failures += Counter(failures)

    def set_buffered(self, byte_length: int, requests: int) -> None:
        self.buffered = (byte_length, requests)

    def count(self, name: str, value: int = 1) -> None:
        self.counted[name] = self.counted.get(name, 0) + value

    def reasons(self) -> list[str]:
        return [flush.reason for flush in self.flushes]


class Bench:
    def __init__(
        self,
        *,
        metadata: MetadataStore | None = None,
        atomic: bool = True,
        max_bytes: int = MIB,
        max_delay_ms: float = 5,
        pool_bytes: int = 64 * MIB,
        uploads_max: int = BATCH_UPLOADS_MAX,
        pacing: Pacing | None = None,
    ) -> None:
        self.objects, self.metrics, self.pool = HeldStore(), Metrics(), MemoryPool(pool_bytes)
        self.committed: list[CommittedBatch] = []
        self.on_committed: Callable[[CommittedBatch], None] = self.committed.append
        objects = self.objects

        async def find(uri: str) -> tuple[ObjectStore, str]:
            return objects, objects.name_of(uri)

        self.context = LogContext(
            metadata=MemoryStore(atomic_groups=atomic) if metadata is None else metadata,
            wal=objects,
            find_object=find,
            now_ms=lambda: time.time_ns() // 1_000_000,
            random_bits=random.Random(1).getrandbits,
            sleep=asyncio.sleep,
        )
        self.appender = Appender(self.context, growth=Growth.HTTP)
        self.producer = BatchingProducer(
            self.appender,
            max_bytes=max_bytes,
            max_delay_ms=max_delay_ms,
            pool=self.pool,
            metrics=self.metrics,
            uploads_max=uploads_max,
            now_ms=lambda: time.monotonic_ns() / 1e6,
            sleep=asyncio.sleep,
            on_committed=lambda batch: self.on_committed(batch),
            pacing=pacing,
        )

    async def meet(self, *logs: Log) -> None:
        """Make the logs known, so that no lookup delays the calls of a test."""
        for log in logs:
            await self.appender.committer.known.know(log)

    async def contents(self, log: Log) -> list[bytes | None]:
        return [record.payload async for run in iter_runs(self.context, log, 1) for record in run.records()]


def group(log: Log, *payloads: bytes, claim: ProducerClaim | None = None, timestamp_ms: int = 7) -> EncodedGroup:
    body = encode_records(list(payloads), timestamps_ms=timestamp_ms)
    claims = () if claim is None else (claim,)
    return EncodedGroup(log, len(payloads), "kafka-v2", [body], timestamp_ms, claims)


def numbered(log: Log, *sequences: int, producer_id: int = 1) -> EncodedGroup:
    """Several batches of one producer, one record each."""
    bodies = [encode_records([f"{producer_id}/{n}".encode()], timestamps_ms=7) for n in sequences]
    pieces = tuple(
        Piece(1, len(body), ProducerClaim(producer_id, 0, n, n)) for n, body in zip(sequences, bodies, strict=True)
    )
    return EncodedGroup(log, len(pieces), "kafka-v2", bodies, 7, pieces=pieces)


def bare(log: Log, *payloads: bytes) -> EncodedGroup:
    return EncodedGroup(log, len(payloads), "bytes-batch-v1", encode_bytes_batch(list(payloads)), 7)


async def settle_down() -> None:
    for _ in range(50):
        await asyncio.sleep(0)
