"""The Produce handler: answers, order, and what it never does."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator

import pytest

from llog.broker.cluster import Node
from llog.errors import RequestRefused
from llog.kafka.apis.handler import Call, Client
from llog.kafka.apis.produce import HANDLER
from llog.kafka.codec import decode, encode
from llog.kafka.codec.codec import encode_bytes
from llog.kafka.codec.messages.produce import ProduceRequest, ProduceResponse
from llog.kafka.error_codes import ErrorCode
from llog.log.keys import Log
from llog.log.topics.admin import add_partitions
from llog.log.topics.delete import delete_topic
from tests.unit.kafka.producing import BY_NAME, LATEST, Producing, batch, producing, request


@pytest.fixture
async def kafka() -> AsyncIterator[Producing]:
    async with producing() as made:
        yield made


async def test_records_are_appended_and_answered_with_their_offsets(kafka: Producing) -> None:
    await kafka.topic()
    first, second = await kafka.ask_one(batch(b"a", b"b")), await kafka.ask_one(batch(b"c"))
    assert [(p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset) for p in (first, second)] == [
        (0, 0, -1, 0),
        (0, 2, -1, 0),
    ]
    assert await kafka.contents() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", range(3, 14))
async def test_every_version_is_served_from_bytes_to_bytes(kafka: Producing, version: int) -> None:
    topic_id = await kafka.topic()
    asked = request((topic_id if version >= LATEST else "orders", 0, batch(b"v")))
    message = decode(ProduceRequest, version, memoryview(bytearray(encode_bytes(asked, version))))
    answer = await kafka.ask(message, version)
    read = decode(ProduceResponse, version, b"".join(encode(answer, version)))
    assert (read.responses[0].partition_responses[0].error_code, await kafka.contents()) == (0, [b"v"])


async def test_a_known_topic_is_submitted_before_the_handler_returns(kafka: Producing) -> None:
    await kafka.topic()
    await kafka.ask_one(batch(b"known"))
    accepted = kafka.broker._producer.accepted_bytes  # type: ignore[union-attr]
    answer = kafka.send(request(("orders", 0, batch(b"a"))))
    assert kafka.broker._producer.accepted_bytes > accepted  # type: ignore[union-attr]
    await answer


async def test_the_time_of_each_stage_is_known_for_the_line_of_the_request(kafka: Producing) -> None:
    await kafka.topic()
    call = Call(kafka.services, kafka.client, 0, BY_NAME, "test", request(("orders", 0, batch(b"a"))))
    answer = HANDLER.handle(call)
    assert call.timings is None
    await answer  # type: ignore[misc]
    assert call.timings is not None
    assert sum(call.timings) > 0


async def test_a_missing_topic_is_not_created(kafka: Producing) -> None:
    refused = await kafka.ask_one(batch(b"a"))
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await kafka.ask_one(batch(b"a"), LATEST, bytes(range(16)))).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert await kafka.broker.topics.all() == []


async def test_a_partition_that_the_topic_lacks_is_refused_and_others_are_appended(kafka: Producing) -> None:
    await kafka.topic(partitions=2)
    answer = await kafka.ask(
        request(("orders", 2, batch(b"a")), ("orders", 1, batch(b"b")), ("orders", -1, batch(b"c")))
    )
    codes = [topic.partition_responses[0].error_code for topic in answer.responses]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (await kafka.contents(partition=1), (await kafka.broker.topics.all())[0].partition_count) == ([b"b"], 2)


async def test_partitions_that_another_broker_added_are_found(kafka: Producing) -> None:
    await kafka.topic()
    await kafka.ask_one(batch(b"a"))
    await add_partitions(kafka.broker.context, "orders", 3)
    answer = await kafka.ask(request(("orders", 2, batch(b"b"))))
    assert answer.responses[0].partition_responses[0].error_code == 0


async def test_an_invalid_topic_name_is_refused_as_such(kafka: Producing) -> None:
    assert (await kafka.ask_one(batch(b"a"), topic="no/name")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_partition_that_is_named_twice_is_refused_and_nothing_of_it_is_appended(kafka: Producing) -> None:
    await kafka.topic(partitions=2)
    asked = request(("orders", 0, batch(b"a")), ("orders", 1, batch(b"b")), ("orders", 0, batch(b"c")))
    answer = await kafka.ask(asked)
    codes = [topic.partition_responses[0].error_code for topic in answer.responses]
    assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
    assert (await kafka.contents(), await kafka.contents(partition=1)) == ([], [b"b"])


async def test_unknown_acks_refuse_every_partition(kafka: Producing) -> None:
    await kafka.topic()
    answer = await kafka.ask(request(("orders", 0, batch(b"a")), acks=2))
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert await kafka.contents() == []


async def test_a_request_without_acknowledgement_is_appended_and_not_answered(kafka: Producing) -> None:
    await kafka.topic()
    assert kafka.send(request(("orders", 0, batch(b"a")), acks=0)) is None
    await kafka.broker._producer.flush()  # type: ignore[union-attr]
    assert await kafka.contents() == [b"a"]


async def test_a_request_without_acknowledgement_of_an_unknown_topic_closes_the_connection(kafka: Producing) -> None:
    with pytest.raises(RequestRefused, match="no such topic"):
        await kafka.send(request(("orders", 0, batch(b"a")), acks=0))
    await kafka.topic()
    with pytest.raises(RequestRefused, match="checksum"):
        kafka.send(request(("orders", 0, batch(b"a")[:-1] + b"x"), acks=0))


async def test_an_append_beyond_its_timeout_is_answered_and_still_happens(kafka: Producing) -> None:
    await kafka.topic()
    await kafka.ask_one(batch(b"known"))
    kafka.broker._producer._pacing = kafka.broker._producer._pacing._replace(max_delay_ms=1e6, gather_ms=1e6)  # type: ignore[union-attr]
    answer = await kafka.ask(request(("orders", 0, batch(b"a")), timeout_ms=1))
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    await kafka.broker._producer.flush()  # type: ignore[union-attr]
    assert await kafka.contents() == [b"known", b"a"]


# -- order -------------------------------------------------------------------------------------------------------------


async def test_requests_of_one_connection_are_appended_in_order_though_the_first_needs_a_look_up(
    kafka: Producing,
) -> None:
    await kafka.topic("fresh")
    await kafka.topic()
    kafka.broker.topics.forget("orders")
    first = kafka.send(request(("orders", 0, batch(b"1")), ("fresh", 0, batch(b"1"))))
    others = [kafka.send(request(("fresh", 0, batch(b"%d" % number)))) for number in range(2, 20)]
    await asyncio.gather(first, *others)
    assert await kafka.contents("fresh") == [b"%d" % number for number in range(1, 20)]


async def test_a_request_whose_look_up_fails_lets_the_next_ones_go_on(kafka: Producing) -> None:
    await kafka.topic()
    answers = [kafka.send(request((name, 0, batch(b"a")))) for name in ("missing", "orders", "orders")]
    codes = [(await answer).responses[0].partition_responses[0].error_code for answer in answers]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, 0]


async def test_connections_do_not_wait_for_each_other(kafka: Producing) -> None:
    await kafka.topic()
    slow, other = kafka.send(request(("missing", 0, batch(b"a")))), Client("127.0.0.1", 2, "")
    answer = kafka.send(request(("orders", 0, batch(b"b"))), client=other)
    assert isinstance(answer, asyncio.Future)
    assert not isinstance(answer, asyncio.Task)
    await asyncio.gather(slow, answer)


async def test_a_lost_connection_does_not_cancel_its_append(kafka: Producing) -> None:
    await kafka.topic()
    kafka.broker.topics.forget("orders")
    waiting = kafka.send(request(("orders", 0, batch(b"a"))))
    assert inspect.isawaitable(waiting)
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    task.cancel()
    await kafka.ask_one(batch(b"b"))
    assert await kafka.contents() == [b"a", b"b"]


async def test_records_too_many_to_check_on_the_event_loop_keep_their_place(
    kafka: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llog.kafka.apis.produce.CHECKED_INLINE_BYTES_MAX", 1_000)
    await kafka.topic()
    await kafka.ask_one(batch(b"0"))
    payloads = [b"1" * 2_000, b"2", b"3" * 2_000, b"4"]
    await asyncio.gather(*(kafka.send(request(("orders", 0, batch(payload)))) for payload in payloads))
    assert await kafka.contents() == [b"0", *payloads]


# -- producers ---------------------------------------------------------------------------------------------------------


async def test_a_repeated_batch_is_answered_with_its_first_offset(kafka: Producing) -> None:
    await kafka.topic()
    numbered = [batch(b"%d" % n, producer_id=5, producer_epoch=0, base_sequence=n) for n in range(3)]
    answers = [await kafka.ask_one(bytearray(data)) for data in (*numbered, numbered[1])]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 1), (0, 2), (0, 1)]
    gap = await kafka.ask_one(batch(b"x", producer_id=5, producer_epoch=0, base_sequence=9))
    assert (gap.error_code, gap.base_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await kafka.contents() == [b"0", b"1", b"2"]


# -- incarnations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"),
    [(BY_NAME, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (LATEST, ErrorCode.UNKNOWN_TOPIC_ID)],
)
@pytest.mark.parametrize("known", [True, False], ids=["log known", "log not known"])
async def test_records_for_a_topic_that_was_created_again_are_refused(
    kafka: Producing, version: int, code: ErrorCode, known: bool
) -> None:
    """The broker still takes the earlier incarnation for current."""
    old_id = await kafka.topic()
    if known:
        await kafka.ask_one(batch(b"old"))
    context = kafka.broker.context
    await delete_topic(context, "orders")
    from llog.log.topics.admin import create_topic

    await create_topic(context, "orders", first_offset=0)
    topic = old_id if version >= LATEST else "orders"
    assert (await kafka.ask_one(batch(b"lost"), version, topic)).error_code == code
    assert await kafka.contents() == []
    again = await kafka.ask_one(batch(b"new"), version, topic)
    assert again.error_code == (code if version >= LATEST else 0)


async def test_records_for_a_deleted_topic_do_not_create_it_again(kafka: Producing) -> None:
    topic_id = await kafka.topic()
    await kafka.ask_one(batch(b"old"))
    await delete_topic(kafka.broker.context, "orders")
    assert (await kafka.ask_one(batch(b"a"), LATEST, topic_id)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert (await kafka.ask_one(batch(b"a"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await kafka.broker.topics.all() == []


async def test_the_next_request_after_a_new_incarnation_is_known_uses_it(kafka: Producing) -> None:
    """The log's control record is remembered from the earlier incarnation: it counts as stale."""
    await kafka.topic()
    await kafka.ask_one(batch(b"old"))
    await delete_topic(kafka.broker.context, "orders")
    await kafka.topic()
    assert (await kafka.ask_one(batch(b"new"))).error_code == 0
    assert await kafka.contents() == [b"new"]
    assert kafka.broker.log_start_offset(Log("orders", 0)) == 0


