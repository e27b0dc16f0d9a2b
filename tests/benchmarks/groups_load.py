"""`python -m tests.benchmarks.groups_load PORT [GROUPS] [SECONDS]`: many consumer groups on one broker.

Groups of ten members join, then every member sends a heartbeat every 3 s and commits two positions every 5 s. Prints
percentiles of both in milliseconds. The client is the raw one of the tests, so its own processor time counts too.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack

from llog.kafka.codec.messages.create_topics import CreatableTopic, CreateTopicsRequest
from llog.kafka.codec.messages.heartbeat import HeartbeatRequest
from llog.kafka.codec.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from llog.kafka.codec.messages.list_groups import ListGroupsRequest
from llog.kafka.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from llog.kafka.codec.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.kafka_client import KafkaClient

MEMBERS = 10
CONNECTIONS_PER_MEMBER = 10
TOPIC = "load"
HEARTBEAT_S = 3.0
COMMIT_S = 5.0


class LoadMember:
    def __init__(self, client: KafkaClient, group: str, number: int) -> None:
        self.client, self.group, self.number = client, group, number
        self.member_id, self.generation = "", -1

    async def join(self) -> None:
        protocols = [JoinGroupRequestProtocol("range", b"\0\0\0\0\0\1\0\4load\0\0\0\0")]
        joined = await self.client.send(
            JoinGroupRequest(self.group, 300_000, 300_000, "", None, "consumer", protocols), 3
        )
        assert joined.error_code == 0, joined
        self.member_id, self.generation = joined.member_id, joined.generation_id
        shares = [SyncGroupRequestAssignment(one.member_id, b"") for one in joined.members]
        synced = await self.client.send(
            SyncGroupRequest(self.group, self.generation, self.member_id, assignments=shares), 3
        )
        assert synced.error_code == 0, synced

    async def beat(self) -> float:
        started = time.perf_counter()
        answer = await self.client.send(HeartbeatRequest(self.group, self.generation, self.member_id), 3)
        assert answer.error_code == 0, answer
        return time.perf_counter() - started

    async def commit(self, offset: int) -> float:
        places = [OffsetCommitRequestPartition(self.number * 2 + i, offset) for i in range(2)]
        request = OffsetCommitRequest(
            self.group, self.generation, self.member_id, topics=[OffsetCommitRequestTopic(TOPIC, partitions=places)]
        )
        started = time.perf_counter()
        answer = await self.client.send(request, 7)
        assert all(one.error_code == 0 for one in answer.topics[0].partitions), answer
        return time.perf_counter() - started


async def lives(member: LoadMember, position: float, seconds: float, beats: list[float], commits: list[float]) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    next_beat, next_commit = began + position * HEARTBEAT_S, began + position * COMMIT_S
    while loop.time() < began + seconds:
        await asyncio.sleep(max(0.0, min(next_beat, next_commit) - loop.time()))
        if next_beat <= next_commit:
            next_beat += HEARTBEAT_S
            beats.append(await member.beat())
        else:
            next_commit += COMMIT_S
            commits.append(await member.commit(int(loop.time() * 10)))


def percentiles(times: list[float]) -> str:
    times.sort()
    shown = [f"p{p} {times[min(len(times) - 1, len(times) * p // 100)] * 1_000:.1f}" for p in (50, 90, 99)]
    return f"{', '.join(shown)} ms of {len(times)}"


async def main(port: int, groups: int, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        count = MEMBERS * CONNECTIONS_PER_MEMBER
        clients = [await stack.enter_async_context(KafkaClient.connected(port)) for _ in range(count)]
        await clients[0].ask(CreateTopicsRequest([CreatableTopic(TOPIC, 2 * MEMBERS, 1)], 10_000), 5)
        started = time.perf_counter()
        members = [
            LoadMember(clients[(group % CONNECTIONS_PER_MEMBER) * MEMBERS + number], f"load-{group}", number)
            for group in range(groups)
            for number in range(MEMBERS)
        ]
        await asyncio.gather(*(member.join() for member in members))
        print(f"{len(members)} members of {groups} groups joined in {time.perf_counter() - started:.1f} s", flush=True)
        beats: list[float] = []
        commits: list[float] = []
        spread = [position * 7919 % len(members) / len(members) for position in range(len(members))]
        await asyncio.gather(*(lives(m, at, seconds, beats, commits) for m, at in zip(members, spread, strict=True)))
        print(f"heartbeats: {percentiles(beats)}\ncommits: {percentiles(commits)}", flush=True)
        started = time.perf_counter()
        listed = await clients[0].ask(ListGroupsRequest(), 5)
        print(f"{len(listed.groups)} groups listed in {time.perf_counter() - started:.3f} s", flush=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(main(int(arguments[0]), int((arguments[1:] or ["1000"])[0]), float((arguments[2:] or ["20"])[0])))
