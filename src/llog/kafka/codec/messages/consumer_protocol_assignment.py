# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ConsumerProtocolAssignment."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.runtime import Buffer


class TopicPartition(Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: list[int] = []


class ConsumerProtocolAssignment(Struct, frozen=True, gc=False):
    assigned_partitions: list[TopicPartition] = []
    user_data: Buffer | None = None
