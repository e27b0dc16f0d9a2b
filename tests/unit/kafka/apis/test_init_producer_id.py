from __future__ import annotations

import asyncio

import pytest

from llog.errors import MetadataUnavailable
from llog.kafka.codec.messages.init_producer_id import InitProducerIdRequest
from llog.kafka.error_codes import ErrorCode
from llog.log.producer_ids import PRODUCER_ID_FIRST
from tests.unit.kafka.apis.calling import caller

LATEST = 5


@pytest.mark.parametrize("version", range(LATEST + 1))
async def test_every_producer_gets_an_id_of_its_own_and_epoch_0(version: int) -> None:
    async with caller() as kafka:
        answers = await asyncio.gather(*(kafka.ask(InitProducerIdRequest(None, 1_000), version) for _ in range(20)))
    assert {answer.error_code for answer in answers} == {0}
    assert {answer.producer_id for answer in answers} == set(range(PRODUCER_ID_FIRST, PRODUCER_ID_FIRST + 20))
    assert {answer.producer_epoch for answer in answers} == {0}


async def test_a_producer_that_names_its_id_gets_another_one() -> None:
    async with caller() as kafka:
        first = await kafka.ask(InitProducerIdRequest(None), LATEST)
        again = await kafka.ask(InitProducerIdRequest(None, 0, first.producer_id, 4), LATEST)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, first.producer_id + 1, 0)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (InitProducerIdRequest("pay"), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (InitProducerIdRequest(""), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest(None, 0, 7, -1), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest(None, 0, -1, 7), ErrorCode.INVALID_REQUEST),
    ],
    ids=["transactional", "empty transactional id", "id without epoch", "epoch without id"],
)
async def test_what_cannot_be_served_is_refused_and_takes_no_id(request_: InitProducerIdRequest, code: int) -> None:
    async with caller() as kafka:
        refused = await kafka.ask(request_, LATEST)
        assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (code, -1, -1)
        assert (await kafka.ask(InitProducerIdRequest(None), LATEST)).producer_id == PRODUCER_ID_FIRST


async def test_a_store_that_does_not_answer_is_an_error_that_clients_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    async with caller() as kafka:

        async def unavailable() -> int:
            raise MetadataUnavailable("take producer ids", "key", "no leader")

        monkeypatch.setattr(kafka.broker.producer_ids, "next", unavailable)
        answer = await kafka.ask(InitProducerIdRequest(None), LATEST)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.REQUEST_TIMED_OUT, -1)
