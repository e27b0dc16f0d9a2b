"""Two nodes serve Kafka on the same stores, idempotent producers write through both, and nodes are killed at random.

Each zone has one node, and the producers of a zone write through it, so both nodes write to the same partitions. A
producer whose node is dead writes through the other one, and repeats there what the dead node left unanswered.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from llog.formats.records.encode import encode_records
from llog.kafka.codec.messages.init_producer_id import InitProducerIdRequest
from llog.kafka.codec.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, OxiaServer, VersityGateway, free_port
from tests.clients.kafka.brokers import KafkaBroker
from tests.clients.kafka.confluent_driver import ConfluentDriver, result_of
from tests.kafka_client import KafkaClient
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.servers import started
from tests.system.broker_load import read_log
from tests.system.broker_process import LlogProcess
from tests.system.kafka_load import TOPIC, KafkaLoad, Stored, check

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
KILLS: Final = 50 if SOAK else 2
LIFE_SECONDS_MAX: Final = 1.5 if SOAK else 0.5
ZONES: Final = ("left", "right")
PARTITIONS: Final = 3
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800 if SOAK else 600)]
started_once = contextmanager(started)


class KafkaNode:
    """A node that is started again, on the same port, after each end."""

    def __init__(self, zone: str, directory: Path, settings: dict[str, str], running: ExitStack) -> None:
        self.zone, self._directory, self._running = zone, directory, running
        self.port = free_port()
        self._settings = settings | {
            "LLOG_CLIENT_IDENTIFIER": zone,
            "LLOG_ZONE": zone,
            "LLOG_KAFKA_PORT": str(self.port),
        }
        self.lives = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        log = self._directory / f"{self.zone}-{self.lives}.log"
        self.process = self._running.enter_context(LlogProcess("broker", settings=self._settings, log=log))
        self.lives += 1

    def listen(self) -> str:
        """The address of its HTTP port, once both ports are open."""
        return self.process.url

    def kill(self) -> None:
        assert self.process.child.poll() is None, f"it ended by itself: {self.process.output()}"
        self.process.kill()


class Nodes(list[KafkaNode]):
    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self)

    def start(self) -> None:
        for node in self:
            node.start()
        for node in self:
            node.listen()

    def create_topic(self, partitions: int) -> None:
        """Once both nodes know of each other, so that every zone has a node from the first record on."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wait_until(lambda: len(admin.list_topics(timeout=PATIENCE_SECONDS).brokers) == len(self), "both nodes listed")
        result_of(admin.create_topics([NewTopic(TOPIC, partitions, 1)]))


@contextmanager
def embedded_nodes(directory: Path) -> Iterator[Nodes]:
    with ExitStack() as running:
        settings = {"LLOG_DATA_DIR": str(directory / "data")}
        yield Nodes(KafkaNode(zone, directory, settings, running) for zone in ZONES)


@contextmanager
def remote_nodes(directory: Path) -> Iterator[Nodes]:
    with (
        started_once(VersityGateway) as objects,
        started_once(lambda: OxiaServer(shards=2)) as oxia,
        ExitStack() as running,
    ):
        settings = {
            "LLOG_METADATA_URL": f"oxia://{oxia.address}",
            "LLOG_OBJECTS_URL": f"s3://{objects.bucket}/log",
            "LLOG_S3_ENDPOINT_URL": objects.endpoint,
            "LLOG_S3_REGION_NAME": "us-east-1",
            "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
            "LLOG_BATCH_MAX_DELAY_MS": "20ms",  # more flushes, so more moments to die in
        }
        yield Nodes(KafkaNode(zone, directory, settings, running) for zone in ZONES)


