# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeCluster, API key 60, versions 0-2, flexible from 0."""

from __future__ import annotations

from msgspec import Struct


class DescribeClusterRequest(Struct, frozen=True, gc=False):
    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1  # 1-2
    include_fenced_brokers: bool = False  # 2


class DescribeClusterBroker(Struct, frozen=True, gc=False):
    broker_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False  # 2


class DescribeClusterResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1  # 1-2
    cluster_id: str = ""
    controller_id: int = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: int = -2147483648
