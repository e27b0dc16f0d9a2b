# Written by `make kafka-schemas` from messages.txt; do not edit.
"""WriteTxnMarkers, API key 27, versions 1-2, flexible from 1."""

from __future__ import annotations

from msgspec import Struct


class WritableTxnMarkerTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partition_indexes: list[int] = []


class WritableTxnMarker(Struct, frozen=True, gc=False):
    producer_id: int = 0
    producer_epoch: int = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: int = 0
    transaction_version: int = 0  # 2


class WriteTxnMarkersRequest(Struct, frozen=True, gc=False):
    markers: list[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Struct, frozen=True, gc=False):
    partition_index: int = 0
    error_code: int = 0


class WritableTxnMarkerTopicResult(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Struct, frozen=True, gc=False):
    producer_id: int = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(Struct, frozen=True, gc=False):
    markers: list[WritableTxnMarkerResult] = []
