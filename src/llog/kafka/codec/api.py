"""Kafka's APIs by key, and the headers of requests and answers.

A frame is a size of 4 bytes, a header and a message. The version of the header follows from the API and its version:
flexible versions have headers with tagged fields. Two APIs differ, so that peers that do not know each other's versions
yet understand each other:

- The answer to ApiVersions has a header of version 0 in every version.
- ControlledShutdown v0 has a request header of version 0, without a client id.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import msgspec

from llog.errors import Malformed
from llog.kafka.codec.codec import classes_of, decode_prefix, encode_into
from llog.kafka.codec.messages.headers import RequestHeader
from llog.kafka.codec.runtime import JOIN_BYTES_MAX, Buffer, byte_length, gather
from llog.kafka.codec.table import NO_VERSIONS, Versions, messages

API_VERSIONS_KEY: Final = 18
CONTROLLED_SHUTDOWN_KEY: Final = 7

_REQUEST_START: Final = struct.Struct(">hhi")
"""API key, API version, correlation id: the header of version 0, and the start of every other."""
_ANSWER_START: Final = struct.Struct(">ii")
_ANSWER_START_WITH_TAGS: Final = struct.Struct(">iix")
"""Size, correlation id and no tagged fields."""


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    """Such as "Produce"; the messages are ProduceRequest and ProduceResponse."""
    versions: Versions
    """All versions with a schema. Which ones a broker serves is not decided here."""
    flexible: Versions
    latest_unstable: bool
    """The latest version is not final: a broker does not offer it."""
    listeners: tuple[str, ...]

    @property
    def request(self) -> type[msgspec.Struct]:
        return _class(self.name + "Request")

    @property
    def response(self) -> type[msgspec.Struct]:
        return _class(self.name + "Response")

    def response_header_version(self, version: int) -> int:
        return 1 if self.is_flexible(version) and self.key != API_VERSIONS_KEY else 0

    def is_flexible(self, version: int) -> bool:
        """Also true of versions later than those we know: clients may ask for them."""
        return self.flexible != NO_VERSIONS and version >= self.flexible.first


@cache
def _class(name: str) -> type[msgspec.Struct]:
    return classes_of(messages()[name])[name]


@cache
def apis() -> dict[int, Api]:
    """All APIs by key."""
    return {
        message.key: Api(
            key=message.key,
            name=message.name.removesuffix("Request"),
            versions=message.versions,
            flexible=message.flexible,
            latest_unstable=message.unstable,
            listeners=message.listeners,
        )
        for message in messages().values()
        if message.kind == "request" and message.key is not None
    }


def request_header_version(api_key: int, api_version: int) -> int:
    """The version of a request's header; for an unknown API the one whose fields every later version begins with."""
    if api_key == CONTROLLED_SHUTDOWN_KEY and api_version == 0:
        return 0
    api = apis().get(api_key)
    return 2 if api is not None and api.is_flexible(api_version) else 1


class RequestHead(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int
    """Position of the message in the frame. Means nothing if the API is unknown."""

    @property
    def api(self) -> Api | None:
        return apis().get(self.api_key)


def read_request_head(frame: Buffer) -> RequestHead:
    """The header of a request, whose frame begins behind its size. Raises `Malformed`.

    Unknown APIs and versions are left to the caller, which needs the correlation id to answer, or the key to log.
    """
    if len(frame) < _REQUEST_START.size:
        raise Malformed("RequestHeader", 0, "request_api_key", 0, f"the frame ends, {len(frame)} bytes are left")
    api_key, api_version, correlation_id = _REQUEST_START.unpack_from(frame)
    version = request_header_version(api_key, api_version)
    if version == 0:
        return RequestHead(api_key, api_version, correlation_id, None, _REQUEST_START.size)
    header, body = decode_prefix(RequestHeader, version, frame)
    return RequestHead(api_key, api_version, correlation_id, header.client_id, body)


def answer_frame(api: Api, version: int, correlation_id: int, message: msgspec.Struct) -> list[Buffer]:
    """The buffers of an answer with size and header, ready for a vectored write. Raises `NotEncodable`."""
    parts: list[Buffer] = []
    buffers = gather(parts, encode_into(message, version, parts))
    start = _ANSWER_START_WITH_TAGS if api.response_header_version(version) else _ANSWER_START
    size = start.size - 4 + byte_length(buffers)
    head = start.pack(size, correlation_id)
    if buffers and byte_length(buffers[0]) < JOIN_BYTES_MAX:
        buffers[0] = head + bytes(buffers[0])
    else:
        buffers.insert(0, head)
    return buffers
