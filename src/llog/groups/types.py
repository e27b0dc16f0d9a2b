"""Which of the two protocols a group speaks, and when it may change.

A group without members takes the type of its next member; generation and positions continue. A group with members
does not change its type: Kafka can migrate such a group online (KIP-848), this package refuses with the errors of a
Kafka broker whose `group.consumer.migration.policy` is `disabled`.
"""

from __future__ import annotations

from llog.groups.codes import GroupCode
from llog.groups.records import CLASSIC, CONSUMER


def type_refused(current: str, *, has_members: bool, wanted: str, joins: bool) -> GroupCode:
    """NONE, or the error for a request of the other protocol; `joins`: JoinGroup, or a heartbeat with epoch 0."""
    if (current == CONSUMER) == (wanted == CONSUMER) or (joins and not has_members):
        return GroupCode.NONE
    if wanted == CLASSIC:
        return GroupCode.INCONSISTENT_GROUP_PROTOCOL if joins else GroupCode.UNKNOWN_MEMBER_ID
    return GroupCode.GROUP_ID_NOT_FOUND
