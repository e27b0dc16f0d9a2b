"""Fetch: whole batches with their offsets, Kafka's limits and long polls, and the code for everything that is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from llog.errors import LlogError, MetadataUnavailable
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.record_batch import BatchRule, Codec, verify_crcs, walk
from llog.kafka.apis.fetch import HANDLER
from llog.kafka.codec.messages.fetch import FetchRequest, PartitionData
from llog.kafka.error_codes import ErrorCode
from llog.log.append.append import EncodedGroup
from llog.log.cleanup.retention import delete_records
from llog.log.fence import fence, unfence
from llog.log.keys import Log
from llog.log.topics.delete import delete_topic
from llog.log.topics.known_topics import KnownTopic
from llog.pipeline.compact.once import compact_once
from tests.unit.kafka.apis.fetching import LONG_POLL_MS, ORDERS, batch, data_of, group, reader, rows

VERSIONS = range(HANDLER.served.first, HANDLER.served.last + 1)


def sizes(answers: list[PartitionData]) -> list[int]:
    return [len(answer.records or b"") for answer in answers]


# -- what is answered --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_returns_the_batches_with_offsets_and_the_ends_of_the_log(version: int) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a", b"b"), batch(b"c")))
        [answer] = await broker.fetch((ORDERS, 1), version=version)
        assert rows(answer) == [(1, b"a"), (2, b"b"), (3, b"c")]
        assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 4, 4)
        assert answer.aborted_transactions is None


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_batches_are_as_produced_except_for_offset_and_leader_epoch(cache_bytes: int) -> None:
    sent = [batch(b"a" * 500, b"b", codec=codec, timestamps_ms=[7, 6]) for codec in Codec]
    async with reader(tail_cache_max_bytes=cache_bytes) as broker:
        expected = [bytes(one) for one in sent]
        await broker.append(group(ORDERS, *sent))
        await fence(broker.context, ORDERS)
        await unfence(broker.context, ORDERS)
        await broker.append(group(ORDERS, batch(b"z")))
        [answer] = await broker.fetch((ORDERS, 1))
        data = data_of(answer)
        headers = walk(data, "answer", rule=BatchRule.COMPACTED)
        verify_crcs(data, headers, "answer")
        assert headers.base_offset.tolist() == [1, 3, 5, 7, 9, 11]
        assert set(headers.partition_leader_epoch.tolist()) == {0}
        for sent_batch, position, length in zip(expected, headers.position, headers.length, strict=False):
            received = data[position : position + length]
            assert received[8:12] + received[16:] == sent_batch[8:12] + sent_batch[16:]


async def test_a_fetch_in_the_middle_of_a_batch_returns_the_whole_batch() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a", b"b"), batch(b"c", b"d"), batch(b"e")))
        [answer] = await broker.fetch((ORDERS, 4))
        assert rows(answer) == [(3, b"c"), (4, b"d"), (5, b"e")]


async def test_read_committed_reads_to_the_end_and_lists_no_aborted_transactions() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        [answer] = await broker.fetch((ORDERS, 1), isolation_level=1)
        assert (rows(answer), answer.last_stable_offset, answer.aborted_transactions) == ([(1, b"a")], 2, [])


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_bare_payloads_are_returned_as_batches_before_and_after_compaction(cache_bytes: int) -> None:
    bare = EncodedGroup(ORDERS, 2, "bytes-batch-v1", encode_bytes_batch([b"x", b"y"]))
    async with reader(tail_cache_max_bytes=cache_bytes) as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        await broker.append(bare)
        await broker.append(group(ORDERS, batch(b"b", codec=Codec.ZSTD)))
        for compacted in (False, True):
            if compacted:
                assert await compact_once(broker.context, ORDERS) is not None
                broker.broker.log_changed(ORDERS)
            data = await broker.drain(ORDERS, 1)
            headers = walk(data, "answer", rule=BatchRule.COMPACTED)
            verify_crcs(data, headers, "answer")
            assert rows(data) == [(1, b"a"), (2, b"x"), (3, b"y"), (4, b"b")]
            assert headers.is_log_append_time.tolist() == [False, True, False]
            assert set(headers.partition_leader_epoch.tolist()) == {0}


async def test_a_segment_of_a_log_that_was_fenced_is_returned_with_leader_epoch_zero() -> None:
    async with reader(tail_cache_max_bytes=0) as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        await fence(broker.context, ORDERS)
        await unfence(broker.context, ORDERS)
        await broker.append(group(ORDERS, batch(b"b")))
        assert await compact_once(broker.context, ORDERS) is not None
        [answer] = await broker.fetch((ORDERS, 1))
        headers = walk(data_of(answer), "answer", rule=BatchRule.COMPACTED)
        assert headers.partition_leader_epoch.tolist() == [0, 0]
        assert headers.base_offset.tolist() == [1, 2]
        verify_crcs(data_of(answer), headers, "answer")


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_limits_count_whole_batches_and_the_first_is_returned_whatever_its_size(cache_bytes: int) -> None:
    logs = [Log("orders", 0), Log("orders", 1)]
    async with reader(tail_cache_max_bytes=cache_bytes) as broker:
        await broker.create("orders", 2, first_offset=1)
        for log in logs:
            await broker.append(group(log, *(batch(b"%d" % i * 100) for i in range(4))))
        size = len(batch(b"0" * 100))
        wanted = [(log, 1) for log in logs]
        assert sizes(await broker.fetch(*wanted, max_bytes=1)) == [size, 0]
        assert sizes(await broker.fetch(*wanted, partition_max_bytes=1)) == [size, 0]
        assert sizes(await broker.fetch(*wanted, partition_max_bytes=2 * size)) == [2 * size, 2 * size]
        assert sizes(await broker.fetch(*wanted, partition_max_bytes=3 * size - 1)) == [2 * size, 2 * size]
        assert sizes(await broker.fetch(*wanted, max_bytes=6 * size)) == [4 * size, 2 * size]
        assert sizes(await broker.fetch(*wanted, max_bytes=6 * size - 1)) == [4 * size, size]
        assert sizes(await broker.fetch(*wanted)) == [4 * size, 4 * size]
        [_, limited] = await broker.fetch(*wanted, max_bytes=1)
        assert (limited.error_code, limited.high_watermark) == (0, 5), "the end is known also where nothing fits"


async def test_reading_on_by_whole_batches_returns_every_record_once() -> None:
    async with reader() as broker:
        expected = [b"%03d" % i * (i % 7 + 1) for i in range(60)]
        for first in range(0, 60, 6):
            await broker.append(group(ORDERS, *(batch(*expected[i : i + 2]) for i in range(first, first + 6, 2))))
        for limit in (1, 200, 400, 1_000, 100_000):
            offset, found = 1, []
            while offset <= 60:
                [answer] = await broker.fetch((ORDERS, offset), partition_max_bytes=limit)
                found += rows(answer)
                offset = found[-1][0] + 1
            assert found == list(enumerate(expected, start=1))


# -- long polls --------------------------------------------------------------------------------------------------------


async def test_a_poll_at_the_end_is_woken_by_an_append() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        poll = asyncio.create_task(broker.fetch((ORDERS, 2), max_wait_ms=LONG_POLL_MS, min_bytes=1))
        await broker.waiting(1)
        await broker.append(group(ORDERS, batch(b"b")))
        [answer] = await poll
        assert rows(answer) == [(2, b"b")]
        assert answer.high_watermark == 3


async def test_a_poll_waits_for_min_bytes_and_returns_what_came_in_several_appends() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        size = len(batch(b"b"))
        poll = asyncio.create_task(broker.fetch((ORDERS, 2), max_wait_ms=LONG_POLL_MS, min_bytes=size + 1))
        await broker.waiting(1)
        await broker.append(group(ORDERS, batch(b"b")))
        await asyncio.sleep(0.01)
        assert not poll.done()
        await broker.append(group(ORDERS, batch(b"c")))
        [answer] = await poll
        assert rows(answer) == [(2, b"b"), (3, b"c")]


async def test_a_poll_ends_empty_after_max_wait() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        [answer] = await broker.fetch((ORDERS, 2), max_wait_ms=20, min_bytes=1)
        assert (answer.error_code, answer.high_watermark, answer.records) == (0, 2, b"")


async def test_an_error_of_one_partition_ends_the_poll_at_once() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        wanted = [(ORDERS, 2), (Log("orders", 9), 0)]
        waiting, failed = await broker.fetch(*wanted, max_wait_ms=LONG_POLL_MS, min_bytes=1)
        assert (waiting.error_code, failed.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        beyond, waiting = await broker.fetch((ORDERS, 7), (ORDERS, 2), max_wait_ms=LONG_POLL_MS, min_bytes=1)
        assert (beyond.error_code, waiting.error_code) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)


async def test_a_cancelled_poll_leaves_no_waiter() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        poll = asyncio.create_task(broker.fetch((ORDERS, 2), max_wait_ms=LONG_POLL_MS, min_bytes=1))
        await broker.waiting(1)
        poll.cancel()
        await broker.waiting(0)


# -- errors ------------------------------------------------------------------------------------------------------------


async def test_offsets_outside_the_log_are_answered_with_its_ends() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a"), batch(b"b")))
        await delete_records(broker.context, ORDERS, 2)
        broker.broker.log_changed(ORDERS)
        for offset in (-1, 0, 4, 2**63 - 1):
            [answer] = await broker.fetch((ORDERS, offset))
            assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert (answer.log_start_offset, answer.high_watermark, answer.records) == (2, 3, b"")


@pytest.mark.parametrize("version", [4, 12, 13, 18])
async def test_what_does_not_exist_is_unknown(version: int) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        wanted = [(Log("nothing", 0), 0), (Log("not/valid", 0), 0), (Log("orders", 1), 0), (Log("orders", -1), 0)]
        codes = [answer.error_code for answer in await broker.fetch(*wanted, version=version)]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
        assert codes == [unknown, unknown, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2]


async def test_a_partition_that_was_never_written_is_an_empty_log() -> None:
    async with reader() as broker:
        await broker.append(group(Log("orders", 3), batch(b"a")))
        [answer] = await broker.fetch((Log("orders", 1), 1))
        assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (0, 1, 1)


async def test_a_topic_of_the_kafka_api_begins_at_offset_zero() -> None:
    async with reader() as broker:
        await broker.create("orders")
        [empty] = await broker.fetch((ORDERS, 0))
        assert (empty.error_code, empty.high_watermark, empty.records) == (0, 0, b"")
        await broker.append(group(ORDERS, batch(b"a")))
        [answer] = await broker.fetch((ORDERS, 0))
        assert rows(answer) == [(0, b"a")]


async def test_a_topic_that_was_created_again_has_another_id() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"old")))
        request = await broker.fetch_answer((ORDERS, 1))
        old_id = request.responses[0].topic_id
        await delete_topic(broker.context, "orders")
        await broker.create("orders", first_offset=1)
        await broker.append(group(ORDERS, batch(b"new")))
        again = FetchRequest(topics=[(await broker._topic((ORDERS, 1), 18, {}))], max_bytes=1 << 20)
        assert again.topics[0].topic_id != old_id
        [answer] = await broker.fetch((ORDERS, 1))
        assert rows(answer) == [(1, b"new")]


async def test_records_of_a_later_incarnation_are_not_returned_for_the_old_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node still takes the old id for the topic: another node created it again a moment ago."""
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"old")))
        [known] = (await broker.services.topics.find(["orders"])).values()
        await delete_topic(broker.context, "orders")
        await broker.create("orders", first_offset=1)
        await broker.append(group(ORDERS, batch(b"new")))

        async def stale(ids: Iterable[bytes]) -> dict[bytes, KnownTopic | LlogError]:
            return dict.fromkeys(ids, known)

        monkeypatch.setattr(broker.services.topics, "find_by_id", stale)
        [answer] = await broker.fetch((ORDERS, 1))
        assert (answer.error_code, answer.records) == (ErrorCode.UNKNOWN_TOPIC_ID, b"")


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-2, ErrorCode.FENCED_LEADER_EPOCH)],
)
async def test_leader_epochs_other_than_zero_are_refused(epoch: int, code: int) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        [answer] = await broker.fetch((ORDERS, 1), current_leader_epoch=epoch)
        assert answer.error_code == code


