"""A driver's metadata writes, gathered: one call at a time is under way and takes all writes requested meanwhile.

    async with gathered(context) as context: …      # the same context, on a metadata store that gathers

Publishing a log takes dozens of small writes in sequence, most of them deletes of single entries, and a round publishes
many logs concurrently. A call costs a store more than the write in it: checks, a commit, a round trip where it is
remote. Without gathering, logs fall into two halves: one waits for its commit while the other waits for its turn, and
every write takes two commits. Here a log that was just answered may write again before the next call is made, so all
logs advance together.

- Groups of a call are independent (the port says so), so gathering changes no outcome. A key that is already in a call
  waits for the next one.
- A call waits for the previous call and two turns of the event loop, for nothing else.
- A call that is refused before anything is written (`InvalidArgument`) is repeated request by request, so only the
  invalid request fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from llog.errors import InvalidArgument
from llog.limits import METADATA_WRITE_GROUPS_MAX
from llog.log.context import LogContext
from llog.stores.metadata.port import GroupOutcome, Key, MetadataStore, Record, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore

Groups = Sequence[Sequence[Write]]
Outcomes = list[GroupOutcome]


@asynccontextmanager
async def gathered(context: LogContext) -> AsyncIterator[LogContext]:
    """Leaving waits for the calls under way; a cancelled caller cancels them. Nothing is left running."""
    if isinstance(context.metadata, GatheringMetadataStore):
        yield context
        return
    store = GatheringMetadataStore(context.metadata)
    try:
        yield replace(context, metadata=store)
    except asyncio.CancelledError:
        store.cancel()  # a stop must be bounded, and a write may never return
        raise
    finally:
        await store.settled()


@dataclass(slots=True)
class _Call:
    """One call being collected: its requests, and every key that they name."""

    asked: list[tuple[Groups, asyncio.Future[Outcomes]]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    group_count: int = 0

    def takes(self, groups: Groups, paths: set[str]) -> bool:
        return self.group_count + len(groups) <= METADATA_WRITE_GROUPS_MAX and self.paths.isdisjoint(paths)

    def add(self, groups: Groups, paths: set[str], answer: asyncio.Future[Outcomes]) -> None:
        self.asked.append((groups, answer))
        self.paths |= paths
        self.group_count += len(groups)


class GatheringMetadataStore(ForwardingMetadataStore):
    """`close` waits for the calls under way; the inner store belongs to its opener."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self._waiting: deque[_Call] = deque()
        self._under_way: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def write(self, groups: Groups) -> Outcomes:
        paths = {write.key.path for group in groups for write in group}
        if not groups or len(paths) < sum(map(len, groups)):
            return await self.inner.write(groups)  # nothing to do, or refused: a key is written twice
        if not self._waiting or not self._waiting[-1].takes(groups, paths):
            self._waiting.append(_Call())
        answer: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        self._waiting[-1].add(groups, paths, answer)
        if self._idle.is_set():
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._send)  # what else this turn brings goes along
        return await answer

    def _send(self) -> None:
        if not self._waiting:
            self._under_way = None
            self._idle.set()
            return
        loop = asyncio.get_running_loop()
        self._under_way = loop.create_task(self._perform(self._waiting.popleft()))
        # In the turn after the answer those who got it ask again; the next call is made behind them.
        self._under_way.add_done_callback(lambda _: loop.call_soon(loop.call_soon, self._send))

    async def _perform(self, call: _Call) -> None:
        asked = [(groups, answer) for groups, answer in call.asked if not answer.done()]  # others gave up
        try:
            outcomes = await self.inner.write([group for groups, _ in asked for group in groups])
        except InvalidArgument as error:
            if len(asked) > 1:
                for groups, answer in asked:
                    alone = _Call()
                    alone.add(groups, set(), answer)
                    await self._perform(alone)
            else:
                _fail(asked, error)
        except Exception as error:
            _fail(asked, error)
        except BaseException:
            for _, answer in asked:
                answer.cancel()
            raise
        else:
            first = 0
            for groups, answer in asked:
                if not answer.done():
                    answer.set_result(outcomes[first : first + len(groups)])
                first += len(groups)

    async def settled(self) -> None:
        """Wait until every call has its answer; a cancelled wait cancels the calls."""
        try:
            await self._idle.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel the call under way and all requests that wait. What was sent may still be written."""
        for call in self._waiting:
            for _, answer in call.asked:
                answer.cancel()
        self._waiting.clear()
        if self._under_way is not None:
            self._under_way.cancel()

    async def ceiling(self, parent: Key, name: str, *, strict: bool = False) -> Record | None:
        return await self.inner.ceiling(parent, name, strict=strict)  # cheaper than a scan in some stores

    async def close(self) -> None:
        await self.settled()


def _fail(asked: Sequence[tuple[Groups, asyncio.Future[Outcomes]]], error: Exception) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)
