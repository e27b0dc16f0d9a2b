"""Helpers of the consume tests: brokers on one store, stores that count, short forms of requests and answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llog.broker.consume.consume import ConsumeRequest, ConsumeService, PartitionFetch, PartitionFetched, Source
from llog.broker.produce.groups import committed_of
from llog.broker.tail.cache import TailCache, feed, monotonic_ms
from llog.errors import LogDeleted
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.append.pieces import Piece
from llog.log.keys import Log
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import Key, Record
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.wrappers import MeteredObjectStore
from tests.contexts import log_context
from tests.patience import until

ORDERS = Log("orders", 0)
EVENTS = Log("events", 3)
REFRESH_MS = 20.0
LONG_POLL_MS = 300_000
"""Longer than any test: a request that is answered was woken."""
_seeds = itertools.count(1)


@dataclass
class Counted:
    """Metrics that only count."""

    events: dict[str, int] = field(default_factory=dict)
    consumed: list[tuple[int, int, int, float, str]] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    size: tuple[int, int] = (0, 0)

    @property
    def waits_ms(self) -> list[float]:
        """How long each answer waited for an append; 0: it did not."""
        return [wait_ms for _, _, _, wait_ms, _ in self.consumed]

    def count(self, name: str, value: int = 1) -> None:
        self.events[name] = self.events.get(name, 0) + value

    def tail_cache_event(self, kind: str, count: int = 1) -> None:
        self.count(kind, count)

    def set_tail_cache(self, byte_length: int, logs: int) -> None:
        self.size = byte_length, logs

    def observe_consume(
        self, partitions: int, records: int, byte_length: int, wait_ms: float, source: Source, payload_bytes: int = 0
    ) -> None:
        self.consumed.append((partitions, records, byte_length, wait_ms, source))

    def observe_append_to_consume(self, ms: float) -> None:
        self.latencies_ms.append(ms)


class Clock:
    """One that the test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0

    def __call__(self) -> float:
        return self.now_ms


class CountingMetadata(MemoryStore):
    """Counts keys that are read, one by one or by a scan."""

    reads = 0

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        self.reads += len(keys)
        return await super().get_many(keys, strict=strict)

    async def scan(
        self, parent: Key, *, start: str = "", stop: str | None = None, limit: int = 1_000, strict: bool = False
    ) -> list[Record]:
        self.reads += 1
        return await super().scan(parent, start=start, stop=stop, limit=limit, strict=strict)


class Stores:
    """One metadata store and one object store that any number of brokers share."""

    def __init__(self, *, atomic: bool = True) -> None:
        self._backing = MemoryBacking(shards=1 if atomic else 4, atomic_groups=atomic)
        self.objects = MeteredObjectStore(MemoryObjectStore(f"memory://consuming-{next(_seeds)}"))

    def broker(self, max_bytes: int = 1 << 20, **options: object) -> TestBroker:
        return TestBroker(CountingMetadata(self._backing), self.objects, max_bytes, **options)  # type: ignore[arg-type]

    def gets(self) -> int:
        """Requests for bytes so far."""
        operations = self.objects.stats.operations
        return operations["get"].request_count + operations["range_get"].request_count


class TestBroker:
    """An appender, a tail cache fed by it, and a consume service."""

    __test__ = False

    def __init__(
        self,
        metadata: CountingMetadata,
        objects: ObjectStore,
        max_bytes: int,
        *,
        refresh_ms: float = REFRESH_MS,
        clock: Callable[[], float] = monotonic_ms,
        with_incarnation: bool = True,
    ) -> None:
        self.metadata, self.metrics = metadata, Counted()
        self.context = log_context(metadata, objects, seed=next(_seeds))
        self.appender = Appender(self.context, growth=Growth.HTTP)
        self.cache = TailCache(max_bytes, fresh_ms=refresh_ms, clock=clock, metrics=self.metrics)
        self.service = ConsumeService(self.context, self.cache, self.metrics, refresh_ms=refresh_ms)
        self._add = feed(self.cache, self.appender.committer.known) if with_incarnation else self.cache.add

    async def append(self, *groups: EncodedGroup) -> list[Appended]:
        def note(group: EncodedGroup, outcome: object) -> None:
            for batch in committed_of(group, outcome):  # type: ignore[arg-type]
                self._add(batch)

        outcomes = await self.appender.append(groups, note)
        again = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, LogDeleted)]
        for i in again:  # an appender that missed a deletion fails once
            [outcomes[i]] = await self.appender.append([groups[i]], note)
        landed = [outcome for outcome in outcomes if isinstance(outcome, Appended)]
        assert len(landed) == len(outcomes), outcomes
        return landed

    async def fetch(self, *fetches: PartitionFetch | Log, **limits: int | bool) -> list[PartitionFetched]:
        """A log alone means: from offset 1."""
        partitions = [PartitionFetch(f, 1) if isinstance(f, Log) else f for f in fetches]
        return await self.service.consume(ConsumeRequest(partitions, **limits))  # type: ignore[arg-type]

    async def drain(self, log: Log, offset: int = 1, **limits: int | bool) -> list[tuple[int, bytes | None]]:
        """Everything from `offset` to the end, however many answers that takes."""
        found: list[tuple[int, bytes | None]] = []
        while True:
            [answer] = await self.fetch(PartitionFetch(log, offset), **limits)
            if answer.error is not None:
                raise answer.error
            found += rows(answer)
            assert answer.next_fetch_offset >= offset
            if answer.next_fetch_offset > answer.high_watermark:
                return found
            assert answer.next_fetch_offset > offset, "no progress"
            offset = answer.next_fetch_offset

    async def at_the_end(self, waiters: int) -> None:
        """Until so many polls wait for an append."""
        await until(lambda: self.service.watch.waiter_count == waiters, f"{waiters} waiting polls")

    async def close(self) -> None:
        await self.service.close()
        await self.cache.close()
        await self.appender.close()


def rows(answer: PartitionFetched) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.payload) for run in answer.runs for record in run.records()]


def values(answer: PartitionFetched) -> list[bytes | None]:
    return [value for _, value in rows(answer)]


def group(log: Log, *payloads: bytes) -> EncodedGroup:
    return EncodedGroup(log, len(payloads), "kafka-v2", [encode_records(list(payloads), timestamps_ms=5)], 5)


def batches(log: Log, *payloads: bytes) -> EncodedGroup:
    """Each payload in a RecordBatch of its own."""
    bodies = [encode_records([payload], timestamps_ms=5) for payload in payloads]
    pieces = tuple(Piece(1, len(body)) for body in bodies)
    return EncodedGroup(log, len(payloads), "kafka-v2", bodies, 5, pieces=pieces)
