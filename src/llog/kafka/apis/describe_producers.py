"""DescribeProducers, API key 61, version 0: the idempotent producers that partitions know.

A partition knows the producers that wrote last, LOG_PRODUCERS_MAX at most, whichever node they wrote to; any node
answers for any partition. The timestamp of a producer is the time of its last append. Left out: transactions, so no
producer has an open one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from llog.concurrency import gather_bounded
from llog.errors import InvalidArgument, LlogError, PartitionNotInitialized
from llog.formats.values import ProducerState as KnownState
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import unauthorized
from llog.kafka.codec.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from llog.kafka.error_codes import ErrorCode, Refusal, code_of
from llog.log.keys import Log, check_topic
from llog.log.producer_state import read_producers
from llog.log.topics.known_topics import KnownTopic
from llog.security.acl import ResourceType

# Partitions of one request that are read at the same time.
DESCRIBE_PRODUCERS_AT_ONCE: Final = 8
# Producers in one answer, of about 40 bytes each; partitions that find no room are refused.
DESCRIBE_PRODUCERS_MAX: Final = 100_000

_NO_SEQUENCE: Final = -1
_NO_COORDINATOR_EPOCH: Final = -1


async def handle(call: Call) -> DescribeProducersResponse:
    request: DescribeProducersRequest = call.request
    known = await _topics(call, [topic.name for topic in request.topics])
    room = _Room(DESCRIBE_PRODUCERS_MAX)

    async def describe(wanted: tuple[str, int]) -> PartitionResponse:
        name, index = wanted
        return await _describe(call, known[name], Log(name, index), room)

    wanted = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    described = iter(await gather_bounded(wanted, describe, limit=DESCRIBE_PRODUCERS_AT_ONCE))
    return DescribeProducersResponse(
        topics=[
            TopicResponse(topic.name, list(islice(described, len(topic.partition_indexes)))) for topic in request.topics
        ]
    )


async def _topics(call: Call, names: Sequence[str]) -> dict[str, KnownTopic | LlogError]:
    denied = call.denied(ResourceType.TOPIC, names)
    found: dict[str, KnownTopic | LlogError] = dict.fromkeys(denied, unauthorized(ResourceType.TOPIC))
    for name in names:
        if name in found:
            continue
        try:
            check_topic(name)
        except InvalidArgument as error:
            found[name] = Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error))
    return found | await call.services.topics.find(dict.fromkeys(name for name in names if name not in found))


class _Room:
    """How many producers the answer may still hold."""

    def __init__(self, producers_max: int) -> None:
        self._left = producers_max

    def take(self, count: int) -> bool:
        fits = count <= self._left
        self._left -= count if fits else 0
        return fits


async def _describe(call: Call, topic: KnownTopic | LlogError, log: Log, room: _Room) -> PartitionResponse:
    index = log.partition
    if isinstance(topic, LlogError):
        return PartitionResponse(index, code_of(topic), str(topic))
    if not 0 <= index < topic.partition_count:
        reason = f"the topic has {topic.partition_count} partitions"
        return PartitionResponse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
    try:
        states = await read_producers(call.services.broker.context, log)
    except PartitionNotInitialized:
        states = []  # nothing was written yet
    except LlogError as error:
        return PartitionResponse(index, code_of(error), str(error))
    if not room.take(len(states)):
        reason = f"more than {DESCRIBE_PRODUCERS_MAX} producers in one answer: ask for fewer partitions"
        return PartitionResponse(index, ErrorCode.POLICY_VIOLATION, reason)
    return PartitionResponse(index, active_producers=list(map(_producer, states)))


def _producer(state: KnownState) -> ProducerState:
    return ProducerState(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.batches[-1].last_sequence if state.batches else _NO_SEQUENCE,
        last_timestamp=state.updated_at_ms,
        coordinator_epoch=_NO_COORDINATOR_EPOCH,
    )


HANDLER: Final = Handler(
    key=61,
    handle=handle,
    left_out=f"Open transactions. An answer has at most {DESCRIBE_PRODUCERS_MAX:,} producers.",
)
