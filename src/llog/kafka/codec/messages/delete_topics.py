# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DeleteTopics, API key 20, versions 1-6, flexible from 4."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.table import ZERO_UUID


class DeleteTopicState(Struct, frozen=True, gc=False):
    name: str | None = None
    topic_id: bytes = ZERO_UUID


class DeleteTopicsRequest(Struct, frozen=True, gc=False):
    topics: list[DeleteTopicState] = []  # 6
    topic_names: list[str] = []  # 1-5
    timeout_ms: int = 0


class DeletableTopicResult(Struct, frozen=True, gc=False):
    name: str | None = ""  # null in 6
    topic_id: bytes = ZERO_UUID  # 6
    error_code: int = 0
    error_message: str | None = None  # 5-6


class DeleteTopicsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    responses: list[DeletableTopicResult] = []
