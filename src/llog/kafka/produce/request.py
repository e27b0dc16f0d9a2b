"""One produce request: its partitions, the topics they mean, the record groups to append, and the answer.

A partition that is refused does not harm the others. The answer has the topics and partitions of the request, in its
order. A partition that the request names twice is refused each time: one of its two batches would be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from llog.errors import InvalidArgument, LlogError, LogDeleted, LogError, TopicNotFound
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.produced import NO_TIMESTAMP_MS, check_batches
from llog.formats.records.record_batch import CODEC_MASK, CRC_START
from llog.kafka.authorization import unauthorized
from llog.kafka.codec.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.produce.judge import AcceptedBatch, RefusedBatch, judge
from llog.log.append.append import Appended, AppendOutcome
from llog.log.keys import Log
from llog.log.topics.known_topics import KnownTopic, KnownTopics
from llog.security.acl import ResourceType

IDS_FROM_VERSION: Final = 13
NO_OFFSET: Final = -1
_CODEC_AT: Final = CRC_START + 1
"""The second byte of a batch's attributes."""

Target = KnownTopic | LlogError
"""A topic of the request, or why it cannot be used."""


DENIED: Final[LlogError] = unauthorized(ResourceType.TOPIC)

_TWICE: Final = RefusedBatch(ErrorCode.INVALID_REQUEST, "the request names this partition twice")


class PlannedRequest:
    """A request whose topics are looked up: what is appended, and what is refused."""

    def __init__(self, request: ProduceRequest, version: int, targets: Sequence[Target], now_ms: int) -> None:
        self._request, self._version = request, version
        self._places = self._judged(targets, now_ms)
        self.groups = [place.group for place in self._places if isinstance(place, AcceptedBatch)]

    def _judged(self, targets: Sequence[Target], now_ms: int) -> list[AcceptedBatch | RefusedBatch]:
        """An outcome for each partition, in the order of the request."""
        places: list[AcceptedBatch | RefusedBatch | None] = []
        logs: list[tuple[int, Log, KnownTopic]] = []
        batches: list[tuple[Buffer | None, int]] = []
        for data, topic in zip(self._request.topic_data, targets, strict=True):
            if not isinstance(topic, KnownTopic):
                places += [refusal_of(topic, self._version) for _ in data.partition_data]
                continue
            name, partition_count, bytes_max = topic.name, topic.partition_count, topic.config.max_message_bytes
            for partition in data.partition_data:
                if 0 <= partition.index < partition_count:
                    logs.append((len(places), Log(name, partition.index), topic))
                    batches.append((partition.records, bytes_max))
                    places.append(None)
                else:
                    places.append(refusal_of(topic, self._version))
        twice = _named_twice([log for _, log, _ in logs])
        checked = zip(logs, batches, check_batches(batches), strict=True)
        for (number, log, topic), (records, _), batch in checked:
            if log in twice:
                places[number] = _TWICE
            else:
                places[number] = judge(log, topic, records, batch, version=self._version, now_ms=now_ms)
        return [place for place in places if place is not None]

    def answer(self, outcomes: Sequence[AppendOutcome], log_start_offset: Callable[[Log], int]) -> ProduceResponse:
        """`outcomes` are those of the groups, in order; `log_start_offset` is NO_OFFSET where it is not known."""
        places, decided = iter(self._places), iter(outcomes)
        return ProduceResponse(
            [
                TopicProduceResponse(
                    data.name,
                    data.topic_id,
                    [
                        self._partition(partition.index, next(places), decided, log_start_offset)
                        for partition in data.partition_data
                    ],
                )
                for data in self._request.topic_data
            ]
        )

    def _partition(
        self,
        index: int,
        place: AcceptedBatch | RefusedBatch,
        outcomes: Iterator[AppendOutcome],
        log_start_offset: Callable[[Log], int],
    ) -> PartitionProduceResponse:
        if isinstance(place, RefusedBatch):
            return refused_partition(index, place)
        outcome, start = next(outcomes), log_start_offset(place.group.log)
        if isinstance(outcome, Appended):
            return PartitionProduceResponse(index, ErrorCode.NONE, outcome.start_offset, place.append_time_ms, start)
        refused = RefusedBatch(code_of_outcome(outcome, self._version), str(outcome))
        return refused_partition(index, refused, start)

    def refused(self) -> list[RefusedBatch]:
        return [place for place in self._places if isinstance(place, RefusedBatch)]


