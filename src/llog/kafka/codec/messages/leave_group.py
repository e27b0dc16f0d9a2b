# Written by `make kafka-schemas` from messages.txt; do not edit.
"""LeaveGroup, API key 13, versions 0-5, flexible from 4."""

from __future__ import annotations

from msgspec import Struct


class MemberIdentity(Struct, frozen=True, gc=False):
    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None  # 5


class LeaveGroupRequest(Struct, frozen=True, gc=False):
    group_id: str = ""
    member_id: str = ""  # 0-2
    members: list[MemberIdentity] = []  # 3-5


class MemberResponse(Struct, frozen=True, gc=False):
    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: int = 0


class LeaveGroupResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 1-5
    error_code: int = 0
    members: list[MemberResponse] = []  # 3-5
