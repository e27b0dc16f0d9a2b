"""Broker processes as nodes of one cluster: they find each other, are killed, drain, and share a port as workers."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import psutil
import pytest

from llog.kafka.codec.messages.create_topics import CreatableTopic, CreateTopicsRequest
from llog.kafka.codec.messages.describe_cluster import DescribeClusterRequest
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponsePartition
from llog.kafka.codec.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from llog.kafka.error_codes import ErrorCode
from llog.testing.servers import OxiaServer
from tests.kafka_client import KafkaClient
from tests.patience import PATIENCE_SECONDS, until
from tests.samples import batch_bytes
from tests.servers import started
from tests.system.broker_process import LlogProcess, run_llog

SESSION_MS: Final = 2_000
PARTITIONS: Final = 12
_KAFKA: Final = re.compile(r"^  Kafka: 127\.0\.0\.1:(\d+), node (\d+)$", re.MULTILINE)
_WORKERS: Final = re.compile(r"^(\d) workers at (http://\S+), Kafka: 127\.0\.0\.1:(\d+)$", re.MULTILINE)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def settings(directory: Path, **more: str) -> dict[str, str]:
    given = {"data_dir": str(directory / "data"), "session_timeout_ms": f"{SESSION_MS}ms", **more}
    return {f"LLOG_{name.upper()}": text for name, text in given.items()}


def nodes_of(process: LlogProcess, count: int = 1) -> dict[int, int]:
    """Node id → Kafka port, of `count` brokers that said where they listen."""
    process.wait(lambda: process.child.poll() is not None or len(_KAFKA.findall(process.output())) >= count, "listen")
    assert process.child.poll() is None, process.output()
    return {int(node_id): int(port) for port, node_id in _KAFKA.findall(process.output())}


async def described(port: int) -> dict[int, int]:
    """Node id → Kafka port, as the broker at this port sees its cluster."""
    async with KafkaClient.connected(port) as client:
        answer = await client.ask(DescribeClusterRequest(), 1)
    return {node.broker_id: node.port for node in answer.brokers}


async def until_seen(port: int, nodes: dict[int, int], what: str) -> None:
    async def is_seen() -> bool:
        return await described(port) == nodes

    await until(is_seen, what, pause_seconds=0.05)


async def create(port: int) -> None:
    async with KafkaClient.connected(port) as client:
        topic = CreatableTopic("orders", PARTITIONS, 1)
        [result] = (await client.ask(CreateTopicsRequest([topic], 60_000), 7)).topics
    assert result.error_code == 0, result


async def partitions(port: int, client_id: str = "test") -> tuple[UUID, Sequence[MetadataResponsePartition]]:
    async with KafkaClient.connected(port, client_id=client_id) as client:
        [topic] = (await client.ask(MetadataRequest([MetadataRequestTopic(name="orders")]), 12)).topics
    assert topic.error_code == 0, topic
    return UUID(bytes=topic.topic_id), topic.partitions


async def leaders(port: int, client_id: str = "test") -> list[int]:
    return [partition.leader_id for partition in (await partitions(port, client_id))[1]]


async def produce(port: int, partition: int) -> PartitionProduceResponse:
    async with KafkaClient.connected(port) as client:
        data = PartitionProduceData(partition, batch_bytes(0, 1))
        answer = await client.ask(
            ProduceRequest(None, -1, 60_000, [TopicProduceData("orders", partition_data=[data])]), 11
        )
    [topic] = answer.responses
    [response] = topic.partition_responses
    assert isinstance(response, PartitionProduceResponse)
    return response


@pytest.fixture(params=["lmdb", pytest.param("oxia", marks=pytest.mark.server)])
def metadata(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Settings of the metadata store."""
    if request.param == "lmdb":
        yield {}
        return
    for oxia in started(lambda: OxiaServer(shards=2)):
        yield {"metadata_url": f"oxia://{oxia.address}"}


