"""A classic group with its store and its clients, as tests drive them: tickets, a clock, and writes that succeed, are
lost with their coordinator, or conflict."""

from __future__ import annotations

from dataclasses import dataclass, field

from llog.groups import ClassicGroup, ClassicSettings, GroupCode, GroupHead, Reply, Step
from llog.groups.classic.messages import (
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from llog.groups.outbox import Answer
from llog.groups.records import MemberProtocol, decode_head, encode_record, to_records

SETTINGS = ClassicSettings(initial_rebalance_delay_ms=100, members_max=6)
SESSION_MS = 10_000
REBALANCE_MS = 30_000


def protocols(*names: str, metadata: bytes = b"m") -> tuple[MemberProtocol, ...]:
    return tuple(MemberProtocol(name=name, metadata=metadata) for name in names)


def join_request(member_id: str = "", /, **changes: object) -> JoinRequest:
    request = JoinRequest("consumer", protocols("range"), SESSION_MS, REBALANCE_MS, member_id, client_id="c")
    return request._replace(**changes)  # type: ignore[arg-type]


@dataclass
class Classic:
    """Writes succeed at once unless `writes_wait`."""

    settings: ClassicSettings = SETTINGS
    now_ms: int = 1_000
    writes_wait: bool = False
    stored: GroupHead | None = None
    heads: list[GroupHead] = field(default_factory=list)
    under_way: GroupHead | None = None
    replies: dict[object, Answer] = field(default_factory=dict)
    machines: int = 0
    tickets: int = 0

    def __post_init__(self) -> None:
        self.group = self._machine()

    def _machine(self) -> ClassicGroup:
        self.machines += 1
        head = self.stored
        return ClassicGroup("g", f"w{self.machines}", self.now_ms, head=head, settings=self.settings)

    # -- steps --------------------------------------------------------------------------------------------------------
    def take(self, step: Step) -> None:
        self.collect(step.replies)
        if step.write is not None:
            assert self.under_way is None, "two writes at a time"
            self.under_way = step.write
        if not self.writes_wait:
            self.write()

    def collect(self, replies: tuple[Reply, ...]) -> None:
        for reply in replies:
            assert reply.ticket not in self.replies, "answered twice"
            self.replies[reply.ticket] = reply.answer

    def write(self) -> None:
        """The writes under way succeed."""
        while self.under_way is not None:
            self.stored = decode_head(encode_record(to_records(self.under_way).head, "g"), "g")
            self.heads.append(self.stored)
            self.under_way = None
            step = self.group.written(self.now_ms)
            self.collect(step.replies)
            self.under_way = step.write
            if self.writes_wait:
                break

    def crash(self) -> None:
        """The coordinator is gone with everything that was not stored; another one takes over."""
        self.under_way = None
        self.group = self._machine()

    def wait(self, ms: int) -> None:
        """Let time pass, with all deadlines on the way."""
        until = self.now_ms + ms
        while True:
            step = self.group.tick(self.now_ms)
            self.take(step)
            if self.under_way is None and step.wake_at_ms <= self.now_ms:
                continue
            nxt = min(max(step.wake_at_ms, self.now_ms + 1), until)
            if self.now_ms >= until:
                return
            self.now_ms = nxt

    def ticket(self) -> int:
        self.tickets += 1
        return self.tickets

    # -- requests -----------------------------------------------------------------------------------------------------
    def join(self, request: JoinRequest) -> int:
        ticket = self.ticket()
        prefix = request.instance_id or request.client_id
        self.take(self.group.join(ticket, request, f"{prefix}-{ticket}", self.now_ms))
        return ticket

    def joined(self, ticket: int) -> JoinAnswer:
        answer = self.replies[ticket]
        assert isinstance(answer, JoinAnswer)
        return answer

    def sync(self, joined: JoinAnswer, *assignments: tuple[str, bytes], instance_id: str | None = None) -> int:
        ticket = self.ticket()
        request = SyncRequest(joined.member_id, joined.generation, instance_id, assignments=assignments)
        self.take(self.group.sync(ticket, request, self.now_ms))
        return ticket

    def synced(self, ticket: int) -> SyncAnswer:
        answer = self.replies[ticket]
        assert isinstance(answer, SyncAnswer)
        return answer

    def beat(self, member_id: str, generation: int, instance_id: str | None = None) -> GroupCode:
        ticket = self.ticket()
        self.take(self.group.heartbeat(ticket, HeartbeatRequest(member_id, generation, instance_id), self.now_ms))
        answer = self.replies[ticket]
        assert isinstance(answer, HeartbeatAnswer)
        return answer.code

    def leave(self, *members: tuple[str, str | None]) -> LeaveAnswer:
        ticket = self.ticket()
        self.take(self.group.leave(ticket, [LeavingMember(*member) for member in members], self.now_ms))
        answer = self.replies[ticket]
        assert isinstance(answer, LeaveAnswer)
        return answer

    # -- stories ------------------------------------------------------------------------------------------------------
    def new_member(self, **changes: object) -> int:
        """Ask for an id and join with it; returns the ticket of the join that waits."""
        asked = self.join(join_request(**changes))
        if asked not in self.replies or self.joined(asked).code != GroupCode.MEMBER_ID_REQUIRED:
            return asked
        return self.join(join_request(self.joined(asked).member_id, **changes))

    def stable(self, count: int = 2, **changes: object) -> list[JoinAnswer]:
        """A group with so many members, all synced."""
        tickets = [self.new_member(**changes) for _ in range(count)]
        self.wait(250)
        joined = [self.joined(ticket) for ticket in tickets]
        self.sync_all(joined)
        assert self.group.state == "Stable"
        return joined

    def sync_all(self, joined: list[JoinAnswer]) -> list[SyncAnswer]:
        assignments = tuple((answer.member_id, answer.member_id.encode()) for answer in joined)
        tickets = [self.sync(j, *(assignments if j.leader == j.member_id else ())) for j in joined]
        return [self.synced(ticket) for ticket in tickets]
