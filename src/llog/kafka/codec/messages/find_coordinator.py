# Written by `make kafka-schemas` from messages.txt; do not edit.
"""FindCoordinator, API key 10, versions 0-6, flexible from 3."""

from __future__ import annotations

from msgspec import Struct


class FindCoordinatorRequest(Struct, frozen=True, gc=False):
    key: str = ""  # 0-3
    key_type: int = 0  # 1-6
    coordinator_keys: list[str] = []  # 4-6


class Coordinator(Struct, frozen=True, gc=False):
    key: str = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    error_code: int = 0
    error_message: str | None = ""


class FindCoordinatorResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0  # 1-6
    error_code: int = 0  # 0-3
    error_message: str | None = ""  # 1-3
    node_id: int = 0  # 0-3
    host: str = ""  # 0-3
    port: int = 0  # 0-3
    coordinators: list[Coordinator] = []  # 4-6
