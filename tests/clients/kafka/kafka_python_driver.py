"""kafka-python."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AlterConfigOp, ConfigFilterType, ConfigResource, ConfigResourceType
from kafka.errors import BrokerResponseError

from tests.clients.kafka.brokers import KafkaBroker
from tests.clients.kafka.driver import (
    CLIENT_BYTES_MAX,
    EARLIEST,
    LATEST,
    METADATA_AGE_MS,
    PLAIN,
    ClientDriver,
    Code,
    Fetched,
    How,
    Refused,
    Sent,
)
from tests.patience import PATIENCE_SECONDS

T = TypeVar("T")


def judged(call: Callable[[], T]) -> T:
    try:
        return call()
    except BrokerResponseError as error:
        raise Refused(error.errno, str(error)) from error
    except ValueError as error:
        if not str(error).startswith("Unrecognized partition"):
            raise
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, str(error)) from error


class KafkaPythonDriver(ClientDriver):
    def __init__(self, broker: KafkaBroker) -> None:
        self._common: dict[str, Any] = {"bootstrap_servers": broker.address, "metadata_max_age_ms": METADATA_AGE_MS}
        if broker.ca_file is not None:
            self._common |= {"security_protocol": "SSL", "ssl_cafile": str(broker.ca_file)}
        self.admin = KafkaAdminClient(**self._common)
        self._producers: dict[How, KafkaProducer] = {}

    def _producer(self, how: How) -> KafkaProducer:
        if how not in self._producers:
            self._producers[how] = KafkaProducer(
                **self._common,
                acks="all" if how.acks == -1 else how.acks,
                enable_idempotence=how.idempotent,
                compression_type=None if how.codec == "none" else how.codec,
                linger_ms=how.linger_ms,
                max_request_size=CLIENT_BYTES_MAX,
            )
        return self._producers[how]

    def produce(self, topic: str, records: Sequence[Sent], how: How = PLAIN) -> list[int]:
        def send() -> list[int]:
            producer = self._producer(how)
            answers = [
                producer.send(
                    topic, record.value, record.key, list(record.headers), record.partition, record.timestamp_ms
                )
                for record in records
            ]
            return [answer.get(PATIENCE_SECONDS).offset for answer in answers]

        return judged(send)

    def _consumer(self) -> KafkaConsumer:
        return KafkaConsumer(
            **self._common,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=CLIENT_BYTES_MAX,
        )

    def fetch(self, topic: str, starts: Mapping[int, int], count: int) -> list[Fetched]:
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, partition) for partition in starts])
            for partition, offset in starts.items():
                consumer.seek(TopicPartition(topic, partition), offset)
            found: list[Fetched] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(found) < count:
                assert time.monotonic() < deadline, f"only {len(found)} of {count} records came"
                records = judged(partial(consumer.poll, 1_000, max_records=count - len(found)))
                found += [_fetched(record) for batch in records.values() for record in batch]
            return found
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        log = TopicPartition(topic, partition)
        consumer = self._consumer()
        try:
            if time_ms == EARLIEST:
                return int(judged(lambda: consumer.beginning_offsets([log]))[log])
            if time_ms == LATEST:
                return int(judged(lambda: consumer.end_offsets([log]))[log])
            found = judged(lambda: consumer.offsets_for_times({log: time_ms}))[log]
            return None if found is None else int(found.offset)
        finally:
            consumer.close()

    def create(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None:
        new = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(configs or {})}}
        judged(lambda: self.admin.create_topics(new, validate_only=validate_only))

    def delete(self, topic: str) -> None:
        judged(lambda: self.admin.delete_topics([topic]))

    def grow(self, topic: str, partitions: int) -> None:
        judged(lambda: self.admin.create_partitions({topic: partitions}))

    def topics(self) -> dict[str, int]:
        return {topic["name"]: len(topic["partitions"]) for topic in judged(self.admin.describe_topics)}

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        described = judged(lambda: self.admin.describe_configs([resource], config_filter=ConfigFilterType.ALL))
        return {name: entry["value"] for name, entry in described["topic"][topic].items()}

    def set_config(self, topic: str, name: str, value: str | None) -> None:
        change = (AlterConfigOp.DELETE, None) if value is None else (AlterConfigOp.SET, value)
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: change})
        result = judged(lambda: self.admin.alter_configs([resource], raise_on_unknown=False))["topic"][topic]
        if result != "OK":  # the error as a text
            code = re.match(r"\[Error (\d+)\]", result)
            assert code is not None, result
            raise Refused(int(code[1]), result)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        log = TopicPartition(topic, partition)
        return int(judged(lambda: self.admin.delete_records({log: before}))[log]["low_watermark"])

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close(1.0)
        self.admin.close()


def _fetched(record: Any) -> Fetched:
    return Fetched(
        record.partition,
        record.offset,
        record.value,
        record.key,
        tuple(record.headers),
        record.timestamp,
        record.timestamp_type == 1,
    )
