"""aiokafka, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError

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

DYNAMIC_TOPIC_CONFIG = 1
T = TypeVar("T")


def check_code(code: int, message: str = "") -> None:
    if code != 0:
        raise Refused(code, message)


class AiokafkaDriver(ClientDriver):
    def __init__(self, broker: KafkaBroker) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._common: dict[str, Any] = {"bootstrap_servers": broker.address, "metadata_max_age_ms": METADATA_AGE_MS}
        if broker.ca_file is not None:
            context = ssl.create_default_context(cafile=str(broker.ca_file))
            self._common |= {"security_protocol": "SSL", "ssl_context": context}
        self._producers: dict[How, AIOKafkaProducer] = {}
        self._admin: AIOKafkaAdminClient = self._run(self._start_admin())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE_SECONDS)
        except BrokerResponseError as error:
            raise Refused(error.errno, str(error)) from error

    async def _start_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(**self._common)
        await admin.start()
        return admin

    def produce(self, topic: str, records: Sequence[Sent], how: How = PLAIN) -> list[int]:
        return self._run(self._produce(topic, records, how))

    async def _produce(self, topic: str, records: Sequence[Sent], how: How) -> list[int]:
        if how not in self._producers:
            producer = AIOKafkaProducer(
                **self._common,
                acks="all" if how.acks == -1 else how.acks,
                enable_idempotence=how.idempotent,
                compression_type=None if how.codec == "none" else how.codec,
                linger_ms=how.linger_ms,
                max_request_size=CLIENT_BYTES_MAX,
            )
            await producer.start()
            self._producers[how] = producer
        producer = self._producers[how]
        answers = []
        for each in records:
            sending = producer.send(topic, each.value, each.key, each.partition, each.timestamp_ms, list(each.headers))
            try:
                answers.append(await sending)
            except AssertionError as error:
                if str(error) != "Unrecognized partition":
                    raise
                raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, str(error)) from error
        metadata = [await answer for answer in answers]
        return [-1 if each is None else each.offset for each in metadata]

    def fetch(self, topic: str, starts: Mapping[int, int], count: int) -> list[Fetched]:
        return self._run(self._fetch(topic, starts, count))

    async def _fetch(self, topic: str, starts: Mapping[int, int], count: int) -> list[Fetched]:
        async with self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, partition) for partition in starts])
            for partition, offset in starts.items():
                consumer.seek(TopicPartition(topic, partition), offset)
            return [_fetched(await consumer.getone()) for _ in range(count)]

    def _consumer(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            **self._common,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=CLIENT_BYTES_MAX,
        )

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        return self._run(self._offset_at(TopicPartition(topic, partition), time_ms))

    async def _offset_at(self, log: TopicPartition, time_ms: int) -> int | None:
        async with self._consumer() as consumer:
            consumer.assign([log])
            if time_ms == EARLIEST:
                return int((await consumer.beginning_offsets([log]))[log])
            if time_ms == LATEST:
                return int((await consumer.end_offsets([log]))[log])
            found = (await consumer.offsets_for_times({log: time_ms}))[log]
            return None if found is None else int(found.offset)

    def create(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        answer = self._run(self._admin.create_topics([new], validate_only=validate_only))
        for _, code, *message in answer.topic_errors:
            check_code(code, str(message))

    def delete(self, topic: str) -> None:
        for _, code, *message in self._run(self._admin.delete_topics([topic])).topic_error_codes:
            check_code(code, str(message))

    def grow(self, topic: str, partitions: int) -> None:
        self._run(self._admin.create_partitions({topic: NewPartitions(partitions)}))

    def topics(self) -> dict[str, int]:
        described = self._run(self._admin.describe_topics())
        return {topic["topic"]: len(topic["partitions"]) for topic in described}

    def _entries(self, topic: str) -> list[tuple[Any, ...]]:
        [answer] = self._run(self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        [(code, message, _, _, entries)] = answer.resources
        check_code(code, str(message))
        return list(entries)

    def configs(self, topic: str) -> dict[str, str | None]:
        return {name: value for name, value, *_ in self._entries(topic)}

    def set_config(self, topic: str, name: str, value: str | None) -> None:
        """aiokafka only knows the call that replaces all values."""
        configs = {known: held for known, held, _, source, *_ in self._entries(topic) if source == DYNAMIC_TOPIC_CONFIG}
        configs.pop(name, None)
        if value is not None:
            configs[name] = value
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs)
        [answer] = self._run(self._admin.alter_configs([resource]))
        for code, message, *_ in answer.resources:
            check_code(code, str(message))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        log = TopicPartition(topic, partition)
        return int(self._run(self._admin.delete_records({log: RecordsToDelete(before)}))[log])

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    async def _close(self) -> None:
        for producer in self._producers.values():
            await producer.stop()
        await self._admin.close()


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
