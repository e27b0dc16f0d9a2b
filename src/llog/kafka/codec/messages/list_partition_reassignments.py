# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ListPartitionReassignments, API key 46, versions 0, flexible from 0."""

from __future__ import annotations

from msgspec import Struct


class ListPartitionReassignmentsTopics(Struct, frozen=True, gc=False):
    name: str = ""
    partition_indexes: list[int] = []


class ListPartitionReassignmentsRequest(Struct, frozen=True, gc=False):
    timeout_ms: int = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Struct, frozen=True, gc=False):
    partition_index: int = 0
    replicas: list[int] = []
    adding_replicas: list[int] = []
    removing_replicas: list[int] = []


class OngoingTopicReassignment(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[OngoingPartitionReassignment] = []


class ListPartitionReassignmentsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    topics: list[OngoingTopicReassignment] = []
