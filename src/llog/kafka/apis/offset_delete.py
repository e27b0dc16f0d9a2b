"""OffsetDelete. API key 47, version 0.

Deletes positions of topics that no member of the group reads.
"""

from __future__ import annotations

from llog.audit_log import Principal, act_as, write_line
from llog.errors import InvalidArgument, LlogError
from llog.groups.codes import GroupCode
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group, outcome_code
from llog.log.keys import Log, check_partition, check_topic
from llog.security.acl import ResourceType


async def handle(call: Call) -> OffsetDeleteResponse:
    request: OffsetDeleteRequest = call.request
    refused = check_group(call, request.group_id)
    if refused != ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=refused)
    denied = call.denied(ResourceType.TOPIC, {topic.name for topic in request.topics})
    logs = [
        Log(topic.name, one.partition_index)
        for topic in request.topics
        if topic.name not in denied
        for one in topic.partitions
    ]
    try:
        outcomes = await call.services.groups.delete_positions(request.group_id, [log for log in logs if _valid(log)])
    except LlogError as error:
        return OffsetDeleteResponse(error_code=outcome_code(error))
    if isinstance(outcomes, GroupCode):
        return OffsetDeleteResponse(error_code=outcomes)
    deleted = [str(log) for log, outcome in outcomes.items() if outcome == GroupCode.NONE]
    act_as(Principal(call.client.principal, call.client.host))
    write_line("group.delete", request.group_id, "done" if deleted else "refused", positions=deleted)
    codes = {log: outcome_code(outcome) for log, outcome in outcomes.items()}
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                topic.name,
                [
                    OffsetDeleteResponsePartition(
                        one.partition_index,
                        ErrorCode.TOPIC_AUTHORIZATION_FAILED
                        if topic.name in denied
                        else codes.get(Log(topic.name, one.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _valid(log: Log) -> bool:
    try:
        check_topic(log.topic)
        check_partition(log.partition)
    except InvalidArgument:
        return False
    return True


HANDLER = Handler(key=47, handle=handle)
