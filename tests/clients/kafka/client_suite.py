"""What every Kafka client must be able to do with the broker; one subclass per client library names its driver.

No claim uses consumer groups. Topics are made by the client under test, so a claim exercises its administration too.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ClassVar

import pytest

from tests.clients.http_calls import unused_topic
from tests.clients.kafka.brokers import KafkaBroker
from tests.clients.kafka.driver import CODECS, EARLIEST, LATEST, PLAIN, ClientDriver, Code, Connect, How, Refused, Sent
from tests.patience import wait_until

DAY_MS = 86_400_000


def mixed_records(rng: random.Random, count: int, partition: int = 0) -> list[Sent]:
    """Nulls, empty and binary keys and values, headers of every shape, times of the last hour."""
    now_ms = time.time_ns() // 1_000_000
    payloads = [None, b"", b"plain", "ümläut 漢字 🜁".encode(), b"\x00\xff\r\n", b"x" * 2_000]
    headers = [(), (("one", b"1"),), (("again", b"a"), ("again", b"b")), (("ü", b"\xff"), ("none", None), ("", b""))]
    return [
        Sent(
            rng.choice([*payloads, rng.randbytes(rng.randrange(300))]),
            rng.choice([*payloads[:4], rng.randbytes(8)]),
            rng.choice(headers),
            now_ms - rng.randrange(3_600_000),
            partition,
        )
        for _ in range(count)
    ]


class ClientSuite:
    """Claims about one client library."""

    driver: ClassVar[type[ClientDriver]]
    """How the library is connected; a class of drivers."""
    sends_nothing: ClassVar[bool] = True
    """The library sends records that have neither key nor value."""
    sends_null_headers: ClassVar[bool] = True
    follows_new_topic_ids: ClassVar[bool] = True
    """Its producers go on when a topic of the same name is another topic."""

    def mixed_records(self, rng: random.Random, count: int, partition: int = 0) -> list[Sent]:
        records = mixed_records(rng, count, partition)
        if not self.sends_nothing:
            records = [r._replace(key=b"k") if r.key is None and r.value is None else r for r in records]
        if not self.sends_null_headers:
            records = [r._replace(headers=tuple((name, value or b"") for name, value in r.headers)) for r in records]
        return records

    # -- records -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("codec", CODECS)
    def test_records_come_back_byte_for_byte(
        self, client: ClientDriver, topic: str, codec: str, rng: random.Random
    ) -> None:
        client.create(topic, 2)
        sent = [record for partition in (0, 1) for record in self.mixed_records(rng, 40, partition)]
        rng.shuffle(sent)
        offsets = client.produce(topic, sent, How(codec, linger_ms=20))
        by_partition: dict[int, list[Sent]] = defaultdict(list)
        for record, offset in zip(sent, offsets, strict=True):
            assert offset == len(by_partition[record.partition]), "offsets of a partition are consecutive from 0"
            by_partition[record.partition].append(record)
        fetched = client.fetch(topic, {0: 0, 1: 0}, len(sent))
        for partition, expected in by_partition.items():
            found = [record for record in fetched if record.partition == partition]
            assert [record.offset for record in found] == list(range(len(expected)))
            assert [record.as_sent() for record in found] == expected
            assert not any(record.is_append_time for record in found)

    @pytest.mark.parametrize("acks", [0, 1, -1])
    def test_every_acks_stores_the_records_once(self, client: ClientDriver, topic: str, acks: int) -> None:
        client.create(topic)
        sent = [Sent(b"%d" % number) for number in range(30)]
        offsets = client.produce(topic, sent, How(acks=acks, idempotent=False))
        if acks != 0:
            assert offsets == list(range(30))
        wait_until(lambda: client.offset_at(topic, 0, LATEST) == 30, "all records stored")
        assert [record.value for record in client.fetch(topic, {0: 0}, 30)] == [record.value for record in sent]

    def test_an_idempotent_producer_stores_many_batches_once_and_in_order(
        self, client: ClientDriver, topic: str, rng: random.Random
    ) -> None:
        """Small batches, so that several are in flight on each of the partitions."""
        client.create(topic, 3)
        sent = [Sent(b"%d" % number, partition=rng.randrange(3)) for number in range(3_000)]
        for begin in range(0, len(sent), 500):
            client.produce(topic, sent[begin : begin + 500], How(name="many"))
        fetched = client.fetch(topic, {0: 0, 1: 0, 2: 0}, len(sent))
        for partition in range(3):
            values = [record.value for record in fetched if record.partition == partition]
            assert values == [record.value for record in sent if record.partition == partition]

    def test_a_record_of_several_megabytes_needs_a_raised_limit(
        self, client: ClientDriver, topic: str, rng: random.Random
    ) -> None:
        client.create(topic)
        large = rng.randbytes(5 << 20)
        with pytest.raises(Refused) as refusal:
            client.produce(topic, [Sent(large)], How(name="large"))
        assert refusal.value.code == Code.MESSAGE_TOO_LARGE
        client.set_config(topic, "max.message.bytes", str(8 << 20))
        wait_until(lambda: _is_taken(client, topic, large), "the raised limit to be seen")
        [found] = client.fetch(topic, {0: 0}, 1)
        assert found.value == large
        [again] = client.produce(topic, [Sent(b"small")], How(name="large again"))
        assert client.fetch(topic, {0: again}, 1)[0].value == b"small"

    def test_a_fetch_waits_for_records_that_come_later(
        self, client: ClientDriver, topic: str, kafka: KafkaBroker, connect: Connect
    ) -> None:
        client.create(topic, 2)
        with ThreadPoolExecutor() as pool, connect(kafka) as reader:
            waiting = pool.submit(reader.fetch, topic, {0: 0, 1: 0}, 3)
            client.produce(topic, [Sent(b"first", partition=1)])
            time.sleep(0.3)  # a long poll begins at the end of the logs
            client.produce(topic, [Sent(b"second", partition=0)])
            client.produce(topic, [Sent(b"third", partition=1)])
            values = {record.value for record in waiting.result()}
        assert values == {b"first", b"second", b"third"}

    # -- offsets and times -------------------------------------------------------------------------------------------

    def test_a_fetch_begins_at_any_offset_inside_a_batch(self, client: ClientDriver, topic: str) -> None:
        client.create(topic)
        client.produce(topic, [Sent(b"%d" % number) for number in range(50)], How("lz4", linger_ms=50))
        for start in (0, 1, 17, 49):
            [first] = client.fetch(topic, {0: start}, 1)
            assert (first.offset, first.value) == (start, b"%d" % start)

    def test_an_offset_beyond_the_end_is_out_of_range(self, client: ClientDriver, topic: str) -> None:
        client.create(topic)
        client.produce(topic, [Sent(b"only")])
        with pytest.raises(Refused) as refusal:
            client.fetch(topic, {0: 7}, 1)
        assert refusal.value.code == Code.OFFSET_OUT_OF_RANGE

    def test_offsets_are_found_by_time(self, client: ClientDriver, topic: str) -> None:
        client.create(topic)
        assert client.offset_at(topic, 0, EARLIEST) == client.offset_at(topic, 0, LATEST) == 0
        begin_ms = time.time_ns() // 1_000_000 - DAY_MS
        client.produce(topic, [Sent(b"", timestamp_ms=begin_ms + 10 * number) for number in range(20)])
        assert client.offset_at(topic, 0, EARLIEST) == 0
        assert client.offset_at(topic, 0, LATEST) == 20
        assert client.offset_at(topic, 0, begin_ms - 5) == 0
        assert client.offset_at(topic, 0, begin_ms + 100) == 10
        assert client.offset_at(topic, 0, begin_ms + 101) == 11
        assert client.offset_at(topic, 0, begin_ms + DAY_MS) is None

    def test_append_time_replaces_the_time_of_the_producer(self, client: ClientDriver, topic: str) -> None:
        client.create(topic, configs={"message.timestamp.type": "LogAppendTime"})
        begin_ms = time.time_ns() // 1_000_000
        client.produce(
            topic, [Sent(b"%d" % number, timestamp_ms=begin_ms - DAY_MS) for number in range(3)], How("gzip")
        )
        end_ms = time.time_ns() // 1_000_000
        for record in client.fetch(topic, {0: 0}, 3):
            assert record.is_append_time
            assert begin_ms - 1 <= record.timestamp_ms <= end_ms + 1
        assert client.offset_at(topic, 0, begin_ms - DAY_MS) == 0
        assert client.offset_at(topic, 0, end_ms + 60_000) is None

    def test_deleted_records_are_gone_and_the_rest_stays(self, client: ClientDriver, topic: str) -> None:
        client.create(topic, 2)
        client.produce(topic, [Sent(b"%d" % number, partition=number % 2) for number in range(40)])
        assert client.delete_records(topic, 1, 12) == 12
        assert client.offset_at(topic, 1, EARLIEST) == 12
        assert client.offset_at(topic, 0, EARLIEST) == 0
        assert [record.offset for record in client.fetch(topic, {1: 12}, 8)] == list(range(12, 20))
        with pytest.raises(Refused) as refusal:
            client.fetch(topic, {1: 11}, 1)
        assert refusal.value.code == Code.OFFSET_OUT_OF_RANGE
        with pytest.raises(Refused) as refusal:
            client.delete_records(topic, 1, 21)
        assert refusal.value.code == Code.OFFSET_OUT_OF_RANGE

    # -- topics ------------------------------------------------------------------------------------------------------

    def test_topics_are_created_listed_grown_and_deleted(self, client: ClientDriver, topic: str) -> None:
        client.create(topic, 3)
        wait_until(lambda: client.topics().get(topic) == 3, "the topic to be listed")
        client.grow(topic, 5)
        wait_until(lambda: client.topics().get(topic) == 5, "two more partitions")
        client.delete(topic)
        wait_until(lambda: topic not in client.topics(), "the topic to be gone")

    def test_wrong_administration_is_refused_with_kafkas_codes(self, client: ClientDriver, topic: str) -> None:
        client.create(topic, 2)
        wait_until(lambda: client.topics().get(topic) == 2, "the topic to be listed")
        wrong: dict[int, Callable[[], None]] = {
            Code.TOPIC_ALREADY_EXISTS: lambda: client.create(topic),
            Code.INVALID_PARTITIONS: lambda: client.grow(topic, 1),
            Code.INVALID_TOPIC: lambda: client.create("no spaces"),
            Code.INVALID_CONFIG: lambda: client.create(unused_topic(), configs={"retention.ms": "long"}),
            Code.UNKNOWN_TOPIC_OR_PARTITION: lambda: client.delete(unused_topic()),
        }
        codes = {}
        for expected, call in wrong.items():
            with pytest.raises(Refused) as refusal:
                call()
            codes[expected] = refusal.value.code
        assert codes == {code: code for code in wrong}

    def test_validating_a_topic_creates_nothing(self, client: ClientDriver, topic: str) -> None:
        client.create(topic, 4, validate_only=True)
        assert topic not in client.topics()
        client.create(topic)

    def test_configs_are_set_described_and_reset(self, client: ClientDriver, topic: str) -> None:
        client.create(topic, configs={"retention.ms": "123456"})
        wait_until(lambda: client.topics().get(topic) == 1, "the topic to be listed")
        described = client.configs(topic)
        assert described["retention.ms"] == "123456"
        assert described["cleanup.policy"] == "delete"
        client.set_config(topic, "segment.ms", "600000")
        wait_until(lambda: client.configs(topic)["segment.ms"] == "600000", "the new value")
        assert client.configs(topic)["retention.ms"] == "123456", "the other value stays"
        client.set_config(topic, "retention.ms", None)
        wait_until(lambda: client.configs(topic)["retention.ms"] == str(7 * DAY_MS), "the default")
        with pytest.raises(Refused) as refusal:
            client.set_config(topic, "no.such.config", "1")
        assert refusal.value.code == Code.INVALID_CONFIG

    def test_a_topic_comes_into_being_when_it_is_produced_to(self, client: ClientDriver, topic: str) -> None:
        assert client.produce(topic, [Sent(b"first"), Sent(b"second")]) == [0, 1]
        wait_until(lambda: client.topics().get(topic) == 1, "the topic to be listed")
        assert [record.value for record in client.fetch(topic, {0: 0}, 2)] == [b"first", b"second"]

    def test_a_producer_finds_new_partitions_by_itself(self, client: ClientDriver, topic: str) -> None:
        client.create(topic, 1)
        assert client.produce(topic, [Sent(b"old")]) == [0]
        client.grow(topic, 2)
        wait_until(lambda: _is_produced(client, topic, Sent(b"new", partition=1)), "the producer to see the partition")
        assert client.fetch(topic, {1: 0}, 1)[0].value == b"new"

    def test_a_producer_goes_on_when_its_topic_was_deleted_and_created_again(
        self, client: ClientDriver, topic: str
    ) -> None:
        if not self.follows_new_topic_ids:
            pytest.skip("the library keeps to the topic it knew first")
        client.create(topic)
        how = How(name=topic, idempotent=False)
        client.produce(topic, [Sent(b"%d" % number) for number in range(5)], how)
        client.delete(topic)
        with suppress(Refused):  # the producer, which asks for metadata, may have created it already
            client.create(topic)
        wait_until(lambda: _is_produced(client, topic, Sent(b"again"), how), "the new topic")
        assert [record.value for record in client.fetch(topic, {0: 0}, 1)] == [b"again"]

    # -- TLS ---------------------------------------------------------------------------------------------------------

    def test_everything_works_over_tls(
        self, kafka_tls: KafkaBroker, connect: Connect, topic: str, rng: random.Random
    ) -> None:
        with connect(kafka_tls) as client:
            client.create(topic)
            sent = [*self.mixed_records(rng, 20), Sent(rng.randbytes(700_000))]
            assert client.produce(topic, sent, How("zstd", linger_ms=20)) == list(range(21))
            found = client.fetch(topic, {0: 0}, 21)
            assert [(record.key, record.value, record.headers) for record in found] == [
                (record.key, record.value, record.headers) for record in sent
            ]


def _is_taken(client: ClientDriver, topic: str, value: bytes) -> bool:
    try:
        return client.produce(topic, [Sent(value)], How(name=f"large {time.monotonic()}")) == [0]
    except Refused as refusal:
        if refusal.code != Code.MESSAGE_TOO_LARGE:
            raise
        return False


def _is_produced(client: ClientDriver, topic: str, record: Sent, how: How = PLAIN) -> bool:
    """False while the producer does not know the partition; each library says so in its own way."""
    try:
        return client.produce(topic, [record], how) == [0]
    except Refused:
        return False
