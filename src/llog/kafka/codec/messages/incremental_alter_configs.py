# Written by `make kafka-schemas` from messages.txt; do not edit.
"""IncrementalAlterConfigs, API key 44, versions 0-1, flexible from 1."""

from __future__ import annotations

from msgspec import Struct


class AlterableConfig(Struct, frozen=True, gc=False):
    name: str = ""
    config_operation: int = 0
    value: str | None = ""


class AlterConfigsResource(Struct, frozen=True, gc=False):
    resource_type: int = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


class IncrementalAlterConfigsRequest(Struct, frozen=True, gc=False):
    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


class AlterConfigsResourceResponse(Struct, frozen=True, gc=False):
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""


class IncrementalAlterConfigsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    responses: list[AlterConfigsResourceResponse] = []
