# Written by `make kafka-schemas` from messages.txt; do not edit.
"""ListTransactions, API key 66, versions 0-2, flexible from 0."""

from __future__ import annotations

from msgspec import Struct


class ListTransactionsRequest(Struct, frozen=True, gc=False):
    state_filters: list[str] = []
    producer_id_filters: list[int] = []
    duration_filter: int = -1  # 1-2
    transactional_id_pattern: str | None = None  # 2


class TransactionState(Struct, frozen=True, gc=False):
    transactional_id: str = ""
    producer_id: int = 0
    transaction_state: str = ""


class ListTransactionsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: list[str] = []
    transaction_states: list[TransactionState] = []
