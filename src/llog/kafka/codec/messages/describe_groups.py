# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeGroups, API key 15, versions 0-6, flexible from 5."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.runtime import Buffer


class DescribeGroupsRequest(Struct, frozen=True, gc=False):
    groups: list[str] = []
    include_authorized_operations: bool = False  # 3-6


class DescribedGroupMember(Struct, frozen=True, gc=False):
    member_id: str = ""
    group_instance_id: str | None = None  # 4-6
    client_id: str = ""
    client_host: str = ""
    member_metadata: Buffer = b""
    member_assignment: Buffer = b""


class DescribedGroup(Struct, frozen=True, gc=False):
    error_code: int = 0
    error_message: str | None = None  # 6
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: int = -2147483648  # 3-6


class DescribeGroupsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 1-6
    groups: list[DescribedGroup] = []
