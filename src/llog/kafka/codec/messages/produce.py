# Written by `make kafka-schemas` from messages.txt; do not edit.
"""Produce, API key 0, versions 3-13, flexible from 9."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.runtime import Buffer
from llog.kafka.codec.table import ZERO_UUID


class PartitionProduceData(Struct, frozen=True, gc=False):
    index: int = 0
    records: Buffer | None = None


class TopicProduceData(Struct, frozen=True, gc=False):
    name: str = ""  # 3-12
    topic_id: bytes = ZERO_UUID  # 13
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(Struct, frozen=True, gc=False):
    transactional_id: str | None = None
    acks: int = 0
    timeout_ms: int = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Struct, frozen=True, gc=False):
    batch_index: int = 0
    batch_index_error_message: str | None = None


class LeaderIdAndEpoch(Struct, frozen=True, gc=False):
    leader_id: int = -1
    leader_epoch: int = -1


class PartitionProduceResponse(Struct, frozen=True, gc=False):
    index: int = 0
    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1
    log_start_offset: int = -1  # 5-13
    record_errors: list[BatchIndexAndErrorMessage] = []  # 8-13
    error_message: str | None = None  # 8-13
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()  # 10-13, tag 0


class TopicProduceResponse(Struct, frozen=True, gc=False):
    name: str = ""  # 3-12
    topic_id: bytes = ZERO_UUID  # 13
    partition_responses: list[PartitionProduceResponse] = []


class NodeEndpoint(Struct, frozen=True, gc=False):
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


class ProduceResponse(Struct, frozen=True, gc=False):
    responses: list[TopicProduceResponse] = []
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = []  # 10-13, tag 0
