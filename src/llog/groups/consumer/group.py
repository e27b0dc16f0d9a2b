"""The consumer protocol (KIP-848) of one group, as clients of Kafka 4.3 see it.

Used like `ClassicGroup`: every call returns a `Step`, and no answer leaves before what it reveals is stored. A steady
heartbeat writes nothing. Targets are computed in the step that raises the group epoch, so the state Assigning does not
occur, and patterns are resolved in the step that brings them.
"""

from __future__ import annotations

from msgspec.structs import replace

from llog.groups.codes import GroupCode
from llog.groups.consumer.assign import ASSIGNORS
from llog.groups.consumer.membership import Membership
from llog.groups.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    ConsumerSettings,
    DeleteAnswer,
)
from llog.groups.consumer.reconcile import STATIC_LEFT_EPOCH, partitions_of, reconcile, within
from llog.groups.consumer.subscribe import Catalogue, Describes
from llog.groups.outbox import Reply, Step, Ticket
from llog.groups.records import ConsumerMember, GroupHead
from llog.groups.timers import Timers
from llog.groups.views import DescribedConsumerGroup, DescribedConsumerMember, ListedGroup

_SESSION = "session"
_REVOKE = "revoke"


class _Refused(Exception):
    def __init__(self, code: GroupCode, message: str) -> None:
        self.code = code
        super().__init__(message)


