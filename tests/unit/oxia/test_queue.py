"""How operations are checked, packed into requests, and settled."""

from __future__ import annotations

import asyncio
import random

import pytest

from llog.limits import METADATA_REQUEST_BYTES_MAX
from llog.stores.metadata.oxia.client.errors import InvalidRequest, OxiaRequestTooLarge, Unavailable, Uncertain
from llog.stores.metadata.oxia.client.ops import Op, OxiaDelete, OxiaPut, checked_sizes
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.queue import OXIA_QUEUED_OPS_MAX, OXIA_WRITE_OPS_MAX, Submission, WriteQueue
from tests.patience import PATIENCE_SECONDS


def submission(ops: list[Op], deadline: float = 1e12) -> Submission:
    return Submission(ops, checked_sizes(ops), asyncio.get_running_loop().create_future(), deadline)


def queue_of(*submissions: Submission) -> WriteQueue:
    queue = WriteQueue(3, "unit")
    for one in submissions:
        queue.append(one)
    return queue


def keys_of(request: pb.WriteRequest) -> list[str]:
    return [put.key for put in request.puts] + [delete.key for delete in request.deletes]


async def test_a_request_holds_no_more_operations_than_the_limit() -> None:
    ops: list[Op] = [OxiaPut(f"k{i}", b"v") for i in range(2 * OXIA_WRITE_OPS_MAX + 5)]
    queue = queue_of(submission(ops))
    sent: list[str] = []
    sizes = []
    while queue:
        request, flight = queue.pack()
        assert request.shard == 3
        assert flight.puts == len(request.puts)
        sizes.append(len(request.puts))
        sent += keys_of(request)
    assert sizes == [OXIA_WRITE_OPS_MAX, OXIA_WRITE_OPS_MAX, 5]
    assert sent == [op.key for op in ops]


async def test_a_request_never_exceeds_its_bytes_and_keeps_the_order() -> None:
    rng = random.Random(11)
    submissions = []
    for n in range(40):
        ops: list[Op] = []
        for i in range(rng.randint(1, 9)):
            key = rng.choice(["k", "é", "日", "😀"]) * rng.randint(1, 120) + f"/{n:03d}/{i}"
            if rng.random() < 0.2:
                ops.append(OxiaDelete(key, rng.choice([None, 2**62]), rng.choice([None, "route😀"])))
            else:
                value = bytes(rng.choice([1, 1_000, 300_000, 900_000]))
                ops.append(OxiaPut(key, value, rng.choice([None, -1, 2**62]), "route", rng.choice([None, 2**62])))
        submissions.append(submission(ops))
    queue = queue_of(*submissions)
    put_keys, delete_keys = [], []
    while queue:
        request, _ = queue.pack()
        assert request.ByteSize() <= METADATA_REQUEST_BYTES_MAX
        put_keys += [put.key for put in request.puts]
        delete_keys += [delete.key for delete in request.deletes]
    ops = [op for one in submissions for op in one.ops]
    assert put_keys == [op.key for op in ops if isinstance(op, OxiaPut)]
    assert delete_keys == [op.key for op in ops if isinstance(op, OxiaDelete)]


async def test_small_submissions_share_a_request() -> None:
    queue = queue_of(*(submission([OxiaPut(f"k{i}", b"v")]) for i in range(10)))
    request, flight = queue.pack()
    assert len(request.puts) == 10
    assert len(flight.parts) == 10
    assert not queue


async def test_fields_travel_as_given() -> None:
    queue = queue_of(
        submission([OxiaPut("a", b"1", -1, "r", 9), OxiaPut("b", b"2"), OxiaDelete("c", 5, "r"), OxiaDelete("d")])
    )
    request, flight = queue.pack()
    first, second = request.puts
    assert (first.key, first.value, first.expected_version_id) == ("a", b"1", -1)
    assert (first.partition_key, first.session_id, first.client_identity) == ("r", 9, flight.tag)
    optional = ("expected_version_id", "session_id", "client_identity", "partition_key")
    assert not any(second.HasField(name) for name in optional)
    assert (request.deletes[0].expected_version_id, request.deletes[0].partition_key) == (5, "r")
    assert not request.deletes[1].HasField("expected_version_id")


async def test_what_its_caller_gave_up_before_it_was_sent_is_never_sent() -> None:
    gone, kept = submission([OxiaPut("gone", b"v")]), submission([OxiaPut("kept", b"v")])
    queue = queue_of(gone, kept)
    gone.done.cancel()
    request, _ = queue.pack()
    assert keys_of(request) == ["kept"]


async def test_expired_operations_fail_as_unavailable_and_the_rest_stay() -> None:
    old, young = submission([OxiaPut("old", b"v")] * 3, deadline=5), submission([OxiaPut("young", b"v")], deadline=50)
    queue = queue_of(old, young)
    queue.expire(10)
    assert [type(outcome) for outcome in old.outcomes] == [Unavailable] * 3
    assert old.done.done()
    assert not young.done.done()
    assert keys_of(queue.pack()[0]) == ["young"]


async def test_requeued_requests_come_first_in_their_order_and_answer_their_callers() -> None:
    ops: list[Op] = [OxiaPut(f"k{i}", b"v") for i in range(OXIA_WRITE_OPS_MAX + 2)]
    one, two = submission(ops), submission([OxiaPut("later", b"v")])
    queue = queue_of(one, two)
    flights = [queue.pack()[1]]
    queue.requeue(flights)
    sent: list[str] = []
    while queue:
        request, flight = queue.pack()
        sent += keys_of(request)
        flight.fail(Uncertain("lost"))
    await asyncio.sleep(0)
    assert sent == [*(op.key for op in ops), "later"]
    assert one.done.done()
    assert two.done.done()
    assert all(isinstance(outcome, Uncertain) for outcome in one.outcomes)


async def test_a_full_queue_makes_callers_wait_until_their_deadline() -> None:
    loop = asyncio.get_running_loop()
    queue = queue_of(submission([OxiaDelete("k")] * OXIA_QUEUED_OPS_MAX))
    with pytest.raises(Unavailable):
        await queue.room(loop.time() + 0.02)
    waiting = asyncio.create_task(queue.room(loop.time() + 3_600))
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.pack()
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "op",
    [
        OxiaPut("", b"v"),
        OxiaDelete(""),
        OxiaPut("__oxia/session", b"v"),
        OxiaDelete("__oxia/x"),
        OxiaPut("__oxia", b"v"),
        OxiaPut("k", b""),
        OxiaPut("a\ud800", b"v"),
        OxiaPut("k", b"v", None, "a\ud800"),
    ],
    ids=repr,
)
def test_what_would_harm_a_shard_is_refused(op: Op) -> None:
    with pytest.raises(InvalidRequest):
        checked_sizes([OxiaPut("fine", b"v"), op])


def test_an_operation_larger_than_a_request_is_refused() -> None:
    with pytest.raises(OxiaRequestTooLarge):
        checked_sizes([OxiaPut("k", bytes(METADATA_REQUEST_BYTES_MAX))])
    assert checked_sizes([OxiaPut("é" * 10, b"v", None, "日"), OxiaDelete("k")]) == [64 + 40 + 4 + 1, 64 + 4]
