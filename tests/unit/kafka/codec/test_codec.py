"""Messages keep their values, at every version; what a version lacks is left out or refused, as in Kafka."""

from __future__ import annotations

import random
from typing import Any

import pytest

from llog.errors import NotEncodable, UnsupportedFormat
from llog.kafka.codec import decode, decode_prefix, encode, encode_bytes
from llog.kafka.codec.messages.api_versions import ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey
from llog.kafka.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from llog.kafka.codec.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from llog.kafka.codec.messages.create_topics import CreateTopicsRequest
from llog.kafka.codec.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from llog.kafka.codec.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from llog.kafka.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from llog.kafka.codec.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from llog.kafka.codec.runtime import JOIN_BYTES_MAX
from llog.kafka.codec.table import Message
from tests.unit.kafka.codec.random_messages import every_version, random_message

RECORDS = bytes(range(256)) * 16


def produce(records: Any = RECORDS) -> ProduceRequest:
    partitions = [PartitionProduceData(index=7, records=records)]
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData("orders", partition_data=partitions)]
    )


@pytest.mark.parametrize(("message", "version"), every_version(), ids=lambda one: getattr(one, "name", f"v{one}"))
def test_a_random_message_decodes_to_itself(message: Message, version: int) -> None:
    rng = random.Random(f"{message.name} {version}")
    for _ in range(5):
        value = random_message(rng, message, version)
        data = encode_bytes(value, version)
        assert decode(type(value), version, data) == value
        assert decode(type(value), version, memoryview(bytearray(b"head" + data)), 4) == value
        assert b"".join(encode(value, version)) == data


def test_bytes_are_those_of_the_protocol() -> None:
    classic = HeartbeatRequest(group_id="g", generation_id=5, member_id="m")
    assert encode_bytes(classic, 0) == b"\0\x01g" + b"\0\0\0\x05" + b"\0\x01m"
    assert encode_bytes(classic, 3) == b"\0\x01g" + b"\0\0\0\x05" + b"\0\x01m" + b"\xff\xff"
    assert encode_bytes(classic, 4) == b"\x02g" + b"\0\0\0\x05" + b"\x02m" + b"\0" + b"\0"
    topics = [MetadataRequestTopic(name="t" * 127)]
    assert encode_bytes(MetadataRequest(topics=topics), 9)[:131] == b"\x02" + b"\x80\x01" + b"t" * 127 + b"\0"
    assert encode_bytes(MetadataRequest(topics=None), 9)[:1] == b"\0"
    assert encode_bytes(MetadataRequest(topics=None), 1) == b"\xff\xff\xff\xff"


def test_records_are_decoded_as_a_view_of_the_frame() -> None:
    frame = bytearray(encode_bytes(produce(), 9))
    records = decode(ProduceRequest, 9, frame).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    assert records == RECORDS


def test_large_buffers_are_encoded_without_a_copy_and_small_ones_joined() -> None:
    views = [memoryview(RECORDS), memoryview(bytes(JOIN_BYTES_MAX))]
    small = b"s" * (JOIN_BYTES_MAX - 1)
    partitions = [PartitionData(records=views[0]), PartitionData(records=small), PartitionData(records=views[1])]
    answer = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    buffers = encode(answer, 4)
    assert [any(one is view for view in views) for one in buffers] == [False, True, False, True]
    assert small in bytes(buffers[2])
    assert b"".join(buffers) == encode_bytes(answer, 4)


def test_records_in_several_buffers_are_sent_as_one_field() -> None:
    whole = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[PartitionData(records=RECORDS * 2)])])
    halves: list[bytes | bytearray | memoryview] = [memoryview(RECORDS), bytearray(RECORDS)]
    split = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[PartitionData(records=halves)])])
    for version in (4, 12):
        assert encode_bytes(split, version) == encode_bytes(whole, version)
    assert any(one is halves[0] for one in encode(split, 12))


def test_a_view_of_wider_items_is_counted_in_bytes() -> None:
    words = memoryview(RECORDS).cast("q")
    assert encode_bytes(produce(words), 9) == encode_bytes(produce(), 9)


def test_a_field_that_a_version_lacks_is_refused_unless_it_has_its_default() -> None:
    request = CreateTopicsRequest(topics=[], validate_only=True)
    assert decode(CreateTopicsRequest, 2, encode_bytes(request, 2)) == request
    static = HeartbeatRequest(group_id="g", group_instance_id="static")
    encode_bytes(static, 3)
    with pytest.raises(
        NotEncodable, match="HeartbeatRequest v2, group_instance_id: this version has no such field"
    ) as e:
        encode_bytes(static, 2)
    assert (e.value.message, e.value.version, e.value.field) == ("HeartbeatRequest", 2, "group_instance_id")
    partition = FetchPartition(last_fetched_epoch=3)
    with pytest.raises(NotEncodable, match=r"FetchRequest v11, topics\[\].partitions\[\].last_fetched_epoch"):
        encode_bytes(FetchRequest(topics=[FetchTopic("t", partitions=[partition])]), 11)


