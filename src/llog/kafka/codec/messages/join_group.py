# Written by `make kafka-schemas` from messages.txt; do not edit.
"""JoinGroup, API key 11, versions 0-9, flexible from 6."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.runtime import Buffer


class JoinGroupRequestProtocol(Struct, frozen=True, gc=False):
    name: str = ""
    metadata: Buffer = b""


class JoinGroupRequest(Struct, frozen=True, gc=False):
    group_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = -1  # 1-9
    member_id: str = ""
    group_instance_id: str | None = None  # 5-9
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: str | None = None  # 8-9


class JoinGroupResponseMember(Struct, frozen=True, gc=False):
    member_id: str = ""
    group_instance_id: str | None = None  # 5-9
    metadata: Buffer = b""


class JoinGroupResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 2-9
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None  # 7-9
    protocol_name: str | None = ""  # null in 7-9
    leader: str = ""
    skip_assignment: bool = False  # 9
    member_id: str = ""
    members: list[JoinGroupResponseMember] = []
