from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from llog.broker.groups.positions import Committed, GroupOffsets, Position, item_name
from llog.errors import (
    InvalidArgument,
    LogBusy,
    LogDeleted,
    MetadataUncertain,
    PartitionOutOfRange,
    UnsupportedFormat,
)
from llog.formats.values import GroupOffset, encode_value
from llog.limits import GROUP_OFFSETS_PER_CALL_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.log.topics.delete import delete_topic
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import GroupOutcome, MetadataStore, Write
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore

LOG = Log("t", 0)


def context_on(metadata: MetadataStore) -> LogContext:
    objects = MemoryObjectStore("memory://offsets")
    clock = iter(range(1_000, 10**9))

    async def find(uri: str) -> tuple[ObjectStore, str]:
        return objects, objects.name_of(uri)

    return LogContext(
        metadata=metadata,
        wal=objects,
        find_object=find,
        now_ms=lambda: next(clock),
        random_bits=lambda bits: 0,
        sleep=lambda seconds: asyncio.sleep(0),
    )


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
async def context(request: pytest.FixtureRequest) -> LogContext:
    context = context_on(MemoryStore(MemoryBacking(shards=1, atomic_groups=request.param)))
    await create_topic(context, "t", partitions=2)
    return context


def offset_of(found: Committed | None) -> int | None:
    return None if found is None else found.position.offset


async def test_the_last_commit_wins_also_backwards(context: LogContext) -> None:
    offsets = GroupOffsets(context)
    assert await offsets.fetch("g", [LOG]) == {LOG: None}
    for offset in (5, 9, 3):
        assert await offsets.commit("g", {LOG: Position(offset, "note")}) == {LOG: None}
    found = (await offsets.fetch("g", [LOG]))[LOG]
    assert found is not None
    assert found.position == Position(3, "note")
    assert found.committed_at_ms > 0


async def test_groups_do_not_see_each_other_and_all_logs_can_be_asked_for(context: LogContext) -> None:
    offsets = GroupOffsets(context)
    await offsets.commit("a", {LOG: Position(1), Log("t", 1): Position(2)})
    await offsets.commit("a/b %", {LOG: Position(7)})
    found = await offsets.fetch("a")
    assert {log: offset_of(position) for log, position in found.items()} == {LOG: 1, Log("t", 1): 2}
    assert offset_of((await offsets.fetch("a/b %"))[LOG]) == 7
    assert await offsets.fetch("nobody") == {}


async def test_a_log_that_is_not_there_has_no_position(context: LogContext) -> None:
    offsets = GroupOffsets(context)
    outcomes = await offsets.commit("g", {LOG: Position(1), Log("t", 2): Position(1), Log("none", 0): Position(1)})
    assert outcomes[LOG] is None
    assert isinstance(outcomes[Log("t", 2)], PartitionOutOfRange)
    assert isinstance(outcomes[Log("none", 0)], LogDeleted)
    assert list(await offsets.fetch("g")) == [LOG]


async def test_a_topic_that_was_made_again_begins_without_positions(context: LogContext) -> None:
    offsets = GroupOffsets(context)
    await offsets.commit("g", {LOG: Position(9)})
    await delete_topic(context, "t")
    assert await offsets.fetch("g", [LOG]) == {LOG: None}
    assert isinstance((await offsets.commit("g", {LOG: Position(9)}))[LOG], LogDeleted)
    await create_topic(context, "t")
    assert await offsets.fetch("g", [LOG]) == {LOG: None}
    assert await offsets.fetch("g") == {}
    await offsets.commit("g", {LOG: Position(2)})
    assert offset_of((await offsets.fetch("g"))[LOG]) == 2
    # The first position of a life takes that of the life before with it.
    assert await context.metadata.get(context.keys.group_item("g", item_name(LOG, 1))) is None


async def test_the_longest_topic_and_partition_have_a_key(context: LogContext) -> None:
    offsets = GroupOffsets(context)
    long = ["x" * 249, "x" * 248 + "y"]
    for topic in long:
        await create_topic(context, topic)
        await offsets.commit("g" * 160, {Log(topic, 0): Position(long.index(topic))})
    found = await offsets.fetch("g" * 160)
    assert {log.topic: offset_of(position) for log, position in found.items()} == {long[0]: 0, long[1]: 1}


async def test_what_can_never_be_kept_is_refused(context: LogContext) -> None:
    offsets = GroupOffsets(context)
    many = {Log("t", number): Position(1) for number in range(GROUP_OFFSETS_PER_CALL_MAX + 1)}
    for group, positions in (
        ("", {LOG: Position(1)}),
        ("g" * 161, {LOG: Position(1)}),
        ("g", {}),
        ("g", many),
        ("g", {LOG: Position(-1)}),
        ("g", {LOG: Position(1, "x" * 4_097)}),
    ):
        with pytest.raises(InvalidArgument):
            await offsets.commit(group, positions)


async def test_what_a_newer_release_wrote_is_not_replaced(context: LogContext) -> None:
    key = context.keys.group_item("g", item_name(LOG, 1))
    newer = encode_value(GroupOffset(topic="t", partition=0, offset=4)).replace(b'"v":1', b'"v":99')
    await context.metadata.put(key, newer)
    with pytest.raises(UnsupportedFormat):
        await GroupOffsets(context).commit("g", {LOG: Position(1)})


class Trouble(MemoryStore):
    """Does what it is told with the next writes: `lost` (done, no answer), `never` (not done, no answer), `raced`
    (somebody else's commit comes first), `lost, then raced` (done, no answer, and another commit behind it)."""

    def __init__(self, backing: MemoryBacking) -> None:
        super().__init__(backing)
        self.script: list[str] = []
        self.others = MemoryStore(backing)

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        what = self.script.pop(0) if self.script else ""
        key = groups[0][0].key
        if what in ("raced", "lost, then raced"):
            other = encode_value(GroupOffset(topic="t", partition=0, offset=77))
            if what == "raced":
                await self.others.put(key, other)
            else:
                await super().write(groups)
                await self.others.put(key, other)
                return [MetadataUncertain("put", key.path)]
        if what == "lost":
            await super().write(groups)
        if what in ("lost", "never"):
            return [MetadataUncertain("put", key.path)]
        return await super().write(groups)


@pytest.mark.parametrize(
    ("script", "stays"),
    [
        (["lost"], 5),
        (["never"], 5),
        (["never", "never", "lost"], 5),
        (["raced"], 5),
        (["raced", "raced", "never"], 5),
        # Theirs came after ours, seen from a strict read: ours must not come back.
        (["never", "lost, then raced"], 77),
    ],
)
async def test_a_lost_answer_or_a_race_ends_with_one_truth(script: list[str], stays: int) -> None:
    store = Trouble(MemoryBacking(shards=1, atomic_groups=False))
    context = context_on(store)
    await create_topic(context, "t")
    store.script = list(script)
    offsets = GroupOffsets(context)
    assert await offsets.commit("g", {LOG: Position(5)}) == {LOG: None}
    assert store.script == []
    assert offset_of((await offsets.fetch("g", [LOG]))[LOG]) == stays


async def test_a_position_that_keeps_changing_is_told_to_be_busy() -> None:
    store = Trouble(MemoryBacking(shards=1, atomic_groups=False))
    context = context_on(store)
    await create_topic(context, "t")
    store.script = ["raced"] * 1_000
    outcome = (await GroupOffsets(context).commit("g", {LOG: Position(5)}))[LOG]
    assert isinstance(outcome, LogBusy)
    assert outcome.retriable
