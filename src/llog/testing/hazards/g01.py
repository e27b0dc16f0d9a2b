"""g01 to g09: coordinators of consumer groups that sleep, crash, and come back (protocol section 13)."""

from __future__ import annotations

import asyncio
from typing import Any

from llog.broker.groups.coordinator import GroupCoordinator
from llog.broker.groups.positions import GroupPositions, Position
from llog.errors import GroupHasMembers
from llog.formats.values import GroupOffset, decode_value
from llog.groups.classic.messages import HeartbeatRequest
from llog.groups.codes import GroupCode
from llog.groups.consumer.messages import ConsumerHeartbeat
from llog.testing.group_scenarios import GROUP, REBALANCE_MS, TOPIC
from llog.testing.hazards.group_toolkit import (
    HEAD,
    LOG,
    PAUSE,
    POSITION,
    commit,
    coordinating,
    join,
    leave,
    pause,
    position,
    stored_head,
    successor,
    taken_over,
    with_topic,
)
from llog.testing.hazards.toolkit import attempt, context_of, expect
from llog.testing.sim import ActorContext, Script, SimFault, script


def _offset(script: Script) -> int:
    [record] = [record for path, record in script.world.records().items() if "/offset:" in path]
    return decode_value(GroupOffset, record.value, "g").offset


async def _replaced_member(groups: GroupCoordinator, ctx: ActorContext) -> None:
    """The first member goes, another one comes and commits."""
    await leave(groups, "one")
    await commit(groups, await join(groups, "two"), 20)


@script("g01")
def a_coordinator_that_slept_answers_heartbeats(script: Script) -> None:
    async def first(groups: GroupCoordinator, ctx: ActorContext) -> GroupCode:
        joined = await join(groups, "one")
        await pause(ctx)
        return (await groups.heartbeat(GROUP, HeartbeatRequest("one", joined.generation))).code

    with_topic(script)
    zombie = script.actor("first", coordinating(1, first)).run_until("get", PAUSE)
    taken_over(script, zombie, _replaced_member)
    zombie.wake()
    code = zombie.finish()
    expect(code == GroupCode.NOT_COORDINATOR, f"a member that is out was answered {code!r}, and goes on reading")


@script("g02")
def the_head_of_a_dead_coordinator_arrives_late(script: Script) -> None:
    async def first(groups: GroupCoordinator, ctx: ActorContext) -> None:
        await join(groups, "one")
        await pause(ctx)
        await leave(groups, "one")

    with_topic(script)
    dying = script.actor("first", coordinating(1, first)).run_until("get", PAUSE).run_until("put", HEAD)
    dying.perform(SimFault.LATE_WRITE, "put", HEAD)
    dying.crash()

    async def second(groups: GroupCoordinator, ctx: ActorContext) -> Any:
        await leave(groups, "one")
        return await join(groups, "two")

    successor(script, second)
    before = stored_head(script)
    script.land("put", HEAD)
    after = stored_head(script)
    expect(after == before, f"generation {before.generation} was replaced by {after.generation} of a dead coordinator")


@script("g03")
def a_commit_that_was_judged_before_a_sleep_is_written_after_it(script: Script) -> None:
    async def first(groups: GroupCoordinator, ctx: ActorContext) -> Any:
        return await commit(groups, await join(groups, "one"), 10)

    with_topic(script)
    zombie = script.actor("first", coordinating(1, first)).run_until("get", POSITION)
    taken_over(script, zombie, _replaced_member)
    zombie.wake()
    zombie.finish()
    expect(_offset(script) == 20, f"the position was moved back from 20 to {_offset(script)}")


@script("g04")
def the_head_of_another_coordinator_is_taken_for_the_own_one(script: Script) -> None:
    async def first(groups: GroupCoordinator, ctx: ActorContext) -> GroupCode:
        await join(groups, "one")
        await pause(ctx)
        return await leave(groups, "one")

    with_topic(script)
    zombie = script.actor("first", coordinating(1, first)).run_until("get", PAUSE).run_until("put", HEAD)
    zombie.perform(SimFault.LOST_REQUEST, "put", HEAD).run_until("get", HEAD)

    async def replaced(groups: GroupCoordinator, ctx: ActorContext) -> Any:
        await leave(groups, "one")
        return await join(groups, "two")

    taken_over(script, zombie, replaced)
    zombie.wake()
    code = zombie.finish()
    expect(code == GroupCode.NOT_COORDINATOR, f"a write that never happened was answered {code!r}")


