# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ListOffsets, API key 2, versions 1-11, flexible from 6."""

from __future__ import annotations

from msgspec import Struct


class ListOffsetsPartition(Struct, frozen=True, gc=False):
    partition_index: int = 0
    current_leader_epoch: int = -1  # 4-11
    timestamp: int = 0


class ListOffsetsTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(Struct, frozen=True, gc=False):
    replica_id: int = 0
    isolation_level: int = 0  # 2-11
    topics: list[ListOffsetsTopic] = []
    timeout_ms: int = 0  # 10-11


class ListOffsetsPartitionResponse(Struct, frozen=True, gc=False):
    partition_index: int = 0
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1  # 4-11


class ListOffsetsTopicResponse(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 2-11
    topics: list[ListOffsetsTopicResponse] = []
