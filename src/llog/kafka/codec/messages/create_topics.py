# Written by `make kafka-schemas` from messages.txt; do not edit.
"""CreateTopics, API key 19, versions 2-7, flexible from 5."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.table import ZERO_UUID


class CreatableReplicaAssignment(Struct, frozen=True, gc=False):
    partition_index: int = 0
    broker_ids: list[int] = []


class CreatableTopicConfig(Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = ""


class CreatableTopic(Struct, frozen=True, gc=False):
    name: str = ""
    num_partitions: int = 0
    replication_factor: int = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Struct, frozen=True, gc=False):
    topics: list[CreatableTopic] = []
    timeout_ms: int = 60000
    validate_only: bool = False


class CreatableTopicConfigs(Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False


class CreatableTopicResult(Struct, frozen=True, gc=False):
    name: str = ""
    topic_id: bytes = ZERO_UUID  # 7
    error_code: int = 0
    error_message: str | None = ""
    topic_config_error_code: int = 0  # 5-7, tag 0
    num_partitions: int = -1  # 5-7
    replication_factor: int = -1  # 5-7
    configs: list[CreatableTopicConfigs] | None = []  # 5-7


class CreateTopicsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    topics: list[CreatableTopicResult] = []
