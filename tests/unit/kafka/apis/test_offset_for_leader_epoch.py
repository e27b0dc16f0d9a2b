"""OffsetForLeaderEpoch: there is one leader epoch, and it ends where the log ends."""

from __future__ import annotations

import pytest

from llog.kafka.apis.offset_for_leader_epoch import HANDLER
from llog.kafka.codec.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from llog.kafka.error_codes import ErrorCode
from llog.log.fence import fence
from llog.log.keys import Log
from tests.unit.kafka.apis.fetching import ORDERS, Reader, batch, group, reader

VERSIONS = range(HANDLER.served.first, HANDLER.served.last + 1)


async def ask(broker: Reader, epoch: int, *, log: Log = ORDERS, current: int = -1, version: int = 4) -> EpochEndOffset:
    partition = OffsetForLeaderPartition(log.partition, current, epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(log.topic, [partition])])
    answer = await broker.ask(request, version)
    [topic] = answer.topics
    [found] = topic.partitions
    assert (topic.topic, found.partition) == log
    assert isinstance(found, EpochEndOffset)
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_epoch_zero_ends_where_the_log_ends(version: int) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a", b"b")))
        await fence(broker.context, ORDERS)
        answer = await ask(broker, 0, current=0, version=version)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0, 3)


@pytest.mark.parametrize("epoch", [-1, 1, 2**31 - 1])
async def test_other_epochs_have_no_end(epoch: int) -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        answer = await ask(broker, epoch)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1)


async def test_partitions_that_are_missing_or_led_otherwise_have_their_error() -> None:
    async with reader() as broker:
        await broker.append(group(ORDERS, batch(b"a")))
        for log, current, code in (
            (Log("nothing", 0), -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (Log("orders", 1), -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (ORDERS, 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (ORDERS, -2, ErrorCode.FENCED_LEADER_EPOCH),
        ):
            answer = await ask(broker, 0, log=log, current=current)
            assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (code, -1, -1)
