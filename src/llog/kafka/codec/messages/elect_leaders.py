# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ElectLeaders, API key 43, versions 0-2, flexible from 2."""

from __future__ import annotations

from msgspec import Struct


class TopicPartitions(Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: list[int] = []


class ElectLeadersRequest(Struct, frozen=True, gc=False):
    election_type: int = 0  # 1-2
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: int = 60000


class PartitionResult(Struct, frozen=True, gc=False):
    partition_id: int = 0
    error_code: int = 0
    error_message: str | None = ""


class ReplicaElectionResult(Struct, frozen=True, gc=False):
    topic: str = ""
    partition_result: list[PartitionResult] = []


class ElectLeadersResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0  # 1-2
    replica_election_results: list[ReplicaElectionResult] = []
