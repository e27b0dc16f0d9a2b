# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ConsumerProtocolSubscription."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.runtime import Buffer


class TopicPartition(Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: list[int] = []


class ConsumerProtocolSubscription(Struct, frozen=True, gc=False):
    topics: list[str] = []
    user_data: Buffer | None = None
    owned_partitions: list[TopicPartition] = []  # 1-3
    generation_id: int = -1  # 2-3
    rack_id: str | None = None  # 3
