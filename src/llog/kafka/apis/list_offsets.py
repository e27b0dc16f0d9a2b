"""ListOffsets, key 2: offsets of partitions by timestamp, or at their ends.

Versions 1 to 11. 2 added the isolation level and throttling, 4 leader epochs, 7 the offset with the largest timestamp
(-3), 8 the earliest offset in local storage (-4), 9 the last offset in tiered storage (-5), 10 a timeout and 11 the
earliest offset that is not in tiered storage yet (-6).

Segments are the tiered storage: -5 is the offset before the compaction cursor, -6 the cursor. Everything is readable
alike, so -4 is the earliest offset. There are no transactions yet: the latest offset is the same at both isolation
levels.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, NamedTuple

from llog.concurrency import gather_bounded
from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.reading import Found, find_topics, in_turns, partition_error, read_views
from llog.log.keys import Log
from llog.log.read.slices import LEADER_EPOCH
from llog.log.read.timestamps import OffsetAndTimestamp, max_timestamp, offset_for_timestamp
from llog.log.read.view import LogView
from llog.log.topics.known_topics import KnownTopic

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_FIRST_VERSION: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
UNKNOWN: Final = -1
LEADER_EPOCH_VERSION: Final = 4

# Searches by timestamp of one request at the same time, and how long they may take, unless the request allows less.
LIST_OFFSETS_SEARCHES_IN_FLIGHT_MAX: Final = 8
LIST_OFFSETS_TIMEOUT_MS: Final = 30_000


class _Wanted(NamedTuple):
    topic: KnownTopic
    log: Log
    timestamp: int


_Row = ListOffsetsPartitionResponse | _Wanted
_Answer = OffsetAndTimestamp | ErrorCode


async def handle(call: Call) -> ListOffsetsResponse:
    request: ListOffsetsRequest = call.request
    found = await find_topics(call, [topic.name for topic in request.topics])
    named = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
    rows: list[_Row] = []
    for topic in request.topics:
        async for some in in_turns(topic.partitions):
            rows += [_plan(call, found[topic.name], one, named[topic.name, one.partition_index]) for one in some]
    wanted = [row for row in rows if isinstance(row, _Wanted)]
    answers = iter(await _answer(call, wanted))
    listed = iter([next(answers) if isinstance(row, _Wanted) else row for row in rows])
    topics = [ListOffsetsTopicResponse(t.name, [next(listed) for _ in t.partitions]) for t in request.topics]
    return ListOffsetsResponse(topics=topics)


def _plan(call: Call, topic: Found, wanted: ListOffsetsPartition, times: int) -> _Row:
    partition, timestamp = wanted.partition_index, wanted.timestamp
    error = partition_error(topic, partition, wanted.current_leader_epoch)
    if times > 1:
        error = ErrorCode.INVALID_REQUEST
    elif timestamp < 0 and call.version < _FIRST_VERSION.get(timestamp, call.version + 1):
        error = ErrorCode.UNSUPPORTED_VERSION
    if error is not ErrorCode.NONE:
        return ListOffsetsPartitionResponse(partition, error)
    assert isinstance(topic, KnownTopic)
    return _Wanted(topic, Log(topic.name, partition), timestamp)


async def _answer(call: Call, wanted: list[_Wanted]) -> list[ListOffsetsPartitionResponse]:
    """The answers in order. The ends of all logs take one strict read; timestamps are searched for, log by log."""
    views = await read_views(call.services, [(one.topic, one.log) for one in wanted])
    answers = [_end(one.timestamp, seen) for one, seen in zip(wanted, views, strict=True)]
    searched = [n for n, answer in enumerate(answers) if answer is None]
    if searched:
        search = _Search(call)
        found = await gather_bounded(
            [wanted[n] for n in searched], search.run, limit=LIST_OFFSETS_SEARCHES_IN_FLIGHT_MAX
        )
        for n, answer in zip(searched, found, strict=True):
            answers[n] = answer
    return [_response(call, one.log.partition, answer) for one, answer in zip(wanted, answers, strict=True)]


def _end(timestamp: int, seen: LogView | LlogError) -> _Answer | None:
    """The answer that the log's view gives; None: records must be searched."""
    if isinstance(seen, LlogError):
        return code_of(seen)
    if timestamp >= 0 or timestamp == MAX_TIMESTAMP:
        return None
    offset = {
        LATEST: seen.next_offset,
        EARLIEST: seen.log_start_offset,
        EARLIEST_LOCAL: seen.log_start_offset,
        LATEST_TIERED: seen.cursor - 1 if seen.cursor > seen.log_start_offset else UNKNOWN,
        EARLIEST_PENDING_UPLOAD: max(seen.cursor, seen.log_start_offset),
    }[timestamp]
    return OffsetAndTimestamp(offset, UNKNOWN)


class _Search:
    """Searches for timestamps, with one deadline for all of a request."""

    def __init__(self, call: Call) -> None:
        self._context = call.services.broker.context
        timeout_ms = call.request.timeout_ms
        timeout_ms = min(timeout_ms, LIST_OFFSETS_TIMEOUT_MS) if timeout_ms > 0 else LIST_OFFSETS_TIMEOUT_MS
        self._deadline = asyncio.get_running_loop().time() + timeout_ms / 1_000

    async def run(self, wanted: _Wanted) -> _Answer:
        try:
            async with asyncio.timeout_at(self._deadline):
                if wanted.timestamp == MAX_TIMESTAMP:
                    record = await max_timestamp(self._context, wanted.log)
                else:
                    record = await offset_for_timestamp(self._context, wanted.log, wanted.timestamp)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except LlogError as error:
            return code_of(error)
        return record or OffsetAndTimestamp(UNKNOWN, UNKNOWN)


def _response(call: Call, partition: int, answer: _Answer | None) -> ListOffsetsPartitionResponse:
    assert answer is not None
    if isinstance(answer, ErrorCode):
        return ListOffsetsPartitionResponse(partition, answer)
    known = call.version >= LEADER_EPOCH_VERSION and answer.offset != UNKNOWN
    epoch = LEADER_EPOCH if known else UNKNOWN
    return ListOffsetsPartitionResponse(partition, 0, answer.timestamp_ms, answer.offset, epoch)


HANDLER: Final = Handler(
    key=2,
    handle=handle,
    added={
        2: "the isolation level",
        4: "leader epochs",
        7: "timestamp -3: the record with the largest timestamp",
        8: "timestamp -4: the earliest offset in local storage, which is the earliest offset",
        9: "timestamp -5: the last offset in a segment",
        10: "a timeout for searches by timestamp",
        11: "timestamp -6: the earliest offset that is not in a segment",
    },
)
