# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ListConfigResources, API key 74, versions 0-1, flexible from 0."""

from __future__ import annotations

from msgspec import Struct


class ListConfigResourcesRequest(Struct, frozen=True, gc=False):
    resource_types: list[int] = []  # 1


class ConfigResource(Struct, frozen=True, gc=False):
    resource_name: str = ""
    resource_type: int = 16  # 1


class ListConfigResourcesResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: list[ConfigResource] = []
