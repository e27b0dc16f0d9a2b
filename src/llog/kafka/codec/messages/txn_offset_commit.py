# Written by `make kafka-schemas` from messages.txt; do not edit.
"""TxnOffsetCommit, API key 28, versions 0-5, flexible from 3."""

from __future__ import annotations

from msgspec import Struct


class TxnOffsetCommitRequestPartition(Struct, frozen=True, gc=False):
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1  # 2-5
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Struct, frozen=True, gc=False):
    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id: int = -1  # 3-5
    member_id: str = ""  # 3-5
    group_instance_id: str | None = None  # 3-5
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Struct, frozen=True, gc=False):
    partition_index: int = 0
    error_code: int = 0


class TxnOffsetCommitResponseTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    topics: list[TxnOffsetCommitResponseTopic] = []
