"""OffsetForLeaderEpoch, key 23: where a leader epoch ends in a partition's log.

Versions 2 to 4. 3 added the replica id, 4 is flexible. A consumer asks with the epoch of its last record after it
learned of a new leader, to see whether the log was truncated. Here logs are never truncated and every record has leader
epoch 0, so epoch 0 ends where the log ends. A higher epoch is not known: the answer has no epoch and no offset.
"""

from __future__ import annotations

from typing import Final

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.reading import find_topics, in_turns, partition_error, read_views
from llog.log.keys import Log
from llog.log.read.slices import LEADER_EPOCH
from llog.log.read.view import LogView
from llog.log.topics.known_topics import KnownTopic


async def handle(call: Call) -> OffsetForLeaderEpochResponse:
    request: OffsetForLeaderEpochRequest = call.request
    found = await find_topics(call, [topic.topic for topic in request.topics])
    rows: list[EpochEndOffset | None] = []
    wanted: list[tuple[KnownTopic, Log]] = []
    for asked in request.topics:
        topic = found[asked.topic]
        async for some in in_turns(asked.partitions):
            for one in some:
                error = partition_error(topic, one.partition, one.current_leader_epoch)
                if error is not ErrorCode.NONE:
                    rows.append(EpochEndOffset(error, one.partition))
                elif one.leader_epoch != LEADER_EPOCH:
                    rows.append(EpochEndOffset(partition=one.partition))
                else:
                    assert isinstance(topic, KnownTopic)
                    wanted.append((topic, Log(topic.name, one.partition)))
                    rows.append(None)
    views = iter(zip(wanted, await read_views(call.services, wanted), strict=True) if wanted else ())
    answers = iter([_answer(*next(views)) if row is None else row for row in rows])
    return OffsetForLeaderEpochResponse(
        topics=[OffsetForLeaderTopicResult(t.topic, [next(answers) for _ in t.partitions]) for t in request.topics]
    )


def _answer(wanted: tuple[KnownTopic, Log], seen: LogView | LlogError) -> EpochEndOffset:
    _, log = wanted
    if isinstance(seen, LlogError):
        return EpochEndOffset(code_of(seen), log.partition)
    return EpochEndOffset(ErrorCode.NONE, log.partition, LEADER_EPOCH, seen.next_offset)


HANDLER: Final = Handler(key=23, handle=handle, added={3: "the replica id (ignored)"})
