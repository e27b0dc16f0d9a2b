# Written by `make kafka-schemas` from messages.txt; do not edit.
"""AddPartitionsToTxn, API key 24, versions 0-5, flexible from 3."""

from __future__ import annotations

from msgspec import Struct


class AddPartitionsToTxnTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[int] = []


class AddPartitionsToTxnTransaction(Struct, frozen=True, gc=False):
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = []


class AddPartitionsToTxnRequest(Struct, frozen=True, gc=False):
    transactions: list[AddPartitionsToTxnTransaction] = []  # 4-5
    v3_and_below_transactional_id: str = ""  # 0-3
    v3_and_below_producer_id: int = 0  # 0-3
    v3_and_below_producer_epoch: int = 0  # 0-3
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = []  # 0-3


class AddPartitionsToTxnPartitionResult(Struct, frozen=True, gc=False):
    partition_index: int = 0
    partition_error_code: int = 0


class AddPartitionsToTxnTopicResult(Struct, frozen=True, gc=False):
    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Struct, frozen=True, gc=False):
    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []


class AddPartitionsToTxnResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0  # 4-5
    results_by_transaction: list[AddPartitionsToTxnResult] = []  # 4-5
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = []  # 0-3
