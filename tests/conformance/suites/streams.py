"""Kafka Streams: a word count with a repartition topic and a changelog, stopped and started, then without its state."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.conformance.java import Java, Service
from tests.conformance.outcome import Result
from tests.conformance.packages import java_class, maven_packages
from tests.conformance.suite import Claims, Suite, Target

VERSION: Final = "4.3.1"
PARTITIONS: Final = 2
LINES: Final = 2_000
COUNTED_SECONDS_MAX: Final = 90
CALL_SECONDS_MAX: Final = 30
WORDS: Final = ("log", "segment", "offset", "batch", "commit", "lease", "flush")


def run(target: Target) -> list[Result]:
    packages = maven_packages("kafka-apps")
    classes = java_class(Path(__file__).with_name("WordCount.java"), packages)
    try:
        return _claims(target, Java(packages, target.directory, classes=classes))
    finally:
        shutil.rmtree(classes)


def _claims(target: Target, java: Java) -> list[Result]:
    claims, state = Claims(), target.directory / "state"
    admin = AdminClient({"bootstrap.servers": target.address})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("lines", "word-counts")]).values():
        created.result(CALL_SECONDS_MAX)
    wanted: Counter[str] = Counter()
    arguments = ("WordCount", target.address, state)

    wanted.update(_produce(target.address, 0))
    with claims.claim("the words are counted"), java.service(*arguments) as service:
        _until_counted(target.address, service, wanted)
    with claims.claim("the changelog is a compacted topic, the repartition topic is not"):
        policies = {name: _cleanup_policy(admin, f"word-count-{name}") for name in _INTERNAL}
        assert policies == _INTERNAL, policies
    wanted.update(_produce(target.address, 1))
    with claims.claim("after a restart the counts go on, each word once"), java.service(*arguments) as service:
        _until_counted(target.address, service, wanted)
    if state.exists():
        shutil.rmtree(state)
    wanted.update(_produce(target.address, 2))
    with (
        claims.claim("without its state directory it restores the counts from the changelog"),
        java.service(*arguments) as service,
    ):
        _until_counted(target.address, service, wanted)
    return claims.results


_INTERNAL: Final[Mapping[str, str]] = {"counts-changelog": "compact", "words-repartition": "delete"}


def _produce(address: str, round_: int) -> Iterable[str]:
    """The words that were sent."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 20})
    words: list[str] = []
    failures: list[str] = []
    for number in range(LINES):
        line = [WORDS[(number * place + round_) % len(WORDS)] for place in (1, 2, 5)]
        words += line
        producer.produce(
            "lines",
            " ".join(line),
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failures.append(str(error)) if error is not None else None,
        )
        producer.poll(0)
    left = producer.flush(CALL_SECONDS_MAX)
    assert left == 0, f"{left} lines were not acknowledged"
    assert not failures, failures[0]
    return words


def _until_counted(address: str, service: Service, wanted: Counter[str]) -> None:
    counts: dict[str, int] = {}
    with _Reader(address) as reader:

        def counted() -> bool:
            counts.update(reader.read())
            too_high = [word for word, count in counts.items() if count > wanted[word]]
            assert not too_high, f"counted more than once: {too_high}"
            return counts == wanted

        service.until("every word is counted", counted, COUNTED_SECONDS_MAX)


class _Reader:
    """Reads the topic of the counts without a group."""

    def __init__(self, address: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition("word-counts", number, 0) for number in range(PARTITIONS)])

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self) -> dict[str, int]:
        """What arrived since; the newest count of a word wins."""
        counts = {}
        for record in self._consumer.consume(1_000, timeout=0.5):
            if record.error() is None:
                counts[(record.key() or b"").decode()] = int.from_bytes(record.value() or b"")
        return counts


def _cleanup_policy(admin: AdminClient, topic: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    [described] = admin.describe_configs([resource]).values()
    return str(described.result(CALL_SECONDS_MAX)["cleanup.policy"].value)


SUITE: Final = Suite(
    "streams", "Kafka Streams, word count", VERSION, run, note="at_least_once; restarted, then without its state"
)
