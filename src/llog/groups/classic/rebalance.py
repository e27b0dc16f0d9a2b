"""The rebalance of a classic group: its states, its timers, and the answers that a new generation releases.

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader syncs──▶ Stable
                        ▲                                   │                                  │
                        └──────── a member joins, leaves, expires or does not sync ◀───────────┘

`ClassicGroup` decides what a request may do; this class moves the group. It changes the record in four cases: a
generation begins (its number, members and leader are about to be revealed), its assignments are known, a member that
was ever answered goes, and a static member gets another id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from llog.groups.classic.members import Member, Members, Parked
from llog.groups.classic.messages import JoinAnswer, JoinedMember, SyncAnswer
from llog.groups.classic.settings import NEW_MEMBER_JOIN_TIMEOUT_MS, ClassicSettings
from llog.groups.codes import GroupCode
from llog.groups.outbox import Answer, Outbox, Reply, Step
from llog.groups.records import CLASSIC, SIMPLE, ClassicMember, GroupHead
from llog.groups.timers import Timers

EMPTY: Final = "Empty"
PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
DEAD: Final = "Dead"

_SESSION: Final = "session"
_JOIN: Final = "join"
_SYNC: Final = "sync"


class Rebalance:
    def __init__(self, settings: ClassicSettings, writer: str, now_ms: int) -> None:
        self._settings = settings
        self._writer = writer
        self.state = EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.members = Members()
        self.pending: set[str] = set()
        """Ids that were given to clients which have not joined with them yet."""
        self.unsynced: set[str] = set()
        self.outbox = Outbox()
        self.timers = Timers()
        self.edition = 0
        self.empty_since_ms = now_ms
        self._initial = False
        """The rebalance of a group that was empty: it waits for more members, not for known ones."""
        self._initial_left_ms = 0
        self._initial_delay_ms = 0
        self._joined_since_delay = False

    # -- records ------------------------------------------------------------------------------------------------------
    def head(self, now_ms: int) -> GroupHead:
        """The record as it must be now. New members are left out: they have no answer, so they will join again."""
        members = tuple(member.record for member in self.members if not member.is_new)
        state, empty_since_ms = self.state, self.empty_since_ms
        if state == PREPARING and not members:
            state, empty_since_ms = EMPTY, now_ms
        self.edition += 1
        return GroupHead(
            type=CLASSIC if self.protocol_type else SIMPLE,
            state=state,
            generation=self.generation,
            edition=self.edition,
            writer=self._writer,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.members.leader if any(m.member_id == self.members.leader for m in members) else "",
            classic=members,
            members=len(members),
            empty_since_ms=empty_since_ms if state == EMPTY else 0,
            written_at_ms=now_ms,
        )

    def resume(self, head: GroupHead, now_ms: int) -> None:
        """Continue the stored generation. All timers begin anew, and nobody is asked to join again (rule G4)."""
        self.state = head.state if head.classic else EMPTY
        self.generation, self.edition = head.generation, head.edition
        self.protocol_type, self.protocol = head.protocol_type, head.protocol
        self.empty_since_ms = head.empty_since_ms or head.written_at_ms
        for record in head.classic:
            self.members.add(Member(record, is_new=False))
            self.restart_session(record.member_id, now_ms)
        if head.leader in self.members:
            self.members.leader = head.leader
        if self.state == PREPARING:
            self.timers.set(_JOIN, "", now_ms + self.members.rebalance_timeout_ms)
        if self.state == COMPLETING:
            self.unsynced = {member.id for member in self.members}
            self.timers.set(_SYNC, "", now_ms + self.members.rebalance_timeout_ms)

    def finish(self, now_ms: int) -> Step:
        return self.outbox.finish(lambda: self.head(now_ms), self.timers.next_ms)

    # -- sessions -----------------------------------------------------------------------------------------------------
    def restart_session(self, member_id: str, now_ms: int) -> None:
        self.timers.set(_SESSION, member_id, now_ms + self.members[member_id].record.session_timeout_ms)

    def expect(self, member_id: str, within_ms: int, now_ms: int) -> None:
        """Give a client with a new id this long to join with it."""
        self.pending.add(member_id)
        self.timers.set(_SESSION, member_id, now_ms + within_ms)

    def stop_expecting(self, member_id: str) -> None:
        self.pending.discard(member_id)
        self.timers.cancel(_SESSION, member_id)

    def forget_pending(self, member_id: str, now_ms: int) -> None:
        self.stop_expecting(member_id)
        if self.state == PREPARING:
            self.complete_join_if_ready(now_ms)

    # -- members ------------------------------------------------------------------------------------------------------
    def add(self, record: ClassicMember, protocol_type: str, parked: Parked, now_ms: int) -> None:
        """A new member joins."""
        if not self.members:
            self.protocol_type = protocol_type
        self.pending.discard(record.member_id)
        member = Member(record, is_new=True)
        member.join = parked
        self.members.add(member)
        self._joined_since_delay = self.state == PREPARING and self._initial
        self.timers.set(_SESSION, member.id, now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.rebalance_or_complete(now_ms)

    def remove(self, member_id: str) -> None:
        """Take a member out; the caller then moves the group on. Its waiting requests are answered."""
        member = self.members.remove(member_id)
        self.unsynced.discard(member_id)
        self.timers.cancel(_SESSION, member_id)
        self.refuse(member, GroupCode.UNKNOWN_MEMBER_ID)
        if not member.is_new:
            self.outbox.change()

    def refuse(self, member: Member, code: GroupCode) -> None:
        """Answer a member's waiting requests with an error."""
        for parked, answer in ((member.join, JoinAnswer(code)), (member.sync, SyncAnswer(code))):
            if parked is not None:
                self._answer(parked, answer)
        member.join = member.sync = None

    def replace_static(self, old_id: str, record: ClassicMember, now_ms: int) -> Member:
        """A static member came back under a new id. The old one is fenced from here on."""
        old = self.members[old_id]
        self.refuse(old, GroupCode.FENCED_INSTANCE_ID)
        renamed = self.members.rename(old_id, replace(record, assignment=old.record.assignment))
        self.unsynced.discard(old_id)
        self.timers.cancel(_SESSION, old_id)
        self.restart_session(renamed.id, now_ms)
        if not renamed.is_new:
            self.outbox.change()
        return renamed

    # -- joining ------------------------------------------------------------------------------------------------------
    def rebalance_or_complete(self, now_ms: int) -> None:
        """After members changed: begin a rebalance, or end the one under way if it waited for nobody else."""
        if self.state in (EMPTY, COMPLETING, STABLE):
            self.prepare(now_ms)
        else:
            self.complete_join_if_ready(now_ms)

    def prepare(self, now_ms: int) -> None:
        if self.state == COMPLETING:
            for member in self.members:
                self.members.update(member, replace(member.record, assignment=b""))
                if member.sync is not None:
                    self._answer(member.sync, SyncAnswer(GroupCode.REBALANCE_IN_PROGRESS), member.id)
                    member.sync = None
        self.unsynced.clear()
        self.timers.cancel(_SYNC)
        self._initial = self.state == EMPTY
        self.state = PREPARING
        if self._initial:
            self._initial_delay_ms = self._settings.initial_rebalance_delay_ms
            self._initial_left_ms = max(self.members.rebalance_timeout_ms - self._initial_delay_ms, 0)
            self._joined_since_delay = False
            self.timers.set(_JOIN, "", now_ms + self._initial_delay_ms)
        elif self.members.all_joined and not self.pending:
            self.complete_join(now_ms)
        else:
            self.timers.set(_JOIN, "", now_ms + self.members.rebalance_timeout_ms)

    def complete_join_if_ready(self, now_ms: int) -> None:
        if not self._initial and self.members.all_joined and not self.pending:
            self.complete_join(now_ms)

    def complete_join(self, now_ms: int) -> None:
        """End the join phase: dynamic members that did not come are out, the others form the next generation."""
        self.timers.cancel(_JOIN)
        for late in [m.id for m in self.members if m.join is None and m.record.instance_id is None]:
            self.remove(late)
        if self.members and not self.members.elect_joined_leader():
            # Only static members are left, and none came. Their sessions decide.
            self.timers.set(_JOIN, "", now_ms + self.members.rebalance_timeout_ms)
            return
        self.generation += 1
        self._initial = False
        self.outbox.change()
        if not self.members:
            self.state, self.protocol, self.empty_since_ms = EMPTY, "", now_ms
            return
        self.protocol = self.members.choose_protocol()
        self.state = COMPLETING
        for member in self.members:
            member.is_new = False
            self.members.update(member, replace(member.record, assignment=b""))
            if member.join is not None:
                self._answer(member.join, self.joined(member), member.id)
                member.join = None
            self.restart_session(member.id, now_ms)
        self.unsynced = {member.id for member in self.members}
        self.timers.set(_SYNC, "", now_ms + self.members.rebalance_timeout_ms)

    def joined(self, member: Member, *, leader: str = "", skip_assignment: bool = False) -> JoinAnswer:
        """The current generation, as one member sees it; with `leader` as the id that leads for this member."""
        leader = leader or self.members.leader
        return JoinAnswer(
            GroupCode.NONE,
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader,
            members=tuple(
                JoinedMember(other.id, other.record.instance_id, other.metadata(self.protocol))
                for other in self.members
            )
            if leader == member.id
            else (),
            skip_assignment=skip_assignment,
        )

    def released(self, replies: Iterable[Reply], now_ms: int) -> None:
        """Answers that waited for a record leave: what their members have time for begins now."""
        for reply in replies:
            if reply.member_id in self.members:
                self.restart_session(reply.member_id, now_ms)
        if self.state == COMPLETING and self.unsynced:
            self.timers.set(_SYNC, "", now_ms + self.members.rebalance_timeout_ms)

    # -- syncing ------------------------------------------------------------------------------------------------------
    def synced(self, member_id: str) -> None:
        self.unsynced.discard(member_id)
        if not self.unsynced:
            self.timers.cancel(_SYNC)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """The leader's assignments: the generation is complete."""
        self.state = STABLE
        self.outbox.change()
        for member in self.members:
            self.members.update(member, replace(member.record, assignment=assignments.get(member.id, b"")))
            if member.sync is not None:
                self._answer(member.sync, self.assigned(member), member.id)
                member.sync = None

    def assigned(self, member: Member) -> SyncAnswer:
        return SyncAnswer(GroupCode.NONE, self.protocol_type, self.protocol, member.record.assignment)

    # -- time ---------------------------------------------------------------------------------------------------------
    def tick(self, now_ms: int) -> None:
        for kind, name in self.timers.due(now_ms):
            if kind == _SESSION:
                self._session_ended(name, now_ms)
            elif kind == _JOIN and self.state == PREPARING:
                self._join_ended(now_ms)
            elif kind == _SYNC and self.state in (COMPLETING, STABLE):
                self._sync_ended(now_ms)

    def _session_ended(self, member_id: str, now_ms: int) -> None:
        if member_id in self.pending:
            self.forget_pending(member_id, now_ms)
            return
        if member_id not in self.members:
            return
        member = self.members[member_id]
        waits = member.join is not None or member.sync is not None or self.outbox.waits(member_id)
        if waits and not member.is_new:  # a client that waits for an answer sends no heartbeats
            self.restart_session(member_id, now_ms)
            return
        self.remove(member_id)
        self.rebalance_or_complete(now_ms)

    def _join_ended(self, now_ms: int) -> None:
        if self._initial and self._joined_since_delay and self._initial_left_ms > 0:
            self._joined_since_delay = False
            delay_ms = min(self._settings.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms = max(self._initial_left_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay_ms
            self.timers.set(_JOIN, "", now_ms + delay_ms)
            return
        self.complete_join(now_ms)

    def _sync_ended(self, now_ms: int) -> None:
        if self.outbox.unwritten:  # members cannot sync before they are answered
            self.timers.set(_SYNC, "", now_ms + self.members.rebalance_timeout_ms)
        elif self.unsynced:
            for member_id in list(self.unsynced):
                self.remove(member_id)
            self.prepare(now_ms)

    def _answer(self, parked: Parked, answer: Answer, member_id: str = "") -> None:
        self.outbox.send_when_written(Reply(parked.ticket, answer, member_id))
