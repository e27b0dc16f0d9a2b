# Written by `make kafka-schemas` from messages.txt; do not edit.
"""InitProducerId, API key 22, versions 0-6, flexible from 2; the latest is not final."""

from __future__ import annotations

from msgspec import Struct


class InitProducerIdRequest(Struct, frozen=True, gc=False):
    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1  # 3-6
    producer_epoch: int = -1  # 3-6
    enable2_pc: bool = False  # 6
    keep_prepared_txn: bool = False  # 6


class InitProducerIdResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0
    ongoing_txn_producer_id: int = -1  # 6
    ongoing_txn_producer_epoch: int = -1  # 6