# -- other nodes -------------------------------------------------------------------------------------------------------


async def test_a_draining_node_takes_nothing_and_names_the_node_to_use(kafka: Producing) -> None:
    topic_id = await kafka.topic()
    cluster = kafka.services.cluster
    cluster.set_own(cluster.own._replace(draining=True))
    cluster.set_others([Node(7, "other", 9_193, zone="eu-1a")])
    answer = await kafka.ask(request((topic_id, 0, batch(b"a"))), LATEST)
    [partition] = answer.responses[0].partition_responses
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (7, 0)
    assert [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints] == [
        (7, "other", 9_193, "eu-1a")
    ]
    old = await kafka.ask(request(("orders", 0, batch(b"a"))), 9)
    assert encode(old, 9)
    with pytest.raises(RequestRefused):
        kafka.send(request(("orders", 0, batch(b"a")), acks=0))
    assert await kafka.contents() == []


async def test_the_frame_is_no_longer_counted_when_its_records_are(kafka: Producing) -> None:
    await kafka.topic()
    await kafka.ask_one(batch(b"known"))
    used: list[int] = []
    call = Call(kafka.services, kafka.client, 0, BY_NAME, "test", request(("orders", 0, batch(b"a"))))
    call.release_frame = lambda: used.append(kafka.broker.pool.used)
    answer = HANDLER.handle(call)
    assert (used, kafka.broker.pool.used > 0) == ([0], True)
    assert inspect.isawaitable(answer)
    await answer
