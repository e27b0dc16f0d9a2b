"""What a topic's configs and partition count allow a direct writer and an embedded broker to append."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llog import LeaderlessLogReader, LeaderlessLogWriter, SharedAppendGroup, embedded
from llog.api.aio import AsyncLeaderlessLogWriter
from llog.errors import PartitionOutOfRange, RecordTooLarge, TimestampOutOfWindow
from llog.log.append.append import Appended
from llog.log.topics import known_topics
from llog.log.topics.admin import create_topic
from llog.log.topics.create import load_topic
from llog.settings import Settings
from llog.wiring import opened_log


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    objects = f"memory://limits-{time.time_ns()}"
    return Settings.from_env({}, metadata_url=f"lmdb://{tmp_path}/metadata", objects_url=objects)


@pytest.fixture
def writer(settings: Settings) -> Iterator[LeaderlessLogWriter]:
    with LeaderlessLogWriter(settings) as writer:
        yield writer


def create(settings: Settings, topic: str, partitions: int = 1, **config: int | str) -> None:
    async def run() -> None:
        async with opened_log(settings) as opened:
            named = {name.replace("_", "."): str(value) for name, value in config.items()}
            await create_topic(opened.context, topic, partitions=partitions, config=named)

    asyncio.run(run())


def group(partition: int = 0, *payloads: bytes, stamps_ms: list[int] | None = None) -> SharedAppendGroup:
    return SharedAppendGroup("orders", partition, payloads or (b"x",), timestamps_ms=stamps_ms)


@pytest.mark.parametrize("encoding", ["kafka-v2", "bytes-batch-v1"])
def test_a_record_over_max_message_bytes_fails_its_group_alone(settings: Settings, encoding: str) -> None:
    create(settings, "orders", 2, max_message_bytes=200)
    with LeaderlessLogWriter(settings.replaced(encoding=encoding)) as writer:
        with pytest.raises(RecordTooLarge) as caught:
            writer.append_shared([group(0, b"y" * 200, b"z"), group(1)])
        refused, landed = caught.value.outcomes
        assert refused is caught.value
        assert isinstance(landed, Appended)
        assert writer.append_shared([group(0)])[0].start_offset == 1


def test_a_timestamp_outside_the_window_fails_its_group_alone(settings: Settings, writer: LeaderlessLogWriter) -> None:
    create(settings, "orders", 2, message_timestamp_before_max_ms=60_000)
    now = now_ms()
    with pytest.raises(TimestampOutOfWindow, match="orders:1"):
        writer.append_shared([group(0, stamps_ms=[now]), group(1, b"a", b"b", stamps_ms=[now, now - 120_000])])
    with pytest.raises(TimestampOutOfWindow, match=r"message\.timestamp\.after\.max\.ms=3600000"):
        writer.append_shared([group(0, stamps_ms=[now + 7_200_000])])
    with LeaderlessLogReader(settings) as reader:
        assert reader.high_watermark("orders", 0) == 1
        assert reader.high_watermark("orders", 1) == 0


def test_a_writer_adds_no_partition_and_initialize_partition_does(
    settings: Settings, writer: LeaderlessLogWriter
) -> None:
    create(settings, "orders", 3)
    with pytest.raises(PartitionOutOfRange, match="the topic has 3 partitions"):
        writer.append_shared([group(50)])
    writer.initialize_partition("orders", 3)
    assert writer.append_shared([group(3)])[0].start_offset == 1


def test_the_first_append_creates_the_partitions_that_it_names(writer: LeaderlessLogWriter) -> None:
    assert len(writer.append_shared([group(0), group(2), group(1)])) == 3
    with pytest.raises(PartitionOutOfRange, match="has 3 partitions"):
        writer.append_shared([group(3)])


async def test_configs_are_read_once_for_many_appends(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    async def counted(*arguments: object, **more: object) -> object:
        reads.append(arguments)
        return await load_topic(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(known_topics, "load_topic", counted)
    async with await AsyncLeaderlessLogWriter.open(settings) as writer:
        for _ in range(20):
            await writer.append_shared([group(0), group(1)])
    assert len(reads) == 1


def test_an_embedded_broker_judges_records_alike() -> None:
    with embedded() as log:
        log.produce("orders", [b"x"], timestamps_ms=[now_ms()])
        with pytest.raises(TimestampOutOfWindow):
            log.produce("orders", [b"x"], timestamps_ms=[now_ms() + 7_200_000])
        with pytest.raises(RecordTooLarge):
            log.produce("orders", [b"x" * 1_100_000])
        assert log.produce("orders", [b"x"]).start_offset == 2


@pytest.mark.parametrize("encoding", ["kafka-v2", "bytes-batch-v1"])
def test_a_topic_with_log_append_time_sets_the_time_of_the_write(settings: Settings, encoding: str) -> None:
    create(settings, "orders", message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1)
    before, stamps = now_ms(), None if encoding == "bytes-batch-v1" else [5, 2**60]
    with LeaderlessLogWriter(settings.replaced(encoding=encoding)) as writer:
        writer.append_shared([group(0, b"a", b"b", stamps_ms=stamps)])
    with LeaderlessLogReader(settings) as reader:
        times = {record.timestamp_ms for record in reader.iter_from("orders", 0, 1)}
        assert len(times) == 1
        assert before <= min(times) <= now_ms()
        assert reader.offset_for_timestamp("orders", 0, min(times)) is not None
