# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeTransactions, API key 65, versions 0, flexible from 0."""

from __future__ import annotations

from msgspec import Struct


class DescribeTransactionsRequest(Struct, frozen=True, gc=False):
    transactional_ids: list[str] = []


class TopicData(Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: list[int] = []


class TransactionState(Struct, frozen=True, gc=False):
    error_code: int = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: list[TopicData] = []


class DescribeTransactionsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    transaction_states: list[TransactionState] = []
