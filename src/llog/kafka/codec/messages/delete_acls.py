# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DeleteAcls, API key 31, versions 1-3, flexible from 2."""

from __future__ import annotations

from msgspec import Struct


class DeleteAclsFilter(Struct, frozen=True, gc=False):
    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


class DeleteAclsRequest(Struct, frozen=True, gc=False):
    filters: list[DeleteAclsFilter] = []


class DeleteAclsMatchingAcl(Struct, frozen=True, gc=False):
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class DeleteAclsFilterResult(Struct, frozen=True, gc=False):
    error_code: int = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = []


class DeleteAclsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    filter_results: list[DeleteAclsFilterResult] = []
