"""Wrappers around an object store: metering and retries.

Their order matters: `RetryingObjectStore(MeteredObjectStore(store))` counts every attempt, like the bill.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from llog.concurrency import Backoff
from llog.errors import (
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectStoreError,
    ObjectStoreThrottled,
    ObjectStoreUncertain,
)
from llog.limits import OBJECT_DELETE_MANY_MAX, OBJECT_LIST_PAGE_MAX
from llog.stores.metering import MeasuredCall, ObjectStoreStats, RequestCounts, StorePulse
from llog.stores.objects.port import (
    Buffer,
    ByteRange,
    ObjectMeta,
    ObjectStore,
    equals_buffers,
    plan_fetches,
    total_bytes,
)

OBJECT_RETRY_ATTEMPTS_MAX: Final = 8
OBJECT_RETRY_DEADLINE_MS: Final = 30_000
OBJECT_RETRY_BACKOFF_MS_FIRST: Final = 50
OBJECT_RETRY_BACKOFF_MS_MAX: Final = 5_000
# After throttling, waits are this many times longer.
OBJECT_RETRY_THROTTLED_FACTOR: Final = 4

T = TypeVar("T")


class ForwardingObjectStore(ObjectStore):
    """Base class of wrappers: forwards every call to another store."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.url = inner.url

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self.inner.put(name, buffers, if_absent=if_absent)

    async def get(self, name: str) -> Buffer:
        return await self.inner.get(name)

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return await self.inner.get_ranges(name, ranges)

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        return await self.inner.get_tail(name, byte_length)

    async def head(self, name: str) -> ObjectMeta:
        return await self.inner.head(name)

    def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        return self.inner.list(prefix, start_after=start_after)

    async def delete_many(self, names: Sequence[str]) -> None:
        await self.inner.delete_many(names)

    async def tidy(self, directory: str) -> None:
        await self.inner.tidy(directory)

    async def check(self, *, writing: bool = True) -> None:
        await self.inner.check(writing=writing)

    async def close(self) -> None:
        await self.inner.close()


