"""Hostile frames end in `Malformed`, which names field and position, and allocate no more than they may."""

from __future__ import annotations

import random
import tracemalloc

import msgspec
import pytest

from llog.errors import Malformed
from llog.kafka.codec import decode, encode_bytes
from llog.kafka.codec.messages.api_versions import ApiVersionsResponse
from llog.kafka.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from llog.kafka.codec.messages.delete_topics import DeleteTopicsRequest
from llog.kafka.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from llog.kafka.codec.messages.heartbeat import HeartbeatRequest
from llog.kafka.codec.messages.metadata import MetadataRequest
from llog.kafka.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from llog.kafka.codec.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from llog.kafka.codec.messages.produce import ProduceRequest
from llog.kafka.codec.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from llog.kafka.codec.runtime import varint
from llog.kafka.codec.sizes import decoded_element_bytes
from llog.kafka.codec.table import Message, messages
from tests.unit.kafka.codec.dense_frames import dense_frames
from tests.unit.kafka.codec.random_messages import class_of, every_version, random_message

FRAME_BYTES = 20_000
HUGE = b"\xff\xff\xff\xff\x07"
"""The varint of 2**31 - 1."""

LATEST = [(message, message.versions.last) for message in messages().values()]


def malformed(message: type[msgspec.Struct], version: int, frame: bytes) -> Malformed:
    with pytest.raises(Malformed) as e:
        decode(message, version, frame)
    assert (e.value.message, e.value.version) == (message.__name__, version)
    assert f"{message.__name__} v{version}: {e.value.field} at byte {e.value.position}: " in str(e.value)
    return e.value


@pytest.mark.parametrize(
    ("message", "version", "frame", "field", "position", "reason"),
    [
        # A count, in both encodings, before anything is allocated for it.
        (MetadataRequest, 1, b"\x7f\xff\xff\xff", "topics", 4, "2147483647 elements of at least 2 bytes, but 0 bytes"),
        (MetadataRequest, 9, HUGE + bytes(20), "topics", 5, "2147483646 elements of at least 2 bytes, but 20 bytes"),
        (MetadataRequest, 1, b"\xff\xff\xff\xfe", "topics", 4, "count -2 is negative"),
        (MetadataRequest, 0, b"\xff\xff\xff\xff", "topics", 4, "null is not allowed"),
        (FetchRequest, 4, bytes(17) + b"\x7f\xff\xff\xff", "topics", 21, "2147483647 elements of at least 6 bytes"),
        # A length.
        (HeartbeatRequest, 0, b"\x7f\xffabc", "group_id", 2, "length 32767, but 3 bytes are left"),
        (HeartbeatRequest, 0, b"\xff\xff", "group_id", 2, "null is not allowed"),
        (HeartbeatRequest, 3, b"\0\0" + bytes(6) + b"\xff\xfe", "group_instance_id", 10, "length -2 is negative"),
        (HeartbeatRequest, 4, b"\0", "group_id", 1, "null is not allowed"),
        (HeartbeatRequest, 4, HUGE + b"abc", "group_id", 5, "length 2147483646, but 3 bytes are left"),
        (HeartbeatRequest, 4, b"\x80\x80\x80\x80\x80\x01", "group_id", 1, "a varint is longer than 5 bytes"),
        # The frame ends within a run of fields: the field that is cut is named.
        (HeartbeatRequest, 4, b"\x01\0\0", "generation_id", 1, "the frame ends, 2 bytes are left"),
        (HeartbeatRequest, 4, b"\x01\0\0\0\0", "member_id", 5, "the frame ends, 0 bytes are left"),
        (HeartbeatRequest, 4, b"", "group_id", 0, "the frame ends, 0 bytes are left"),
        (HeartbeatRequest, 4, b"\x80", "group_id", 1, "the frame ends, 0 bytes are left"),
        (HeartbeatRequest, 4, b"\x03\xc3\x28", "group_id", 1, "invalid UTF-8"),
        (HeartbeatRequest, 0, bytes(8) + b"extra", "end", 8, "5 bytes follow the message"),
        (ProduceRequest, 9, b"\0" + bytes(6) + b"\x02\x02t\x02" + bytes(4) + b"\x09abc", None, 16, "length 8, but 3"),
        (DeleteTopicsRequest, 4, b"\x03\x02a\x09", "topic_names[1]", 4, "length 8, but 0 bytes are left"),
        # Tagged fields and structs that may be null.
        (HeartbeatRequest, 4, b"\x01" + bytes(4) + b"\x01\0" + HUGE, "tags", 8, "2147483647 elements of at least 2"),
        (HeartbeatRequest, 4, b"\x01" + bytes(4) + b"\x01\0\x01\x05\x09", "tags", 8, "length 9, but 0 bytes are left"),
        (ApiVersionsResponse, 3, b"\0\0\x01" + bytes(4) + b"\x01\x01\x09" + bytes(9), "tags", 18, "tag 1 has 9 bytes"),
        (ApiVersionsResponse, 3, b"\0\0\x01" + bytes(4) + b"\x01\x01\x07" + bytes(9), "tags", 18, "tag 1 has 7 bytes"),
        (ConsumerGroupHeartbeatResponse, 0, bytes(16) + b"\x02", "assignment", None, "begins with 1 or -1, not 2"),
    ],
)
def test_a_malformed_frame_is_refused_with_field_and_position(
    message: type[msgspec.Struct], version: int, frame: bytes, field: str | None, position: int | None, reason: str
) -> None:
    error = malformed(message, version, frame)
    assert error.field == (field or "topic_data[0].partition_data[0].records")
    assert position in (None, error.position)
    assert reason in error.reason


