"""An object store that counts calls by outcome, requests, bytes and latency.

Put it inside `retrying`, so that it counts every attempt, like the bill. Requests are counted as by S3: one per call,
except that a range read counts the requests of its plan, a listing its pages and a delete its chunks.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence

from llog.errors import ObjectStoreError
from llog.limits import OBJECT_DELETE_MANY_MAX, OBJECT_LIST_PAGE_MAX
from llog.stores.objects.port import Buffer, ByteRange, ObjectMeta, ObjectStore
from llog.stores.objects.ranges import plan_fetches
from llog.stores.objects.stats import ObjectStoreStats, OperationStats, outcome_of
from llog.stores.objects.wrapper import ForwardingObjectStore
from llog.stores.pulse import StorePulse

__all__ = ["MeteredObjectStore"]

_WRITING = frozenset({"put", "delete"})


class MeteredObjectStore(ForwardingObjectStore):
    def __init__(
        self,
        inner: ObjectStore,
        stats: ObjectStoreStats | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(inner)
        self.stats = ObjectStoreStats() if stats is None else stats
        self._clock = clock
        """Seconds, from any origin."""
        self.pulse = StorePulse()

    def _measured(self, operation: str) -> _ObjectCall:
        return _ObjectCall(self.stats.operations[operation], self._clock, self.pulse, operation in _WRITING)

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        with self._measured("put") as call:
            await self.inner.put(name, buffers, if_absent=if_absent)
            call.byte_count = _bytes_in(buffers)

    async def get(self, name: str) -> Buffer:
        with self._measured("get") as call:
            answer = await self.inner.get(name)
            call.byte_count = len(answer)
        return answer

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        with self._measured("range_get") as call:
            if len(ranges) > 1:
                call.request_count = max(1, len(plan_fetches(ranges)))
            answer = await self.inner.get_ranges(name, ranges)
            call.byte_count = sum(map(len, answer))
        return answer

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        with self._measured("range_get") as call:
            answer = await self.inner.get_tail(name, byte_length)
            call.byte_count = len(answer[0])
        return answer

    async def head(self, name: str) -> ObjectMeta:
        with self._measured("head"):
            return await self.inner.head(name)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        names = self.inner.list(prefix, start_after=start_after)
        more = first = True
        while more:
            # Measured per page, so that a slow consumer of the listing does not look like a slow store.
            page: builtin_list[ObjectMeta] = []
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
                    call.request_count = 1 if page or first else 0
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
            call.request_count = -(-len(names) // OBJECT_DELETE_MANY_MAX)
            await self.inner.delete_many(names)


# Inside the class, `list` is the method of the port.
builtin_list = list


class _ObjectCall:
    """Measures one call, whether it succeeds or fails."""

    __slots__ = ("_clock", "_pulse", "_start", "_stats", "_writing", "byte_count", "request_count")

    def __init__(self, stats: OperationStats, clock: Callable[[], float], pulse: StorePulse, writing: bool) -> None:
        self._stats, self._clock, self._pulse, self._writing = stats, clock, pulse, writing
        self.byte_count = 0
        self.request_count = 1

    def __enter__(self) -> _ObjectCall:
        self._start = self._clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        latency_ms = (self._clock() - self._start) * 1000
        self._stats.record(outcome_of(error), latency_ms, self.byte_count, self.request_count)
        self._pulse.record(error, latency_ms, writing=self._writing)


def _bytes_in(buffers: Sequence[Buffer]) -> int:
    return sum(b.nbytes if isinstance(b, memoryview) else len(b) for b in buffers)
