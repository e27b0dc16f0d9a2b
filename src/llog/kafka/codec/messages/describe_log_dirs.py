# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeLogDirs, API key 35, versions 1-5, flexible from 2."""

from __future__ import annotations

from msgspec import Struct


class DescribableLogDirTopic(Struct, frozen=True, gc=False):
    topic: str = ""
    partitions: list[int] = []


class DescribeLogDirsRequest(Struct, frozen=True, gc=False):
    topics: list[DescribableLogDirTopic] | None = []


class DescribeLogDirsPartition(Struct, frozen=True, gc=False):
    partition_index: int = 0
    partition_size: int = 0
    offset_lag: int = 0
    is_future_key: bool = False


class DescribeLogDirsTopic(Struct, frozen=True, gc=False):
    name: str = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Struct, frozen=True, gc=False):
    error_code: int = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: int = -1  # 4-5
    usable_bytes: int = -1  # 4-5
    is_cordoned: bool = False  # 5


class DescribeLogDirsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0  # 3-5
    results: list[DescribeLogDirsResult] = []
