"""kio judges our codec, and we judge kio's: random messages of every version have the same bytes in both.

kio cannot express every value, so the random ones keep to its types: known error codes, durations and points in time
that are not negative. Within these there is no known deviation. Its reader only gets frames that are valid, because a
hostile count ends the process.
"""

from __future__ import annotations

import random

import pytest

from llog.kafka.codec import decode, encode_bytes
from llog.kafka.codec.table import Message
from tests.unit.kafka.codec.kio_values import chosen_for_kio, entity_class, kio_decode, kio_encode, to_entity
from tests.unit.kafka.codec.random_messages import every_version, random_message


@pytest.mark.parametrize(("message", "version"), every_version(), ids=lambda one: getattr(one, "name", f"v{one}"))
def test_kio_and_we_write_and_read_the_same_bytes(message: Message, version: int) -> None:
    rng = random.Random(f"kio {message.name} {version}")
    for _ in range(4):
        value = random_message(rng, message, version, chosen_for_kio)
        entity = to_entity(message, version, value)
        ours = encode_bytes(value, version)
        assert ours == kio_encode(entity)
        assert kio_decode(entity_class(message, version), ours) == entity
        assert decode(type(value), version, ours) == value
