# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeConfigs, API key 32, versions 1-4, flexible from 4."""

from __future__ import annotations

from msgspec import Struct


class DescribeConfigsResource(Struct, frozen=True, gc=False):
    resource_type: int = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = []


class DescribeConfigsRequest(Struct, frozen=True, gc=False):
    resources: list[DescribeConfigsResource] = []
    include_synonyms: bool = False
    include_documentation: bool = False  # 3-4


class DescribeConfigsSynonym(Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = ""
    source: int = 0


class DescribeConfigsResourceResult(Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: int = 0  # 3-4
    documentation: str | None = ""  # 3-4


class DescribeConfigsResult(Struct, frozen=True, gc=False):
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    results: list[DescribeConfigsResult] = []
