# Written by `make kafka-schemas` from messages.txt; do not edit.
"""EndTxn, API key 26, versions 0-5, flexible from 3."""

from __future__ import annotations

from msgspec import Struct


class EndTxnRequest(Struct, frozen=True, gc=False):
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    committed: bool = False


class EndTxnResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1  # 5
    producer_epoch: int = -1  # 5
