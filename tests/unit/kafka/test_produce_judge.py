"""Every reason to refuse a batch, with the code that Kafka gives for it; and what is changed in a batch."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from llog.formats.buffers import Buffer
from llog.formats.records import batch_kernels
from llog.formats.records.encode import encode_columns
from llog.formats.records.produced import BatchFault, ProducedBatch, check_batches, walk_inflated
from llog.formats.records.record_batch import HEADER_BYTES, Codec, TimestampType, parse_header, verify_crcs, walk
from llog.formats.records.record_columns import columns_from_rows
from llog.kafka.error_codes import ErrorCode
from llog.kafka.produce.judge import RECORD_ERRORS_MAX
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from tests.unit.kafka.producing import BY_NAME, Producing, batch, now_ms, producing, request, summed

HOUR_MS = 3_600_000


@pytest.fixture
async def kafka() -> AsyncIterator[Producing]:
    async with producing() as made:
        await made.topic()
        yield made


def with_field(data: bytearray, at: int, layout: str, value: int) -> bytearray:
    struct.pack_into(layout, data, at, value)
    return summed(data)


def with_bits(data: bytearray, bits: int) -> bytearray:
    [attributes] = struct.unpack_from(">h", data, 21)
    return with_field(data, 21, ">h", attributes | bits)


def with_record_byte(data: bytearray, at: int, value: int) -> bytearray:
    data[HEADER_BYTES + at] = value
    return summed(data)


BATCHES: dict[str, tuple[Callable[[], Any], ErrorCode]] = {
    "null": (lambda: None, ErrorCode.INVALID_RECORD),
    "empty": (bytearray, ErrorCode.INVALID_RECORD),
    "shorter than a prefix": (lambda: batch(b"a")[:16], ErrorCode.INVALID_RECORD),
    "cut off": (lambda: batch(b"a")[:-1], ErrorCode.INVALID_RECORD),
    "two batches": (lambda: batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
    "trailing bytes": (lambda: batch(b"a") + b"x", ErrorCode.INVALID_RECORD),
    "magic 1": (lambda: with_field(batch(b"a"), 16, ">b", 1), ErrorCode.INVALID_RECORD),
    "magic 3": (lambda: with_field(batch(b"a"), 16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
    "negative length": (lambda: with_field(batch(b"a"), 8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    "length below the header": (lambda: with_field(batch(b"a"), 8, ">i", 20), ErrorCode.CORRUPT_MESSAGE),
    "bad checksum": (lambda: batch(b"a")[:-1] + b"\x01", ErrorCode.CORRUPT_MESSAGE),
    "unknown codec": (lambda: with_bits(batch(b"a"), 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "base offset": (lambda: with_field(batch(b"a"), 0, ">q", 7), ErrorCode.INVALID_RECORD),
    "control batch": (lambda: with_bits(batch(b"a"), 0x20), ErrorCode.INVALID_RECORD),
    "delete horizon": (lambda: with_bits(batch(b"a"), 0x40), ErrorCode.INVALID_RECORD),
    "transactional": (lambda: with_bits(batch(b"a"), 0x10), ErrorCode.INVALID_TXN_STATE),
    "no records": (lambda: with_field(with_field(batch(b"a"), 57, ">i", 0), 23, ">i", -1), ErrorCode.INVALID_RECORD),
    "negative count": (lambda: with_field(batch(b"a"), 57, ">i", -1), ErrorCode.INVALID_RECORD),
    "count and offsets differ": (lambda: with_field(batch(b"a", b"b"), 57, ">i", 1), ErrorCode.INVALID_RECORD),
    "more records than bytes": (
        lambda: with_field(with_field(batch(b"a"), 57, ">i", 99), 23, ">i", 98),
        ErrorCode.INVALID_RECORD,
    ),
    "fewer records than said": (
        lambda: with_field(with_field(batch(b"a" * 50), 57, ">i", 2), 23, ">i", 1),
        ErrorCode.INVALID_RECORD,
    ),
    "bad varint": (lambda: with_record_byte(batch(b"a"), 0, 0xFF), ErrorCode.INVALID_RECORD),
    "bad offset delta": (lambda: with_record_byte(batch(b"a"), 3, 2), ErrorCode.INVALID_RECORD),
    "producer without sequence": (lambda: batch(b"a", producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
    "producer without epoch": (lambda: batch(b"a", producer_id=1, base_sequence=0), ErrorCode.INVALID_RECORD),
    "too far ahead": (lambda: batch(b"a", at_ms=now_ms() + 2 * HOUR_MS), ErrorCode.INVALID_TIMESTAMP),
    "compressed, too far ahead": (
        lambda: batch(b"a", at_ms=now_ms() + 2 * HOUR_MS, codec=Codec.ZSTD),
        ErrorCode.INVALID_TIMESTAMP,
    ),
}


@pytest.mark.parametrize(("made", "code"), BATCHES.values(), ids=BATCHES)
async def test_a_batch_that_kafka_refuses_is_refused_with_its_code(
    kafka: Producing, made: Callable[[], Any], code: ErrorCode
) -> None:
    refused = await kafka.ask_one(made())
    assert (ErrorCode(refused.error_code), refused.base_offset, refused.log_append_time_ms) == (code, -1, -1)
    assert refused.error_message
    assert await kafka.contents() == []


@pytest.mark.parametrize(("made", "_"), BATCHES.values(), ids=BATCHES)
def test_a_processor_without_the_checksum_instruction_finds_the_same_faults(
    made: Callable[[], Any], _: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = made()
    found = check_batches([(records, 10**9)])
    monkeypatch.setattr(batch_kernels, "CRC_AVAILABLE", False)
    assert check_batches([(records, 10**9)]) == found


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_codec_is_accepted_as_it_was_sent(kafka: Producing, codec: Codec) -> None:
    sent = batch(b"a", b"b" * 500, None, keys=[b"k", None, b""], codec=codec)
    assert (await kafka.ask_one(sent)).error_code == 0
    assert await kafka.contents() == [b"a", b"b" * 500, None]


async def test_zstd_is_refused_before_version_7(kafka: Producing) -> None:
    refused = await kafka.ask_one(batch(b"a", codec=Codec.ZSTD), 6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await kafka.ask_one(batch(b"a", codec=Codec.ZSTD), 7)).error_code == 0


async def test_a_batch_over_max_message_bytes_is_refused_as_it_was_sent(kafka: Producing) -> None:
    await kafka.topic("small", max_message_bytes="200")
    assert (await kafka.ask_one(batch(b"a" * 200), topic="small")).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await kafka.ask_one(batch(b"a" * 200, codec=Codec.GZIP), topic="small")).error_code == 0
    at_limit = batch(b"a" * 130)
    assert len(at_limit) == 200
    assert (await kafka.ask_one(at_limit, topic="small")).error_code == 0


def test_no_bytes_crash_the_checks() -> None:
    """Random changes, with and without a checksum that fits."""
    chance = random.Random(7)
    sound = batch(b"some value", b"", None, keys=[b"k", None, b"kk"], headers=[[("h", b"1")], None, [("i", None)]])
    for _ in range(3_000):
        data = bytearray(sound)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.7:
            summed(data)
        data = data[: chance.choice([len(data), len(data), chance.randrange(len(data))])]
        [checked] = check_batches([(data, 10**9)])
        if checked.fault is BatchFault.NONE:
            verify_crcs(data, walk(data, "test"), "test")


# -- timestamps --------------------------------------------------------------------------------------------------------


async def test_the_records_outside_the_window_are_named(kafka: Producing) -> None:
    now = now_ms()
    times = [now, now + 2 * HOUR_MS, -1, now + 3 * HOUR_MS]
    refused = await kafka.ask_one(batch(b"a", b"b", b"c", b"d", at_ms=times))
    assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in refused.record_errors] == [1, 3]
    await kafka.topic("recent", message_timestamp_before_max_ms=str(HOUR_MS))
    old = await kafka.ask_one(batch(*[b"x"] * 200, at_ms=[now] + [now - 2 * HOUR_MS] * 199), topic="recent")
    assert (old.error_code, len(old.record_errors)) == (ErrorCode.INVALID_TIMESTAMP, RECORD_ERRORS_MAX)
    assert (await kafka.ask_one(batch(b"x", at_ms=-1), topic="recent")).error_code == 0


async def test_a_header_with_a_wrong_newest_timestamp_is_corrected(kafka: Producing) -> None:
    now = now_ms()
    sent = with_field(batch(b"a", b"b", at_ms=[now, now - 5]), 35, ">q", now + 10**12)
    assert (await kafka.ask_one(sent)).error_code == 0
    header = parse_header(sent, 0, "test")
    assert header.max_timestamp == now
    verify_crcs(sent, walk(sent, "test"), "test")
    assert kafka.broker.log_start_offset(Log("orders", 0)) == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("kind", [bytearray, bytes], ids=["writable", "read-only"])
async def test_log_append_time_is_set_in_the_batch_and_answered(
    kafka: Producing, codec: Codec, kind: type[bytes]
) -> None:
    await kafka.topic("stamped", message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1")
    before = now_ms()
    answer = await kafka.ask_one(kind(batch(b"a", b"b", at_ms=[5, 2**50], codec=codec)), topic="stamped")
    assert answer.error_code == 0
    assert before <= answer.log_append_time_ms <= now_ms()
    runs = [run async for run in iter_runs(kafka.broker.context, Log("stamped", 0), 0)]
    assert [r.timestamp_ms for run in runs for r in run.records()] == [answer.log_append_time_ms] * 2


async def test_only_a_broker_sets_log_append_time(kafka: Producing) -> None:
    await kafka.topic("stamped", message_timestamp_type="LogAppendTime")
    columns = columns_from_rows([b"a"], timestamps_ms=now_ms() - 7)
    sent = bytearray(encode_columns(columns, timestamp_type=TimestampType.LOG_APPEND_TIME))
    assert (await kafka.ask_one(bytearray(sent), topic="stamped")).error_code == ErrorCode.INVALID_TIMESTAMP
    assert (await kafka.ask_one(sent)).error_code == 0
    assert parse_header(sent, 0, "test").timestamp_type is TimestampType.CREATE_TIME


async def test_a_batch_that_must_be_decompressed_is_not_checked_on_the_event_loop(
    kafka: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(records: Buffer, checked: ProducedBatch) -> ProducedBatch:
        threads.append(threading.current_thread().name)
        return walk_inflated(records, checked)

    monkeypatch.setattr("llog.kafka.produce.judge.walk_inflated", noted)
    await kafka.topic("latest", cleanup_policy="compact")
    answers = [
        kafka.send(request(("latest", 0, batch(b"%d" % n, keys=[b"k"], codec=codec))))
        for n, codec in enumerate([Codec.GZIP, Codec.NONE, Codec.GZIP, Codec.NONE])
    ]
    for answer in answers:
        await answer
    assert await kafka.contents("latest") == [b"0", b"1", b"2", b"3"]
    assert [name.startswith("llog-produce") for name in threads] == [True, True]


# -- compacted topics --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
async def test_a_compacted_topic_refuses_records_without_a_key(kafka: Producing, codec: Codec) -> None:
    await kafka.topic("latest", cleanup_policy="compact")
    refused = await kafka.ask_one(batch(b"a", b"b", b"c", keys=[b"k", None, None], codec=codec), topic="latest")
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [1, 2]
    assert (await kafka.ask_one(batch(b"a", None, keys=[b"k", b""], codec=codec), topic="latest")).error_code == 0


async def test_compressed_records_of_a_compacted_topic_are_checked(kafka: Producing) -> None:
    await kafka.topic("latest", cleanup_policy="compact")
    sent = batch(b"a" * 500, keys=[b"k"], codec=Codec.ZSTD)
    damaged = summed(sent[:-8] + bytearray(8))
    assert (await kafka.ask_one(damaged, topic="latest")).error_code == ErrorCode.CORRUPT_MESSAGE
    counted = with_field(with_field(batch(b"a" * 500, keys=[b"k"], codec=Codec.ZSTD), 57, ">i", 2), 23, ">i", 1)
    assert (await kafka.ask_one(counted, BY_NAME, "latest")).error_code == ErrorCode.INVALID_RECORD
