# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ConsumerGroupDescribe, API key 69, versions 0-1, flexible from 0."""

from __future__ import annotations

from msgspec import Struct, field

from llog.kafka.codec.table import ZERO_UUID


class ConsumerGroupDescribeRequest(Struct, frozen=True, gc=False):
    group_ids: list[str] = []
    include_authorized_operations: bool = False


class TopicPartitions(Struct, frozen=True, gc=False):
    topic_id: bytes = ZERO_UUID
    topic_name: str = ""
    partitions: list[int] = []


class Assignment(Struct, frozen=True, gc=False):
    topic_partitions: list[TopicPartitions] = []


class Member(Struct, frozen=True, gc=False):
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = None
    assignment: Assignment = field(default_factory=Assignment)
    target_assignment: Assignment = field(default_factory=Assignment)
    member_type: int = -1  # 1


class DescribedGroup(Struct, frozen=True, gc=False):
    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: list[Member] = []
    authorized_operations: int = -2147483648


class ConsumerGroupDescribeResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = []
