# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DeleteGroups, API key 42, versions 0-2, flexible from 2."""

from __future__ import annotations

from msgspec import Struct


class DeleteGroupsRequest(Struct, frozen=True, gc=False):
    groups_names: list[str] = []


class DeletableGroupResult(Struct, frozen=True, gc=False):
    group_id: str = ""
    error_code: int = 0


class DeleteGroupsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    results: list[DeletableGroupResult] = []
