"""DescribeCluster: the nodes that this one sees, in every version."""

from __future__ import annotations

import pytest

from llog.kafka.codec.messages.describe_cluster import DescribeClusterBroker, DescribeClusterRequest
from llog.kafka.error_codes import ErrorCode
from tests.unit.kafka.apis.calling import caller


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_live_nodes_the_controller_and_the_id_are_answered(version: int) -> None:
    async with caller() as kafka:
        answer = await kafka.ask(DescribeClusterRequest(), version)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "cluster-1", 3)
    assert answer.brokers == [
        DescribeClusterBroker(1, "one.test", 9092, "a"),
        DescribeClusterBroker(2, "two.test", 9093, "b"),
        DescribeClusterBroker(3, "three.test", 9094, None),
    ]
    assert answer.cluster_authorized_operations == -(2**31)


async def test_authorized_operations_are_answered_when_asked_for() -> None:
    async with caller() as kafka:
        answer = await kafka.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
    assert answer.cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
async def test_endpoints_of_controllers_are_refused(endpoint_type: int, code: ErrorCode) -> None:
    async with caller() as kafka:
        answer = await kafka.ask(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
    assert (answer.error_code, answer.brokers) == (code, [])
    assert str(endpoint_type) in answer.error_message
