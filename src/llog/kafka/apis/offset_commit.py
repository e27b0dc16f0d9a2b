"""OffsetCommit. API key 8, versions 2-10.

| version | added |
|---|---|
| 3 | throttle time |
| 5 | no retention time any more |
| 6 | leader epochs |
| 7 | static members |
| 8 | flexible |
| 9 | members of consumer groups (KIP-848) |
| 10 | topics by id |

The commit is taken before the handler returns, so the commits of one connection are stored in the order of its frames.

Left out: the retention time of versions 2 to 4. Positions expire as the broker is configured.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from llog.broker.groups.commits import Named, Outcome
from llog.broker.groups.positions import Position
from llog.errors import InvalidArgument
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import judged_by_id
from llog.kafka.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group, outcome_code
from llog.limits import GROUP_POSITION_METADATA_CHARS_MAX
from llog.log.keys import check_topic
from llog.security.acl import ResourceType

TOPIC_IDS_SINCE: Final = 10

Codes = dict[tuple[Named, int], int]
Outcomes = dict[tuple[Named, int], Outcome]


def handle(call: Call) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    request: OffsetCommitRequest = call.request
    refused = check_group(call, request.group_id)
    if refused != ErrorCode.NONE:
        return _response(call, dict.fromkeys(_places(call), int(refused)))
    wanted, codes = plan_commit(call)
    if not wanted:
        return _response(call, codes)
    committed = call.services.groups.commit(
        request.group_id,
        wanted,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        version=call.version,
        judge=None if call.authorizer is None or call.version < TOPIC_IDS_SINCE else partial(judged_by_id, call),
    )
    return _answered(call, committed, codes)


async def _answered(call: Call, committed: Awaitable[Outcomes], codes: Codes) -> OffsetCommitResponse:
    by_id = call.version >= TOPIC_IDS_SINCE
    stored = {place: outcome_code(outcome, by_id=by_id) for place, outcome in (await committed).items()}
    return _response(call, codes | stored)


def _response(call: Call, codes: Codes) -> OffsetCommitResponse:
    request: OffsetCommitRequest = call.request
    by_id = call.version >= TOPIC_IDS_SINCE
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                [
                    OffsetCommitResponsePartition(
                        one.partition_index, codes[topic.topic_id if by_id else topic.name, one.partition_index]
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _places(call: Call) -> list[tuple[Named, int]]:
    by_id = call.version >= TOPIC_IDS_SINCE
    return [
        (topic.topic_id if by_id else topic.name, one.partition_index)
        for topic in call.request.topics
        for one in topic.partitions
    ]


def plan_commit(call: Call) -> tuple[dict[tuple[Named, int], Position], Codes]:
    """The positions to commit, and the codes of those that are refused at once. Rights to topics that are named by
    their ids are judged when the ids are looked up."""
    request: OffsetCommitRequest = call.request
    wanted: dict[tuple[Named, int], Position] = {}
    codes: Codes = {}
    by_id = call.version >= TOPIC_IDS_SINCE
    denied = () if by_id else call.denied(ResourceType.TOPIC, {topic.name for topic in request.topics})
    for topic in request.topics:
        named: Named = topic.topic_id if by_id else topic.name
        for one in topic.partitions:
            place = (named, one.partition_index)
            metadata = one.committed_metadata or ""
            if named in denied:
                codes[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif len(metadata) > GROUP_POSITION_METADATA_CHARS_MAX:
                codes[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif not _can_exist(named) or one.partition_index < 0:
                codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                wanted[place] = Position(one.committed_offset, metadata, one.committed_leader_epoch)
    return wanted, codes


def _can_exist(named: Named) -> bool:
    try:
        return isinstance(named, bytes) or bool(check_topic(named))
    except InvalidArgument:
        return False


HANDLER = Handler(
    key=8,
    handle=handle,
    added={
        3: "throttle time",
        6: "leader epochs",
        7: "static members",
        8: "flexible",
        9: "members of consumer groups (KIP-848)",
        10: "topics by id",
    },
    left_out="The retention time of versions 2 to 4: positions expire as the broker is configured.",
)
