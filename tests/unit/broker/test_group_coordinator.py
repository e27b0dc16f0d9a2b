"""The coordinator service on a store in memory, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from llog.broker.cluster import ClusterView, Node
from llog.broker.groups.coordinator import CoordinatorSettings, GroupCoordinator
from llog.broker.groups.expiry import Expiry
from llog.broker.groups.positions import GroupPositions, Position, item_name
from llog.errors import GroupHasMembers, LlogError
from llog.formats.values import GroupOffset, encode_value
from llog.groups.classic.messages import HeartbeatRequest, JoinRequest, SyncRequest
from llog.groups.classic.settings import ClassicSettings
from llog.groups.codes import GroupCode
from llog.groups.records import MemberProtocol
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.log.topics.known_topics import KnownTopics
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.patience import until

TOPIC = "t"
LOG = Log(TOPIC, 0)
KEPT_MS = 10_000
SETTINGS = CoordinatorSettings(ClassicSettings(initial_rebalance_delay_ms=0), positions_kept_ms=KEPT_MS, slots=1)


@dataclass
class Cluster:
    """One store; each node has a view of its own."""

    backing: MemoryBacking = field(default_factory=MemoryBacking)
    now_ms: int = 1_000_000

    def context(self) -> LogContext:
        objects = MemoryObjectStore("memory://groups")

        async def find(uri: str) -> tuple[ObjectStore, str]:
            return objects, objects.name_of(uri)

        numbers = iter(range(1, 10**6))
        return LogContext(
            metadata=MemoryStore(self.backing),
            wal=objects,
            find_object=find,
            now_ms=lambda: self.now_ms,
            random_bits=lambda bits: next(numbers),
            sleep=lambda seconds: asyncio.sleep(min(seconds, 0.005)),
        )

    @asynccontextmanager
    async def node(self, node_id: int = 1) -> AsyncIterator[GroupCoordinator]:
        context = self.context()
        view = ClusterView("c", Node(node_id, "h", node_id))
        topics = KnownTopics(context, lambda: self.now_ms)
        groups = GroupCoordinator(
            context, view, topics, broker_id=f"b{node_id}", now_ms=lambda: self.now_ms, settings=SETTINGS
        )
        await groups.slots.refresh()
        waking = asyncio.create_task(groups.wheel.run())
        try:
            yield groups
        finally:
            waking.cancel()
            await groups.close()

    async def commit(self, groups: GroupCoordinator, offset: int, member_id: str = "", generation: int = -1) -> object:
        outcomes = await groups.commit(
            "g", {(TOPIC, 0): Position(offset)}, member_id=member_id, instance_id=None, generation=generation, version=8
        )
        return outcomes[TOPIC, 0]


async def joined(groups: GroupCoordinator, name: str = "one") -> int:
    metadata = b"\0\0\0\0\0\1\0\1t\0\0\0\0"
    request = JoinRequest("consumer", (MemberProtocol(name="range", metadata=metadata),), 6_000, 6_000, client_id=name)
    answer = await groups.join("g", request._replace(needs_member_id=False), name)
    assert answer.code == GroupCode.NONE
    await groups.sync("g", SyncRequest(name, answer.generation, assignments=((name, b"x"),)))
    return answer.generation


async def position(groups: GroupCoordinator) -> int:
    found = await groups.fetch("g", [LOG])
    assert not isinstance(found, GroupCode)
    committed = found[LOG]
    return -1 if committed is None else committed.position.offset


async def test_the_next_coordinator_continues_the_generation_of_one_that_stopped() -> None:
    cluster = Cluster()
    await create_topic(cluster.context(), TOPIC)
    async with cluster.node(1) as first:
        generation = await joined(first)
        assert await cluster.commit(first, 7, "one", generation) == GroupCode.NONE
    async with cluster.node(2) as second:
        beat = await second.heartbeat("g", HeartbeatRequest("one", generation))
        assert beat.code == GroupCode.NONE
        assert await position(second) == 7
        assert await cluster.commit(second, 8, "one", generation) == GroupCode.NONE


async def test_a_slot_has_one_holder_until_it_is_given_back() -> None:
    cluster = Cluster()
    async with cluster.node(1) as first, cluster.node(2) as second:
        assert first.coordinates("g")
        assert not second.coordinates("g")
        assert second.find("g") == 1
        await first.resign()
        cluster.now_ms += 10_000
        await second.slots.refresh()
        assert second.coordinates("g")
        assert not first.coordinates("g")


async def test_groups_with_members_are_loaded_when_their_slot_is_taken_and_silent_members_go() -> None:
    cluster = Cluster()
    await create_topic(cluster.context(), TOPIC)
    async with cluster.node(1) as first:
        await joined(first)
    async with cluster.node(2) as second:
        await until(lambda: (live := second.in_memory("g")) is not None and live.machine is not None)
        outside = GroupPositions(cluster.context())
        refused = None
        try:
            await outside.commit("g", {LOG: Position(1)})
        except GroupHasMembers as error:
            refused = error
        assert refused is not None
        cluster.now_ms += 7_000

        async def accepted() -> bool:
            try:
                return await outside.commit("g", {LOG: Position(1)}) == {LOG: None}
            except GroupHasMembers:
                return False

        await until(accepted)


async def test_positions_of_simple_consumers_expire_after_their_commit_and_the_group_with_them() -> None:
    cluster = Cluster()
    await create_topic(cluster.context(), TOPIC)
    async with cluster.node() as groups:
        expiry = Expiry(groups, cluster.context(), lambda: cluster.now_ms, kept_ms=KEPT_MS)
        assert await cluster.commit(groups, 5) == GroupCode.NONE
        cluster.now_ms += KEPT_MS // 2
        assert await GroupPositions(cluster.context()).commit("g", {LOG: Position(6)}) == {LOG: None}
        cluster.now_ms += KEPT_MS // 2 + 1
        await expiry.round()
        assert await position(groups) == 6, "it was committed later"
        cluster.now_ms += KEPT_MS
        await expiry.round()
        assert await position(groups) == -1
        assert await groups.list() == []


async def test_positions_of_a_group_with_members_stay() -> None:
    cluster = Cluster()
    await create_topic(cluster.context(), TOPIC)
    async with cluster.node() as groups:
        generation = await joined(groups)
        await cluster.commit(groups, 5, "one", generation)
        cluster.now_ms += 5_000
        await groups.heartbeat("g", HeartbeatRequest("one", generation))
        expiry = Expiry(groups, cluster.context(), lambda: cluster.now_ms, kept_ms=1)
        await expiry.round()
        assert await position(groups) == 5


async def test_a_group_begins_above_the_generation_of_positions_that_outlived_it() -> None:
    cluster = Cluster()
    context = cluster.context()
    await create_topic(context, TOPIC)
    key = context.keys.group_item("g", item_name(LOG, 1))
    await context.metadata.put(key, encode_value(GroupOffset(topic=TOPIC, partition=0, offset=3, generation=9)))
    async with cluster.node() as groups:
        generation = await joined(groups)
        assert generation == 10
        assert await cluster.commit(groups, 4, "one", generation) == GroupCode.NONE


async def test_a_commit_over_a_later_generation_is_refused() -> None:
    cluster = Cluster()
    context = cluster.context()
    await create_topic(context, TOPIC)
    async with cluster.node() as groups:
        generation = await joined(groups)
        key = context.keys.group_item("g", item_name(LOG, 1))
        later = GroupOffset(topic=TOPIC, partition=0, offset=30, generation=generation + 1)
        await context.metadata.put(key, encode_value(later))
        assert await cluster.commit(groups, 4, "one", generation) == GroupCode.ILLEGAL_GENERATION
        assert await position(groups) == 30


async def test_a_commit_to_a_topic_that_does_not_exist_is_an_error_of_that_partition_only() -> None:
    cluster = Cluster()
    await create_topic(cluster.context(), TOPIC)
    async with cluster.node() as groups:
        outcomes = await groups.commit(
            "g",
            {(TOPIC, 0): Position(1), ("missing", 0): Position(1)},
            member_id="",
            instance_id=None,
            generation=-1,
            version=8,
        )
        assert outcomes[TOPIC, 0] == GroupCode.NONE
        assert isinstance(outcomes["missing", 0], LlogError)
