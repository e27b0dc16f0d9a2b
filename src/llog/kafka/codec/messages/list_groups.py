# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ListGroups, API key 16, versions 0-5, flexible from 3."""

from __future__ import annotations

from msgspec import Struct


class ListGroupsRequest(Struct, frozen=True, gc=False):
    states_filter: list[str] = []  # 4-5
    types_filter: list[str] = []  # 5


class ListedGroup(Struct, frozen=True, gc=False):
    group_id: str = ""
    protocol_type: str = ""
    group_state: str = ""  # 4-5
    group_type: str = ""  # 5


class ListGroupsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 1-5
    error_code: int = 0
    groups: list[ListedGroup] = []
