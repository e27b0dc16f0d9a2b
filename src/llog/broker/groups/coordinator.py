"""The group coordinator of one node: it coordinates the groups of the slots that the node holds.

    requests ─► LiveGroup (machine, record) ─► answers        CommitQueue ─► positions
                   ▲ wheel: deadlines                          CoordinatorSlots: which groups are ours

Groups are loaded when they are first asked for; those with members also when their slot is taken, because the sessions
of members that are gone must end although nobody asks. Groups without members are forgotten when they are idle.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from llog.broker.cluster import ClusterView
from llog.broker.groups.catalogue import TopicCatalogue
from llog.broker.groups.commits import CommitQueue, CommitRequest, Judge, Outcome, Wanted
from llog.broker.groups.commits import Named as NamedTopic
from llog.broker.groups.expiry import POSITIONS_KEPT_MS, Expiry
from llog.broker.groups.group_records import key_of
from llog.broker.groups.listing import list_heads
from llog.broker.groups.live_group import Ask, LiveGroup, Machine, Refuse, Ticket
from llog.broker.groups.positions import CommittedPosition, GroupPositions, item_name
from llog.broker.groups.rights import Rights
from llog.broker.groups.slots import CoordinatorSlots
from llog.broker.groups.wheel import Wheel
from llog.errors import LlogError, StoreError
from llog.groups.classic.messages import (
    DeleteAnswer,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from llog.groups.classic.settings import ClassicSettings
from llog.groups.codes import GroupCode
from llog.groups.consumer.group import ConsumerGroup
from llog.groups.consumer.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    ConsumerSettings,
)
from llog.groups.consumer.subscribe import Catalogue, Describes
from llog.groups.records import CLASSIC, CONSUMER
from llog.groups.views import ListedGroup
from llog.limits import GROUP_POSITIONS_PER_CALL_MAX, GROUP_SLOTS
from llog.log.context import LogContext, get_all, write_all
from llog.log.keys import Log
from llog.log.topics.known_topics import KnownTopic, KnownTopics
from llog.stores.metadata.port import Delete

GROUPS_IN_MEMORY_MAX: Final = 50_000
"""One more is refused with COORDINATOR_NOT_AVAILABLE, unless one without members can be forgotten."""
REQUESTS_WAITING_MAX: Final = 50_000
"""Requests that wait for other members or for a write; one more is refused with COORDINATOR_LOAD_IN_PROGRESS."""
GROUP_IDLE_MS_MAX: Final = 60_000
IDLE_SWEEP_MS: Final = 15_000
HAND_OVER_MS_MAX: Final = 2_000
"""How long the writes of groups that are given to another node may take."""
ADOPTIONS_AT_ONCE: Final = 16

_log: Final = logging.getLogger("llog.broker.groups")


def steady_clock() -> Callable[[], int]:
    """Milliseconds that begin with the wall clock and then only go forward, at the pace of the monotonic clock."""
    ahead_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
    return lambda: time.monotonic_ns() // 1_000_000 + ahead_ms


class CoordinatorSettings(NamedTuple):
    classic: ClassicSettings = ClassicSettings()
    consumer: ConsumerSettings = ConsumerSettings()
    positions_kept_ms: int = POSITIONS_KEPT_MS
    slots: int = GROUP_SLOTS


@dataclass(eq=False)
class Shared:
    """What the groups of one coordinator share."""

    context: LogContext
    slots: CoordinatorSlots
    wheel: Wheel[LiveGroup]
    catalogue: TopicCatalogue
    settings: CoordinatorSettings
    now_ms: Callable[[], int]
    forget: Callable[[LiveGroup], None]
    describes: Describes | None


class GroupCoordinator:
    def __init__(
        self,
        context: LogContext,
        cluster: ClusterView,
        topics: KnownTopics,
        *,
        broker_id: str,
        now_ms: Callable[[], int],
        settings: CoordinatorSettings | None = None,
        rights: Rights | None = None,
    ) -> None:
        """`now_ms`: a clock that never goes back and is close to the wall clock. Without `rights`, members may describe
        every topic."""
        settings = settings or CoordinatorSettings()
        self._context, self._now_ms, self._topics = context, now_ms, topics
        self._groups: dict[str, LiveGroup] = {}
        self.slots = CoordinatorSlots(
            context,
            cluster,
            broker_id,
            now_ms=now_ms,
            count=settings.slots,
            on_taken=self._adopt_soon,
            before_give_back=self._give_up,
            on_lost=self._drop_lost,
        )
        self.wheel: Wheel[LiveGroup] = Wheel(LiveGroup.wake, now_ms=now_ms, sleep=context.sleep)
        self._catalogue = TopicCatalogue(
            context,
            topics,
            is_needed=lambda: any(group.is_consumer for group in self._groups.values()),
            on_change=self._topics_changed,
            edition_of_rights=(lambda: None) if rights is None else rights.edition,
        )
        self._shared = Shared(
            context,
            self.slots,
            self.wheel,
            self._catalogue,
            settings,
            now_ms,
            self._forget,
            None if rights is None else rights.describes,
        )
        self.positions = GroupPositions(context)
        self._commits = CommitQueue(context, topics)
        self._expiry = Expiry(self, context, now_ms, kept_ms=settings.positions_kept_ms)
        self._waiting = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._adopting: asyncio.Task[None] | None = None

    # -- start and stop ------------------------------------------------------------------------------------------------
    def start(self) -> None:
        runs = {
            "llog-group-slots": self.slots.run,
            "llog-group-wheel": self.wheel.run,
            "llog-group-topics": self._catalogue.run,
            "llog-group-idle": self._forget_idle,
            "llog-group-expiry": self._expiry.run,
        }
        self._tasks += [asyncio.create_task(run(), name=name) for name, run in runs.items()]

    async def resign(self) -> None:
        """Give all groups to other nodes, and coordinate none any more. Requests that wait are answered."""
        try:
            await self.slots.resign()
        except StoreError as error:
            _log.warning("the claims of this node's groups end with its session: %s", error)

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._adopting] if self._adopting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._adopting = [], None
        await self._give_up(None)
        await self._commits.close()
        await self.slots.close()

    # -- groups in memory ----------------------------------------------------------------------------------------------
    def coordinates(self, group: str) -> bool:
        return self.slots.holds(self.slots.of(group))

    def find(self, group: str) -> int | None:
        """The node that coordinates the group; None: nobody does, at the moment."""
        return self.slots.holder(self.slots.of(group))

    def in_memory(self, group: str) -> LiveGroup | None:
        return self._groups.get(group)

    def live(self, group: str) -> LiveGroup | GroupCode:
        """The group, being loaded if it is not in memory; or why it cannot be."""
        if not self.coordinates(group):
            return GroupCode.NOT_COORDINATOR
        found = self._groups.get(group)
        if found is not None:
            return found
        if len(self._groups) >= GROUPS_IN_MEMORY_MAX and not self._forget_some(0):
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        found = self._groups[group] = LiveGroup(self._shared, group)
        return found

    async def existing(self, group: str) -> tuple[LiveGroup, Machine] | GroupCode:
        """A group that has a record or clients about to join."""
        found = self.live(group)
        if isinstance(found, GroupCode):
            return found
        machine = await found.loaded()
        if isinstance(machine, GroupCode):
            return machine
        return (found, machine) if found.exists else GroupCode.GROUP_ID_NOT_FOUND

    def _forget(self, group: LiveGroup) -> None:
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    def forget_if_idle(self, group: str, idle_ms: int) -> bool:
        """Forget a group that has no members and nothing under way."""
        found = self._groups.get(group)
        if found is None:
            return True
        if (
            found.machine is None
            or not found.machine.disposable
            or self._commits.is_busy(group)
            or self._now_ms() - found.used_ms < idle_ms
        ):
            return False
        found.abandon(GroupCode.NOT_COORDINATOR)
        return True

    def _forget_some(self, idle_ms: int) -> int:
        return sum(self.forget_if_idle(group, idle_ms) for group in list(self._groups))

    async def _forget_idle(self) -> None:
        while True:
            await self._context.sleep(IDLE_SWEEP_MS / 1_000)
            self._forget_some(GROUP_IDLE_MS_MAX)

    def _drop_lost(self) -> None:
        """The claims are gone: answer all who wait, and forget their groups."""
        for group in list(self._groups.values()):
            if not self.slots.holds(group.slot):
                group.abandon(GroupCode.NOT_COORDINATOR)

    async def _give_up(self, slots: Sequence[int] | None) -> None:
        """Forget the groups of these slots (None: of all), and wait for the writes that are under way."""
        chosen = [group for group in self._groups.values() if slots is None or group.slot in slots]
        for group in chosen:
            group.abandon(GroupCode.NOT_COORDINATOR)
        waits = [group.writing for group in chosen if group.writing is not None and not group.writing.done()]
        waits += [
            asyncio.ensure_future(self._commits.settled(group.group_id))
            for group in chosen
            if self._commits.is_busy(group.group_id)
        ]
        if waits:
            await asyncio.wait(waits, timeout=HAND_OVER_MS_MAX / 1_000)

    # -- taking over ---------------------------------------------------------------------------------------------------
    def _adopt_soon(self, _: Sequence[int]) -> None:
        if self._adopting is not None and not self._adopting.done():
            self._adopting.cancel()
        self._adopting = asyncio.create_task(self._adopt(), name="llog-group-adopt")

    async def _adopt(self) -> None:
        """Load the groups with members, so that the sessions of those that are gone end."""
        try:
            heads = await list_heads(self._context)
        except LlogError as error:
            _log.warning("groups with members are loaded later: %s", error)
            return
        wanted = [group for group, head in heads.items() if head.members and self.coordinates(group)]
        for first in range(0, len(wanted), ADOPTIONS_AT_ONCE):
            found = [self.live(group) for group in wanted[first : first + ADOPTIONS_AT_ONCE]]
            await asyncio.gather(*(group.loaded() for group in found if isinstance(group, LiveGroup)))

    def _topics_changed(self, _: Catalogue) -> None:
        for group in list(self._groups.values()):
            group.topics_changed()

    # -- the classic protocol ------------------------------------------------------------------------------------------
    def _ask(self, group: str, wanted: str, joins: bool, ask: Ask, refuse: Refuse) -> Ticket:
        found = self.live(group)
        if isinstance(found, LiveGroup) and self._waiting < REQUESTS_WAITING_MAX:
            ticket = found.ask(wanted, joins, ask, refuse)
            if not ticket.done():
                self._waiting += 1
                ticket.add_done_callback(self._answered)
            return ticket
        ticket = asyncio.get_running_loop().create_future()
        ticket.set_result(refuse(found if isinstance(found, GroupCode) else GroupCode.COORDINATOR_LOAD_IN_PROGRESS))
        return ticket

    def _answered(self, _: Ticket) -> None:
        self._waiting -= 1

    @property
    def requests_waiting(self) -> int:
        return self._waiting

    def join(self, group: str, request: JoinRequest, new_member_id: str) -> asyncio.Future[JoinAnswer]:
        return self._ask(group, CLASSIC, True, lambda m, t, now: m.join(t, request, new_member_id, now), JoinAnswer)

    def sync(self, group: str, request: SyncRequest) -> asyncio.Future[SyncAnswer]:
        return self._ask(group, CLASSIC, False, lambda m, t, now: m.sync(t, request, now), SyncAnswer)

    def heartbeat(self, group: str, request: HeartbeatRequest) -> asyncio.Future[HeartbeatAnswer]:
        return self._ask(group, CLASSIC, False, lambda m, t, now: m.heartbeat(t, request, now), HeartbeatAnswer)

    def leave(self, group: str, members: Sequence[LeavingMember]) -> asyncio.Future[LeaveAnswer]:
        return self._ask(group, CLASSIC, False, lambda m, t, now: m.leave(t, members, now), LeaveAnswer)

    # -- the consumer protocol -----------------------------------------------------------------------------------------
    async def consumer_heartbeat(
        self, group: str, request: ConsumerHeartbeat, new_member_id: str
    ) -> ConsumerHeartbeatAnswer:
        try:
            await self._catalogue.load()
        except LlogError as error:
            return ConsumerHeartbeatAnswer(GroupCode.COORDINATOR_NOT_AVAILABLE, str(error))
        answer: ConsumerHeartbeatAnswer = await self._ask(
            group,
            CONSUMER,
            request.member_epoch == JOIN_EPOCH,
            lambda m, t, now: m.heartbeat(t, request, new_member_id, now),
            ConsumerHeartbeatAnswer,
        )
        return answer

    # -- positions -----------------------------------------------------------------------------------------------------
    def commit(
        self,
        group: str,
        positions: Wanted,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        judge: Judge | None = None,
    ) -> asyncio.Future[dict[tuple[NamedTopic, int], Outcome]]:
        """Take the commit now, behind all earlier ones. `generation`: a member's generation or epoch, or -1; `version`:
        of OffsetCommit."""
        found = self.live(group)
        if isinstance(found, LiveGroup):
            return self._commits.submit(
                CommitRequest(
                    found,
                    positions,
                    member_id=member_id,
                    instance_id=instance_id,
                    generation=generation,
                    version=version,
                    judge=judge,
                )
            )
        refused: asyncio.Future[dict[tuple[NamedTopic, int], Outcome]] = asyncio.get_running_loop().create_future()
        refused.set_result(dict.fromkeys(positions, found))
        return refused

    async def fetch(
        self, group: str, logs: Sequence[Log] | None, *, member_id: str | None = None, epoch: int = -1
    ) -> Mapping[Log, CommittedPosition | None] | GroupCode:
        """Committed positions, by strict reads, and behind all commits that came before. Raises errors of the store."""
        if not self.coordinates(group):
            return GroupCode.NOT_COORDINATOR
        if member_id is not None or epoch >= 0:
            found = self.live(group)
            machine = found if isinstance(found, GroupCode) else await found.loaded()
            if isinstance(machine, GroupCode):
                return machine
            if isinstance(machine, ConsumerGroup):
                code = machine.check_fetch(member_id, epoch)
                if code != GroupCode.NONE:
                    return code
        await self._commits.settled(group)
        positions: dict[Log, CommittedPosition | None] = {}
        if logs is None:
            positions = await self.positions.fetch(group)
        for first in range(0, len(logs or ()), GROUP_POSITIONS_PER_CALL_MAX):
            assert logs is not None
            positions |= await self.positions.fetch(group, logs[first : first + GROUP_POSITIONS_PER_CALL_MAX])
        # What was read before the claim ended is true; later, another coordinator may have committed.
        return positions if self.coordinates(group) else GroupCode.NOT_COORDINATOR

    async def delete_positions(self, group: str, logs: Sequence[Log]) -> dict[Log, Outcome] | GroupCode:
        """OffsetDelete. Positions of topics that members read stay."""
        existing = await self.existing(group)
        if isinstance(existing, GroupCode):
            return existing
        found, machine = existing
        outcomes: dict[Log, Outcome] = {}
        topics = await self._topics.find(dict.fromkeys(log.topic for log in logs))
        keys = {}
        for log in logs:
            topic = topics[log.topic]
            code = machine.check_offset_delete(log.topic)
            if code == GroupCode.NON_EMPTY_GROUP:
                return code
            if isinstance(topic, KnownTopic) and code == GroupCode.NONE:
                keys[log] = self._context.keys.group_item(group, item_name(log, topic.incarnation))
            else:
                outcomes[log] = code if isinstance(topic, KnownTopic) else topic
        await self._commits.settled(group)
        records = await get_all(self._context.metadata, list(keys.values()), strict=True)
        there = {log: record for log, record in zip(keys, records, strict=True) if record is not None}
        if not found.may_write():
            return GroupCode.NOT_COORDINATOR
        deletes = [(Delete(key_of(self._context, group, record), record.version),) for record in there.values()]
        deleted = dict(zip(there, await write_all(self._context.metadata, deletes), strict=True))
        for log, key in keys.items():
            found.versions.pop(key, None)
            outcome = deleted.get(log, ())
            outcomes[log] = outcome if isinstance(outcome, LlogError) else GroupCode.NONE
        return outcomes

    # -- administration ------------------------------------------------------------------------------------------------
    async def list(self) -> list[ListedGroup]:
        """The groups that this node coordinates: those that are stored, and those that are about to be."""
        rows = {
            group: head.listed(group)
            for group, head in (await list_heads(self._context)).items()
            if self.coordinates(group)
        }
        for name, live in self._groups.items():
            if live.machine is not None and (name in rows or not live.machine.disposable):
                rows[name] = live.machine.listed()
        return list(rows.values())

    async def delete(self, group: str, *, keep_positions: bool = False) -> GroupCode:
        """DeleteGroups: a group without members, with all its positions."""
        existing = await self.existing(group)
        if isinstance(existing, GroupCode):
            return existing
        await self._commits.settled(group)
        existing[0].keeps_positions = keep_positions
        answer: DeleteAnswer = await self._ask(group, "", False, lambda m, t, now: m.delete(t, now), DeleteAnswer)
        return answer.code

    def topic_names(self) -> Mapping[str, str]:
        """By topic id in hex, for groups that were loaded."""
        return {topic.topic_id: name for name, topic in self._catalogue.current.items()}

    def describe_page(self) -> Mapping[str, object]:
        """For the health page."""
        return {"slots": len(self.slots.held()), "groups_in_memory": len(self._groups), "waiting": self._waiting}
