# Written by `make kafka-schemas` from messages.txt; do not edit.
"""CreatePartitions, API key 37, versions 0-3, flexible from 2."""

from __future__ import annotations

from msgspec import Struct


class CreatePartitionsAssignment(Struct, frozen=True, gc=False):
    broker_ids: list[int] = []


class CreatePartitionsTopic(Struct, frozen=True, gc=False):
    name: str = ""
    count: int = 0
    assignments: list[CreatePartitionsAssignment] | None = []


class CreatePartitionsRequest(Struct, frozen=True, gc=False):
    topics: list[CreatePartitionsTopic] = []
    timeout_ms: int = 0
    validate_only: bool = False


class CreatePartitionsTopicResult(Struct, frozen=True, gc=False):
    name: str = ""
    error_code: int = 0
    error_message: str | None = None


class CreatePartitionsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    results: list[CreatePartitionsTopicResult] = []
