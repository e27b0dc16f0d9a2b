"""Requests and answers of the classic protocol, without what belongs to the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from llog.groups.codes import GroupCode
from llog.groups.records import MemberProtocol


class JoinRequest(NamedTuple):
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Version 0 has none: the session timeout."""
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    needs_member_id: bool = True
    """From version 4 on, a new dynamic member first gets its id, and joins with it."""
    skips_assignment: bool = True
    """From version 9 on, an answer may ask the leader not to assign (KIP-814)."""


class SyncRequest(NamedTuple):
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    """Sent from version 5 on; compared where present."""
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    """Member id and assignment; read from the leader only."""


class HeartbeatRequest(NamedTuple):
    member_id: str
    generation: int
    instance_id: str | None = None


class LeavingMember(NamedTuple):
    member_id: str
    """Empty: whichever member has the instance id, as administrators remove it."""
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    code: GroupCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """For the leader only."""
    skip_assignment: bool = False

    def refused(self, code: GroupCode) -> JoinAnswer:
        return JoinAnswer(code)


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    code: GroupCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""

    def refused(self, code: GroupCode) -> SyncAnswer:
        return SyncAnswer(code)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    code: GroupCode

    def refused(self, code: GroupCode) -> HeartbeatAnswer:
        return HeartbeatAnswer(code)


class LeftMember(NamedTuple):
    member_id: str
    instance_id: str | None
    code: GroupCode


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    code: GroupCode
    members: tuple[LeftMember, ...] = ()

    def refused(self, code: GroupCode) -> LeaveAnswer:
        return LeaveAnswer(code)


@dataclass(frozen=True, slots=True)
class DeleteAnswer:
    code: GroupCode

    def refused(self, code: GroupCode) -> DeleteAnswer:
        return DeleteAnswer(code)
