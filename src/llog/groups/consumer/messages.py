"""Requests and answers of the consumer protocol (KIP-848), without what belongs to the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from llog.groups.codes import GroupCode
from llog.groups.records import Partitions

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2
GROUP_MEMBERS_MAX: Final = 1_000
"""Members of one group (`group.consumer.max.size`; Kafka's default is unlimited)."""


class ConsumerSettings(NamedTuple):
    heartbeat_interval_ms: int = 5_000
    """`group.consumer.heartbeat.interval.ms`"""
    session_timeout_ms: int = 45_000
    """`group.consumer.session.timeout.ms`"""
    members_max: int = GROUP_MEMBERS_MAX
    """`group.consumer.max.size`"""


class ConsumerHeartbeat(NamedTuple):
    """ConsumerGroupHeartbeat; None stands for what did not change since the last one."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    """From version 1 on; empty: no longer subscribed by pattern."""
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    principal: str = ""
    """Of the client, whose rights decide which topics a pattern stands for."""
    makes_own_id: bool = True
    """From version 1 on, the client makes up its member id."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    code: GroupCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """What the member may read from now on; None: unchanged."""

    def refused(self, code: GroupCode) -> ConsumerHeartbeatAnswer:
        return ConsumerHeartbeatAnswer(code)


@dataclass(frozen=True, slots=True)
class DeleteAnswer:
    code: GroupCode

    def refused(self, code: GroupCode) -> DeleteAnswer:
        return DeleteAnswer(code)
