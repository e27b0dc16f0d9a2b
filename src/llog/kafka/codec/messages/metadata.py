# Written by `make kafka-schemas` from messages.txt; do not edit.
"""Metadata, API key 3, versions 0-13, flexible from 9."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.table import ZERO_UUID


class MetadataRequestTopic(Struct, frozen=True, gc=False):
    topic_id: bytes = ZERO_UUID  # 10-13
    name: str | None = ""  # null in 10-13


class MetadataRequest(Struct, frozen=True, gc=False):
    topics: list[MetadataRequestTopic] | None = []  # null in 1-13
    allow_auto_topic_creation: bool = True  # 4-13
    include_cluster_authorized_operations: bool = False  # 8-10
    include_topic_authorized_operations: bool = False  # 8-13


class MetadataResponseBroker(Struct, frozen=True, gc=False):
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None  # 1-13


class MetadataResponsePartition(Struct, frozen=True, gc=False):
    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1  # 7-13
    replica_nodes: list[int] = []
    isr_nodes: list[int] = []
    offline_replicas: list[int] = []  # 5-13


class MetadataResponseTopic(Struct, frozen=True, gc=False):
    error_code: int = 0
    name: str | None = ""  # null in 12-13
    topic_id: bytes = ZERO_UUID  # 10-13
    is_internal: bool = False  # 1-13
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: int = -2147483648  # 8-13


class MetadataResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 3-13
    brokers: list[MetadataResponseBroker] = []
    cluster_id: str | None = None  # 2-13
    controller_id: int = -1  # 1-13
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: int = -2147483648  # 8-10
    error_code: int = 0  # 13
