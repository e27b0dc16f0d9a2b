"""Node ids and registrations: one live broker per id, in spite of races, restarts and lost sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from llog.broker.membership import Membership
from llog.broker.node_ids import HeldNodeId, choose_node_id, claim_node_id
from llog.errors import MetadataUncertain, SettingsError
from llog.formats.values import BrokerRegistration, NodeClaim, decode_value
from llog.log.context import LogContext
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import GroupOutcome, Write
from llog.stores.objects.memory import MemoryObjectStore
from tests.contexts import log_context
from tests.patience import until

SESSION_MS = 2_000


class Clock:
    """The time that stores and brokers share. Sleeping passes it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms

    async def sleep(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1_000)
        await asyncio.sleep(0)


class Cluster:
    def __init__(self) -> None:
        self.clock = Clock()
        self.backing = MemoryBacking(clock_ms=self.clock)
        self.members: list[Membership] = []

    def store(self) -> MemoryStore:
        return MemoryStore(self.backing)

    def context(self, store: MemoryStore | None = None) -> LogContext:
        objects = MemoryObjectStore("memory://membership")
        return log_context(store or self.store(), objects, now_ms=self.clock, sleep=self.clock.sleep)

    def member(self, broker_id: str, node_id: int | None = None, store: MemoryStore | None = None) -> Membership:
        value = BrokerRegistration(broker_id=broker_id, addresses={}, roles=("read", "write"))
        member = Membership(self.context(store), value, session_timeout_ms=SESSION_MS, node_id=node_id)
        self.members.append(member)
        return member

    async def registrations(self) -> dict[str, BrokerRegistration]:
        context = self.context()
        records = [record async for record in context.metadata.scan_all(context.keys.brokers())]
        values = [decode_value(BrokerRegistration, record.value, "test") for record in records]
        return {value.broker_id: value for value in values}

    async def holders(self) -> dict[int, str]:
        context = self.context()
        records = [record async for record in context.metadata.scan_all(context.keys.nodes())]
        assert all(record.ephemeral for record in records)
        return {
            int(record.key.path.rpartition("/")[2]): decode_value(NodeClaim, record.value, "test").broker_id
            for record in records
        }


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    for member in made.members:
        await member.close()


async def joined(cluster: Cluster, broker_id: str, node_id: int | None = None) -> Membership:
    member = cluster.member(broker_id, node_id)
    await member.join()
    await member.register({"http": f"{broker_id}:8080", "kafka": f"{broker_id}:9092"})
    return member


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_the_lowest_free_id_is_chosen_unless_the_broker_has_one_or_wants_one() -> None:
    held = {0: HeldNodeId("a", 1), 2: HeldNodeId("b", 2), 5: HeldNodeId("c", 3)}
    assert choose_node_id({}, "x", None) == 0
    assert choose_node_id(held, "x", None) == 1
    assert choose_node_id(held, "c", None) == 5
    assert choose_node_id(held, "c", 2) == 2
    assert choose_node_id({0: held[0], 1: held[2]}, "x", None) == 2


# -- claiming ----------------------------------------------------------------------------------------------------------


async def test_brokers_that_start_together_get_different_ids(cluster: Cluster) -> None:
    members = [cluster.member(f"broker-{number}") for number in range(20)]
    await asyncio.gather(*(member.join() for member in members))
    assert sorted(member.node_id for member in members) == list(range(20))
    assert await cluster.holders() == {member.node_id: f"broker-{n}" for n, member in enumerate(members)}


async def test_an_id_is_free_again_when_its_broker_has_left(cluster: Cluster) -> None:
    first, second = await joined(cluster, "a"), await joined(cluster, "b")
    assert (first.node_id, second.node_id) == (0, 1)
    await first.close()
    assert list(await cluster.registrations()) == ["b"]
    assert (await joined(cluster, "c")).node_id == 0


async def test_an_id_of_the_settings_that_another_broker_has_is_refused_naming_it(cluster: Cluster) -> None:
    await joined(cluster, "a", node_id=7)
    other = cluster.member("b", node_id=7)
    with pytest.raises(SettingsError, match=r"LLOG_NODE_ID.*7.*broker a"):
        await other.join()
    assert await cluster.holders() == {7: "a"}


async def test_an_id_of_the_settings_is_waited_for_while_a_dead_broker_holds_it(cluster: Cluster) -> None:
    """A broker that was killed and is started again under another broker id, as the default is."""
    store = cluster.store()
    dead = cluster.member("host-1", 7, store)
    await dead.join()
    store.freeze()
    again = cluster.member("host-2", node_id=7)
    started_ms = cluster.clock.now_ms
    await again.join()
    assert await cluster.holders() == {7: "host-2"}
    assert cluster.clock.now_ms - started_ms >= SESSION_MS


