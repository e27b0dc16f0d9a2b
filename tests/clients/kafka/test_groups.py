"""Consumer groups of real clients on one broker: both protocols, rebalances, commits, administration."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PythonPartition

from tests.clients.kafka.brokers import KafkaBroker, our_broker
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

PARTITIONS = 4
RECORDS = 40
MEMBER = """
import sys, time
from kafka import KafkaConsumer
member = KafkaConsumer(
    sys.argv[2], bootstrap_servers=sys.argv[1], group_id="silent", session_timeout_ms=6000, heartbeat_interval_ms=500
)
while not member.assignment():
    member.poll(timeout_ms=100)
print("assigned", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with our_broker(Path(tmp_path_factory.mktemp("groups"))) as started:
        yield started


@pytest.fixture
def topic(broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").replace("]", "")[-80:]
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result()
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(RECORDS):
        producer.produce(name, str(number).encode(), partition=number % PARTITIONS)
    producer.flush()
    return name


def consumer(broker: KafkaBroker, group: str, **options: Any) -> Consumer:
    base = {
        "bootstrap.servers": broker.address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if options.get("group.protocol") != "consumer":
        base |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
    return Consumer(base | options)


def poll_until(consumers: list[Consumer], done: Callable[[], bool]) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, "the group did not get there"
        for one in consumers:
            message = one.poll(0.02)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
    return values


def partitions_of(consumers: list[Consumer]) -> list[int]:
    return sorted(partition.partition for one in consumers for partition in one.assignment())


@pytest.mark.parametrize("protocol", ["classic", "cooperative", "consumer"])
def test_members_share_the_partitions_and_the_position_survives_them(
    broker: KafkaBroker, topic: str, protocol: str
) -> None:
    options = {
        "classic": {"partition.assignment.strategy": "range"},
        "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
        "consumer": {"group.protocol": "consumer"},
    }[protocol]
    group = f"shared-{protocol}"
    one, two = consumer(broker, group, **options), consumer(broker, group, **options)
    one.subscribe([topic])
    values = poll_until([one], lambda: len(one.assignment()) == PARTITIONS)
    two.subscribe([topic])
    values += poll_until([one, two], lambda: len(one.assignment()) == len(two.assignment()) == PARTITIONS // 2)
    assert partitions_of([one, two]) == list(range(PARTITIONS))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(set(values)) < RECORDS:
        assert time.monotonic() < deadline, f"{len(set(values))} of {RECORDS} records came"
        values += [m.value() or b"" for c in (one, two) if (m := c.poll(0.05)) is not None and m.error() is None]
    for member in (one, two):
        places = [TopicPartition(topic, place.partition, RECORDS // PARTITIONS) for place in member.assignment()]
        member.commit(offsets=places, asynchronous=False)
    two.close()
    poll_until([one], lambda: len(one.assignment()) == PARTITIONS)
    one.close()
    again = consumer(broker, group, **options)
    committed = again.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], timeout=10)
    assert [place.offset for place in committed] == [RECORDS // PARTITIONS] * PARTITIONS
    again.close()


def test_a_member_that_is_gone_without_a_word_loses_its_partitions_when_its_session_ends(
    broker: KafkaBroker, topic: str
) -> None:
    member = subprocess.Popen(
        [sys.executable, "-c", MEMBER, broker.address, topic], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert member.stdout is not None
        assert member.stdout.readline() == b"assigned\n"
    finally:
        member.kill()
        member.communicate()
    other = consumer(broker, "silent")
    other.subscribe([topic])
    poll_until([other], lambda: len(other.assignment()) == PARTITIONS)
    other.close()


def test_kafka_python_commits_what_confluent_and_http_read(broker: KafkaBroker, topic: str) -> None:
    member = KafkaConsumer(
        topic,
        bootstrap_servers=broker.address,
        group_id="mixed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=int(PATIENCE_SECONDS * 1_000),
    )
    seen = {record.value for _, record in zip(range(RECORDS), member, strict=False)}
    assert len(seen) == RECORDS
    member.commit({PythonPartition(topic, 1): OffsetAndMetadata(7, "by kafka-python", -1)})
    assert broker.ours is not None
    wanted = {"group": "mixed", "offsets": [{"topic": topic, "partition": 1, "offset": 1}]}
    assert broker.ours.http.post("/offsets/commit", json=wanted).status_code == 409, "the group has a member"
    member.close(autocommit=False)
    fetched = broker.ours.http.post("/offsets/fetch", json={"group": "mixed"}).json()
    assert [(one["partition"], one["offset"]) for one in fetched["offsets"]] == [(1, 7)]
    reader = consumer(broker, "mixed")
    [place] = reader.committed([TopicPartition(topic, 1)], timeout=10)
    assert (place.offset, place.metadata) == (7, "by kafka-python")
    reader.close()


def test_administrators_list_describe_reset_and_delete_groups(broker: KafkaBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    member = consumer(broker, "administered", **{"client.id": "app"})
    member.subscribe([topic])
    poll_until([member], lambda: len(member.assignment()) == PARTITIONS)
    member.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    listed = {one.group_id: one for one in admin.list_consumer_groups().result().valid}
    assert listed["administered"].state.name == "STABLE"
    described = admin.describe_consumer_groups(["administered"])["administered"].result()
    [shown] = described.members
    assert (shown.client_id, len(shown.assignment.topic_partitions)) == ("app", PARTITIONS)
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["administered"])["administered"].result()
    member.close()
    wanted = ConsumerGroupTopicPartitions("administered", [TopicPartition(topic, 0, 1)])
    admin.alter_consumer_group_offsets([wanted])["administered"].result()
    asked = ConsumerGroupTopicPartitions("administered", [TopicPartition(topic, 0)])
    found = admin.list_consumer_group_offsets([asked])["administered"].result()
    assert [place.offset for place in found.topic_partitions] == [1]
    admin.delete_consumer_groups(["administered"])["administered"].result()
    assert "administered" not in {one.group_id for one in admin.list_consumer_groups().result().valid}
