"""Parameters of classic groups, under the names of Kafka's broker settings."""

from __future__ import annotations

from typing import Final, NamedTuple

GROUP_MEMBERS_MAX: Final = 1_000
"""Members of one group (`group.max.size`; Kafka's default is unlimited)."""
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a join of a new member waits, as in Kafka: a client that went away meanwhile stays no longer."""


class ClassicSettings(NamedTuple):
    initial_rebalance_delay_ms: int = 500
    """`group.initial.rebalance.delay.ms`. Kafka waits 3 s for more members of a new group. Half a second gathers the
    consumers that one deployment starts together, and does not delay a single one so that a person notices."""
    session_timeout_min_ms: int = 6_000
    """`group.min.session.timeout.ms`"""
    session_timeout_max_ms: int = 1_800_000
    """`group.max.session.timeout.ms`"""
    members_max: int = GROUP_MEMBERS_MAX
