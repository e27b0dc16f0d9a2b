"""Strict gets of many coroutines in few calls: for work that reads a few keys of each of thousands of logs.

A strict get costs a round trip, and on Oxia a probe of its shard (`oxia.strict`); `get_many` costs hardly more. So gets
that are asked for while others are under way wait and go together in the next call. That call begins after each of
them was asked for, so every answer is as strict as asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from llog.stores.metadata.port import Key, MetadataStore, Record
from llog.stores.metadata.wrappers import ForwardingMetadataStore

SHARED_CALLS_AT_ONCE: Final = 2
# One call takes no further gets from this many keys on.
SHARED_CALL_KEYS: Final = 1_024

_Waiting = tuple[Sequence[Key], asyncio.Future[list[Record | None]]]


@asynccontextmanager
async def sharing_reads(metadata: MetadataStore) -> AsyncIterator[MetadataStore]:
    """The store with shared strict gets; no call is left under way at the end. The store itself stays open."""
    shared = SharedReads(metadata)
    try:
        yield shared
    finally:
        await shared.stop()


class SharedReads(ForwardingMetadataStore):
    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self._waiting: deque[_Waiting] = deque()
        self._calls: set[asyncio.Task[None]] = set()

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        if not strict or len(keys) >= SHARED_CALL_KEYS:
            return await self.inner.get_many(keys, strict=strict)
        answer: asyncio.Future[list[Record | None]] = asyncio.get_running_loop().create_future()
        self._waiting.append((keys, answer))
        self._begin()
        return await answer

    async def stop(self) -> None:
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        while self._waiting:
            self._waiting.popleft()[1].cancel()

    def _begin(self) -> None:
        if self._waiting and len(self._calls) < SHARED_CALLS_AT_ONCE:
            call = asyncio.create_task(self._call(), name="shared reads")
            self._calls.add(call)
            call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            self._begin()

    async def _call(self) -> None:
        await asyncio.sleep(0)  # gets of the same turn of the event loop go together
        batch: list[_Waiting] = []
        keys: list[Key] = []
        while self._waiting and len(keys) < SHARED_CALL_KEYS:
            asked = self._waiting.popleft()
            if not asked[1].done():  # not cancelled meanwhile
                batch.append(asked)
                keys += asked[0]
        if not batch:
            return
        try:
            records = await self.inner.get_many(keys, strict=True)
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        except asyncio.CancelledError:
            for _, answer in batch:
                answer.cancel()
            raise
        at = 0
        for asked_keys, answer in batch:
            if not answer.done():
                answer.set_result(records[at : at + len(asked_keys)])
            at += len(asked_keys)