class ConsumerGroup:
    def __init__(
        self,
        group_id: str,
        writer: str,
        catalogue: Catalogue,
        now_ms: int,
        *,
        head: GroupHead | None = None,
        settings: ConsumerSettings,
        describes: Describes | None = None,
    ) -> None:
        """A group without a record, or one that continues from its record: with all members, their epochs and their
        partitions, and with fresh timers. A catalogue that differs from the stored target's raises the epoch, which
        the first step writes. `writer` as for `ClassicGroup`."""
        self.group_id = group_id
        self._settings = settings
        self._abandoned: GroupCode | None = None
        self._stored = head is not None
        self._group = Membership(writer, catalogue, now_ms, describes)
        self._timers = Timers()
        if head is not None:
            self._group.resume(head)
            for member in self._group:
                self._restart(_SESSION, member, now_ms)
                self._watch_revocation(None, member, now_ms)
            self._group.begin_epoch_if_topics_changed()

    # -- heartbeats ---------------------------------------------------------------------------------------------------
    def heartbeat(self, ticket: Ticket, request: ConsumerHeartbeat, new_member_id: str, now_ms: int) -> Step:
        """ConsumerGroupHeartbeat: join, stay, or leave. `new_member_id` is used if a client of version 0 has none."""
        try:
            self._check(request)
            if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
                answer = self._leave(request, now_ms)
            else:
                answer = self._stay(request, new_member_id, now_ms)
        except _Refused as refused:
            answer = ConsumerHeartbeatAnswer(refused.code, str(refused))
        self._group.outbox.send_when_written(Reply(ticket, answer, answer.member_id or ""))
        return self._finish(now_ms)

    def _check(self, request: ConsumerHeartbeat) -> None:
        if self._gone is not None:
            raise _Refused(self._gone, "the coordinator does not have the group any more")
        epoch = request.member_epoch
        problem = ""
        if not request.member_id and (request.makes_own_id or epoch > 0 or epoch == LEAVE_EPOCH):
            problem = "MemberId can't be empty."
        elif request.instance_id == "":
            problem = "InstanceId can't be empty."
        elif request.rack_id == "":
            problem = "RackId can't be empty."
        elif epoch == JOIN_EPOCH and request.rebalance_timeout_ms == -1:
            problem = "RebalanceTimeoutMs must be provided in first request."
        elif epoch == JOIN_EPOCH and (request.owned is None or any(request.owned.values())):
            problem = "TopicPartitions must be empty when (re-)joining."
        elif epoch == JOIN_EPOCH and request.topics is None and request.regex is None:
            problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
            problem = "InstanceId can't be null."
        elif epoch < LEAVE_STATIC_EPOCH:
            problem = "MemberEpoch is invalid."
        if problem:
            raise _Refused(GroupCode.INVALID_REQUEST, problem)
        if epoch != JOIN_EPOCH and not self._stored and not self._group:
            raise _Refused(GroupCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} not found.")
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            supported = ", ".join(ASSIGNORS)
            raise _Refused(
                GroupCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.assignor} is not supported. Supported assignors: {supported}.",
            )

    def _stay(self, request: ConsumerHeartbeat, new_member_id: str, now_ms: int) -> ConsumerHeartbeatAnswer:
        group = self._group
        most = self._settings.members_max
        known = group.get(request.member_id) or group.static(request.instance_id or "")
        if known is None and len(group) >= most:
            raise _Refused(GroupCode.GROUP_MAX_SIZE_REACHED, f"The group has {most} members, which is its limit.")
        before, replaces = self._find(request, request.member_id or new_member_id)
        if request.regex:
            invalid = group.patterns.add(request.regex)
            if invalid is not None:
                raise _Refused(
                    GroupCode.INVALID_REGULAR_EXPRESSION,
                    f"SubscribedTopicRegex `{request.regex:.100}` is not usable: {invalid.reason}.",
                )
        member = _updated(before, request)
        if replaces is not None:
            self._forget(replaces.member_id, now_ms)
        self._restart(_SESSION, member, now_ms)
        if member != before or group.get(member.member_id) is None:
            group.put(member)
        subscribes_anew = _subscription(member) != _subscription(before) or group.matches_differ(before, member)
        if subscribes_anew or group.epoch == 0 or (not before.epoch and not replaces):
            group.begin_epoch()
        self._reconcile(member.member_id, request, now_ms)
        now = group.get(member.member_id)
        assert now is not None
        full = (
            request.rebalance_timeout_ms != -1
            and (request.topics is not None or request.regex is not None)
            and request.owned is not None
        )
        reveals = (
            request.member_epoch == JOIN_EPOCH or full or partitions_of(now.assigned) != partitions_of(before.assigned)
        )
        return ConsumerHeartbeatAnswer(
            GroupCode.NONE,
            member_id=now.member_id,
            member_epoch=now.epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            assignment=partitions_of(now.assigned) if reveals else None,
        )

    def _find(self, request: ConsumerHeartbeat, member_id: str) -> tuple[ConsumerMember, ConsumerMember | None]:
        """The member as it is before this heartbeat, and the former self of a static member whose place it takes."""
        group = self._group
        joins = request.member_epoch == JOIN_EPOCH
        if request.instance_id is None:
            known = group.get(member_id)
        else:
            known = group.static(request.instance_id)
            if known is not None and known.member_id != member_id:
                if not joins:
                    raise _fenced_instance(known, request.instance_id)
                if known.epoch != STATIC_LEFT_EPOCH:
                    raise _Refused(
                        GroupCode.UNRELEASED_INSTANCE_ID,
                        f"Instance id {request.instance_id} is owned by member {known.member_id}.",
                    )
                return replace(known, member_id=member_id, epoch=0, previous_epoch=0), known
        if known is None:
            if not joins:
                raise _Refused(GroupCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group.")
            return ConsumerMember(member_id=member_id, rebalance_timeout_ms=request.rebalance_timeout_ms), None
        if not joins:
            _check_epoch(known, request)
        elif known.epoch == STATIC_LEFT_EPOCH:
            return replace(known, epoch=0, previous_epoch=0), known
        return known, None

    def _reconcile(self, member_id: str, request: ConsumerHeartbeat, now_ms: int) -> None:
        group = self._group
        member = group.get(member_id)
        assert member is not None
        after = reconcile(member, group.goal(member), request.owned)
        if after != member:
            group.put(after)
        self._watch_revocation(member, after, now_ms)

    # -- leaving ------------------------------------------------------------------------------------------------------
    def _leave(self, request: ConsumerHeartbeat, now_ms: int) -> ConsumerHeartbeatAnswer:
        group = self._group
        if request.instance_id is None:
            member = group.get(request.member_id)
        else:
            member = group.static(request.instance_id)
            if member is not None and member.member_id != request.member_id:
                raise _fenced_instance(member, request.instance_id)
        if member is None:
            raise _Refused(GroupCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of the group.")
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            # It may come back: its partitions stay, but for those that it was giving up.
            group.put(replace(member, epoch=STATIC_LEFT_EPOCH, previous_epoch=member.epoch, revoking={}))
            self._timers.cancel(_REVOKE, member.member_id)
        else:
            self._fence(member.member_id, now_ms)
        return ConsumerHeartbeatAnswer(GroupCode.NONE, member_id=request.member_id, member_epoch=request.member_epoch)

    def _fence(self, member_id: str, now_ms: int) -> None:
        """Remove a member; the others get a target without it."""
        self._forget(member_id, now_ms)
        self._group.begin_epoch()

    def _forget(self, member_id: str, now_ms: int) -> None:
        self._timers.cancel(_SESSION, member_id)
        self._timers.cancel(_REVOKE, member_id)
        self._group.remove(member_id, now_ms)

    # -- topics -------------------------------------------------------------------------------------------------------
    def topics_changed(self, catalogue: Catalogue, now_ms: int) -> Step:
        """Topics were made, deleted or extended, or rights to describe them changed. Where that changes what members
        subscribe to, it raises the epoch; they learn of it from their next heartbeats."""
        group = self._group
        group.catalogue = catalogue
        group.patterns.update(catalogue)
        group.forget_matches()
        if self._gone is None:
            group.begin_epoch_if_topics_changed()
        return self._finish(now_ms)

    # -- administration -----------------------------------------------------------------------------------------------
    def delete(self, ticket: Ticket, now_ms: int) -> Step:
        """DeleteGroups: a group without members becomes Dead; its answer leaves when the record is deleted."""
        code = self._gone or self.check_delete()
        if code == GroupCode.NONE:
            self._group.dead = True
            self._group.outbox.change()
        self._group.outbox.send_when_written(Reply(ticket, DeleteAnswer(code)))
        return self._finish(now_ms)

    def check_delete(self) -> GroupCode:
        if self._group.dead:
            return GroupCode.GROUP_ID_NOT_FOUND
        return GroupCode.NON_EMPTY_GROUP if self._group else GroupCode.NONE

    def check_offset_delete(self, topic: str) -> GroupCode:
        if self._group.dead:
            return GroupCode.GROUP_ID_NOT_FOUND
        subscribed = topic in self._group.subscribed_names()
        return GroupCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else GroupCode.NONE

    def subscribed_topics(self) -> frozenset[str]:
        return self._group.subscribed_names()

    def check_commit(self, member_id: str, epoch: int, *, version: int = 9, transactional: bool = False) -> GroupCode:
        """OffsetCommit: who may store positions now. On STALE_MEMBER_EPOCH, `check_partition_commit` decides for each
        partition."""
        if self._gone is not None:
            return self._gone
        if epoch < 0 and (not self._group or (transactional and not member_id)):
            return GroupCode.NONE
        member = self._group.get(member_id)
        if member is None:
            return GroupCode.UNKNOWN_MEMBER_ID
        if not transactional and version < 9:
            return GroupCode.UNSUPPORTED_VERSION
        return GroupCode.NONE if epoch == member.epoch else GroupCode.STALE_MEMBER_EPOCH

    def check_partition_commit(self, member_id: str, epoch: int, topic_id: str, partition: int) -> GroupCode:
        """A member that has not seen its newest epoch may commit what it has had since the epoch that it names, because
        nobody else had it meanwhile (KIP-1251)."""
        member = self._group.get(member_id)
        if member is None:
            return GroupCode.UNKNOWN_MEMBER_ID
        since = member.assigned.get(topic_id, {}).get(partition)
        if since is None:
            since = member.revoking.get(topic_id, {}).get(partition)
        return GroupCode.NONE if since is not None and since <= epoch <= member.epoch else GroupCode.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, epoch: int) -> GroupCode:
        """OffsetFetch from version 9 on names a member, so that it reads no positions under a former epoch."""
        if self._gone is not None:
            return self._gone
        if member_id is None and epoch < 0:
            return GroupCode.NONE
        member = self._group.get(member_id or "")
        if member is None:
            return GroupCode.UNKNOWN_MEMBER_ID
        return GroupCode.NONE if epoch == member.epoch else GroupCode.STALE_MEMBER_EPOCH

    def describe(self) -> DescribedConsumerGroup:
        group = self._group
        return DescribedConsumerGroup(
            self.group_id,
            group.state,
            group.epoch,
            group.epoch,
            group.assignor,
            tuple(
                DescribedConsumerMember(
                    member.member_id,
                    member.instance_id,
                    member.rack_id or None,
                    member.epoch,
                    member.client_id,
                    member.client_host,
                    member.topics,
                    member.regex,
                    partitions_of(member.assigned),
                    member.target,
                )
                for member in group
            ),
        )

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, "consumer", self._group.state, "consumer")

    # -- the coordinator's part ---------------------------------------------------------------------------------------
    def tick(self, now_ms: int) -> Step:
        """Fence members whose session ended, or which did not give up partitions within their rebalance timeout."""
        if self._abandoned is None:
            for kind, member_id in self._timers.due(now_ms):
                member = self._group.get(member_id)
                if member is None:
                    continue
                if self._group.outbox.waits(member_id):  # it cannot know what it is asked for
                    self._restart(kind, member, now_ms)
                elif kind == _SESSION or member.revoking:
                    self._fence(member_id, now_ms)
        return self._finish(now_ms)

    def written(self, now_ms: int) -> Step:
        """The record under way is stored: its answers leave, and sessions of their members begin."""
        self._stored = True
        for reply in self._group.outbox.release():
            member = self._group.get(reply.member_id)
            if member is not None:
                self._restart(_SESSION, member, now_ms)
                if member.revoking:
                    self._restart(_REVOKE, member, now_ms)
        return self._finish(now_ms)

    def abandon(self, code: GroupCode = GroupCode.NOT_COORDINATOR) -> tuple[Reply, ...]:
        """Give the group up: everyone who waits is answered with `code`, and so is every later request."""
        self._abandoned = code
        return tuple(self._group.outbox.refuse_all(code))

    @property
    def disposable(self) -> bool:
        """Whether forgetting the machine loses nothing."""
        return not self._group and not self._group.outbox.unwritten

    @property
    def stored(self) -> bool:
        return self._stored

    @property
    def generation(self) -> int:
        return self._group.epoch

    @property
    def state(self) -> str:
        return self._group.state

    @property
    def empty_since_ms(self) -> int | None:
        return None if self._group else self._group.empty_since_ms

    # -- shared -------------------------------------------------------------------------------------------------------
    @property
    def _gone(self) -> GroupCode | None:
        if self._abandoned is not None:
            return self._abandoned
        return GroupCode.COORDINATOR_NOT_AVAILABLE if self._group.dead else None

    def _restart(self, kind: str, member: ConsumerMember, now_ms: int) -> None:
        timeout_ms = self._settings.session_timeout_ms if kind == _SESSION else member.rebalance_timeout_ms
        self._timers.set(kind, member.member_id, now_ms + timeout_ms)

    def _watch_revocation(self, before: ConsumerMember | None, member: ConsumerMember, now_ms: int) -> None:
        """A member has its rebalance timeout to give partitions up, from when it was last asked to."""
        if not member.revoking:
            self._timers.cancel(_REVOKE, member.member_id)
        elif before is None or before.revoking != member.revoking:
            self._restart(_REVOKE, member, now_ms)

    def _finish(self, now_ms: int) -> Step:
        return self._group.outbox.finish(lambda: self._group.head(now_ms), self._timers.next_ms)


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """A member that lost an answer may come with its previous epoch, if it has nothing that it was not given."""
    epoch = request.member_epoch
    lost_answer = epoch == member.previous_epoch and within(request.owned, member.assigned)
    if epoch == member.epoch or (epoch < member.epoch and lost_answer):
        return
    size = "greater" if epoch > member.epoch else "smaller"
    raise _Refused(
        GroupCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _fenced_instance(member: ConsumerMember, instance_id: str) -> _Refused:
    return _Refused(GroupCode.FENCED_INSTANCE_ID, f"Instance id {instance_id} is owned by member {member.member_id}.")


def _updated(member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    """The member with what the request says anew."""
    return replace(
        member,
        instance_id=request.instance_id if request.instance_id is not None else member.instance_id,
        rack_id=request.rack_id or member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        principal=request.principal,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else member.rebalance_timeout_ms
        ),
        topics=tuple(sorted(set(request.topics))) if request.topics is not None else member.topics,
        regex=request.regex if request.regex is not None else member.regex,
        assignor=request.assignor if request.assignor is not None else member.assignor,
    )


def _subscription(member: ConsumerMember) -> tuple[tuple[str, ...], str]:
    return member.topics, member.regex
