"""Changes lead to the logs and topics that they touch, and marks tell whether anything changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llog.compactor.changes import Changes
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.admin import alter_topic, create_topic
from llog.pipeline.runtime.log_choice import claim
from llog.stores.metadata.port import Key, Put
from tests.patience import until
from tests.unit.compactor.stage import ORDERS, Cluster, Writer, settle


class Followed:
    def __init__(self, context: LogContext) -> None:
        self.logs: list[Log] = []
        self.topics: list[str] = []
        self.gaps = 0
        self.changes = Changes(context, on_log=self.logs.append, on_topic=self.topics.append, on_all=self._note_gap)

    def _note_gap(self) -> None:
        self.gaps += 1

    def taken(self) -> tuple[set[Log], set[str], int]:
        seen = set(self.logs), set(self.topics), self.gaps
        self.logs.clear()
        self.topics.clear()
        self.gaps = 0
        return seen

    def marks(self) -> tuple[int, int]:
        return self.changes.log_mark(), self.changes.full_mark()


@asynccontextmanager
async def following(cluster: Cluster) -> AsyncIterator[Followed]:
    followed = Followed(cluster.open())
    task = asyncio.create_task(followed.changes.follow())
    await settle()
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_append_leads_to_its_log_and_a_topic_to_itself() -> None:
    cluster = Cluster()
    context = cluster.open()
    await create_topic(context, "orders", partitions=2)
    async with following(cluster) as followed:
        assert followed.taken() == (set(), set(), 1), "what was before the watch is not known"
        before = followed.marks()
        await Writer(context).append(ORDERS)
        await settle()
        assert followed.taken() == ({ORDERS}, set(), 0)
        await alter_topic(context, "orders", put={"retention.ms": "1"})
        await settle()
        assert followed.taken() == (set(), {"orders"}, 0)
        assert all(now > then for now, then in zip(followed.marks(), before, strict=True))


async def test_claims_and_registrations_are_no_changes_and_positions_concern_no_log() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with following(cluster) as followed:
        before, metadata = followed.marks(), context.metadata
        session = await metadata.open_session(timeout_ms=10_000)
        await claim(context, ORDERS, session, compactor_id="one", incarnation=1)
        await metadata.put(context.keys.broker("b"), b"1", session=session)
        await metadata.put(context.keys.chore_claim("vacuum"), b"1", session=session)
        await session.close()
        await metadata.put(Key("elsewhere/@topics/x"), b"1")
        await settle()
        assert followed.marks() == before
        await metadata.put(context.keys.group_item("readers", "orders:0"), b"1")
        await settle()
        log_mark, full_mark = followed.marks()
        assert (log_mark, full_mark > before[1]) == (before[0], True)
        await metadata.put(context.keys.sink("query", 1), b"1")
        await settle()
        assert followed.marks()[0] > log_mark
        assert followed.taken()[:2] == (set(), set())


async def test_without_a_watch_no_two_marks_are_equal_and_the_end_of_one_is_a_gap() -> None:
    cluster = Cluster()
    async with following(cluster) as followed:
        assert followed.changes.live
        assert followed.marks() == followed.marks()
        followed.taken()
        for watcher in cluster.backing.watchers:
            watcher.resync()
        before = followed.marks()
        await settle()
        assert followed.taken() == (set(), set(), 1)
        assert followed.marks() != before
        for watcher in cluster.backing.watchers:
            watcher.end()
        await settle()
    assert not followed.changes.live
    assert followed.taken() == (set(), set(), 1)
    assert followed.marks() != followed.marks()


async def test_many_changes_at_once_leave_other_tasks_their_turn() -> None:
    cluster = Cluster()
    context = cluster.open()
    async with following(cluster) as followed:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        keys = [context.keys.control(Log("many", number)) for number in range(5_000)]
        await context.metadata.write([(Put(key, b"1"),) for key in keys])
        before = turns
        await until(lambda: len(followed.logs) == 5_000, pause_seconds=0)
        assert turns - before >= 10
        counting.cancel()
