"""Headers: their versions, what they hold, and which APIs there are."""

from __future__ import annotations

import struct

import pytest

from llog.errors import Malformed
from llog.kafka.codec import answer_frame, apis, decode, encode_bytes, read_request_head, request_header_version
from llog.kafka.codec.messages.api_versions import ApiVersionsResponse
from llog.kafka.codec.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from llog.kafka.codec.messages.headers import RequestHeader, ResponseHeader
from llog.kafka.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from llog.kafka.codec.table import NO_VERSIONS, Versions

API_VERSIONS, CONTROLLED_SHUTDOWN, HEARTBEAT, FETCH, SASL_HANDSHAKE = 18, 7, 12, 1, 17


def test_every_api_has_a_request_and_a_response_of_the_same_versions() -> None:
    assert len(apis()) == 49
    for key, api in apis().items():
        assert api.key == key
        assert (api.request.__name__, api.response.__name__) == (f"{api.name}Request", f"{api.name}Response")
        assert api.listeners
    assert apis()[FETCH].versions == Versions(4, 18)
    assert apis()[FETCH].flexible == Versions(12, 18)
    assert apis()[SASL_HANDSHAKE].flexible == NO_VERSIONS
    assert [api.name for api in apis().values() if api.latest_unstable] == ["InitProducerId"]


@pytest.mark.parametrize(
    ("key", "version", "request_header", "response_header"),
    [
        (HEARTBEAT, 3, 1, 0),
        (HEARTBEAT, 4, 2, 1),
        (HEARTBEAT, -1, 1, 0),
        (SASL_HANDSHAKE, 1, 1, 0),
        (API_VERSIONS, 0, 1, 0),
        (API_VERSIONS, 3, 2, 0),
        (API_VERSIONS, 99, 2, 0),
    ],
)
def test_header_versions(key: int, version: int, request_header: int, response_header: int) -> None:
    assert request_header_version(key, version) == request_header
    assert apis()[key].response_header_version(version) == response_header


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "größe"])
@pytest.mark.parametrize("version", [3, 4])
def test_a_request_is_read_in_two_steps(version: int, client_id: str | None) -> None:
    request = HeartbeatRequest(group_id="g", member_id="m")
    header = RequestHeader(HEARTBEAT, version, 77, client_id)
    frame = encode_bytes(header, request_header_version(HEARTBEAT, version)) + encode_bytes(request, version)
    head = read_request_head(memoryview(frame))
    assert head[:4] == (HEARTBEAT, version, 77, client_id)
    assert head.api is apis()[HEARTBEAT]
    assert decode(HeartbeatRequest, head.api_version, frame, head.body) == request


def test_client_ids_have_classic_lengths_in_flexible_headers_too() -> None:
    assert encode_bytes(RequestHeader(12, 4, 1, "abc"), 2) == struct.pack(">hhih", 12, 4, 1, 3) + b"abc\0"


def test_the_header_of_an_unknown_api_or_version_is_read() -> None:
    unknown = read_request_head(encode_bytes(RequestHeader(12_345, 6, 77, "client"), 1) + b"whatever")
    assert (unknown.api, unknown.api_key, unknown.correlation_id, unknown.client_id) == (None, 12_345, 77, "client")
    later = read_request_head(encode_bytes(RequestHeader(API_VERSIONS, 99, 5, "new"), 2) + b"whatever")
    assert (later.api, later.api_version, later.client_id) == (apis()[API_VERSIONS], 99, "new")
    shutdown = read_request_head(struct.pack(">hhii", CONTROLLED_SHUTDOWN, 0, 5, 1))
    assert (shutdown.api, shutdown.client_id, shutdown.body) == (None, None, 8)


@pytest.mark.parametrize(
    "frame", [b"", b"\0\x0c\0\x04\0\0\0", b"\0\x0c\0\x04\0\0\0\x01", b"\0\x0c\0\x04\0\0\0\x01\0\x09abc"]
)
def test_a_cut_header_is_malformed(frame: bytes) -> None:
    with pytest.raises(Malformed, match="RequestHeader"):
        read_request_head(frame)


@pytest.mark.parametrize("version", [3, 4])
def test_an_answer_has_size_and_header(version: int) -> None:
    answer = HeartbeatResponse(error_code=25)
    buffers = answer_frame(apis()[HEARTBEAT], version, 77, answer)
    assert len(buffers) == 1
    header = encode_bytes(ResponseHeader(77), version - 3)
    body = header + encode_bytes(answer, version)
    assert buffers[0] == struct.pack(">i", len(body)) + body


def test_the_answer_to_api_versions_has_the_oldest_header() -> None:
    (frame,) = answer_frame(apis()[API_VERSIONS], 4, 77, ApiVersionsResponse())
    assert decode(ApiVersionsResponse, 4, frame, 8) == ApiVersionsResponse()


def test_the_records_of_an_answer_are_not_copied() -> None:
    records = [memoryview(bytes(2_000)) for _ in range(3)]
    partitions = [PartitionData(i, records=view) for i, view in enumerate(records)]
    answer = FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])
    buffers = answer_frame(apis()[FETCH], 12, 77, answer)
    assert [one for one in buffers if isinstance(one, memoryview)] == records
    frame = b"".join(buffers)
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 77)
    assert decode(FetchResponse, 12, frame, 9) == answer