async def test_sessions_are_declined_and_unknown_ones_not_found() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        for epoch in (0, -1):
            answer = await broker.fetch_answer((ORDERS, 1), session_epoch=epoch)
            assert (answer.error_code, answer.session_id, len(answer.responses)) == (0, 0, 1)
        answer = await broker.fetch_answer((ORDERS, 1), session_id=7, session_epoch=3)
        assert (answer.error_code, answer.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
        assert answer.responses == []


async def test_without_room_for_the_answer_no_records_are_sent_and_nothing_is_lost() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        held: list[int] = []

        def full(byte_length: int) -> bool:
            held.append(byte_length)
            return False

        [answer] = await broker.fetch((ORDERS, 1), hold=full)
        assert (answer.error_code, answer.high_watermark, answer.records) == (0, 2, b"")
        assert held == [len(batch(b"a"))] * 2
        [answer] = await broker.fetch((ORDERS, 1))
        assert rows(answer) == [(1, b"a")]


@pytest.mark.parametrize("version", [12, 18])
async def test_stores_that_fail_are_answered_with_a_code_that_consumers_try_again_after(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        topic = await broker._topic((ORDERS, 1), version, {"partition_max_bytes": 1})

        async def fail(*_: object, **__: object) -> None:
            raise MetadataUnavailable("get", "orders", "no answer")

        for forgotten in (False, True):  # the log cannot be read, or its topic
            with monkeypatch.context() as patched:
                for name in ("get", "get_many", "scan"):
                    patched.setattr(broker.context.metadata, name, fail)
                broker.broker.log_changed(ORDERS)
                if forgotten:
                    broker.services.topics.forget("orders")
                    broker.services.topics._names.clear()
                answer = await broker.ask(FetchRequest(topics=[topic]), version)
            assert answer.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_broker_that_stops_answers_its_consumers() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        await broker.fetch((ORDERS, 1))
        await broker.broker._consume.close()
        [answer] = await broker.fetch((ORDERS, 1))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR


# -- other nodes -------------------------------------------------------------------------------------------------------


async def test_a_client_of_another_zone_is_sent_to_the_node_of_its_zone() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        [answer] = await broker.fetch((ORDERS, 1), rack_id="b", max_wait_ms=LONG_POLL_MS, min_bytes=1 << 20)
        assert (answer.error_code, answer.preferred_read_replica, answer.records) == (0, 2, b"")
        for rack in ("", "a", "c"):
            [answer] = await broker.fetch((ORDERS, 1), rack_id=rack)
            assert (answer.preferred_read_replica, rows(answer)) == (-1, [(1, b"a")])


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_draining_node_names_the_new_leader(version: int) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        broker.drain_node()
        answer = await broker.fetch_answer((ORDERS, 1), version=version)
        [partition] = answer.responses[0].partitions
        assert (partition.error_code, partition.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (
            (2, 0) if version >= 12 else (-1, -1)
        )
        nodes = [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]
        assert nodes == ([(2, "two", 9093, "b")] if version >= 16 else [])
