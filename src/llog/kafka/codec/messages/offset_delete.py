# Written by `make kafka-schemas` from messages.txt; do not edit.
"""OffsetDelete, API key 47, versions 0, none is flexible."""

from __future__ import annotations

from msgspec import Struct


class OffsetDeleteRequestPartition(Struct, frozen=True, gc=False):
    partition_index: int = 0


class OffsetDeleteRequestTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Struct, frozen=True, gc=False):
    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Struct, frozen=True, gc=False):
    partition_index: int = 0
    error_code: int = 0


class OffsetDeleteResponseTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Struct, frozen=True, gc=False):
    error_code: int = 0
    throttle_time_ms: int = 0
    topics: list[OffsetDeleteResponseTopic] = []
