# Written by `make kafka-schemas` from messages.txt; do not edit.
"""Fetch, API key 1, versions 4-18, flexible from 12."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.runtime import Records
from llog.kafka.codec.table import ZERO_UUID


class ReplicaState(Struct, frozen=True, gc=False):
    replica_id: int = -1
    replica_epoch: int = -1


class FetchPartition(Struct, frozen=True, gc=False):
    partition: int = 0
    current_leader_epoch: int = -1  # 9-18
    fetch_offset: int = 0
    last_fetched_epoch: int = -1  # 12-18
    log_start_offset: int = -1  # 5-18
    partition_max_bytes: int = 0
    replica_directory_id: bytes = ZERO_UUID  # 17-18, tag 0
    high_watermark: int = 9223372036854775807  # 18, tag 1


class FetchTopic(Struct, frozen=True, gc=False):
    topic: str = ""  # 4-12
    topic_id: bytes = ZERO_UUID  # 13-18
    partitions: list[FetchPartition] = []


class ForgottenTopic(Struct, frozen=True, gc=False):
    topic: str = ""  # 7-12
    topic_id: bytes = ZERO_UUID  # 13-18
    partitions: list[int] = []


class FetchRequest(Struct, frozen=True, gc=False):
    cluster_id: str | None = None  # 12-18, tag 0
    replica_id: int = -1  # 4-14
    replica_state: ReplicaState = ReplicaState()  # 15-18, tag 1
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0  # 7-18
    session_epoch: int = -1  # 7-18
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = []  # 7-18
    rack_id: str = ""  # 11-18


class EpochEndOffset(Struct, frozen=True, gc=False):
    epoch: int = -1
    end_offset: int = -1


class LeaderIdAndEpoch(Struct, frozen=True, gc=False):
    leader_id: int = -1
    leader_epoch: int = -1


class SnapshotId(Struct, frozen=True, gc=False):
    end_offset: int = -1
    epoch: int = -1


class AbortedTransaction(Struct, frozen=True, gc=False):
    producer_id: int = 0
    first_offset: int = 0


class PartitionData(Struct, frozen=True, gc=False):
    partition_index: int = 0
    error_code: int = 0
    high_watermark: int = 0
    last_stable_offset: int = -1
    log_start_offset: int = -1  # 5-18
    diverging_epoch: EpochEndOffset = EpochEndOffset()  # 12-18, tag 0
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()  # 12-18, tag 1
    snapshot_id: SnapshotId = SnapshotId()  # 12-18, tag 2
    aborted_transactions: list[AbortedTransaction] | None = []
    preferred_read_replica: int = -1  # 11-18
    records: Records | None = None


class FetchableTopicResponse(Struct, frozen=True, gc=False):
    topic: str = ""  # 4-12
    topic_id: bytes = ZERO_UUID  # 13-18
    partitions: list[PartitionData] = []


class NodeEndpoint(Struct, frozen=True, gc=False):
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


class FetchResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0  # 7-18
    session_id: int = 0  # 7-18
    responses: list[FetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []  # 16-18, tag 0