def test_an_ignorable_field_that_a_version_lacks_is_left_out() -> None:
    answer = HeartbeatResponse(throttle_time_ms=9, error_code=27)
    assert encode_bytes(answer, 0) == b"\0\x1b"
    assert decode(HeartbeatResponse, 0, b"\0\x1b") == HeartbeatResponse(error_code=27)


@pytest.mark.parametrize(
    ("message", "version", "field"),
    [
        (HeartbeatRequest(group_id=None), 4, "group_id"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id="x" * 40_000), 3, "group_id"),
        (HeartbeatRequest(group_id="\ud800"), 4, "group_id"),
        (HeartbeatRequest(generation_id=2**31), 4, "generation_id"),
        (HeartbeatRequest(generation_id="5"), 4, "generation_id"),  # type: ignore[arg-type]
        (MetadataRequest(topics=None), 0, "topics"),
        (MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"short")]), 12, "topics[].topic_id"),
        (MetadataRequest(topics=[None]), 12, "topics[]."),  # type: ignore[list-item]
        (produce(records=5), 9, "topic_data[].partition_data[].records"),
        (produce(records="text"), 9, "topic_data[].partition_data[].records"),
    ],
)
def test_a_value_that_cannot_be_sent_is_refused_with_its_field(message: Any, version: int, field: str) -> None:
    with pytest.raises(NotEncodable) as e:
        encode(message, version)
    assert field in e.value.field
    assert f"{type(message).__name__} v{version}, " in str(e.value)


def test_known_tags_are_honoured_and_defaults_take_no_bytes() -> None:
    plain = ApiVersionsResponse(error_code=0)
    assert encode_bytes(plain, 3) == b"\0\0" + b"\x01" + b"\0\0\0\0" + b"\0"
    features = ApiVersionsResponse(
        supported_features=[SupportedFeatureKey("f", 1, 2)],
        finalized_features_epoch=7,
        finalized_features=[FinalizedFeatureKey("f", 2, 1)],
    )
    data = encode_bytes(features, 3)
    assert data[7] == 3
    assert decode(ApiVersionsResponse, 3, data) == features
    leader = PartitionData(current_leader=LeaderIdAndEpoch(3, 0))
    answer = FetchResponse(responses=[FetchableTopicResponse(partitions=[leader])])
    assert decode(FetchResponse, 17, encode_bytes(answer, 17)) == answer
    equal = FetchResponse(
        responses=[FetchableTopicResponse(partitions=[PartitionData(current_leader=LeaderIdAndEpoch())])]
    )
    absent = FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData()])])
    assert encode_bytes(equal, 17) == encode_bytes(absent, 17)


def test_unknown_tags_are_skipped_and_dropped() -> None:
    data = encode_bytes(HeartbeatRequest(group_id="g"), 4)
    tags = b"\x02" + b"\x05\x03abc" + b"\x80\x01\x00"
    assert decode(HeartbeatRequest, 4, data[:-1] + tags) == HeartbeatRequest(group_id="g")
    beside_known = (
        encode_bytes(ApiVersionsResponse(), 3)[:-1] + b"\x02" + b"\x01\x08" + bytes(7) + b"\x09" + b"\x63\x01x"
    )
    assert decode(ApiVersionsResponse, 3, beside_known) == ApiVersionsResponse(finalized_features_epoch=9)


def test_a_struct_may_be_null() -> None:
    for request in (DescribeTopicPartitionsRequest(cursor=None), DescribeTopicPartitionsRequest(cursor=Cursor("t", 4))):
        assert decode(DescribeTopicPartitionsRequest, 0, encode_bytes(request, 0)) == request
    assert encode_bytes(ConsumerGroupHeartbeatResponse(assignment=None), 0).endswith(b"\xff\0")


def test_defaults_are_not_shared_between_messages() -> None:
    first, second = FetchRequest(), FetchRequest()
    first.topics.append(FetchTopic())
    assert second.topics == []
    lacking = encode_bytes(FetchRequest(), 4)
    decode(FetchRequest, 4, lacking).forgotten_topics_data.append(None)  # type: ignore[arg-type]
    assert decode(FetchRequest, 4, lacking).forgotten_topics_data == []


def test_an_unknown_version_is_refused() -> None:
    for version in (-1, 2, 14):
        with pytest.raises(UnsupportedFormat, match=f"ProduceRequest v{version}: versions 3 to 13 are known"):
            decode(ProduceRequest, version, b"")
        with pytest.raises(UnsupportedFormat, match="ProduceRequest"):
            encode(produce(), version)


def test_a_later_version_of_an_embedded_message_is_read_as_far_as_it_is_known() -> None:
    data = encode_bytes(ConsumerProtocolSubscription(topics=["t"], rack_id="r"), 3)
    value, behind = decode_prefix(ConsumerProtocolSubscription, 3, data + b"a later field")
    assert (value.topics, value.rack_id, behind) == (["t"], "r", len(data))