async def test_brokers_find_each_other_and_a_killed_one_is_gone_with_its_session(
    tmp_path: Path, metadata: dict[str, str]
) -> None:
    given = settings(tmp_path, **metadata)
    with (
        LlogProcess("broker", settings=given | {"LLOG_ZONE": "a"}, log=tmp_path / "one") as one,
        LlogProcess("broker", settings=given | {"LLOG_ZONE": "b"}, log=tmp_path / "two") as two,
    ):
        (first, port), (second, other) = *nodes_of(one).items(), *nodes_of(two).items()
        both = {first: port, second: other}
        assert sorted(both) == [0, 1]
        for each in both.values():
            await until_seen(each, both, "the other broker")
        await create(port)
        assert await leaders(port) == await leaders(other)
        assert set(await leaders(port)) == {0, 1}
        assert set(await leaders(port, "app,zone=a")) == {first}
        assert set(await leaders(port, "app,zone=b")) == {second}
        assert {tuple(sorted(one.replica_nodes)) for one in (await partitions(port))[1]} == {(0, 1)}

        two.kill()
        killed = time.monotonic()
        await until_seen(port, {first: port}, "the end of the killed broker")
        took_ms = (time.monotonic() - killed) * 1_000
        assert set(await leaders(port)) == {first}
        assert set(await leaders(port, "app,zone=b")) == {first}
        assert (await produce(port, 3)).error_code == 0
        # The session, the interval at which the view is read, and a machine that has other work.
        assert took_ms < SESSION_MS + 1_000 + 10_000, took_ms


async def test_a_terminated_broker_sends_its_producers_to_the_other_before_it_closes(tmp_path: Path) -> None:
    given = settings(tmp_path, http_drain_ms="60s")
    with (
        LlogProcess("broker", settings=given, log=tmp_path / "one") as one,
        LlogProcess("broker", settings=given, log=tmp_path / "two") as two,
    ):
        (first, port), (second, other) = *nodes_of(one).items(), *nodes_of(two).items()
        both = {first: port, second: other}
        for each in both.values():
            await until_seen(each, both, "the other broker")
        await create(port)
        assert (await produce(port, 0)).error_code == 0
        one.child.send_signal(signal.SIGTERM)

        async def is_left(asked: int) -> bool:
            return set(await leaders(asked)) == {second}

        await until(lambda: is_left(port), "the draining broker names the other")
        await until(lambda: is_left(other), "the other broker knows")
        refused = await produce(port, 0)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refused.current_leader.leader_id == second
        assert (await produce(other, 0)).base_offset == 1
        assert await described(port) == both, "its port is still open"
        one.child.send_signal(signal.SIGTERM)  # a second signal ends the wait
        assert await asyncio.to_thread(one.child.wait, PATIENCE_SECONDS) == 0, one.output()
        await until_seen(other, {second: other}, "the end of the other broker")


async def test_workers_share_a_port_and_are_nodes_of_their_own(tmp_path: Path) -> None:
    given = settings(tmp_path, workers="2", node_id="5")
    with LlogProcess("broker", settings=given, log=tmp_path / "log") as workers:
        nodes = nodes_of(workers, 2)
        assert sorted(nodes) == [5, 6]
        [(count, _, shared)] = _WORKERS.findall(workers.output())
        assert count == "2"
        assert int(shared) not in nodes.values()
        for port in (*nodes.values(), int(shared)):
            await until_seen(port, nodes, "both workers")
        await create(int(shared))
        assert set(await leaders(int(shared))) == {5, 6}
        by_node = {node_id: (await leaders(port)) for node_id, port in nodes.items()}
        assert by_node[5] == by_node[6]
        # A record produced at one worker, by its own port, and at any, by the shared one.
        assert (await produce(nodes[5], 0)).base_offset == 0
        assert (await produce(int(shared), 0)).base_offset == 1

        victim, _ = psutil.Process(workers.child.pid).children()
        victim.kill()
        await until(lambda: len(_KAFKA.findall(workers.output())) == 3, "the worker is started again")
        back = {int(node_id): int(port) for port, node_id in _KAFKA.findall(workers.output())}
        assert sorted(back) == [5, 6], "it has its node id again"
        for port in (*back.values(), int(shared)):
            await until_seen(port, back, "the worker that was started again")
        assert workers.terminate() == 0, workers.output()


def test_a_port_in_use_and_an_exposed_address_name_their_setting(tmp_path: Path) -> None:
    with LlogProcess("broker", settings=settings(tmp_path), log=tmp_path / "log") as broker:
        [port] = nodes_of(broker).values()
        for more in ({}, {"LLOG_WORKERS": "2"}):
            ended = run_llog("broker", "--kafka-port", str(port), settings=settings(tmp_path / "other") | more)
            assert ended.returncode == 2
            assert "LLOG_KAFKA_PORT" in ended.stderr
    ended = run_llog("up", settings=settings(tmp_path / "exposed", kafka_host="0.0.0.0"))
    assert ended.returncode == 2
    assert "LLOG_KAFKA_HOST" in ended.stderr
    assert "LLOG_INSECURE" in ended.stderr
    assert not (tmp_path / "exposed").exists(), "a mistake created a store"
