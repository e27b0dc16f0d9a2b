"""InitProducerId, API key 22, versions 0 to 5: an id for an idempotent producer.

- v2 is flexible.
- v3 lets a producer name the id and epoch that it has (KIP-360).
- v4 adds PRODUCER_FENCED, v5 TRANSACTION_ABORTABLE; neither is answered here.

As in Kafka, a producer without a transactional id always gets a new id with epoch 0, also when it names the one it has:
such a producer raises its epoch by itself. Left out: transactions. A transactional id is answered with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, because librdkafka repeats a request that got another error for ever.
"""

from __future__ import annotations

from typing import Final

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from llog.kafka.error_codes import ErrorCode, code_of
from llog.security.acl import Operation, ResourceType

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1


async def handle(call: Call) -> InitProducerIdResponse:
    request: InitProducerIdRequest = call.request
    refusal = _refusal_of(request) or _unauthorized(call)
    if refusal is not None:
        return InitProducerIdResponse(error_code=refusal, producer_epoch=NO_EPOCH)
    try:
        producer_id = await call.services.broker.producer_ids.next()
    except LlogError as error:
        return InitProducerIdResponse(error_code=code_of(error), producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refusal_of(request: InitProducerIdRequest) -> ErrorCode | None:
    if request.transactional_id == "":
        return ErrorCode.INVALID_REQUEST
    if request.transactional_id is not None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return ErrorCode.INVALID_REQUEST
    return None


def _unauthorized(call: Call) -> ErrorCode | None:
    """Without transactions, a producer that may write to some topic may have an id (KIP-679)."""
    if call.sees_any(ResourceType.TOPIC, Operation.WRITE):
        return None
    return cluster_refusal(call) or None


HANDLER: Final = Handler(
    key=22,
    handle=handle,
    added={3: "id and epoch that the producer has", 4: "PRODUCER_FENCED", 5: "TRANSACTION_ABORTABLE"},
    left_out="Transactions: a transactional id is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED.",
)
