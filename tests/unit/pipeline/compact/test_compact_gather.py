"""Writes of many go to the store together, and nobody's outcome is another's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from llog.errors import InvalidArgument, MetadataUnavailable, ValueTooLarge, VersionConflict
from llog.limits import METADATA_VALUE_BYTES_MAX
from llog.log.keys import Log
from llog.pipeline.compact.job import compact
from llog.pipeline.compact.once import compact_once
from llog.pipeline.runtime.gather import GatheringMetadataStore, gathered
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import ABSENT, Delete, GroupOutcome, Key, MetadataStore, Put, Write
from tests.contract.test_metadata_memory import MemoryContract
from tests.patience import PATIENCE_SECONDS
from tests.unit.pipeline.compact.compact_stage import Stage, entries_of, records_of

KEYS = [Key(f"llog/{number}") for number in range(8)]


class Counting(MemoryStore):
    """Notes how many groups each call had; fails the calls it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.failure: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.called = asyncio.Event()
        self.held = 0

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        self.calls.append(len(groups))
        self.called.set()
        if self.failure is not None:
            raise self.failure
        if self.hold is not None:
            self.held += 1
            try:
                await self.hold.wait()
            finally:
                self.held -= 1
        return await super().write(groups)


@pytest.fixture
def inner() -> Counting:
    return Counting()


async def test_what_one_turn_brings_is_one_call(inner: Counting) -> None:
    store = GatheringMetadataStore(inner)
    versions = await asyncio.gather(*(store.put(key, b"v", expected=ABSENT) for key in KEYS))
    await asyncio.gather(*(store.delete(key, expected=at) for key, at in zip(KEYS, versions, strict=True)))
    assert inner.calls == [8, 8]
    assert await store.get_many(KEYS) == [None] * 8


async def test_each_caller_gets_the_outcome_of_its_own_groups(inner: Counting) -> None:
    store = GatheringMetadataStore(inner)
    taken = await store.put(KEYS[1], b"before")
    answers = await asyncio.gather(
        store.put(KEYS[0], b"new", expected=ABSENT),
        store.put(KEYS[1], b"new", expected=ABSENT),
        store.write([(Put(KEYS[2], b"a"), Put(KEYS[3], b"b")), (Delete(KEYS[4], 77),)]),
        store.put(KEYS[5], b"new", expected=ABSENT),
        return_exceptions=True,
    )
    assert inner.calls == [1, 5]
    assert isinstance(answers[1], VersionConflict)
    assert isinstance(answers[2], list)
    assert [isinstance(outcome, VersionConflict) for outcome in answers[2]] == [False, True]
    written = answers[2][0]
    assert isinstance(written, tuple)
    found = [None if record is None else record.version for record in await store.get_many(KEYS[:6])]
    assert found == [answers[0], taken, *written, None, answers[3]]


async def test_a_key_that_stands_in_a_call_already_begins_another(inner: Counting) -> None:
    store = GatheringMetadataStore(inner)
    first, second, other = await asyncio.gather(
        store.put(KEYS[0], b"first", expected=ABSENT),
        store.put(KEYS[0], b"second", expected=ABSENT),
        store.put(KEYS[1], b"other", expected=ABSENT),
        return_exceptions=True,
    )
    assert inner.calls == [1, 2]
    assert (isinstance(first, int), isinstance(second, VersionConflict), isinstance(other, int)) == (True, True, True)


async def test_who_asks_while_a_call_is_under_way_goes_with_those_who_were_in_it(inner: Counting) -> None:
    """Two halves that would take turns become one that moves together."""
    store = GatheringMetadataStore(inner)
    inner.hold = asyncio.Event()

    async def write_all(keys: Sequence[Key]) -> None:
        for number in range(10):
            for key in keys:
                await store.put(key, b"%d" % number)

    async with asyncio.TaskGroup() as group:
        for key in KEYS[:4]:
            group.create_task(write_all([key]))
        await inner.called.wait()
        for key in KEYS[4:]:
            group.create_task(write_all([key]))
        await asyncio.sleep(0)
        inner.hold.set()
    assert inner.calls == [4, *[8] * 9, 4]


