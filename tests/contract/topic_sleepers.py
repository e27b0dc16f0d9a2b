"""Processes that crash or sleep at one call to the metadata store, their actions, and the state they must leave."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence

import pytest

from llog.errors import (
    LogError,
    MetadataStoreError,
    ObjectStoreUnavailable,
    PartitionNotInitialized,
    TopicAlreadyExists,
    TopicBeingDeleted,
    TopicNotFound,
)
from llog.formats.values import ControlRecord, IndexEntry, Pending, ProducerPage, ProducerSnapshot, decode_value
from llog.log.append.append import Appended, Appender
from llog.log.append.settle import settle_and_clear
from llog.log.cleanup.leftovers import remove_leftovers
from llog.log.cleanup.retention import Limits, delete_records, retain
from llog.log.context import LogContext
from llog.log.fence import fence, unfence
from llog.log.keys import Log
from llog.log.producers import ProducerClaim
from llog.log.read.read import read_offset
from llog.log.topics.admin import (
    add_partitions,
    create_topic,
)
from llog.log.topics.create import initialize, load_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.port import GroupOutcome, Key, MetadataStore, Record, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.contract.log_suite import ORDERS, contents, group

SECOND = Log("orders", 1)
SOAK = os.environ.get("LLOG_SOAK") == "1"
Act = Callable[[LogContext], Coroutine[object, object, object]]


class Crashed(Exception):
    """The process is gone: nothing of llog catches this."""


class Interrupted(ForwardingMetadataStore):
    """Forwards calls up to one at which its process crashes, or sleeps until `wake`."""

    def __init__(self, inner: MetadataStore, at_call: int, *, after: bool, sleeps: bool) -> None:
        super().__init__(inner)
        self._left, self._after, self._sleeps = at_call, after, sleeps
        self.reached = asyncio.Event()
        self.wake = asyncio.Event()

    async def _step(self, *, after: bool) -> None:
        if after is not self._after:
            return
        self._left -= 1
        if self._left >= 0:
            return
        if not self._sleeps:
            self.reached.set()
            raise Crashed
        if not self.reached.is_set():
            self.reached.set()
            await self.wake.wait()

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        await self._step(after=False)
        found = await self.inner.get_many(keys, strict=strict)
        await self._step(after=True)
        return found

    async def scan(
        self, parent: Key, *, start: str = "", stop: str | None = None, limit: int = 1_000, strict: bool = False
    ) -> list[Record]:
        await self._step(after=False)
        found = await self.inner.scan(parent, start=start, stop=stop, limit=limit, strict=strict)
        await self._step(after=True)
        return found

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        await self._step(after=False)
        outcomes = await self.inner.write(groups)
        await self._step(after=True)
        return outcomes

    async def close(self) -> None:
        """The inner store stays open: its opener closes it."""


class Stubborn(MemoryObjectStore):
    """Objects cannot be deleted while `refuses`."""

    refuses = True

    async def delete_many(self, names: Sequence[str]) -> None:
        if self.refuses:
            raise ObjectStoreUnavailable("delete", names[0], "injected")
        await super().delete_many(names)


async def crashes(act: Act, context: LogContext, at_call: int, *, after: bool) -> bool:
    """Run `act` in a process that ends at that call; False when it was through before."""
    store = Interrupted(context.metadata, at_call, after=after, sleeps=False)
    try:
        await act(dataclasses.replace(context, metadata=store))
    except* Crashed:
        pass
    return store.reached.is_set()


async def fill(context: LogContext, *, tokens: str = "old") -> None:
    """Two partitions with everything that a log can hold: entries, a segment, a producer page, a pending append."""
    appender = Appender(context)
    for i in range(4):
        claims = (ProducerClaim(7, 0, 2 * i, 2 * i + 1, 0),)
        outcomes = await appender.append(
            [
                group(ORDERS, f"{tokens}-{i}-a".encode(), f"{tokens}-{i}-b".encode(), producers=claims),
                group(SECOND, f"{tokens}-{i}".encode()),
            ]
        )
        assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes
        if i == 1:
            assert await compact_once(context, ORDERS) is not None
    await asyncio.sleep(0)


async def kinds_left(context: LogContext) -> Counter[str]:
    kinds: Counter[str] = Counter()
    async for record in context.metadata.scan_tree(context.keys.root):
        parsed = context.keys.parse(record.key.path)
        assert parsed is not None, record.key.path
        kinds[parsed.kind] += 1
    return kinds


async def control_of(context: LogContext, log: Log) -> ControlRecord:
    found = await context.metadata.get(context.keys.control(log), strict=True)
    assert found is not None
    return decode_value(ControlRecord, found.value, found.key.path)


async def check_gone(context: LogContext, objects: ObjectStore, *, incarnation: int = 1) -> None:
    """Only the topic's record, one tombstone and one finished deletion per log, and blobs are left."""
    await check_buried(context, incarnation)
    left = await kinds_left(context)
    assert left == {"topic": 1, "control": 2, "partition_delete": 2}, left
    names = [meta.name async for meta in objects.list(context.keys.root)]
    assert {context.keys.parse_object(name).kind for name in names} <= {"blob"}  # type: ignore[union-attr]


