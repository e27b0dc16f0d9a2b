# Written by `make kafka-schemas` from messages.txt; do not edit.
"""OffsetCommit, API key 8, versions 2-10, flexible from 8."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.table import ZERO_UUID


class OffsetCommitRequestPartition(Struct, frozen=True, gc=False):
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # 6-10
    committed_metadata: str | None = ""


class OffsetCommitRequestTopic(Struct, frozen=True, gc=False):
    name: str = ""  # 2-9
    topic_id: bytes = ZERO_UUID  # 10
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Struct, frozen=True, gc=False):
    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None  # 7-10
    retention_time_ms: int = -1  # 2-4
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Struct, frozen=True, gc=False):
    partition_index: int = 0
    error_code: int = 0


class OffsetCommitResponseTopic(Struct, frozen=True, gc=False):
    name: str = ""  # 2-9
    topic_id: bytes = ZERO_UUID  # 10
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 3-10
    topics: list[OffsetCommitResponseTopic] = []