async def test_what_can_never_be_written_is_refused_to_whoever_asked_for_it_alone(inner: Counting) -> None:
    store = GatheringMetadataStore(inner)
    answers = await asyncio.gather(
        store.put(KEYS[0], b"fine"),
        store.put(Key("llog//bad"), b"v"),
        store.put(KEYS[1], bytes(METADATA_VALUE_BYTES_MAX + 1)),
        store.put(KEYS[2], b"fine"),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [int, InvalidArgument, ValueTooLarge, int]


async def test_one_call_that_names_a_key_twice_is_refused_as_before(inner: Counting) -> None:
    with pytest.raises(InvalidArgument, match="twice"):
        await GatheringMetadataStore(inner).write([(Put(KEYS[0], b"a"),), (Put(KEYS[0], b"b"),)])


async def test_a_call_that_fails_as_a_whole_fails_everybody_in_it_and_is_not_made_again(inner: Counting) -> None:
    store = GatheringMetadataStore(inner)
    inner.failure = MetadataUnavailable("write", "x", "down")
    answers = await asyncio.gather(*(store.put(key, b"v") for key in KEYS), return_exceptions=True)
    assert {type(answer) for answer in answers} == {MetadataUnavailable}
    assert inner.calls == [8]


async def test_whoever_gives_up_before_the_turn_ends_writes_nothing_and_harms_nobody(inner: Counting) -> None:
    store = GatheringMetadataStore(inner)
    tasks = [asyncio.create_task(store.put(key, b"v")) for key in KEYS[:2]]
    asyncio.get_running_loop().call_soon(tasks[0].cancel)
    await asyncio.wait(tasks)
    found = await store.get_many(KEYS[:2])
    assert tasks[0].cancelled()
    assert found[1] is not None
    assert found[1].version == tasks[1].result()


async def test_leaving_waits_for_calls_whose_callers_are_gone() -> None:
    stage = Stage()
    inner = Counting()
    inner.hold = asyncio.Event()
    context = stage.open(inner)
    async with gathered(context) as gathering:
        write = asyncio.create_task(gathering.metadata.put(KEYS[0], b"v"))
        await inner.called.wait()
        write.cancel()
        asyncio.get_running_loop().call_later(0.01, inner.hold.set)
    assert await inner.get(KEYS[0]) is not None


async def test_a_cancelled_job_does_not_wait_for_a_metadata_write_that_never_returns() -> None:
    stage, inner = Stage(), Counting()
    context = stage.context = stage.open(inner)
    log = Log("orders", 0)
    await stage.append(log)
    inner.hold = asyncio.Event()
    inner.called.clear()
    job = asyncio.create_task(compact_once(context, log))
    await inner.called.wait()
    job.cancel()
    done, _ = await asyncio.wait([job], timeout=PATIENCE_SECONDS)
    assert done == {job}
    assert job.cancelled()
    assert inner.held == 0, "the write was cancelled too: nothing is left running"


async def test_a_cancellation_while_leaving_ends_the_wait_for_a_write_that_never_returns() -> None:
    stage, inner = Stage(), Counting()
    inner.hold = asyncio.Event()

    async def leave_early() -> None:
        async with gathered(stage.open(inner)) as gathering:
            write = asyncio.create_task(gathering.metadata.put(KEYS[0], b"v"))
            await inner.called.wait()
            write.cancel()

    leaving = asyncio.create_task(leave_early())
    await inner.called.wait()
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving], timeout=PATIENCE_SECONDS)
    assert leaving.cancelled()
    await asyncio.sleep(0)
    assert inner.held == 0


async def test_a_context_that_gathers_already_is_used_as_it_is() -> None:
    async with gathered(Stage().context) as outer, gathered(outer) as again:
        assert again is outer


async def test_publishing_many_logs_takes_few_calls_and_ends_as_log_by_log() -> None:
    logs = [Log("wide", partition) for partition in range(32)]
    ends, calls = [], []
    for together in (True, False):
        stage, inner = Stage(), Counting()
        context = stage.context = stage.open(inner)
        for _ in range(10):
            await stage.append(*logs)
        before = {log: await records_of(context, log) for log in logs}
        inner.calls.clear()
        if together:
            await compact(context, LocalTasks(tools_of(context)))
        else:
            for log in logs:
                await compact_once(context, log)
        assert {log: await records_of(context, log) for log in logs} == before
        ends.append(
            [[(entry.start_offset, entry.end_offset) for entry in await entries_of(context, log)] for log in logs]
        )
        calls.append(len(inner.calls))
    assert ends[0] == ends[1]
    assert calls[0] * 4 < calls[1]


class Owned(GatheringMetadataStore):
    """Closed with the store in it, as the contract asks of whoever opened one."""

    async def close(self) -> None:
        await super().close()
        await self.inner.close()


class TestGatheringMemoryStore(MemoryContract):
    def wrapped(self, store: MetadataStore) -> MetadataStore:
        return Owned(store)
