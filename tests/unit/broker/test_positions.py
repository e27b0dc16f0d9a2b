from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from llog.broker.groups.positions import CommittedPosition, GroupPositions, Position, item_name
from llog.errors import (
    InvalidArgument,
    LogBusy,
    LogDeleted,
    MetadataUncertain,
    PartitionOutOfRange,
    UnsupportedFormat,
)
from llog.formats.values import GroupOffset, encode_value
from llog.limits import GROUP_POSITIONS_PER_CALL_MAX
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


def offset_of(found: CommittedPosition | None) -> int | None:
    return None if found is None else found.position.offset


async def test_the_last_commit_wins_also_backwards(context: LogContext) -> None:
    positions = GroupPositions(context)
    assert await positions.fetch("g", [LOG]) == {LOG: None}
    for offset in (5, 9, 3):
        assert await positions.commit("g", {LOG: Position(offset, "note")}) == {LOG: None}
    found = (await positions.fetch("g", [LOG]))[LOG]
    assert found is not None
    assert found.position == Position(3, "note")
    assert found.committed_at_ms > 0


async def test_groups_do_not_see_each_other_and_all_logs_can_be_asked_for(context: LogContext) -> None:
    positions = GroupPositions(context)
    await positions.commit("a", {LOG: Position(1), Log("t", 1): Position(2)})
    await positions.commit("a/b %", {LOG: Position(7)})
    found = await positions.fetch("a")
    assert {log: offset_of(position) for log, position in found.items()} == {LOG: 1, Log("t", 1): 2}
    assert offset_of((await positions.fetch("a/b %"))[LOG]) == 7
    assert await positions.fetch("unknown") == {}


async def test_a_missing_log_has_no_position(context: LogContext) -> None:
    positions = GroupPositions(context)
    outcomes = await positions.commit("g", {LOG: Position(1), Log("t", 2): Position(1), Log("none", 0): Position(1)})
    assert outcomes[LOG] is None
    assert isinstance(outcomes[Log("t", 2)], PartitionOutOfRange)
    assert isinstance(outcomes[Log("none", 0)], LogDeleted)
    assert list(await positions.fetch("g")) == [LOG]


async def test_a_re_created_topic_begins_without_positions(context: LogContext) -> None:
    positions = GroupPositions(context)
    await positions.commit("g", {LOG: Position(9)})
    await delete_topic(context, "t")
    assert await positions.fetch("g", [LOG]) == {LOG: None}
    assert isinstance((await positions.commit("g", {LOG: Position(9)}))[LOG], LogDeleted)
    await create_topic(context, "t")
    assert await positions.fetch("g", [LOG]) == {LOG: None}
    assert await positions.fetch("g") == {}
    await positions.commit("g", {LOG: Position(2)})
    assert offset_of((await positions.fetch("g"))[LOG]) == 2
    # The first commit of an incarnation deletes the position of the one before.
    assert await context.metadata.get(context.keys.group_item("g", item_name(LOG, 1))) is None


async def test_the_longest_topic_and_partition_have_a_key(context: LogContext) -> None:
    positions = GroupPositions(context)
    long = ["x" * 249, "x" * 248 + "y"]
    for topic in long:
        await create_topic(context, topic)
        await positions.commit("g" * 160, {Log(topic, 0): Position(long.index(topic))})
    found = await positions.fetch("g" * 160)
    assert {log.topic: offset_of(position) for log, position in found.items()} == {long[0]: 0, long[1]: 1}


async def test_commit_all_splits_more_logs_than_one_call_takes(context: LogContext) -> None:
    many = {Log("t", number): Position(1) for number in range(GROUP_POSITIONS_PER_CALL_MAX + 1)}
    outcomes = await GroupPositions(context).commit_all("g", many)
    assert list(outcomes) == list(many)
    assert [log.partition for log, error in outcomes.items() if error is None] == [0, 1]


async def test_invalid_commits_are_refused(context: LogContext) -> None:
    positions = GroupPositions(context)
    many = {Log("t", number): Position(1) for number in range(GROUP_POSITIONS_PER_CALL_MAX + 1)}
    for group, refused in (
        ("", {LOG: Position(1)}),
        ("g" * 161, {LOG: Position(1)}),
        ("g", {}),
        ("g", many),
        ("g", {LOG: Position(-1)}),
        ("g", {LOG: Position(1, "x" * 4_097)}),
    ):
        with pytest.raises(InvalidArgument):
            await positions.commit(group, refused)


async def test_a_value_of_a_newer_release_is_not_overwritten(context: LogContext) -> None:
    key = context.keys.group_item("g", item_name(LOG, 1))
    newer = encode_value(GroupOffset(topic="t", partition=0, offset=4)).replace(b'"v":1', b'"v":99')
    await context.metadata.put(key, newer)
    with pytest.raises(UnsupportedFormat):
        await GroupPositions(context).commit("g", {LOG: Position(1)})


class Trouble(MemoryStore):
    """Follows a script for its next writes: `lost` (done, no answer), `never` (not done, no answer), `raced`
    (another commit comes first), `lost, then raced` (done, no answer, then another commit)."""

    def __init__(self, backing: MemoryBacking) -> None:
        super().__init__(backing)
        self.script: list[str] = []
        self.others = MemoryStore(backing)

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        key = groups[0][0].key
        if "/offset:" not in key.path:  # the head of the group
            return await super().write(groups)
        what = self.script.pop(0) if self.script else ""
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
        # The other commit came after ours, as a strict read shows: ours must not return.
        (["never", "lost, then raced"], 77),
    ],
)
async def test_a_lost_answer_or_a_race_leaves_the_last_commit(script: list[str], stays: int) -> None:
    store = Trouble(MemoryBacking(shards=1, atomic_groups=False))
    context = context_on(store)
    await create_topic(context, "t")
    store.script = list(script)
    positions = GroupPositions(context)
    assert await positions.commit("g", {LOG: Position(5)}) == {LOG: None}
    assert store.script == []
    assert offset_of((await positions.fetch("g", [LOG]))[LOG]) == stays


async def test_a_position_that_keeps_changing_is_busy() -> None:
    store = Trouble(MemoryBacking(shards=1, atomic_groups=False))
    context = context_on(store)
    await create_topic(context, "t")
    store.script = ["raced"] * 1_000
    outcome = (await GroupPositions(context).commit("g", {LOG: Position(5)}))[LOG]
    assert isinstance(outcome, LogBusy)
    assert outcome.retriable
