# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ConsumerGroupHeartbeat, API key 68, versions 0-1, flexible from 0."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.table import ZERO_UUID


class TopicPartitions(Struct, frozen=True, gc=False):
    topic_id: bytes = ZERO_UUID
    partitions: list[int] = []


class ConsumerGroupHeartbeatRequest(Struct, frozen=True, gc=False):
    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = None  # 1
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None


class Assignment(Struct, frozen=True, gc=False):
    topic_partitions: list[TopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
