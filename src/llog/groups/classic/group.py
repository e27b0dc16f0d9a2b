"""The classic protocol of one group, as clients of Kafka 4.3 see it.

Every call takes a request and the time, and returns a `Step`: answers that may leave, a record to write, and the next
deadline. Requests that wait (JoinGroup, SyncGroup) are named by the caller's ticket and answered by a later step,
exactly once. Not thread-safe and without I/O: one coordinator drives it.

The caller's part: write `Step.write` at the version of the last record; on success call `written`; after an unknown
outcome write again or read back (`edition` and `writer` recognise the own write); on a version conflict call `abandon`
and forget the machine, because another coordinator has taken the group (rule G3).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from llog.groups.classic.members import Member, Parked
from llog.groups.classic.messages import (
    DeleteAnswer,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeavingMember,
    LeftMember,
    SyncAnswer,
    SyncRequest,
)
from llog.groups.classic.rebalance import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, Rebalance
from llog.groups.classic.settings import ClassicSettings
from llog.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE, topics_of_all
from llog.groups.codes import GroupCode
from llog.groups.outbox import Answer, Reply, Step, Ticket
from llog.groups.records import GROUP_MEMBER_BYTES_MAX, ClassicMember, GroupHead
from llog.groups.views import DescribedClassicGroup, DescribedClassicMember, ListedGroup


class ClassicGroup:
    def __init__(
        self, group_id: str, writer: str, now_ms: int, *, head: GroupHead | None = None, settings: ClassicSettings
    ) -> None:
        """A group without a record, or one that continues from its record, with all members.

        `writer` names this machine in the records it writes; no two machines share a name.
        """
        self.group_id = group_id
        self._settings = settings
        self._abandoned: GroupCode | None = None
        self._group = Rebalance(settings, writer, now_ms)
        self._stored = head is not None
        if head is not None:
            self._group.resume(head, now_ms)

    # -- joining ------------------------------------------------------------------------------------------------------
    def join(self, ticket: Ticket, request: JoinRequest, new_member_id: str, now_ms: int) -> Step:
        """JoinGroup. `new_member_id` is used if the member has no id yet: the client id, or the instance id of a static
        member, then `-` and a random UUID."""
        group = self._group
        refused = self._refused_join(request)
        if refused is not None:
            if refused == GroupCode.GROUP_MAX_SIZE_REACHED:
                self._drop(request.member_id, now_ms)
            return self._answer(ticket, JoinAnswer(refused, member_id=request.member_id), now_ms)
        parked = Parked(ticket)
        if request.member_id:
            answer = self._join_again(parked, request, now_ms)
        elif request.instance_id is not None:
            answer = self._join_static(parked, request, new_member_id, now_ms)
        elif request.needs_member_id:
            group.expect(new_member_id, request.session_timeout_ms, now_ms)
            group.outbox.send(Reply(ticket, JoinAnswer(GroupCode.MEMBER_ID_REQUIRED, member_id=new_member_id)))
            answer = None
        else:
            group.add(_record(request, new_member_id), request.protocol_type, parked, now_ms)
            answer = None
        if answer is not None:
            group.outbox.send_when_written(Reply(ticket, answer, answer.member_id))
        return group.finish(now_ms)

    def _refused_join(self, request: JoinRequest) -> GroupCode | None:
        group = self._group
        if self._gone is not None:
            return self._gone
        shortest, longest = self._settings.session_timeout_min_ms, self._settings.session_timeout_max_ms
        if not shortest <= request.session_timeout_ms <= longest:
            return GroupCode.INVALID_SESSION_TIMEOUT
        if sum(len(offered.metadata) for offered in request.protocols) > GROUP_MEMBER_BYTES_MAX // 2:
            return GroupCode.UNKNOWN_SERVER_ERROR
        if not self._has_room(request.member_id):
            return GroupCode.GROUP_MAX_SIZE_REACHED
        if group.state == EMPTY:
            agreed = bool(request.protocol_type and request.protocols)
        else:
            agreed = request.protocol_type == group.protocol_type and group.members.agree_on(request.protocols)
        return None if agreed else GroupCode.INCONSISTENT_GROUP_PROTOCOL

    def _drop(self, member_id: str, now_ms: int) -> None:
        """A client that was refused for good: the others do not wait for it."""
        group = self._group
        if member_id in group.pending:
            group.forget_pending(member_id, now_ms)
        elif member_id in group.members:
            group.remove(member_id)
            group.rebalance_or_complete(now_ms)

    def _has_room(self, member_id: str) -> bool:
        group = self._group
        if not member_id and len(group.pending) >= self._settings.members_max:
            return False
        if group.state == PREPARING:
            # Members that have not joined again may be gone, so those that have are counted.
            waits = member_id in group.members and group.members[member_id].join is not None
            return waits or group.members.joined_count < self._settings.members_max
        return member_id in group.members or len(group.members) < self._settings.members_max

    def _join_static(self, parked: Parked, request: JoinRequest, new_member_id: str, now_ms: int) -> JoinAnswer | None:
        """A static member without an id: it is new, or it started again and takes the place of its former self."""
        group = self._group
        old_id = group.members.static_id(request.instance_id or "")
        record = _record(request, new_member_id)
        if old_id is None:
            group.add(record, request.protocol_type, parked, now_ms)
            return None
        leader_before = group.members.leader
        member = group.replace_static(old_id, record, now_ms)
        if group.state == STABLE and group.members.choose_protocol() == group.protocol:
            # No rebalance. A client that knows no `skip_assignment` must not think that it leads.
            skips = request.skips_assignment
            return group.joined(
                member,
                leader="" if skips else leader_before,
                skip_assignment=skips and group.members.leader == member.id,
            )
        member.join = parked
        if group.state == PREPARING:
            group.complete_join_if_ready(now_ms)
        else:
            group.prepare(now_ms)
        return None

    def _join_again(self, parked: Parked, request: JoinRequest, now_ms: int) -> JoinAnswer | None:
        """A join with a member id: of a client that was just given it, or of a member."""
        group = self._group
        member_id = request.member_id
        if member_id in group.pending and request.instance_id is None:
            group.add(_record(request, member_id), request.protocol_type, parked, now_ms)
            return None
        refused = self._refused_member(member_id, request.instance_id)
        if refused is not None:
            return JoinAnswer(refused, member_id=member_id)
        member = group.members[member_id]
        group.restart_session(member_id, now_ms)
        unchanged = member.record.protocols == request.protocols
        leads = group.members.leader == member_id
        if unchanged and (group.state == COMPLETING or (group.state == STABLE and not leads)):
            return group.joined(member)  # the answer to its join was lost
        group.members.update(member, replace(_record(request, member_id), assignment=member.record.assignment))
        if member.join is not None:
            group.outbox.send(Reply(member.join.ticket, JoinAnswer(GroupCode.REBALANCE_IN_PROGRESS, member_id)))
        member.join = parked
        group.rebalance_or_complete(now_ms)
        return None

    # -- syncing, heartbeats, leaving ---------------------------------------------------------------------------------
    def sync(self, ticket: Ticket, request: SyncRequest, now_ms: int) -> Step:
        group = self._group
        refused = self._refused_sync(request)
        if refused is not None:
            return self._answer(ticket, SyncAnswer(refused), now_ms)
        member = group.members[request.member_id]
        group.restart_session(member.id, now_ms)
        group.synced(member.id)
        if group.state == STABLE:
            return self._answer(ticket, group.assigned(member), now_ms, member.id)
        if member.sync is not None:
            group.outbox.send(Reply(member.sync.ticket, SyncAnswer(GroupCode.REBALANCE_IN_PROGRESS)))
        member.sync = Parked(ticket)
        if group.members.leader == member.id:
            group.assign(dict(request.assignments))
        return group.finish(now_ms)

    def _refused_sync(self, request: SyncRequest) -> GroupCode | None:
        group = self._group
        refused = self._gone or self._refused_member(request.member_id, request.instance_id)
        if refused is not None:
            return refused
        if request.generation != group.generation:
            return GroupCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, group.protocol_type) or request.protocol not in (None, group.protocol):
            return GroupCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state == PREPARING:
            return GroupCode.REBALANCE_IN_PROGRESS
        if any(len(assignment) > GROUP_MEMBER_BYTES_MAX // 2 for _, assignment in request.assignments):
            return GroupCode.UNKNOWN_SERVER_ERROR
        return None

    def heartbeat(self, ticket: Ticket, request: HeartbeatRequest, now_ms: int) -> Step:
        """Never writes. Its answer to a member reveals at most that a rebalance goes on, so it never waits."""
        group = self._group
        refused = self._gone or self._refused_member(request.member_id, request.instance_id)
        if refused is None and request.generation != group.generation:
            refused = GroupCode.ILLEGAL_GENERATION
        if refused is not None:
            return self._answer(ticket, HeartbeatAnswer(refused), now_ms)
        group.restart_session(request.member_id, now_ms)
        code = GroupCode.REBALANCE_IN_PROGRESS if group.state == PREPARING else GroupCode.NONE
        group.outbox.send(Reply(ticket, HeartbeatAnswer(code)))
        return group.finish(now_ms)

    def leave(self, ticket: Ticket, members: Sequence[LeavingMember], now_ms: int) -> Step:
        group = self._group
        if self._gone is not None:
            return self._answer(ticket, LeaveAnswer(self._gone), now_ms)
        members_before, pending_before = len(group.members), len(group.pending)
        left = tuple(LeftMember(*member, self._leave_one(member)) for member in members)
        if len(group.members) < members_before:
            group.rebalance_or_complete(now_ms)
        elif len(group.pending) < pending_before and group.state == PREPARING:
            group.complete_join_if_ready(now_ms)
        return self._answer(ticket, LeaveAnswer(GroupCode.NONE, left), now_ms)

    def _leave_one(self, leaving: LeavingMember) -> GroupCode:
        group = self._group
        member_id = leaving.member_id
        if not member_id:
            member_id = group.members.static_id(leaving.instance_id) or "" if leaving.instance_id is not None else ""
        if member_id in group.pending:
            group.stop_expecting(member_id)
            return GroupCode.NONE
        refused = self._refused_member(member_id, leaving.instance_id)
        if refused is not None:
            return refused
        group.remove(member_id)
        return GroupCode.NONE

    # -- administration -----------------------------------------------------------------------------------------------
    def delete(self, ticket: Ticket, now_ms: int) -> Step:
        """DeleteGroups: a group without members becomes Dead; its answer leaves when the record is deleted."""
        code = self._gone or self.check_delete()
        if code == GroupCode.NONE:
            self._group.state = DEAD
            self._group.outbox.change()
        return self._answer(ticket, DeleteAnswer(code), now_ms)

    def check_delete(self) -> GroupCode:
        if self._group.state == DEAD:
            return GroupCode.GROUP_ID_NOT_FOUND
        return GroupCode.NONE if self._group.state == EMPTY else GroupCode.NON_EMPTY_GROUP

    def check_offset_delete(self, topic: str) -> GroupCode:
        """OffsetDelete of one topic: positions of a topic that members read stay."""
        group = self._group
        if group.state in (EMPTY, DEAD):
            return GroupCode.GROUP_ID_NOT_FOUND if group.state == DEAD else GroupCode.NONE
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return GroupCode.NON_EMPTY_GROUP
        topics = self.subscribed_topics()
        return GroupCode.GROUP_SUBSCRIBED_TO_TOPIC if topics is None or topic in topics else GroupCode.NONE

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that the members read; None if they cannot be known. Positions of other topics may expire."""
        group = self._group
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE or (group.members and not group.protocol):
            return None
        return topics_of_all(member.metadata(group.protocol) for member in group.members if not member.is_new)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, transactional: bool = False
    ) -> GroupCode:
        """OffsetCommit: who may store positions now. A member's commit counts as its heartbeat."""
        group = self._group
        if self._gone is not None:
            return self._gone
        if generation < 0 and group.state == EMPTY:
            return GroupCode.NONE
        if generation >= 0 or member_id or instance_id is not None:
            refused = self._refused_member(member_id, instance_id)
            if refused is not None:
                return refused
            if generation != group.generation:
                return GroupCode.ILLEGAL_GENERATION
        elif not transactional:
            return GroupCode.UNKNOWN_MEMBER_ID
        if not transactional and group.state == COMPLETING:
            return GroupCode.REBALANCE_IN_PROGRESS
        if member_id in group.members:
            group.restart_session(member_id, now_ms)
        return GroupCode.NONE

    def describe(self) -> DescribedClassicGroup:
        group = self._group
        stable = group.state == STABLE
        return DescribedClassicGroup(
            self.group_id,
            group.state,
            group.protocol_type,
            group.protocol if stable else "",
            group.generation,
            tuple(_described(member, group.protocol, stable=stable) for member in group.members),
        )

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, self._group.protocol_type, self._group.state, "classic")

    # -- the coordinator's part ---------------------------------------------------------------------------------------
    def tick(self, now_ms: int) -> Step:
        """End the timers that are due."""
        if self._abandoned is None:
            self._group.tick(now_ms)
        return self._group.finish(now_ms)

    def written(self, now_ms: int) -> Step:
        """The record under way is stored: its answers leave, and sessions of their members begin."""
        group = self._group
        self._stored = True
        group.released(group.outbox.release(), now_ms)
        return group.finish(now_ms)

    def abandon(self, code: GroupCode = GroupCode.NOT_COORDINATOR) -> tuple[Reply, ...]:
        """Give the group up: everyone who waits is answered with `code`, and so is every later request."""
        group = self._group
        self._abandoned = code
        for member in group.members:
            group.refuse(member, code)
        return tuple(group.outbox.refuse_all(code))

    @property
    def disposable(self) -> bool:
        """Whether forgetting the machine loses nothing: it has no members, no clients about to join, and no write."""
        group = self._group
        return not group.members and not group.pending and not group.outbox.unwritten

    @property
    def stored(self) -> bool:
        return self._stored

    @property
    def generation(self) -> int:
        return self._group.generation

    @property
    def state(self) -> str:
        return self._group.state

    @property
    def empty_since_ms(self) -> int | None:
        """Since when the group has no members; positions expire after this."""
        return self._group.empty_since_ms if self._group.state == EMPTY else None

    # -- shared -------------------------------------------------------------------------------------------------------
    @property
    def _gone(self) -> GroupCode | None:
        if self._abandoned is not None:
            return self._abandoned
        return GroupCode.COORDINATOR_NOT_AVAILABLE if self._group.state == DEAD else None

    def _refused_member(self, member_id: str, instance_id: str | None) -> GroupCode | None:
        members = self._group.members
        if instance_id is not None:
            owner = members.static_id(instance_id)
            if owner is None:
                return GroupCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return GroupCode.FENCED_INSTANCE_ID
        return None if member_id in members else GroupCode.UNKNOWN_MEMBER_ID

    def _answer(self, ticket: Ticket, answer: Answer, now_ms: int, member_id: str = "") -> Step:
        self._group.outbox.send_when_written(Reply(ticket, answer, member_id))
        return self._group.finish(now_ms)


def _record(request: JoinRequest, member_id: str) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
    )


def _described(member: Member, protocol: str, *, stable: bool) -> DescribedClassicMember:
    record = member.record
    return DescribedClassicMember(
        record.member_id,
        record.instance_id,
        record.client_id,
        record.client_host,
        member.metadata(protocol) if stable else b"",
        record.assignment if stable else b"",
    )
