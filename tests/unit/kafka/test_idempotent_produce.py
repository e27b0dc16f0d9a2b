"""Idempotent producers through the handlers: what each order of batches is answered with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from llog.kafka.error_codes import ErrorCode
from llog.log.keys import Log
from llog.log.producers import ProducerClaim, with_batch
from llog.log.topics.delete import delete_topic
from tests.unit.kafka.producing import Producing, batch, producing

OK = ErrorCode.NONE
EARLY = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Sent(NamedTuple):
    """A batch of two records."""

    sequence: int
    epoch: int = 0


@pytest.fixture
async def kafka() -> AsyncIterator[Producing]:
    async with producing() as made:
        await made.topic()
        yield made


async def answers(kafka: Producing, *batches: Sent) -> list[tuple[int, int]]:
    """Error code and base offset of each, one after the other."""
    found = []
    for sequence, epoch in batches:
        values = (b"%d" % sequence, b"%d" % (sequence + 1))
        numbered = batch(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        answer = await kafka.ask_one(numbered)
        found.append((answer.error_code, answer.base_offset))
    return found


async def test_the_second_batch_before_the_first_is_refused_and_lands_when_it_is_sent_again(kafka: Producing) -> None:
    sent = (Sent(2), Sent(0), Sent(2), Sent(2))
    assert await answers(kafka, *sent) == [(EARLY, -1), (OK, 0), (OK, 2), (OK, 2)]
    assert await kafka.contents() == [b"0", b"1", b"2", b"3"]


async def test_repeats_of_the_last_five_get_their_offsets_and_older_ones_are_duplicates(kafka: Producing) -> None:
    await answers(kafka, *(Sent(2 * n) for n in range(6)))
    repeated = await answers(kafka, *(Sent(2 * n) for n in range(6)))
    assert repeated == [(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1), *((OK, 2 * n) for n in range(1, 6))]


async def test_a_newer_epoch_begins_at_0_and_ends_the_older_one(kafka: Producing) -> None:
    sent = (Sent(0), Sent(2, epoch=1), Sent(0, epoch=1), Sent(2))
    assert await answers(kafka, *sent) == [(OK, 0), (EARLY, -1), (OK, 2), (ErrorCode.INVALID_PRODUCER_EPOCH, -1)]


async def test_sequences_go_on_at_0_after_the_last_one(kafka: Producing) -> None:
    last = 2**31 - 1
    await answers(kafka, Sent(0))
    # As if the producer had sent all numbers but the last two in one batch.
    known = kafka.broker._appender.committer.known[Log("orders", 0)]
    known.producers.states[7] = with_batch(None, ProducerClaim(7, 0, 0, last - 2).at(0), 0)
    assert await answers(kafka, Sent(last - 1), Sent(1), Sent(0)) == [(OK, 2), (EARLY, -1), (OK, 4)]


async def test_a_topic_that_is_created_again_asks_its_producers_to_begin_again(kafka: Producing) -> None:
    await answers(kafka, Sent(0), Sent(2))
    await delete_topic(kafka.broker.context, "orders")
    await kafka.topic()
    assert await answers(kafka, Sent(4), Sent(0, epoch=1)) == [(ErrorCode.UNKNOWN_PRODUCER_ID, -1), (OK, 0)]
