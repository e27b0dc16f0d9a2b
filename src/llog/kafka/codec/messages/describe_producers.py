# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeProducers, API key 61, versions 0, flexible from 0."""

from __future__ import annotations

from msgspec import Struct


class TopicRequest(Struct, frozen=True, gc=False):
    name: str = ""
    partition_indexes: list[int] = []


class DescribeProducersRequest(Struct, frozen=True, gc=False):
    topics: list[TopicRequest] = []


class ProducerState(Struct, frozen=True, gc=False):
    producer_id: int = 0
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    current_txn_start_offset: int = -1


class PartitionResponse(Struct, frozen=True, gc=False):
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = []


class TopicResponse(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[PartitionResponse] = []


class DescribeProducersResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    topics: list[TopicResponse] = []
