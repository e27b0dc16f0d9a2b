"""ListOffsets: ends of logs, timestamps, tiers, and the versions that know them."""

from __future__ import annotations

from typing import Any

import pytest

from llog.errors import MetadataUnavailable
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.kafka.apis.list_offsets import HANDLER
from llog.kafka.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from llog.kafka.error_codes import ErrorCode
from llog.log.append.append import EncodedGroup
from llog.log.cleanup.retention import delete_records
from llog.log.keys import Log
from llog.pipeline.compact.once import compact_once
from tests.unit.kafka.apis.fetching import ORDERS, Reader, batch, group, reader

VERSIONS = range(HANDLER.served.first, HANDLER.served.last + 1)
LATEST = HANDLER.served.last


async def ask(
    broker: Reader, *timestamps: int, log: Log = ORDERS, version: int = LATEST, epoch: int = -1, **fields: Any
) -> list[ListOffsetsPartitionResponse]:
    """One request for each timestamp."""
    answers = []
    for timestamp in timestamps:
        partition = ListOffsetsPartition(log.partition, epoch, timestamp)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(log.topic, [partition])], **fields)
        answer = await broker.ask(request, version)
        [topic] = answer.topics
        assert topic.name == log.topic
        answers += topic.partitions
    return answers


async def offsets(broker: Reader, *timestamps: int, **options: Any) -> list[int]:
    answers = await ask(broker, *timestamps, **options)
    assert [answer.error_code for answer in answers] == [0] * len(answers)
    return [answer.offset for answer in answers]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_knows_the_ends_of_a_log(version: int) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a", b"b", b"c")))
        await delete_records(broker.context, ORDERS, 2)
        answers = await ask(broker, -1, -2, version=version)
        assert [(one.offset, one.timestamp) for one in answers] == [(4, -1), (2, -1)]
        assert {one.leader_epoch for one in answers} == {0 if version >= 4 else -1}


async def test_the_latest_offset_is_the_same_for_read_committed() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        assert await offsets(broker, -1, isolation_level=1) == [2]


async def test_timestamps_find_the_first_record_that_is_not_older() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a", b"b", timestamps_ms=[10, 40]), batch(b"c", timestamps_ms=20)))
        await broker.append(group(ORDERS, batch(b"d", timestamps_ms=50)))
        for compacted in (False, True):
            assert not compacted or await compact_once(broker.context, ORDERS) is not None
            answers = await ask(broker, 0, 11, 41, 51)
            found = [(one.offset, one.timestamp) for one in answers]
            assert found == [(1, 10), (2, 40), (4, 50), (-1, -1)]
            assert [one.leader_epoch for one in answers] == [0, 0, 0, -1]


async def test_the_largest_timestamp_is_found_with_its_record() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a", b"b", b"c", timestamps_ms=[10, 40, 40])))
        await broker.append(group(ORDERS, batch(b"d", timestamps_ms=30)))
        [answer] = await ask(broker, -3)
        assert (answer.offset, answer.timestamp) == (2, 40)
        await delete_records(broker.context, ORDERS, 4)
        [answer] = await ask(broker, -3)
        assert (answer.offset, answer.timestamp) == (4, 30)


async def test_bare_payloads_have_the_time_of_their_append() -> None:
    async with reader() as broker:
        before_ms = broker.context.now_ms()
        await broker.append(EncodedGroup(ORDERS, 2, "bytes-batch-v1", encode_bytes_batch([b"x", b"y"])))
        [since, newest] = await ask(broker, before_ms, -3)
        assert (since.offset, newest.offset) == (1, 1)
        assert since.timestamp == newest.timestamp >= before_ms


async def test_an_empty_log_has_ends_and_no_timestamp() -> None:
    async with reader() as broker:
        await broker.create("orders")
        assert await offsets(broker, -1, -2, -4, -6) == [0, 0, 0, 0]
        answers = await ask(broker, -3, 0, -5)
        assert {(one.offset, one.timestamp, one.leader_epoch) for one in answers} == {(-1, -1, -1)}


async def test_segments_are_the_tiered_storage() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a", b"b")))
        assert await offsets(broker, -4, -5, -6) == [1, -1, 1]
        await compact_once(broker.context, ORDERS)
        await broker.append(group(ORDERS, batch(b"c")))
        assert await offsets(broker, -4, -5, -6) == [1, 2, 3]
        await delete_records(broker.context, ORDERS, 4)
        assert await offsets(broker, -4, -5, -6) == [4, -1, 4]


@pytest.mark.parametrize(("timestamp", "first"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)])
async def test_special_timestamps_are_refused_by_versions_that_do_not_know_them(timestamp: int, first: int) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        for version in VERSIONS:
            [answer] = await ask(broker, timestamp, version=version)
            assert answer.error_code == (0 if version >= first else ErrorCode.UNSUPPORTED_VERSION)


async def test_what_does_not_exist_is_unknown_and_never_written_partitions_are_empty() -> None:
    async with reader() as broker:
        await broker.append(group(Log("orders", 2), batch(b"a")))
        for log in (Log("nothing", 0), Log("orders", 3), Log("orders", -1), Log("not/valid", 0)):
            [answer] = await ask(broker, -1, log=log)
            assert (answer.error_code, answer.offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await offsets(broker, -1, -2, log=Log("orders", 1)) == [1, 1]


async def test_a_partition_named_twice_is_refused() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        twice = [ListOffsetsPartition(0, -1, -1), ListOffsetsPartition(0, -1, -2)]
        answer = await broker.ask(ListOffsetsRequest(topics=[ListOffsetsTopic("orders", twice)]), LATEST)
        assert [one.error_code for one in answer.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2


@pytest.mark.parametrize(("epoch", "code"), [(0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)])
async def test_leader_epochs_other_than_zero_are_refused(epoch: int, code: int) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        [answer] = await ask(broker, -1, epoch=epoch)
        assert answer.error_code == code


async def test_a_metadata_store_that_does_not_answer_is_an_error_to_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        await ask(broker, -1)

        async def fail(*_: object, **__: object) -> None:
            raise MetadataUnavailable("get", "orders", "no answer")

        with monkeypatch.context() as patched:
            patched.setattr(broker.context.metadata, "get_many", fail)
            [answer] = await ask(broker, -1)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_a_search_that_takes_too_long_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))

        async def never(*_: object, **__: object) -> None:
            await broker.context.sleep(3_600)

        monkeypatch.setattr("llog.kafka.apis.list_offsets.offset_for_timestamp", never)
        [answer] = await ask(broker, 0, timeout_ms=1)
        assert (answer.error_code, answer.offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
