"""The topics that the members of a group with protocol type `consumer` subscribe to, read from their metadata."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

SUBSCRIBED_TOPICS_MAX: Final = 100_000
"""Topics of one member's metadata. More cannot be in a request of a sane size."""
CONSUMER_PROTOCOL_TYPE: Final = "consumer"


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """Topics of one member; None if the metadata is not Kafka's consumer protocol. Every version of it begins with
    version, number of topics, and their names, so this reads later versions too."""
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or not 0 <= count <= SUBSCRIBED_TOPICS_MAX:
            return None
        topics = []
        at = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, at)
            name = metadata[at + 2 : at + 2 + length]
            if length < 0 or len(name) < length:
                return None
            topics.append(name.decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def topics_of_all(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Topics of a whole group; None if any member's metadata cannot be read."""
    topics: set[str] = set()
    for one in metadata:
        subscribed = topics_of(one)
        if subscribed is None:
            return None
        topics |= subscribed
    return frozenset(topics)
