"""Parts of the scripts about consumer groups: two coordinators of one slot, and what clients ask them.

A coordinator here runs the production service without its background rounds: it takes the slot when it is free, and
then does what the script asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from llog.broker.cluster import ClusterView, Node
from llog.broker.groups.coordinator import GroupCoordinator
from llog.broker.groups.positions import Position
from llog.groups.classic.messages import JoinAnswer, JoinRequest, LeavingMember, SyncRequest
from llog.groups.codes import GroupCode
from llog.groups.records import GroupHead, MemberProtocol, decode_head
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.log.topics.known_topics import KnownTopics
from llog.testing.group_scenarios import GROUP, REBALANCE_MS, SESSION_MS, SETTINGS, TOPIC
from llog.testing.hazards.toolkit import context_of
from llog.testing.sim import ActorContext, Puppet, Script
from llog.testing.sim.actor import ActorFunction

HEAD: Final = f"*/groups/{GROUP}"
PAGES: Final = f"*/groups/{GROUP}/page:*"
POSITION: Final = f"*/groups/{GROUP}/offset:*"
PAUSE: Final = "*/@cluster/id"
"""A read that a coordinator makes where a script may hold it."""
CLAIM_MS: Final = 9_000
"""The session of a sleeping coordinator is over, and another one may take its slot."""
LOG: Final = Log(TOPIC, 0)

Work = Callable[[GroupCoordinator, ActorContext], Awaitable[Any]]


def coordinating(node_id: int, work: Work) -> ActorFunction:
    async def run(ctx: ActorContext) -> Any:
        context = context_of(ctx)
        view = ClusterView("c", Node(node_id, "h", node_id))
        view.set_others([Node(3 - node_id, "h", 3 - node_id)])
        topics = KnownTopics(context, ctx.now_ms)
        groups = GroupCoordinator(context, view, topics, broker_id=ctx.name, now_ms=ctx.now_ms, settings=SETTINGS)
        waking = asyncio.create_task(groups.wheel.run())
        while not groups.coordinates(GROUP):
            await groups.slots.refresh()
            await ctx.sleep_ms(500)
        result = await work(groups, ctx)
        waking.cancel()
        return result

    return run


def with_topic(script: Script) -> None:
    async def make(ctx: ActorContext) -> None:
        await create_topic(context_of(ctx), TOPIC, partitions=2)

    script.actor("operator", make).finish()


async def pause(ctx: ActorContext) -> None:
    context = context_of(ctx)
    await context.metadata.get(context.keys.cluster_id())


def taken_over(script: Script, sleeper: Puppet, work: Work) -> Puppet:
    """The first coordinator falls asleep for longer than its session; the second one does this meanwhile."""
    sleeper.sleep(10 * CLAIM_MS)
    return successor(script, work)


def successor(script: Script, work: Work) -> Puppet:
    script.pass_time(CLAIM_MS)
    second = script.actor("second", coordinating(2, work))
    second.finish()
    return second


# -- what clients ask --------------------------------------------------------------------------------------------------


async def join(groups: GroupCoordinator, name: str, *, metadata: bytes = b"") -> JoinAnswer:
    """One member joins and syncs."""
    request = JoinRequest(
        "consumer",
        (MemberProtocol(name="range", metadata=metadata),),
        SESSION_MS,
        REBALANCE_MS,
        client_id=name,
        needs_member_id=False,
    )
    joined = await groups.join(GROUP, request, name)
    if joined.code == GroupCode.NONE:
        shares = tuple((member.member_id, b"") for member in joined.members)
        await groups.sync(GROUP, SyncRequest(joined.member_id, joined.generation, assignments=shares))
    return joined


async def commit(groups: GroupCoordinator, joined: JoinAnswer, offset: int) -> GroupCode:
    outcomes = await groups.commit(
        GROUP,
        {(TOPIC, 0): Position(offset)},
        member_id=joined.member_id,
        instance_id=None,
        generation=joined.generation,
        version=8,
    )
    outcome = outcomes[TOPIC, 0]
    return outcome if isinstance(outcome, GroupCode) else GroupCode.UNKNOWN_SERVER_ERROR


async def leave(groups: GroupCoordinator, name: str) -> GroupCode:
    answer = await groups.leave(GROUP, [LeavingMember(name, None)])
    return answer.code or answer.members[0].code


async def position(groups: GroupCoordinator) -> int:
    found = await groups.fetch(GROUP, [LOG])
    committed = None if isinstance(found, GroupCode) else found[LOG]
    return -1 if committed is None else committed.position.offset


# -- what is stored ----------------------------------------------------------------------------------------------------


def stored_head(script: Script) -> GroupHead:
    [record] = [record for path, record in script.world.records().items() if path.endswith(f"/groups/{GROUP}")]
    return decode_head(record.value, GROUP)
