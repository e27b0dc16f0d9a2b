"""confluent-kafka: librdkafka, the client of most languages besides Java."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients.kafka.brokers import KafkaBroker
from tests.clients.kafka.driver import (
    CLIENT_BYTES_MAX,
    EARLIEST,
    LATEST,
    METADATA_AGE_MS,
    PLAIN,
    ClientDriver,
    Fetched,
    How,
    Refused,
    Sent,
)
from tests.patience import PATIENCE_SECONDS

T = TypeVar("T")


def refused(error: KafkaError) -> Refused:
    return Refused(error.code(), error.str())


def result_of(futures: Mapping[Any, Any]) -> Any:
    """The result of an administrative call about one thing."""
    [future] = futures.values()
    try:
        return future.result(PATIENCE_SECONDS)
    except KafkaException as error:
        raise refused(error.args[0]) from error


class ConfluentDriver(ClientDriver):
    def __init__(self, broker: KafkaBroker) -> None:
        self.common: dict[str, Any] = {
            "bootstrap.servers": broker.address,
            "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
            "topic.metadata.propagation.max.ms": 5_000,
        }
        if broker.ca_file is not None:
            self.common |= {"security.protocol": "ssl", "ssl.ca.location": str(broker.ca_file)}
        self.admin = AdminClient(self.common)
        self._producers: dict[How, Producer] = {}

    def producer(self, how: How) -> Producer:
        if how not in self._producers:
            self._producers[how] = Producer(
                self.common
                | {
                    "compression.type": how.codec,
                    "acks": how.acks,
                    "enable.idempotence": how.idempotent,
                    "linger.ms": how.linger_ms,
                    "message.max.bytes": CLIENT_BYTES_MAX,
                }
            )
        return self._producers[how]

    def produce(self, topic: str, records: Sequence[Sent], how: How = PLAIN) -> list[int]:
        producer = self.producer(how)
        answers: dict[int, int] = {}
        errors: list[KafkaError] = []
        for number, record in enumerate(records):

            def delivered(error: KafkaError | None, message: Message, number: int = number) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    answers[number] = message.offset() if message.offset() is not None else -1

            headers, time_ms = list(record.headers), 0 if record.timestamp_ms is None else record.timestamp_ms
            try:
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    record.partition,
                    on_delivery=delivered,
                    headers=headers,
                    timestamp=time_ms,
                )
            except KafkaException as error:  # such as a partition that it does not know
                raise refused(error.args[0]) from error
        left = producer.flush(PATIENCE_SECONDS)
        assert left == 0, f"{left} records were not answered"
        if errors:
            raise refused(errors[0])
        return [answers[number] for number in range(len(records))]

    def consumer(self, **settings: Any) -> Consumer:
        return Consumer(
            self.common
            | {
                "group.id": "no-group",  # must be set, and is not used: partitions are assigned
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": CLIENT_BYTES_MAX,
                "fetch.max.bytes": CLIENT_BYTES_MAX,
            }
            | settings
        )

    def fetch(self, topic: str, starts: Mapping[int, int], count: int) -> list[Fetched]:
        consumer = self.consumer()
        try:
            consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in starts.items()])
            found: list[Fetched] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(found) < count:
                assert time.monotonic() < deadline, f"only {len(found)} of {count} records came"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    # With auto.offset.reset=error the broker's error comes in librdkafka's own.
                    if error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise Refused(KafkaError.OFFSET_OUT_OF_RANGE, error.str())
                    raise refused(error)
                found.append(_fetched(message))
            return found
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        spec = {EARLIEST: OffsetSpec.earliest(), LATEST: OffsetSpec.latest()}.get(time_ms)
        spec = OffsetSpec.for_timestamp(time_ms) if spec is None else spec
        offset = result_of(self.admin.list_offsets({TopicPartition(topic, partition): spec})).offset
        return None if offset < 0 else int(offset)

    def create(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None:
        new = NewTopic(topic, partitions, 1, config=dict(configs or {}))
        result_of(self.admin.create_topics([new], validate_only=validate_only))

    def delete(self, topic: str) -> None:
        result_of(self.admin.delete_topics([topic]))

    def grow(self, topic: str, partitions: int) -> None:
        result_of(self.admin.create_partitions([NewPartitions(topic, partitions)]))

    def topics(self) -> dict[str, int]:
        metadata = self.admin.list_topics(timeout=PATIENCE_SECONDS)
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

    def configs(self, topic: str) -> dict[str, str | None]:
        entries = result_of(self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return {name: entry.value for name, entry in entries.items()}

    def set_config(self, topic: str, name: str, value: str | None) -> None:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        result_of(self.admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        deleted = result_of(self.admin.delete_records([TopicPartition(topic, partition, before)]))
        return int(deleted.low_watermark)

    def close(self) -> None:
        for producer in self._producers.values():
            producer.purge()
            producer.flush(1.0)
        self._producers.clear()


def _fetched(message: Message) -> Fetched:
    kind, time_ms = message.timestamp()
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers: Any = message.headers() or []
    return Fetched(
        partition,
        offset,
        message.value(),
        message.key(),
        tuple((name, value) for name, value in headers),
        time_ms,
        kind == TIMESTAMP_LOG_APPEND_TIME,
    )