@script("g05")
def a_crash_falls_between_the_pages_and_the_head(script: Script) -> None:
    async def first(groups: GroupCoordinator, ctx: ActorContext) -> Any:
        return await join(groups, "one", metadata=bytes(100_000))

    with_topic(script)
    dying = script.actor("first", coordinating(1, first)).run_until("put", f"{HEAD}*")
    dying.perform(operation="put", path=f"{HEAD}*")
    dying.crash()

    async def second(groups: GroupCoordinator, ctx: ActorContext) -> GroupCode:
        return (await join(groups, "two")).code

    code = successor(script, second).result
    expect(code == GroupCode.NONE, f"the group cannot be loaded any more: {code!r}")


def _beat(member_id: str, epoch: int, owned: dict[str, tuple[int, ...]] | None = None) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        member_id,
        epoch,
        rebalance_timeout_ms=REBALANCE_MS,
        topics=(TOPIC,) if epoch == 0 else None,
        owned={} if epoch == 0 else owned,
    )


@script("g06")
def a_partition_is_given_away_before_it_is_given_up(script: Script) -> None:
    async def work(groups: GroupCoordinator, ctx: ActorContext) -> tuple[int, int]:
        had = await groups.consumer_heartbeat(GROUP, _beat("one", 0), "")
        got = await groups.consumer_heartbeat(GROUP, _beat("two", 0), "")
        count = sum(len(numbers) for numbers in (had.assignment or {}).values())
        return count, sum(len(numbers) for numbers in (got.assignment or {}).values())

    with_topic(script)
    had, got = script.actor("first", coordinating(1, work)).finish()
    expect(had == 2, f"the only member has {had} of 2 partitions")
    expect(got == 0, f"the second member got {got} partitions that the first one still reads")


@script("g07")
def a_commit_is_acknowledged_by_a_coordinator_that_lost_its_claim(script: Script) -> None:
    async def first(groups: GroupCoordinator, ctx: ActorContext) -> GroupCode:
        return await commit(groups, await join(groups, "one"), 10)

    async def read(groups: GroupCoordinator, ctx: ActorContext) -> int:
        return await position(groups)

    with_topic(script)
    zombie = script.actor("first", coordinating(1, first)).run_until("put", POSITION)
    fetched = taken_over(script, zombie, read).result
    zombie.wake()  # its request arrives only now
    code = zombie.finish()
    expect(fetched >= 10 or code != GroupCode.NONE, f"{fetched} was fetched before 10 was acknowledged and stored")


@script("g08")
def a_consumer_over_http_commits_between_the_commits_of_a_member(script: Script) -> None:
    async def http(ctx: ActorContext) -> Any:
        return await attempt(GroupPositions(context_of(ctx)).commit(GROUP, {LOG: Position(5)}))

    async def member(groups: GroupCoordinator, ctx: ActorContext) -> Any:
        return await commit(groups, await join(groups, "one"), 20)

    with_topic(script)
    outside = script.actor("http", http).run_until("get", POSITION)
    script.actor("first", coordinating(1, member)).finish()
    answer = outside.finish()
    expect(isinstance(answer, GroupHasMembers), f"a group with a member accepted a commit from outside: {answer}")
    expect(_offset(script) == 20, f"the position of a member was moved back from 20 to {_offset(script)}")


@script("g09")
def a_position_is_read_while_a_commit_is_under_way(script: Script) -> None:
    async def work(groups: GroupCoordinator, ctx: ActorContext) -> tuple[GroupCode, int]:
        joined = await join(groups, "one")
        committing = asyncio.create_task(commit(groups, joined, 10))
        await pause(ctx)
        fetched = await position(groups)
        return await committing, fetched

    with_topic(script)
    node = script.actor("first", coordinating(1, work)).run_until("put", POSITION)
    while node.waiting("get"):  # every read comes before the write
        node.perform(operation="get")
    code, fetched = node.finish()
    expect(code == GroupCode.NONE and fetched == 10, f"10 was acknowledged as {code!r}, and {fetched} was fetched")
