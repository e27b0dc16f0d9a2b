"""What handlers of group requests share: the check of rights to a group and of its name, and codes of outcomes.

`check_group` is the place that every group request passes before anything is done for it.
"""

from __future__ import annotations

from uuid import uuid4

from llog.errors import InvalidArgument, LlogError, LogBusy, StoreError, TopicNotFound
from llog.groups.codes import GroupCode
from llog.kafka.apis.handler import Call
from llog.kafka.error_codes import ErrorCode, code_of
from llog.security.acl import ResourceType


def check_group(call: Call, group: str) -> ErrorCode:
    """NONE, or why nothing is done for this group. The right is the one of the API's row."""
    if not call.allows(ResourceType.GROUP, group):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    try:
        call.services.broker.context.keys.group(group)
    except InvalidArgument:
        return ErrorCode.INVALID_GROUP_ID
    return ErrorCode.NONE


def new_member_id(call: Call, instance_id: str | None = None) -> str:
    return f"{instance_id or call.client_id or ''}-{uuid4()}"


def client_host(call: Call) -> str:
    """As Kafka shows it."""
    return f"/{call.client.host}"


def outcome_code(outcome: GroupCode | LlogError, *, by_id: bool = False) -> int:
    """The code of one position that was or was not stored, deleted or read."""
    if isinstance(outcome, GroupCode):
        return int(outcome)
    if by_id and isinstance(outcome, TopicNotFound):
        return ErrorCode.UNKNOWN_TOPIC_ID
    if isinstance(outcome, (StoreError, LogBusy)):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # clients try again, as in Kafka
    return code_of(outcome)
