"""Fuzz targets: whole Kafka requests behind their size, and every version of every message."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from llog.errors import UnsupportedFormat
from llog.kafka.codec import apis, decode, encode_bytes, read_request_head, request_header_version
from llog.kafka.codec.messages.headers import RequestHeader
from tests.unit.kafka.codec.random_messages import class_of, every_version, random_message

VERSIONS = every_version()


def requests(data: bytes) -> None:
    """A frame as a connection receives it."""
    head = read_request_head(data)
    if head.api is None or head.api_version not in head.api.versions:
        raise UnsupportedFormat(f"API {head.api_key} v{head.api_version}", "not known")
    _decoded_alike(head.api.request, head.api_version, data[head.body :])


def messages(data: bytes) -> None:
    """The first two bytes choose message and version."""
    message, version = VERSIONS[int.from_bytes(data[:2], "big") % len(VERSIONS)]
    _decoded_alike(class_of(message), version, data[2:])


def _decoded_alike(kind: type[msgspec.Struct], version: int, data: bytes) -> None:
    """Any kind of buffer gives the same value, and a value that was accepted can be written again and read."""
    value = decode(kind, version, memoryview(data))
    written = encode_bytes(value, version)
    assert encode_bytes(decode(kind, version, data), version) == written
    assert encode_bytes(decode(kind, version, written), version) == written


def _request(rng: random.Random, key: int, version: int) -> bytes:
    (message,) = (one for one, v in VERSIONS if (one.kind, one.key, v) == ("request", key, version))
    header = encode_bytes(RequestHeader(key, version, 7, "client"), request_header_version(key, version))
    return header + encode_bytes(random_message(rng, message, version), version)


_RNG = random.Random(18)

TARGETS: dict[str, Callable[[bytes], None]] = {"kafka_requests": requests, "kafka_messages": messages}
SEEDS: dict[str, list[bytes]] = {
    "kafka_requests": [
        _request(_RNG, key, version)
        for key, api in apis().items()
        for version in range(api.versions.first, api.versions.last + 1)
    ],
    "kafka_messages": [
        number.to_bytes(2, "big") + encode_bytes(random_message(_RNG, message, version), version)
        for number, (message, version) in enumerate(VERSIONS)
    ],
}
