# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ApiVersions, API key 18, versions 0-4, flexible from 3."""

from __future__ import annotations

from msgspec import Struct


class ApiVersionsRequest(Struct, frozen=True, gc=False):
    client_software_name: str = ""  # 3-4
    client_software_version: str = ""  # 3-4


class ApiVersion(Struct, frozen=True, gc=False):
    api_key: int = 0
    min_version: int = 0
    max_version: int = 0


class SupportedFeatureKey(Struct, frozen=True, gc=False):
    name: str = ""
    min_version: int = 0
    max_version: int = 0


class FinalizedFeatureKey(Struct, frozen=True, gc=False):
    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0


class ApiVersionsResponse(Struct, frozen=True, gc=False):
    error_code: int = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: int = 0  # 1-4
    supported_features: list[SupportedFeatureKey] = []  # 3-4, tag 0
    finalized_features_epoch: int = -1  # 3-4, tag 1
    finalized_features: list[FinalizedFeatureKey] = []  # 3-4, tag 2
    zk_migration_ready: bool = False  # 3-4, tag 3