def code_of_outcome(error: LogError, version: int) -> ErrorCode:
    """By id, a topic that was deleted or created again is not the one that the client means."""
    if version >= IDS_FROM_VERSION and isinstance(error, LogDeleted):
        return ErrorCode.UNKNOWN_TOPIC_ID
    return code_of(error)


def refusal_of(topic: Target, version: int) -> RefusedBatch:
    """Why nothing is appended to a partition: its topic cannot be used, or does not have it."""
    if isinstance(topic, LlogError):
        code = code_of(topic)
        if isinstance(topic, TopicNotFound) and version >= IDS_FROM_VERSION:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif isinstance(topic, InvalidArgument):
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return RefusedBatch(code, str(topic))
    reason = f"{topic.name} has {topic.partition_count} partitions, numbered from 0"
    return RefusedBatch(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)


def _named_twice(logs: Sequence[Log]) -> set[Log]:
    if len(set(logs)) == len(logs):  # nearly always
        return set()
    return {log for log, times in Counter(logs).items() if times > 1}


def refused_partition(index: int, refused: RefusedBatch, log_start_offset: int = NO_OFFSET) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index,
        refused.code,
        NO_OFFSET,
        NO_TIMESTAMP_MS,
        log_start_offset,
        [BatchIndexAndErrorMessage(*error) for error in refused.records],
        refused.reason,
    )


def refuse_all(request: ProduceRequest, refused: RefusedBatch) -> ProduceResponse:
    return ProduceResponse(
        [
            TopicProduceResponse(
                data.name,
                data.topic_id,
                [refused_partition(partition.index, refused) for partition in data.partition_data],
            )
            for data in request.topic_data
        ]
    )


def byte_length_of(request: ProduceRequest) -> int:
    return sum(
        [
            total_length([partition.records])
            for data in request.topic_data
            for partition in data.partition_data
            if partition.records is not None
        ]
    )


def has_compressed(data: TopicProduceData) -> bool:
    """Whether a batch says that it is compressed; it was not checked yet."""
    records = [partition.records for partition in data.partition_data if partition.records is not None]
    return any(len(batch) > _CODEC_AT and batch[_CODEC_AT] & CODEC_MASK for batch in records)


# -- topics ------------------------------------------------------------------------------------------------------------


def fresh_targets(
    request: ProduceRequest, version: int, topics: KnownTopics, denied: Collection[str] = ()
) -> list[Target] | None:
    """The topics of the request, without waiting; None when one of them, or its number of partitions, must be read.
    Topics of the names in `denied` are not looked up."""
    by_id = version >= IDS_FROM_VERSION
    targets: list[Target] = []
    for data in request.topic_data:
        if data.name in denied:
            targets.append(DENIED)
            continue
        topic = topics.fresh_by_id(data.topic_id) if by_id else topics.fresh(data.name)
        if topic is None or not _has_partitions(topic, data):
            return None
        targets.append(topic)
    return targets


def _has_partitions(topic: KnownTopic, data: TopicProduceData) -> bool:
    count = topic.partition_count
    return not any(partition.index >= count for partition in data.partition_data)


async def find_targets(
    request: ProduceRequest, version: int, topics: KnownTopics, denied: Collection[str] = ()
) -> list[Target]:
    """The topics of the request. A topic with fewer partitions than the request names is read again: it may have got
    them through another broker."""
    by_id = version >= IDS_FROM_VERSION
    for data in request.topic_data:
        known = topics.fresh_by_id(data.topic_id) if by_id else topics.fresh(data.name)
        if known is not None and data.name not in denied and not _has_partitions(known, data):
            topics.forget(known.name)
    if by_id:
        by_topic_id = await topics.find_by_id([data.topic_id for data in request.topic_data])
        return [by_topic_id[data.topic_id] for data in request.topic_data]
    by_name = await topics.find({data.name for data in request.topic_data if data.name not in denied})
    return [DENIED if data.name in denied else by_name[data.name] for data in request.topic_data]
