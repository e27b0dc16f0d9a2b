# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DeleteRecords, API key 21, versions 0-2, flexible from 2."""

from __future__ import annotations

from msgspec import Struct


class DeleteRecordsPartition(Struct, frozen=True, gc=False):
    partition_index: int = 0
    offset: int = 0


class DeleteRecordsTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsRequest(Struct, frozen=True, gc=False):
    topics: list[DeleteRecordsTopic] = []
    timeout_ms: int = 0


class DeleteRecordsPartitionResult(Struct, frozen=True, gc=False):
    partition_index: int = 0
    low_watermark: int = 0
    error_code: int = 0


class DeleteRecordsTopicResult(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    topics: list[DeleteRecordsTopicResult] = []
