# Written by `make kafka-schemas` from messages.txt; do not edit.
"""Heartbeat, API key 12, versions 0-4, flexible from 4."""

from __future__ import annotations

from msgspec import Struct


class HeartbeatRequest(Struct, frozen=True, gc=False):
    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None  # 3-4


class HeartbeatResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 1-4
    error_code: int = 0