class MeteredObjectStore(ForwardingObjectStore):
    """Counts calls by outcome, requests, bytes and latency. Requests are counted as by S3: one per call, except that a
    range read counts the requests of its plan, a listing its pages and a delete its chunks."""

    def __init__(
        self,
        inner: ObjectStore,
        stats: ObjectStoreStats | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock`: seconds, from any origin."""
        super().__init__(inner)
        self.stats = ObjectStoreStats() if stats is None else stats
        self._clock, self.pulse = clock, StorePulse()

    def _measured(self, operation: str) -> MeasuredCall:
        return MeasuredCall(operation, self.stats.operations[operation], self._clock, self.pulse)

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        with self._measured("put") as call:
            await self.inner.put(name, buffers, if_absent=if_absent)
            call.bytes = total_bytes(name, buffers)

    async def get(self, name: str) -> Buffer:
        with self._measured("get") as call:
            answer = await self.inner.get(name)
            call.bytes = len(answer)
        return answer

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        with self._measured("range_get") as call:
            if len(ranges) > 1:
                call.requests = max(1, len(plan_fetches(ranges)))
            answer = await self.inner.get_ranges(name, ranges)
            call.bytes = sum(map(len, answer))
        return answer

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        with self._measured("range_get") as call:
            answer = await self.inner.get_tail(name, byte_length)
            call.bytes = len(answer[0])
        return answer

    async def head(self, name: str) -> ObjectMeta:
        with self._measured("head"):
            return await self.inner.head(name)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        names = self.inner.list(prefix, start_after=start_after)
        more = first = True
        while more:
            # Measured per page, so that a slow consumer of the listing does not look like a slow store.
            page: _List[ObjectMeta] = []
            failure: Exception | None = None
            try:
                with self._measured("list") as call:
                    async for meta in names:
                        page.append(meta)
                        if len(page) == OBJECT_LIST_PAGE_MAX:
                            break
                    else:
                        more = False
                    # The last page also ends the listing.
                    call.requests = 1 if page or first else 0
            except ObjectStoreError as error:
                failure = error
            first = False
            # Names before a failure are passed on: a retry continues after them.
            for meta in page:
                yield meta
            if failure is not None:
                raise failure

    async def delete_many(self, names: Sequence[str]) -> None:
        with self._measured("delete") as call:
            call.requests = -(-len(names) // OBJECT_DELETE_MANY_MAX)
            await self.inner.delete_many(names)


# Inside the class, `list` is the method of the port.
_List = list


class ObjectMeter:
    """Counts the requests to all object stores of a job or a task, every attempt of them."""

    def __init__(self) -> None:
        self._stats: dict[str, ObjectStoreStats] = {}
        """By URL."""

    def wrap(self, store: ObjectStore) -> ObjectStore:
        return MeteredObjectStore(store, self._of(store.url))

    def add(self, counts: RequestCounts) -> None:
        """Add what another process counted."""
        for url, operations in counts.items():
            self._of(url).add(operations)

    def take(self) -> RequestCounts:
        """The counts since the last call."""
        taken = {url: stats.take() for url, stats in self._stats.items()}
        return {url: counts for url, counts in taken.items() if counts}

    def requests(self) -> dict[str, int]:
        """By operation."""
        total: Counter[str] = Counter()
        for stats in self._stats.values():
            total.update({name: operation.request_count for name, operation in stats.operations.items()})
        return {name: count for name, count in total.items() if count}

    def _of(self, url: str) -> ObjectStoreStats:
        return self._stats.setdefault(url, ObjectStoreStats())


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    attempts_max: int = OBJECT_RETRY_ATTEMPTS_MAX
    deadline_ms: int = OBJECT_RETRY_DEADLINE_MS
    backoff_ms_first: int = OBJECT_RETRY_BACKOFF_MS_FIRST
    backoff_ms_max: int = OBJECT_RETRY_BACKOFF_MS_MAX
    throttled_factor: int = OBJECT_RETRY_THROTTLED_FACTOR

    def backoff(self, error: ObjectStoreError) -> Backoff:
        factor = self.throttled_factor if isinstance(error, ObjectStoreThrottled) else 1
        return Backoff(self.backoff_ms_first * factor, self.backoff_ms_max * factor)


class RetryingObjectStore(ForwardingObjectStore):
    """Retries with bounded attempts, a deadline and exponential back-off with full jitter.

    This is the only retry policy; adapters make single attempts. Errors with `retriable` are retried; a refusal, a
    missing object or wrong credentials are raised at once. The deadline limits when an attempt may start; the timeout
    of the adapter limits how long it takes.

    Writes whose answer was lost
    - A plain put is repeated, because a name always has the same bytes.
    - A put with `if_absent` may meet its own earlier write, so after an uncertain attempt the object is read first.
      Absent: put again. The same bytes: our put, done. Other bytes: `ObjectAlreadyExists`. (The length is not enough:
      the marker objects of two clusters have the same length.)
    - After one uncertain attempt the whole call is uncertain: if later attempts fail in any way, the caller gets
      `ObjectStoreUncertain`.
    """

    def __init__(
        self,
        inner: ObjectStore,
        policy: RetryPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """`clock` and `sleep` use seconds."""
        super().__init__(inner)
        self.policy = RetryPolicy() if policy is None else policy
        self._clock, self._sleep = clock, sleep
        self._rng = random.Random() if rng is None else rng

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        attempts = _Attempts(self)
        while True:
            try:
                if if_absent:
                    return await self._put_if_absent(name, buffers, attempts.uncertain)
                return await self.inner.put(name, buffers)
            except ObjectAlreadyExists:
                raise
            except ObjectStoreError as error:
                await attempts.failed(error)

    async def _put_if_absent(self, name: str, buffers: Sequence[Buffer], maybe_done: bool) -> None:
        if maybe_done and await self._is_there(name, buffers):
            return
        try:
            await self.inner.put(name, buffers, if_absent=True)
        except ObjectAlreadyExists:
            # Our own earlier write may have arrived after the read.
            if not maybe_done or not await self._is_there(name, buffers):
                raise

    async def _is_there(self, name: str, buffers: Sequence[Buffer]) -> bool:
        """Whether the object exists with exactly these bytes. Raises `ObjectAlreadyExists` if it has others."""
        try:
            meta = await self.inner.head(name)
            same = meta.byte_length == total_bytes(name, buffers)
            same = same and equals_buffers(await self.inner.get(name), buffers)
        except ObjectNotFound:
            return False
        if not same:
            raise ObjectAlreadyExists("put", self.uri(name), "another object of that name was written")
        return True

    async def get(self, name: str) -> Buffer:
        return await self._again(lambda: self.inner.get(name))

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return await self._again(lambda: self.inner.get_ranges(name, ranges))

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        return await self._again(lambda: self.inner.get_tail(name, byte_length))

    async def head(self, name: str) -> ObjectMeta:
        return await self._again(lambda: self.inner.head(name))

    async def delete_many(self, names: Sequence[str]) -> None:
        await self._again(lambda: self.inner.delete_many(names))

    async def check(self, *, writing: bool = True) -> None:
        await self._again(lambda: self.inner.check(writing=writing))

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        attempts, moved = _Attempts(self), False
        while True:
            try:
                async for meta in self.inner.list(prefix, start_after=start_after):
                    yield meta
                    # Continue after the names that the caller has.
                    start_after, moved = meta.name, True
                return
            except ObjectStoreError as error:
                if moved:
                    # Progress restarts the limits: a long listing, or a slow reader of it, must not use up the
                    # deadline before anything fails.
                    attempts, moved = _Attempts(self), False
                await attempts.failed(error)

    async def _again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        attempts = _Attempts(self)
        while True:
            try:
                return await attempt()
            except ObjectStoreError as error:
                await attempts.failed(error)


class _Attempts:
    """Counts the attempts of one call, waits between them and ends them."""

    __slots__ = ("_deadline", "_store", "failures", "uncertain")

    def __init__(self, store: RetryingObjectStore) -> None:
        self._store = store
        self._deadline = store._clock() + store.policy.deadline_ms / 1000
        self.failures = 0
        self.uncertain = False
        """Whether some attempt may have happened."""

    async def failed(self, error: ObjectStoreError) -> None:
        """Wait before the next attempt, or raise the error for the caller."""
        store, policy = self._store, self._store.policy
        self.failures += 1
        self.uncertain = self.uncertain or isinstance(error, ObjectStoreUncertain)
        if error.retriable and self.failures < policy.attempts_max:
            delay = policy.backoff(error).seconds(self.failures - 1, store._rng.getrandbits)
            if store._clock() + delay < self._deadline:
                await store._sleep(delay)
                return
        if self.uncertain and not isinstance(error, ObjectStoreUncertain):
            reason = f"an earlier attempt got no answer, the last one failed: {error.reason or type(error).__name__}"
            raise ObjectStoreUncertain(error.operation, error.subject, reason) from error
        raise error
