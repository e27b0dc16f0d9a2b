"""Consumers of librdkafka with partitions assigned by hand: what an application's client sees.

librdkafka chooses brokers and retries on its own, so the routing manifest only gives the addresses to begin with. It
hands out records as Python objects, one by one; that cost is part of what is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llog.errors import FormatError
from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.client.consume.kafka_raw import KafkaEngine
from llog.loadtest.client.consume.link import Asking, error_name
from llog.loadtest.client.consume.places import UNKNOWN
from llog.loadtest.client.consume.tally import Tally

if TYPE_CHECKING:
    from confluent_kafka import Message

BATCH_RECORDS_MAX: Final = 1_000
POLL_S: Final = 0.1
RETRY_PAUSE_S: Final = 0.25


class RdClient:
    """The interface of `reading.Client`."""

    def __init__(self, asking: Asking, brokers: Mapping[int, BrokerPlace], tally: Tally, group: str) -> None:
        self._asking, self._brokers, self._tally = asking, brokers, tally
        self._places = asking.places
        self._group = group
        self._numbers = {name: number for number, name in enumerate(asking.topics)}
        self._draining = False

    async def warm_up(self) -> None:
        import confluent_kafka  # noqa: F401

    async def run(self) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        asking, places = self._asking, self._places
        loop = asyncio.get_running_loop()
        consumer = Consumer(self._settings())
        with ThreadPoolExecutor(1, "librdkafka") as thread:
            try:
                consumer.assign(
                    [
                        TopicPartition(asking.topics[topic], partition, OFFSET_BEGINNING)
                        for topic, partition in zip(places.topics.tolist(), places.numbers.tolist(), strict=True)
                    ]
                )
                while not (self._draining and places.drained().all()):
                    begun_s = self._tally.now_s()
                    messages = await loop.run_in_executor(thread, _poll, consumer.consume)
                    self._take(messages)
                    if messages:
                        self._tally.answered(begun_s)
            finally:
                await loop.run_in_executor(thread, consumer.close)

    async def drain(self) -> None:
        engine, rows = KafkaEngine(), np.arange(len(self._places))
        while (self._places.drain_ends == UNKNOWN).any():
            for broker in self._brokers.values():
                try:
                    link = await engine.connect(broker, self._asking)
                    try:
                        self._places.drain_ends[:] = await link.ends(rows)
                    finally:
                        link.close()
                    break
                except (OSError, TimeoutError, FormatError) as error:
                    self._tally.retried[error_name(error)] += 1
            else:
                await asyncio.sleep(RETRY_PAUSE_S)
        self._draining = True

    def _settings(self) -> dict[str, Any]:
        consumers = self._asking.consumers
        return {
            "bootstrap.servers": ",".join(f"{one.kafka_host}:{one.kafka_port}" for one in self._brokers.values()),
            "client.id": "llog-loadtest",
            "group.id": self._group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": consumers.max_wait_ms,
            "fetch.min.bytes": max(consumers.min_bytes, 1),
            "fetch.max.bytes": consumers.max_bytes,
            "message.max.bytes": min(consumers.max_bytes, 1_000_000_000),
            "max.partition.fetch.bytes": consumers.partition_max_bytes,
            "reconnect.backoff.max.ms": 1_000,
        }

    def _take(self, messages: Sequence[Message]) -> None:
        """Join the values of each partition, so that the scanner sees them at once."""
        places = self._places
        values: dict[tuple[int, int], list[bytes]] = {}
        last: dict[tuple[int, int], int] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                self._tally.retried[error.name()] += 1
                continue
            place = self._numbers[message.topic() or ""], message.partition() or 0
            value = message.value()
            values.setdefault(place, []).append(value if isinstance(value, bytes) else b"")
            last[place] = message.offset() or 0
        for (topic, partition), found in values.items():
            row = places.row(topic, partition)
            behind = last[topic, partition] + 1
            # The first record tells where the log begins.
            passed = behind - int(places.offsets[row]) if places.offsets[row] else len(found)
            self._asking.scanner.text(b"".join(found), topic, partition, passed)
            places.offsets[row] = behind


def _poll(consume: Callable[[int, float], list[Message]]) -> list[Message]:
    """Wait for a first record, and take what is there: `consume` alone waits until its batch is full."""
    messages = consume(1, POLL_S)
    return messages + consume(BATCH_RECORDS_MAX, 0) if messages else messages
