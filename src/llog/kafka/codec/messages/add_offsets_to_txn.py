# Written by `make kafka-schemas` from messages.txt; do not edit.
"""AddOffsetsToTxn, API key 25, versions 0-4, flexible from 3."""

from __future__ import annotations

from msgspec import Struct


class AddOffsetsToTxnRequest(Struct, frozen=True, gc=False):
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    group_id: str = ""


class AddOffsetsToTxnResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
