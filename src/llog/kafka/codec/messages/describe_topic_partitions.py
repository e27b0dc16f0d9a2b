# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeTopicPartitions, API key 75, versions 0, flexible from 0."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.table import ZERO_UUID


class TopicRequest(Struct, frozen=True, gc=False):
    name: str = ""


class Cursor(Struct, frozen=True, gc=False):
    topic_name: str = ""
    partition_index: int = 0


class DescribeTopicPartitionsRequest(Struct, frozen=True, gc=False):
    topics: list[TopicRequest] = []
    response_partition_limit: int = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Struct, frozen=True, gc=False):
    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = []
    isr_nodes: list[int] = []
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None
    offline_replicas: list[int] = []


class DescribeTopicPartitionsResponseTopic(Struct, frozen=True, gc=False):
    error_code: int = 0
    name: str | None = ""
    topic_id: bytes = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: int = -2147483648


class DescribeTopicPartitionsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None
