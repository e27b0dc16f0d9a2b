# Written by `make kafka-schemas` from messages.txt; do not edit.
"""SyncGroup, API key 14, versions 0-5, flexible from 4."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.runtime import Buffer


class SyncGroupRequestAssignment(Struct, frozen=True, gc=False):
    member_id: str = ""
    assignment: Buffer = b""


class SyncGroupRequest(Struct, frozen=True, gc=False):
    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None  # 3-5
    protocol_type: str | None = None  # 5
    protocol_name: str | None = None  # 5
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 1-5
    error_code: int = 0
    protocol_type: str | None = None  # 5
    protocol_name: str | None = None  # 5
    assignment: Buffer = b""
