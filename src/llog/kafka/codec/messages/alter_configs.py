# Written by `make kafka-schemas` from messages.txt; do not edit.
"""AlterConfigs, API key 33, versions 0-2, flexible from 2."""

from __future__ import annotations

from msgspec import Struct


class AlterableConfig(Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = ""


class AlterConfigsResource(Struct, frozen=True, gc=False):
    resource_type: int = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(Struct, frozen=True, gc=False):
    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


class AlterConfigsResourceResponse(Struct, frozen=True, gc=False):
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""


class AlterConfigsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    responses: list[AlterConfigsResourceResponse] = []
