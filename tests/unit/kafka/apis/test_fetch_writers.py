"""One log, every writer: Fetch returns what HTTP, the Python writer, Spark's sink and Kafka's clients wrote, before and
after compaction, and records that key compaction left keep their offsets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pyarrow as pa
import pytest

from llog.api.aio import AsyncLeaderlessLogWriter
from llog.api.groups import SharedAppendGroup
from llog.formats.records.decode import decode_records
from llog.formats.records.record_batch import BatchRule, Codec, verify_crcs, walk
from llog.http.json.produce_encode import EncodedRequest, encoded_request
from llog.log.append.append import EncodedGroup
from llog.log.keys import Log
from llog.pipeline.compact.once import compact_once
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate
from llog.pipeline.key_compact.job import key_compact
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.sink.rows import RoundRobin, Router, encode_groups
from tests.unit.kafka.apis.fetching import LONG_POLL_MS, ORDERS, Reader, batch, group, reader, rows
from tests.unit.pipeline.key_compact.key_stage import FAST

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def records_of(data: bytes) -> list[Row]:
    """Offset, key, value and headers of each record in batches with sound checksums and leader epoch 0."""
    headers = walk(data, "answer", rule=BatchRule.COMPACTED)
    verify_crcs(data, headers, "answer")
    assert set(headers.partition_leader_epoch.tolist()) == {0}
    columns = decode_records(data, "answer", rule=BatchRule.COMPACTED)
    given = zip(columns.offsets.tolist(), columns.keys.tolist(), columns.values.tolist(), strict=True)
    return [(offset, key, value, list(columns.headers[n])) for n, (offset, key, value) in enumerate(given)]


async def write_over_http(broker: Reader, encoding: str) -> None:
    items = [{"topic": "orders", "partition": 0, "records": ["over", "http"]}]
    encoded = encoded_request(
        json.dumps({"topic_partitions": items}).encode(), encoding=encoding, now_ms=broker.context.now_ms()
    )
    assert isinstance(encoded, EncodedRequest)
    await broker.append(*encoded.groups)


async def write_in_python(broker: Reader, encoding: str) -> None:
    settings = broker.broker.settings
    async with await AsyncLeaderlessLogWriter.open(settings, encoding=encoding) as writer:
        await writer.append_shared([SharedAppendGroup("orders", 0, [b"bare", b""])])
    async with await AsyncLeaderlessLogWriter.open(settings, encoding="kafka-v2") as writer:
        await writer.append_shared(
            [SharedAppendGroup("orders", 0, [b"v", None], keys=[b"k", None], headers=[[("h", b"1")], None])]
        )


async def write_from_spark(broker: Reader, codec: Codec) -> None:
    rows = pa.RecordBatch.from_pydict({"key": pa.array([b"s", None], pa.binary()), "value": [b"park", b"sink"]})
    router = Router("orders", {"orders": 1}, RoundRobin())
    for one in encode_groups(rows, router, codec=codec, timestamp_ms=9):
        await broker.append(EncodedGroup(one.log, one.msg_count, "kafka-v2", one.body, one.max_timestamp_ms))


BY_CODEC: list[Row] = [(9 + int(codec), b"key", b"codec" * 20, [("h", None)]) for codec in Codec]
EXPECTED: list[Row] = [
    *[(offset, None, value, []) for offset, value in enumerate([b"over", b"http", b"bare", b""], start=1)],
    (5, b"k", b"v", [("h", b"1")]),
    (6, None, None, []),
    (7, b"s", b"park", []),
    (8, None, b"sink", []),
    *BY_CODEC,
]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("encoding", ["kafka-v2", "bytes-batch-v1"])
async def test_records_of_every_writer_are_fetched_before_and_after_compaction(encoding: str, cache_bytes: int) -> None:
    async with reader(tail_cache_max_bytes=cache_bytes) as broker:
        await write_over_http(broker, encoding)
        await write_in_python(broker, encoding)
        await write_from_spark(broker, Codec.ZSTD)
        for codec in Codec:
            one = batch(b"codec" * 20, keys=[b"key"], headers=[[("h", None)]], codec=codec)
            await broker.append(group(ORDERS, one))
        assert records_of(await broker.drain(ORDERS, 1)) == EXPECTED
        for offset in range(1, len(EXPECTED) + 1):
            found = records_of(await broker.drain(ORDERS, offset, partition_max_bytes=1))
            assert [row for row in found if row[0] >= offset] == EXPECTED[offset - 1 :]
        while await compact_once(broker.context, ORDERS, max_offsets=7):
            pass
        broker.broker.log_changed(ORDERS)
        assert records_of(await broker.drain(ORDERS, 1)) == EXPECTED
        assert records_of(await broker.drain(ORDERS, 1, partition_max_bytes=1)) == EXPECTED


async def compact_by_key(broker: Reader, log: Log) -> None:
    while await compact_once(broker.context, log):
        pass
    tools = tools_of(broker.context)
    report = await key_compact(broker.context, LocalTasks(tools), LocalKeyAggregate(tools), [log], options=FAST)
    assert not [one.error for one in report.logs if one.error]
    broker.broker.log_changed(log)


def keyed(*given: tuple[bytes, bytes | None]) -> Sequence[memoryview]:
    return [batch(*(value for _, value in given), keys=[key for key, _ in given])]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_records_left_by_key_compaction_keep_their_offsets_and_gaps_are_passed_over(cache_bytes: int) -> None:
    async with reader(tail_cache_max_bytes=cache_bytes) as broker:
        await broker.create("orders", config={"cleanup.policy": "compact"})
        await broker.append(group(ORDERS, *keyed((b"a", b"0"), (b"b", b"1"))))
        await broker.append(group(ORDERS, *keyed((b"a", b"2"), (b"a", b"3"))))
        await broker.append(group(ORDERS, *keyed((b"c", b"4"), (b"a", b"5"))))
        await compact_by_key(broker, ORDERS)
        await broker.append(group(ORDERS, *keyed((b"a", b"6"))))
        left = [(1, b"1"), (4, b"4"), (5, b"5"), (6, b"6")]
        for offset in range(7):
            found = rows(await broker.drain(ORDERS, offset))
            assert [row for row in found if row[0] >= offset] == [row for row in left if row[0] >= offset]
        [answer] = await broker.fetch((ORDERS, 2))
        assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (0, 7, 0)


async def test_a_poll_in_a_gap_at_the_end_of_a_log_waits_for_the_next_record() -> None:
    async with reader(tail_cache_max_bytes=0) as broker:
        await broker.create("orders", config={"cleanup.policy": "compact", "delete.retention.ms": "0"})
        await broker.append(group(ORDERS, *keyed((b"a", b"0"))))
        await broker.append(group(ORDERS, *keyed((b"a", None))))
        for _ in range(2):  # a tombstone goes one round after the records before it
            await compact_by_key(broker, ORDERS)
        [answer] = await broker.fetch((ORDERS, 0))
        assert (answer.error_code, answer.high_watermark, answer.records) == (0, 2, b"")
        poll = asyncio.create_task(broker.fetch((ORDERS, 0), max_wait_ms=LONG_POLL_MS, min_bytes=1))
        await broker.waiting(1)
        await broker.append(group(ORDERS, *keyed((b"b", b"2"))))
        [answer] = await poll
        assert rows(answer) == [(2, b"2")]