async def check_buried(context: LogContext, incarnation: int) -> None:
    """Nothing of the topic can be read or appended to."""
    found = await load_topic(context, "orders", strict=True)
    assert found is not None
    assert (found[0].state, found[0].incarnation) == ("DELETED", incarnation)
    for partition in range(found[0].partition_count):
        log = Log("orders", partition)
        control = await control_of(context, log)
        assert (control.log_state, control.pending, control.incarnation) == ("DELETED", None, incarnation)
        with pytest.raises(PartitionNotInitialized):
            await read_offset(context, log, 1)


async def until_done(call: Callable[[], Awaitable[object]]) -> object:
    for _ in range(20):
        try:
            return await call()
        except TopicAlreadyExists as error:
            return error  # a call that was given up had made it
        except (LogError, MetadataStoreError, TopicBeingDeleted) as error:
            if not error.retriable:
                raise
    raise AssertionError("not done after 20 calls")


async def last_append(context: LogContext, log: Log) -> Pending:
    """The pending append, or the one with the last entry, as its writer still knows it."""
    control = await control_of(context, log)
    if control.pending is not None:
        return control.pending
    end = control.sequence_counter - 1
    found = await context.metadata.get(context.keys.index_entry(log, end), strict=True)
    assert found is not None
    entry = decode_value(IndexEntry, found.value, found.key.path)
    return Pending(
        append_id=entry.append_id,
        incarnation=entry.incarnation,
        start_offset=end - entry.msg_count + 1,
        end_offset=end,
        msg_count=entry.msg_count,
        data_key=entry.data_key,
        encoding=entry.encoding,
        byte_offset=entry.byte_offset,
        byte_length=entry.byte_length,
        created_at_ms=entry.created_at_ms,
    )


async def live_on(context: LogContext, *, again: bool, compacted: bool = False) -> None:
    """The events during a sleep. `compacted`: the new log's producer pages have the keys of the old log's."""
    try:
        await delete_topic(context, "orders")
    except TopicNotFound:
        await create_topic(context, "orders", partitions=2)
        await fill(context)
        await delete_topic(context, "orders")
    if again:
        await create_topic(context, "orders", partitions=2)
        await fill(context, tokens="new")
    while compacted and await compact_once(context, ORDERS) is not None:
        pass


async def check_life(context: LogContext, *, again: bool, may_append: bool) -> None:
    found = await load_topic(context, "orders", strict=True)
    assert found is not None
    topic = found[0]
    if topic.state == "DELETED":
        await check_buried(context, topic.incarnation)
        for partition in range(topic.partition_count):
            await remove_leftovers(context, Log("orders", partition))
        left = await kinds_left(context)
        # Pages cannot be listed, and so may outlast the head that names them.
        assert left.keys() <= {"topic", "control", "partition_delete", "producer_page"}, left
        return
    for partition in range(min(2, topic.partition_count)):
        log = Log("orders", partition)
        if not again and (await control_of(context, log)).incarnation < topic.incarnation:
            continue  # an append brought the topic back, and not to this partition
        await check_pages(context, log)
        tokens = [token for _, token in await contents(context, log)]
        kept = [token for token in tokens if token is not None and token != b"late"]
        assert may_append or kept == tokens
        assert len(kept) == ((8 if log == ORDERS else 4) if again else 0), tokens
        assert all(token.startswith(b"new") for token in kept)
        while await compact_once(context, log) is not None:
            pass
        assert [token for _, token in await contents(context, log)] == tokens
    [landed] = await Appender(context).append([group(ORDERS, b"last")])
    assert isinstance(landed, Appended), "the log can be appended to"


async def check_pages(context: LogContext, log: Log) -> None:
    """Every page that the head of the producer snapshot names exists and has its incarnation."""
    found = await context.metadata.get(context.keys.producers(log), strict=True)
    assert found is not None
    head = decode_value(ProducerSnapshot, found.value, found.key.path)
    for number in range(head.pages):
        page = await context.metadata.get(context.keys.producer_page(log, head.as_of, number), strict=True)
        assert page is not None, (head, number)
        assert decode_value(ProducerPage, page.value, page.key.path).incarnation == head.incarnation


async def _append(context: LogContext) -> None:
    appender = Appender(context)
    await appender.append([group(ORDERS, b"late"), group(SECOND, b"late")])
    await appender.close()


async def _compact(context: LogContext) -> None:
    await compact_once(context, ORDERS)


async def _delete(context: LogContext) -> None:
    await delete_topic(context, "orders", 1)


async def _delete_records(context: LogContext) -> None:
    await delete_records(context, ORDERS, -1)


async def _retain(context: LogContext) -> None:
    await retain(context, ORDERS, Limits(retention_bytes=0))


async def _fence(context: LogContext) -> None:
    await fence(context, ORDERS)
    await unfence(context, ORDERS)


async def _settle(context: LogContext) -> None:
    await settle_and_clear(context, ORDERS)


async def _initialize(context: LogContext) -> None:
    await initialize(careful(context), Log("orders", 1))


async def _create(context: LogContext) -> None:
    await create_topic(careful(context), "orders", partitions=2)


async def _grow(context: LogContext) -> None:
    await add_partitions(context, "orders", 4)


def careful(context: LogContext) -> LogContext:
    """Where topics do not create themselves."""
    return dataclasses.replace(context, options=dataclasses.replace(context.options, auto_create_topics=False))


ACTORS: dict[str, Act] = {
    "append": _append,
    "compact": _compact,
    "delete": _delete,
    "delete_records": _delete_records,
    "retain": _retain,
    "fence": _fence,
    "settle": _settle,
    "initialize": _initialize,
    "create": _create,
    "grow": _grow,
}
