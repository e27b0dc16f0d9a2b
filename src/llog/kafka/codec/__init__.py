"""Kafka's messages as bytes and back. Pure: no socket, no file but its own table, no clock.

`decode` and `encode` work on the classes in `llog.kafka.codec.messages`, `read_request_head` and `answer_frame` on
whole frames. The module `codec` says why this is ours and how it works.
"""

from llog.kafka.codec.api import Api, RequestHead, answer_frame, apis, read_request_head, request_header_version
from llog.kafka.codec.codec import decode, decode_prefix, encode, encode_bytes
from llog.kafka.codec.runtime import Buffer, Records
from llog.kafka.codec.table import ZERO_UUID, Versions

__all__ = [
    "ZERO_UUID",
    "Api",
    "Buffer",
    "Records",
    "RequestHead",
    "Versions",
    "answer_frame",
    "apis",
    "decode",
    "decode_prefix",
    "encode",
    "encode_bytes",
    "read_request_head",
    "request_header_version",
]
