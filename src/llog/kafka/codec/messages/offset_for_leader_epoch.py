# Written by `make kafka-schemas` from messages.txt; do not edit.
"""OffsetForLeaderEpoch, API key 23, versions 2-4, flexible from 4."""

from __future__ import annotations

from msgspec import Struct


class OffsetForLeaderPartition(Struct, frozen=True, gc=False):
    partition: int = 0
    current_leader_epoch: int = -1
    leader_epoch: int = 0


class OffsetForLeaderTopic(Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Struct, frozen=True, gc=False):
    replica_id: int = -2  # 3-4
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Struct, frozen=True, gc=False):
    error_code: int = 0
    partition: int = 0
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderTopicResult(Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: list[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    topics: list[OffsetForLeaderTopicResult] = []
