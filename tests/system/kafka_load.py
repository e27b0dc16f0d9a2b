"""Idempotent librdkafka producers at work on several brokers, and a checker of the logs they leave.

A producer repeats what was not answered, for as long as it takes, so in the end every record is acknowledged. Then each
log must hold exactly the records sent to it, each at the offset it was acknowledged with, and the records of one
producer in the order in which it sent them.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from tests.patience import PATIENCE_SECONDS, wait_until

TOPIC: Final = "load"
RECORDS_IN_FLIGHT_MAX: Final = 200
# Between records of a producer, about: many kills are to meet records on their way, not to fill a disk.
PAUSE_SECONDS: Final = 0.002
Stored = dict[int, dict[int, str]]
"""Payloads by partition and offset."""


class IdempotentProducer:
    """One producer in a thread of its own: small batches to all partitions in turn."""

    def __init__(self, number: int, bootstrap: str, zone: str, partitions: int) -> None:
        self.number, self._partitions = number, partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": f"load-{number},zone={zone}",
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 5,
                "message.timeout.ms": 0,  # never gives up
                "topic.metadata.refresh.interval.ms": 1_000,
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 500,
                "socket.timeout.ms": 20_000,
                "log_level": 2,  # not every connection that is refused while its node is dead
            }
        )
        self.sent: dict[int, list[str]] = defaultdict(list)
        self.acknowledged: dict[int, dict[int, str]] = defaultdict(dict)
        self.acknowledged_count = 0
        self.errors: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def in_flight(self) -> int:
        return len(self._producer)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait until everything is acknowledged."""
        self._stopping.set()
        self._thread.join(PATIENCE_SECONDS)
        left = self._producer.flush(PATIENCE_SECONDS)
        assert left == 0, f"producer {self.number}: {left} records were never acknowledged: {self.errors}"

    def abort(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_SECONDS)
        self._producer.purge()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set() and not self.errors:
            if len(self._producer) >= RECORDS_IN_FLIGHT_MAX:
                self._producer.poll(PAUSE_SECONDS)
                continue
            partition = number % self._partitions
            payload = f"{self.number}/{partition}/{len(self.sent[partition])}"
            self.sent[partition].append(payload)
            self._producer.produce(TOPIC, payload.encode(), partition=partition, on_delivery=self._delivered)
            self._producer.poll(PAUSE_SECONDS)
            number += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(f"{error.name()}: {error.str()}")
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        known = self.acknowledged[partition]
        if offset in known:
            self.errors.append(f"{partition}@{offset}: acknowledged for {known[offset]} and {value!r}")
        known[offset] = value.decode()
        self.acknowledged_count += 1


class KafkaLoad:
    """Producers of several zones, each zone's on the broker of that zone."""

    def __init__(self, bootstrap: str, zones: Sequence[str], *, partitions: int, per_zone: int = 2) -> None:
        self.partitions = partitions
        names = [zone for zone in zones for _ in range(per_zone)]
        self.producers = [IdempotentProducer(n, bootstrap, zone, partitions) for n, zone in enumerate(names)]

    def start(self) -> None:
        for producer in self.producers:
            producer.start()

    def wait_acknowledged(self, more: int) -> None:
        """Until every producer has got so many more acknowledgements than now."""
        wanted = [producer.acknowledged_count + more for producer in self.producers]

        def are_acknowledged() -> bool:
            errors = [error for producer in self.producers for error in producer.errors]
            assert not errors, errors[:5]
            return all(p.acknowledged_count >= least for p, least in zip(self.producers, wanted, strict=True))

        wait_until(are_acknowledged, f"{more} more records of every producer acknowledged")

    def stop(self) -> None:
        for producer in self.producers:
            producer.stop()

    def abort(self) -> None:
        for producer in self.producers:
            producer.abort()

    @property
    def acknowledged_count(self) -> int:
        return sum(producer.acknowledged_count for producer in self.producers)


def check(load: KafkaLoad, stored: Stored) -> None:
    for producer in load.producers:
        assert not producer.errors, producer.errors[:5]
    for partition in range(load.partitions):
        records = stored.get(partition, {})
        assert sorted(records) == list(range(len(records))), f"partition {partition} leaves out offsets"
        twice = [payload for payload, count in Counter(records.values()).items() if count > 1]
        assert not twice, f"stored twice: {twice[:5]} of {len(twice)}"
        for producer in load.producers:
            wrong = {
                offset: payload
                for offset, payload in producer.acknowledged[partition].items()
                if records.get(offset) != payload
            }
            assert not wrong, f"acknowledged and not there: {list(wrong.items())[:5]} of {len(wrong)}"
            own = [text for _, text in sorted(records.items()) if text.startswith(f"{producer.number}/")]
            assert own == producer.sent[partition], f"producer {producer.number}: out of order, or not all of it"
        foreign = set(records.values()) - {text for producer in load.producers for text in producer.sent[partition]}
        assert not foreign, f"nobody sent: {sorted(foreign)[:5]}"
