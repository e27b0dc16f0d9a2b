# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeAcls, API key 29, versions 1-3, flexible from 2."""

from __future__ import annotations

from msgspec import Struct


class DescribeAclsRequest(Struct, frozen=True, gc=False):
    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0


class AclDescription(Struct, frozen=True, gc=False):
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class DescribeAclsResource(Struct, frozen=True, gc=False):
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    acls: list[AclDescription] = []


class DescribeAclsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResource] = []