async def test_a_broker_that_comes_back_under_its_name_takes_its_id_over_at_once(cluster: Cluster) -> None:
    await joined(cluster, "a")
    store = cluster.store()
    dead = cluster.member("b", store=store)
    await dead.join()
    store.freeze()
    started_ms = cluster.clock.now_ms
    assert (await joined(cluster, "b")).node_id == dead.node_id == 1
    assert cluster.clock.now_ms - started_ms < SESSION_MS
    cluster.clock.now_ms += 2 * SESSION_MS
    assert await cluster.holders() == {0: "a", 1: "b"}, "the end of the old session must not remove the new claim"


class Uncertain(MemoryStore):
    """Answers to the first writes are lost."""

    lost = 2

    async def write(self, groups: list[list[Write]]) -> list[GroupOutcome]:  # type: ignore[override]
        outcomes = await super().write(groups)
        if self.lost:
            self.lost -= 1
            return [MetadataUncertain("write", "memory://", "the answer was lost") for _ in outcomes]
        return outcomes


async def test_a_claim_whose_answer_was_lost_is_found_and_kept(cluster: Cluster) -> None:
    store = Uncertain(cluster.backing)
    session = await store.open_session(timeout_ms=SESSION_MS)
    assert await claim_node_id(cluster.context(store), session, "a") == 0
    assert await cluster.holders() == {0: "a"}


# -- lost sessions -----------------------------------------------------------------------------------------------------


def lose_session(cluster: Cluster, member: Membership) -> None:
    [session] = [session for session in cluster.backing.sessions.values() if session is member._session]
    cluster.backing.expire(session)


async def test_a_broker_whose_session_was_lost_registers_again_with_its_id(cluster: Cluster) -> None:
    await joined(cluster, "a")
    member = await joined(cluster, "b")
    before = (await cluster.registrations())["b"]
    lose_session(cluster, member)
    assert member.lost

    async def is_back() -> bool:
        return not member.lost and (await cluster.registrations()).get("b") == before

    await until(is_back)
    assert await cluster.holders() == {0: "a", 1: "b"}


async def test_a_broker_whose_id_was_taken_meanwhile_gets_another_one(cluster: Cluster) -> None:
    seen: list[int] = []
    value = BrokerRegistration(broker_id="a", addresses={})
    member = Membership(cluster.context(), value, session_timeout_ms=SESSION_MS, on_node_id=seen.append)
    cluster.members.append(member)
    await member.join()
    await member.register({"kafka": "a:9092"})
    lose_session(cluster, member)
    other = cluster.member("b")
    await other.join()  # before the first one had its turn

    async def is_back() -> bool:
        return (await cluster.registrations()).get("a", value).node_id == member.node_id >= 0 and not member.lost

    await until(is_back)
    assert await cluster.holders() == {other.node_id: "b", member.node_id: "a"}
    assert seen[-1] == member.node_id


async def test_a_broker_whose_id_is_fixed_comes_back_when_the_id_is_free(cluster: Cluster) -> None:
    member = await joined(cluster, "a", node_id=3)
    lose_session(cluster, member)
    other = cluster.member("b", node_id=3)
    await other.join()
    await until(lambda: member._lost.is_set() or member._session is None)
    for _ in range(20):
        await asyncio.sleep(0)
    assert member.lost
    assert await cluster.registrations() == {}, "two brokers with one id must not both be registered"
    await other.close()

    async def is_back() -> bool:
        return not member.lost and "a" in await cluster.registrations()

    await until(is_back)
    assert await cluster.holders() == {3: "a"}


# -- draining ----------------------------------------------------------------------------------------------------------


async def test_a_draining_broker_says_so_also_after_it_registered_again(cluster: Cluster) -> None:
    member = await joined(cluster, "a")
    await member.drain()
    assert (await cluster.registrations())["a"].draining
    lose_session(cluster, member)

    async def is_back() -> bool:
        return not member.lost and "a" in await cluster.registrations()

    await until(is_back)
    assert (await cluster.registrations())["a"].draining


async def test_a_drain_after_the_session_was_lost_leaves_no_permanent_registration(cluster: Cluster) -> None:
    member = await joined(cluster, "a")
    lose_session(cluster, member)
    await member.drain()
    await member.close()
    assert await cluster.registrations() == {}
    assert await cluster.holders() == {}
