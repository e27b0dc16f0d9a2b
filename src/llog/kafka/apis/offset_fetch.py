"""OffsetFetch. API key 9, versions 1-10.

| version | added |
|---|---|
| 2 | all positions of a group, errors of the whole group |
| 3 | throttle time |
| 5 | leader epochs |
| 6 | flexible |
| 7 | stable positions only |
| 8 | several groups |
| 9 | members of consumer groups (KIP-848) |
| 10 | topics by id |

Positions are read strictly, behind every commit that this node took before. A log without a position has offset -1.
Who asks for all positions gets those of topics that the client may describe.

Left out: `require_stable` changes nothing, because no transaction commits positions yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from llog.broker.groups.positions import CommittedPosition
from llog.errors import InvalidArgument, LlogError
from llog.groups.codes import GroupCode
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import judged_by_id
from llog.kafka.codec import ZERO_UUID
from llog.kafka.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group, outcome_code
from llog.log.keys import PARTITION_MAX, Log, check_topic
from llog.log.topics.known_topics import KnownTopic
from llog.security.acl import ResourceType

GROUPS_SINCE: Final = 8
TOPIC_IDS_SINCE: Final = 10
GROUP_ERRORS_SINCE: Final = 2
NO_POSITION: Final = -1

Positions = Mapping[Log, CommittedPosition | None]


class _Topic(NamedTuple):
    """A topic of the request: its name, or why it has none."""

    name: str
    topic_id: bytes
    partitions: Sequence[int]
    code: int = ErrorCode.NONE


async def handle(call: Call) -> OffsetFetchResponse:
    request: OffsetFetchRequest = call.request
    if call.version >= GROUPS_SINCE:
        return OffsetFetchResponse(groups=[await _fetched(call, group) for group in request.groups])
    topics = request.topics
    group = OffsetFetchRequestGroup(
        request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(topic.name, ZERO_UUID, topic.partition_indexes) for topic in topics],
    )
    found = await _fetched(call, group)
    return OffsetFetchResponse(topics=[_old_topic(topic) for topic in found.topics], error_code=found.error_code)


async def _fetched(call: Call, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    refused = check_group(call, group.group_id)
    if refused != ErrorCode.NONE:
        return _failed(call, group, refused)
    try:
        topics = None if group.topics is None else await _topics(call, group.topics)
        logs = None if topics is None else [log for topic in topics for log in _logs(topic)]
        positions: Positions | GroupCode = await call.services.groups.fetch(
            group.group_id, logs, member_id=group.member_id, epoch=group.member_epoch
        )
        if isinstance(positions, GroupCode):
            return _failed(call, group, positions)
        if topics is None:
            topics = await _all_topics(call, positions)
    except LlogError as error:
        return _failed(call, group, outcome_code(error))
    return OffsetFetchResponseGroup(group.group_id, [_answered(topic, positions) for topic in topics])


def _failed(call: Call, group: OffsetFetchRequestGroup, code: int) -> OffsetFetchResponseGroup:
    """Version 1 has no place for an error of the group, so every partition names it."""
    if call.version >= GROUP_ERRORS_SINCE:
        return OffsetFetchResponseGroup(group.group_id, error_code=code)
    topics = [_Topic(topic.name, ZERO_UUID, topic.partition_indexes, code) for topic in group.topics or ()]
    return OffsetFetchResponseGroup(group.group_id, [_answered(topic, {}) for topic in topics])


async def _topics(call: Call, wanted: Sequence[OffsetFetchRequestTopics]) -> list[_Topic]:
    if call.version < TOPIC_IDS_SINCE:
        denied = call.denied(ResourceType.TOPIC, {topic.name for topic in wanted})
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return [
            _Topic(topic.name, ZERO_UUID, topic.partition_indexes, refused if topic.name in denied else ErrorCode.NONE)
            for topic in wanted
        ]
    found = await call.services.topics.find_by_id(topic.topic_id for topic in wanted)
    found = {topic_id: judged_by_id(call, topic) for topic_id, topic in found.items()}
    topics = []
    for topic in wanted:
        known = found[topic.topic_id]
        if isinstance(known, KnownTopic):
            topics.append(_Topic(known.name, topic.topic_id, topic.partition_indexes))
        else:
            code = outcome_code(known, by_id=True)
            topics.append(_Topic("", topic.topic_id, topic.partition_indexes, code))
    return topics


def _logs(topic: _Topic) -> list[Log]:
    """The logs that can exist."""
    if topic.code != ErrorCode.NONE:
        return []
    try:
        check_topic(topic.name)
    except InvalidArgument:
        return []
    return [Log(topic.name, partition) for partition in topic.partitions if 0 <= partition <= PARTITION_MAX]


async def _all_topics(call: Call, positions: Positions) -> list[_Topic]:
    partitions: dict[str, list[int]] = {}
    for log in positions:
        if not call.sees(ResourceType.TOPIC, log.topic):
            continue
        partitions.setdefault(log.topic, []).append(log.partition)
    if call.version < TOPIC_IDS_SINCE:
        return [_Topic(name, ZERO_UUID, sorted(numbers)) for name, numbers in partitions.items()]
    known = await call.services.topics.find(partitions)
    return [
        _Topic(name, topic.id_bytes, sorted(partitions[name]))
        for name, topic in known.items()
        if isinstance(topic, KnownTopic)
    ]


def _answered(topic: _Topic, positions: Positions) -> OffsetFetchResponseTopics:
    answers = []
    for partition in topic.partitions:
        found = positions.get(Log(topic.name, partition))
        if found is None:
            answers.append(OffsetFetchResponsePartitions(partition, NO_POSITION, error_code=topic.code))
        else:
            offset, metadata, epoch = found.position
            answers.append(OffsetFetchResponsePartitions(partition, offset, epoch, metadata))
    return OffsetFetchResponseTopics(topic.name, topic.topic_id, answers)


def _old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        topic.name,
        [
            OffsetFetchResponsePartition(
                one.partition_index, one.committed_offset, one.committed_leader_epoch, one.metadata, one.error_code
            )
            for one in topic.partitions
        ],
    )


HANDLER = Handler(
    key=9,
    handle=handle,
    added={
        2: "all positions of a group, errors of the whole group",
        3: "throttle time",
        5: "leader epochs",
        6: "flexible",
        7: "stable positions only",
        8: "several groups",
        9: "members of consumer groups (KIP-848)",
        10: "topics by id",
    },
    left_out="`require_stable` changes nothing until transactions exist.",
)