def test_the_path_names_the_element() -> None:
    topics = [
        OffsetCommitRequestTopic(
            f"t{i}", partitions=[OffsetCommitRequestPartition(j, 5, -1, f"{i}+{j}") for j in range(3)]
        )
        for i in range(4)
    ]
    frame = encode_bytes(OffsetCommitRequest(group_id="g", topics=topics), 8)
    error = malformed(OffsetCommitRequest, 8, frame.replace(b"2+1", b"2\xff1"))
    assert error.field == "topics[2].partitions[1].committed_metadata"
    assert error.position == frame.index(b"2+1")
    assert "invalid UTF-8" in error.reason


@pytest.mark.parametrize(("message", "version"), every_version(), ids=lambda one: getattr(one, "name", f"v{one}"))
def test_every_frame_that_is_cut_is_malformed(message: Message, version: int) -> None:
    value = random_message(random.Random(f"cut {message.name} {version}"), message, version)
    frame = encode_bytes(value, version)
    for length in {*range(min(len(frame), 60)), *range(max(0, len(frame) - 20), len(frame))}:
        malformed(class_of(message), version, frame[:length])
    malformed(class_of(message), version, frame + b"\0")


def test_an_error_does_not_keep_what_was_decoded() -> None:
    frame = encode_bytes(FetchRequest(topics=[FetchTopic("t")]), 11)
    error = malformed(FetchRequest, 11, frame[:-1])
    assert error.field == "rack_id"
    assert error.__context__ is None  # whose traceback would refer to the variables of the decoder


@pytest.mark.parametrize(("message", "version"), LATEST, ids=lambda one: getattr(one, "name", f"v{one}"))
def test_the_densest_frames_take_no_more_memory_than_is_counted(message: Message, version: int) -> None:
    for field, count, frame in dense_frames(message, version, FRAME_BYTES):
        decode(class_of(message), version, frame)  # compiles
        tracemalloc.start()
        decode(class_of(message), version, frame)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        counted = decoded_element_bytes(field, version)
        assert peak <= counted * count + 8_192, f"{field.name}: {peak / count:.0f} bytes, {counted} are counted"


def test_a_frame_full_of_tiny_elements_is_refused_before_it_takes_all_memory() -> None:
    """Each element is a struct, a string and a view made from 3 bytes."""
    assignment = SyncGroupRequestAssignment()
    for frame_bytes in (300_000, 3_000_000):
        frame = encode_bytes(SyncGroupRequest(assignments=[assignment] * (frame_bytes // 3)), 4)
        tracemalloc.start()
        error = malformed(SyncGroupRequest, 4, frame)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (error.field, "take more memory than a frame may" in error.reason) == ("assignments", True)
        assert peak < 100_000


def test_many_unknown_tags_are_refused() -> None:
    start, many, too_many = b"\x01" + bytes(4) + b"\x01\0", 100_000, 500_000
    assert decode(HeartbeatRequest, 4, start + varint(many) + b"\x01\0" * many) == HeartbeatRequest()
    error = malformed(HeartbeatRequest, 4, start + varint(too_many) + b"\x01\0" * too_many)
    assert error.field == "tags"


def test_large_requests_of_real_clients_are_read() -> None:
    """A request that names 200,000 partitions, with short names and small numbers: much memory for few bytes."""
    partitions = [FetchPartition(i, 0, i, partition_max_bytes=1) for i in range(100)]
    fetch = FetchRequest(topics=[FetchTopic(f"t{i}", partitions=partitions) for i in range(2_000)])
    assert len(decode(FetchRequest, 12, encode_bytes(fetch, 12)).topics) == 2_000
    commit = [OffsetCommitRequestPartition(i, 1_000, -1, "") for i in range(100)]
    commits = OffsetCommitRequest(topics=[OffsetCommitRequestTopic(f"t{i}", partitions=commit) for i in range(2_000)])
    assert len(decode(OffsetCommitRequest, 8, encode_bytes(commits, 8)).topics) == 2_000
    indexes = OffsetFetchRequest(topics=[OffsetFetchRequestTopic(f"t{i}", [0]) for i in range(200_000)])
    assert len(decode(OffsetFetchRequest, 6, encode_bytes(indexes, 6)).topics or ()) == 200_000