def kill_under_load(nodes: Nodes, kills: int, rng: random.Random) -> KafkaLoad:
    """Kill a node at a random moment of its life, with records on their way; the other node and the load go on."""
    nodes.start()
    nodes.create_topic(PARTITIONS)
    load = KafkaLoad(nodes.bootstrap, ZONES, partitions=PARTITIONS)
    load.start()
    try:
        for _ in range(kills):
            load.wait_acknowledged(20)
            time.sleep(rng.uniform(0.0, LIFE_SECONDS_MAX))
            victim = rng.choice(nodes)
            wait_until(lambda: all(producer.in_flight for producer in load.producers), "records of all on their way")
            victim.kill()
            time.sleep(rng.choice([0.0, rng.uniform(0.0, LIFE_SECONDS_MAX)]))
            victim.start()
            victim.listen()
        load.wait_acknowledged(20)
        load.stop()
    finally:
        load.abort()
    return load


async def read_everywhere(nodes: Nodes, partitions: int) -> list[Stored]:
    """By HTTP from each node, and by Kafka."""
    answers: list[Stored] = []
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        for node in nodes:
            url = node.listen()
            answers.append({p: await read_log(client, url, p, start=0) for p in range(partitions)})
    by_kafka: Stored = {}
    with ConfluentDriver(KafkaBroker(nodes.bootstrap)) as kafka:
        for partition, records in answers[0].items():
            fetched = await asyncio.to_thread(kafka.fetch, TOPIC, {partition: 0}, len(records))
            by_kafka[partition] = {record.offset: (record.value or b"").decode() for record in fetched}
    return [*answers, by_kafka]


async def judge(nodes: Nodes, rng: random.Random) -> None:
    load = await asyncio.to_thread(kill_under_load, nodes, KILLS, rng)
    answers = await read_everywhere(nodes, load.partitions)
    for stored in answers:
        assert stored == answers[0], "two readers show different records of the same logs"
    check(load, answers[0])
    nodes[0].kill()
    nodes[0].start()  # one that remembers nothing
    assert (await read_everywhere(nodes, load.partitions))[0] == answers[0]
    print(f"{KILLS} kills, {load.acknowledged_count} records acknowledged")


async def test_two_nodes_on_lmdb_and_files_are_killed_and_every_record_is_there_once(
    tmp_path: Path, rng: random.Random
) -> None:
    with embedded_nodes(tmp_path) as nodes:
        await judge(nodes, rng)


@pytest.mark.server
async def test_two_nodes_on_oxia_and_s3_are_killed_and_every_record_is_there_once(
    tmp_path: Path, rng: random.Random
) -> None:
    with remote_nodes(tmp_path) as nodes:
        await judge(nodes, rng)


# -- a batch that overtakes another ------------------------------------------------------------------------------------


def _request(first: int, count: int, producer_id: int) -> ProduceRequest:
    batch = encode_records(
        [b"%d" % number for number in range(first, first + count)],
        timestamps_ms=time.time_ns() // 1_000_000,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=first,
    )
    return ProduceRequest(None, -1, 30_000, [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, batch)])])


async def _produced(client: KafkaClient, request: ProduceRequest) -> tuple[int, int]:
    """Error code and first offset."""
    answer = await client.ask(request, 12)
    [partition] = answer.responses[0].partition_responses
    return partition.error_code, partition.base_offset


async def test_a_batch_that_overtakes_the_one_before_it_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    with embedded_nodes(tmp_path) as nodes:
        await asyncio.to_thread(nodes.start)
        await asyncio.to_thread(nodes.create_topic, 1)
        left, right = nodes
        async with KafkaClient.connected(left.port) as one, KafkaClient.connected(right.port) as other:
            producer = await one.ask(InitProducerIdRequest(None, 60_000), 4)
            assert producer.error_code == 0
            first, second = _request(0, 3, producer.producer_id), _request(3, 4, producer.producer_id)
            assert (await _produced(other, second))[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
            assert await _produced(one, first) == (0, 0)
            assert await _produced(other, second) == (0, 3)
            # Repeats, each through the node that did not take the batch.
            assert await _produced(other, first) == (0, 0)
            assert await _produced(one, second) == (0, 3)
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            stored = await read_log(client, right.listen(), 0, start=0)
        assert stored == {number: str(number) for number in range(7)}
