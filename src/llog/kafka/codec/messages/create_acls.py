# Written by `make kafka-schemas` from messages.txt; do not edit.
"""CreateAcls, API key 30, versions 1-3, flexible from 2."""

from __future__ import annotations

from msgspec import Struct


class AclCreation(Struct, frozen=True, gc=False):
    resource_type: int = 0
    resource_name: str = ""
    resource_pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0


class CreateAclsRequest(Struct, frozen=True, gc=False):
    creations: list[AclCreation] = []


class AclCreationResult(Struct, frozen=True, gc=False):
    error_code: int = 0
    error_message: str | None = ""


class CreateAclsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    results: list[AclCreationResult] = []
