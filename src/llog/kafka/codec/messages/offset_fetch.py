# Written by `make kafka-schemas` from messages.txt; do not edit.
"""OffsetFetch, API key 9, versions 1-10, flexible from 6."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.table import ZERO_UUID


class OffsetFetchRequestTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partition_indexes: list[int] = []


class OffsetFetchRequestTopics(Struct, frozen=True, gc=False):
    name: str = ""  # 8-9
    topic_id: bytes = ZERO_UUID  # 10
    partition_indexes: list[int] = []


class OffsetFetchRequestGroup(Struct, frozen=True, gc=False):
    group_id: str = ""
    member_id: str | None = None  # 9-10
    member_epoch: int = -1  # 9-10
    topics: list[OffsetFetchRequestTopics] | None = []


class OffsetFetchRequest(Struct, frozen=True, gc=False):
    group_id: str = ""  # 1-7
    topics: list[OffsetFetchRequestTopic] | None = []  # 1-7, null in 2-7
    groups: list[OffsetFetchRequestGroup] = []  # 8-10
    require_stable: bool = False  # 7-10


class OffsetFetchResponsePartition(Struct, frozen=True, gc=False):
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # 5-7
    metadata: str | None = ""
    error_code: int = 0


class OffsetFetchResponseTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponsePartitions(Struct, frozen=True, gc=False):
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


class OffsetFetchResponseTopics(Struct, frozen=True, gc=False):
    name: str = ""  # 8-9
    topic_id: bytes = ZERO_UUID  # 10
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponseGroup(Struct, frozen=True, gc=False):
    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: int = 0


class OffsetFetchResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 3-10
    topics: list[OffsetFetchResponseTopic] = []  # 1-7
    error_code: int = 0  # 2-7
    groups: list[OffsetFetchResponseGroup] = []  # 8-10
