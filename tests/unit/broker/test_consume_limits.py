"""Limits of a consume count records: the answer has as many as fit, wherever and however they are stored."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from llog.broker.consume.consume import PartitionFetch, PartitionFetched
from llog.errors import InconsistentReadState
from llog.formats.buffers import crc32c
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import CRC_START, Codec
from llog.formats.records.record_columns import Header
from llog.log.append.append import EncodedGroup
from llog.log.keys import Log
from llog.log.read.records import LogRecord
from llog.log.topics.admin import create_topic
from llog.pipeline.compact.once import compact_once
from tests.unit.broker.consuming import LONG_POLL_MS, ORDERS, Stores, TestBroker, group, values
from tests.unit.broker.test_consume_keys import compact_by_key

SEEDS = range(40 if os.environ.get("LLOG_SOAK") == "1" else 4)


def records_of(answer: PartitionFetched) -> list[LogRecord]:
    return [record for run in answer.runs for record in run.records()]


def size_of(record: LogRecord) -> int:
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.payload or b"") + headers


def fitting(records: Sequence[LogRecord], limit: int) -> list[LogRecord]:
    """What an answer with this limit holds."""
    taken: list[LogRecord] = []
    size = 0
    for record in records:
        if taken and (size >= limit or size + size_of(record) > limit):
            break
        taken.append(record)
        size += size_of(record)
    return taken


def append_of(rng: random.Random, log: Log = ORDERS, **more: Any) -> EncodedGroup:
    """Some records of any size; one in ten has nothing at all."""
    count = rng.randrange(1, 30)
    sizes = [rng.choice([0, 3, 40, 200, 1_000]) for _ in range(count)]
    headers: list[list[Header] | None] = [[("name", b"v" * 5)] if rng.random() < 0.2 else None for _ in sizes]
    keys = [b"k%d" % rng.randrange(40) if rng.random() < 0.9 else None for _ in sizes]
    body = encode_records([rng.randbytes(size) for size in sizes], keys=keys, headers=headers, timestamps_ms=5, **more)
    return EncodedGroup(log, count, "kafka-v2", [body], 5)


async def filled(stores: Stores, rng: random.Random, *, keyed: bool = False, **more: Any) -> TestBroker:
    broker = stores.broker(8 << 20, refresh_ms=LONG_POLL_MS)
    if keyed:
        await create_topic(broker.context, ORDERS.topic, config={"cleanup.policy": "compact"})
    for _ in range(12):
        await broker.append(append_of(rng, **more))
    return broker


async def stored_as(kind: str, rng: random.Random) -> tuple[Stores, TestBroker]:
    """A broker that reads the same records from another place."""
    stores = Stores()
    writer = await filled(stores, rng, keyed=kind == "keys", codec=Codec.LZ4 if kind == "compressed" else Codec.NONE)
    if kind == "cache":
        return stores, writer
    if kind == "segment":
        while await compact_once(writer.context, ORDERS):
            pass
    if kind == "keys":
        await compact_by_key(writer.context)
    await writer.close()
    if kind == "no cache":
        return stores, stores.broker(0)
    return stores, stores.broker()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["cache", "blob", "no cache", "segment", "keys", "compressed"])
async def test_an_answer_has_as_many_records_as_fit(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    _, broker = await stored_as(kind, rng)
    [whole] = await broker.fetch(ORDERS)
    everything = records_of(whole)
    assert whole.next_fetch_offset == whole.high_watermark + 1
    for _ in range(40):
        offset, limit = rng.randrange(1, whole.high_watermark + 1), rng.choice([1, 50, 500, 5_000, 50_000])
        limits: dict[str, int] = {}
        fetch = PartitionFetch(ORDERS, offset, limit)
        if rng.random() < 0.5:
            fetch, limits = PartitionFetch(ORDERS, offset), {"max_bytes": limit}
        [answer] = await broker.fetch(fetch, **limits)
        left = [record for record in everything if record.offset >= offset]
        expected = fitting(left, limit)
        assert records_of(answer) == expected, (offset, limit)
        assert answer.high_watermark == whole.high_watermark
        if len(expected) < len(left):
            assert expected[-1].offset < answer.next_fetch_offset <= left[len(expected)].offset
        else:
            assert answer.next_fetch_offset == answer.high_watermark + 1
    await broker.close()


@pytest.mark.parametrize("kind", ["cache", "no cache", "segment"])
async def test_five_thousand_bytes_of_twenty_thousand_are_five_records(kind: str) -> None:
    stores = Stores()
    broker = stores.broker(0 if kind == "no cache" else 1 << 20)
    await broker.append(group(ORDERS, *[b"%02d" % number + b"x" * 998 for number in range(20)]))
    if kind == "segment":
        await compact_once(broker.context, ORDERS)
        broker = stores.broker()
    offset = 1
    for _ in range(4):
        [answer] = await broker.fetch(PartitionFetch(ORDERS, offset, 5_000))
        assert [int((value or b"")[:2]) for value in values(answer)] == list(range(offset - 1, offset + 4))
        offset = answer.next_fetch_offset
    assert offset == 21
    assert sum(byte_length for _, _, byte_length, _, _ in broker.metrics.consumed) < 21_000, "no record counts twice"


@pytest.mark.parametrize("max_bytes", [1 << 20, 0], ids=["cache", "store"])
async def test_every_partition_is_cut_by_its_own_limit(max_bytes: int) -> None:
    rng, broker = random.Random(5), Stores().broker(max_bytes)
    logs = [Log("orders", partition) for partition in range(20)]
    for _ in range(6):
        await broker.append(*(append_of(rng, log) for log in logs))
    wholes = [records_of(answer) for answer in await broker.fetch(*logs)]
    limits = [rng.choice([10, 900, 3_000, 30_000]) for _ in logs]
    answers = await broker.fetch(
        *(PartitionFetch(log, 1, limit) for log, limit in zip(logs, limits, strict=True)), max_bytes=10_000_000
    )
    found = [records_of(answer) for answer in answers]
    assert found[0] == fitting(wholes[0], limits[0])
    for records, whole, limit in zip(found[1:], wholes[1:], limits[1:], strict=True):
        # Only the first record of the whole answer may pass a limit.
        assert records == (fitting(whole, limit) if size_of(whole[0]) <= limit else [])
    await broker.close()


@pytest.mark.parametrize("max_bytes", [1 << 20, 0], ids=["cache", "store"])
async def test_the_limit_of_the_answer_is_shared_in_request_order(max_bytes: int) -> None:
    broker = Stores().broker(max_bytes)
    logs = [Log("orders", partition) for partition in range(4)]
    for _ in range(3):
        await broker.append(*(group(log, *[b"x" * 100] * 5) for log in logs))
    answers = await broker.fetch(*logs, max_bytes=3_250)
    assert [len(values(answer)) for answer in answers] == [15, 15, 2, 0]
    assert [answer.next_fetch_offset for answer in answers] == [16, 16, 3, 1]
    await broker.close()


async def test_tiny_records_fill_an_answer_although_their_batches_are_much_longer() -> None:
    for cache_bytes in (8 << 20, 0):
        broker = Stores().broker(cache_bytes)
        for _ in range(40):
            await broker.append(group(ORDERS, *[b"x"] * 100))
        [answer] = await broker.fetch(ORDERS, max_bytes=3_333)
        assert len(values(answer)) == 3_333
        await broker.close()


async def test_bare_payloads_are_cut_too() -> None:
    broker = Stores().broker()
    await broker.append(EncodedGroup(ORDERS, 3, "bytes-batch-v1", encode_bytes_batch([b"aaa", b"bbb", b"ccc"]), 7))
    [answer] = await broker.fetch(PartitionFetch(ORDERS, 2, 5))
    assert (values(answer), answer.next_fetch_offset) == ([b"bbb"], 3)
    await broker.close()


async def test_min_bytes_counts_records_and_one_without_bytes_does_not_wait() -> None:
    broker = Stores().broker(refresh_ms=LONG_POLL_MS)
    await broker.append(group(ORDERS, b""))
    [answer] = await broker.fetch(ORDERS, max_wait_ms=LONG_POLL_MS)
    assert values(answer) == [b""]
    [answer] = await broker.fetch(ORDERS, min_bytes=2, max_wait_ms=30)
    assert broker.metrics.waits_ms[-1] > 0
    await broker.close()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_an_unsound_batch_is_an_error_of_its_partition(codec: Codec) -> None:
    """Its checksum matches, so its producer sent these bytes."""
    body = bytearray(encode_records([b"abc"] * 3, timestamps_ms=5, codec=codec))
    body[61:] = b"\xff" * (len(body) - 61)
    with memoryview(body) as view:
        checksum = crc32c(view[CRC_START:])
    body[CRC_START - 4 : CRC_START] = checksum.to_bytes(4, "big")
    stores = Stores()
    warm, cold = stores.broker(refresh_ms=LONG_POLL_MS), stores.broker(0)
    await warm.append(group(ORDERS, b"good"))
    await warm.append(EncodedGroup(ORDERS, 3, "kafka-v2", [bytes(body)], 5))
    for broker in (warm, cold):
        [answer] = await broker.fetch(ORDERS)
        assert (values(answer), answer.next_fetch_offset, answer.error) == ([b"good"], 2, None)
        [answer] = await broker.fetch(PartitionFetch(ORDERS, 2))
        assert isinstance(answer.error, InconsistentReadState)
        await broker.close()
