"""The four ways to read a topic, and producers that make any mix of batches for them to agree on."""

from __future__ import annotations

import asyncio
import base64
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

import llog
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import Codec, TimestampType
from llog.log.append.append import EncodedGroup
from llog.log.keys import Log
from llog.settings import Settings
from llog.wiring import OpenedLog
from tests.clients.http_calls import Json, a_batch, consumed, produced, wanted
from tests.unit.pipeline.mixed_log import NOW_MS, Row, append, random_group, rows_of, rows_read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIXED = (Log("orders", 0), Log("orders", 1), Log("visits", 0))
KEYED = Log("accounts", 0)
KEYS = [b"k%d" % number for number in range(9)] + [b"\x00\xff", b"", "schlüssel".encode()]


class Shown(NamedTuple):
    """A record as HTTP can show it: a time only where its producer gave one, headers by name."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_us: int | None
    headers: dict[str, list[bytes | None]]


def shown(row: Row) -> Shown:
    headers: dict[str, list[bytes | None]] = defaultdict(list)
    for name, value in row.headers:
        headers[name].append(value)
    given = row.timestamp_us if row.timestamp_type == TimestampType.CREATE_TIME else None
    return Shown(row.topic, row.partition, row.offset, row.key, row.value, given, headers)


class FourReaders:
    """HTTP, the Python reader, `llog.scan` and Spark, on one cluster."""

    def __init__(
        self, spark: SparkSession, settings: Settings, opened: OpenedLog, http: httpx.Client, *, first_offset: int = 1
    ) -> None:
        """`first_offset` of every log: 0 where Kafka clients created the topics."""
        self.spark, self.settings, self.opened, self.http = spark, settings, opened, http
        self.first_offset = first_offset
        self._rng = random.Random(1)

    async def agree_on(self, expected: Sequence[Row], logs: Sequence[Log]) -> None:
        """Every reader gives these rows of these logs, to the byte."""
        assert await self.by_reader(logs) == expected
        assert await asyncio.to_thread(self.by_http, logs) == [shown(row) for row in expected]
        assert await asyncio.to_thread(self.by_scan, logs) == expected
        assert await asyncio.to_thread(self.by_spark, logs) == expected

    async def refresh(self) -> None:
        """So long a broker may go on telling what key compaction removed."""
        await asyncio.sleep(self.settings.tail_refresh_ms / 1_000)

    async def by_reader(self, logs: Sequence[Log]) -> list[Row]:
        return await rows_read(self.opened, logs, start=self.first_offset)

    def by_scan(self, logs: Sequence[Log]) -> list[Row]:
        return rows_of(llog.scan(_topics(logs), settings=self.settings, split_bytes=1 << 16).to_arrow())

    def by_spark(self, logs: Sequence[Log]) -> list[Row]:
        places = ("metadata_url", "objects_url", "wal_url")
        options = {f"llog.{name.replace('_', '.')}": getattr(self.settings, name) for name in places}
        reading = self.spark.read.format("llog").options(**options, splitBytes="64KiB")
        return rows_of(reading.option("subscribe", ",".join(_topics(logs))).load().toArrow())

    def by_http(self, logs: Sequence[Log]) -> list[Shown]:
        """In answers of any size: where one ends, the next begins, in the middle of a batch or between two."""
        rows = []
        for log in logs:
            offset = self.first_offset
            while True:
                most = self._rng.choice([1, 700, 20_000, 1 << 20])
                [answer] = consumed(self.http, wanted(*log, offset, partition_max_bytes=most))
                assert answer["ok"], answer
                rows += [_shown_by_http(log, record) for record in answer["records"]]
                if answer["next_fetch_offset"] > answer["high_watermark"]:
                    break
                assert answer["next_fetch_offset"] > offset, answer
                offset = answer["next_fetch_offset"]
        return rows


def _topics(logs: Sequence[Log]) -> list[str]:
    return sorted({log.topic for log in logs})


def _shown_by_http(log: Log, record: Json) -> Shown:
    headers = {
        name: [_bytes(value) for value in (values if isinstance(values, list) else [values])]
        for name, values in record.get("headers", {}).items()
    }
    time_ms = record.get("timestamp_ms")
    time_us = None if time_ms is None else time_ms * 1_000
    return Shown(*log, record["offset"], _bytes(record.get("key")), _bytes(record["payload"]), time_us, headers)


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"], validate=True)


# -- producers -------------------------------------------------------------------------------------------------------


async def produce_mix(readers: FourReaders, rng: random.Random, *, rounds: int) -> None:
    """Into the mixed logs, by encoded batches of every codec and by HTTP; by Spark once."""
    for _ in range(rounds):
        logs = rng.sample(MIXED, rng.randint(1, len(MIXED)))
        if rng.random() < 0.5:
            await append(readers.opened, [random_group(rng, log) for log in logs])
        else:
            batches = [a_batch(*log, *(_http_record(rng) for _ in range(rng.randint(1, 20)))) for log in logs]
            await asyncio.to_thread(produced, readers.http, *batches)
    await asyncio.to_thread(_produce_by_spark, readers)


async def produce_keyed(readers: FourReaders, rng: random.Random, *, rounds: int) -> None:
    """Into the log that is compacted by key: few keys, so that most records go; some values are tombstones."""
    for _ in range(rounds):
        rows = rng.randint(1, 12)
        if rng.random() < 0.6:
            times = [NOW_MS + rng.randrange(1_000) for _ in range(rows)]
            body = encode_records(
                [None if rng.random() < 0.2 else rng.randbytes(rng.randrange(80)) for _ in range(rows)],
                keys=[rng.choice(KEYS) for _ in range(rows)],
                headers=[[("n", b"%d" % number)] for number in range(rows)] if rng.random() < 0.5 else None,
                timestamps_ms=times,
                codec=rng.choice(list(Codec)),
            )
            await append(readers.opened, [EncodedGroup(KEYED, rows, "kafka-v2", [body], max(times))])
        else:
            records = [_http_record(rng) for _ in range(rows)]
            for record in records:
                record["key"] = _json_bytes(rng, rng.choice(KEYS))
            await asyncio.to_thread(produced, readers.http, a_batch(*KEYED, *records))


def _produce_by_spark(readers: FourReaders) -> None:
    rows = readers.spark.range(20).selectExpr(
        "unhex(hex(id * 977)) value",
        "if(id % 3 = 0, null, concat('k', id)) key",
        "array(named_struct('key', 'h', 'value', cast('ü' as binary))) headers",
    )
    options = {
        "llog.metadata.url": readers.settings.metadata_url,
        "llog.objects.url": readers.settings.objects_url,
        "llog.wal.url": readers.settings.wal_url,
    }
    llog.spark.register(readers.spark)  # a write asks for the session of its thread
    rows.write.format("llog").mode("append").options(**options, topic="visits", compression="lz4").save()


def _http_record(rng: random.Random) -> Json:
    value = None if rng.random() < 0.1 else _payload(rng)
    record: Json = {"value": _json_bytes(rng, value)}
    if rng.random() < 0.5:
        record["key"] = _json_bytes(rng, _payload(rng))
    if rng.random() < 0.3:
        record["headers"] = {"one": _json_bytes(rng, _payload(rng)), "zwei ü": ["a", None, _json_bytes(rng, b"\xff")]}
    if rng.random() < 0.3:
        record["timestamp_ms"] = NOW_MS + rng.randrange(100_000)
    return record


def _payload(rng: random.Random) -> bytes:
    texts = ["", "plain", 'quoted "\\" and / more', "tab\tand\nline", "ümläut 漢字 🜁", "\u2028 \x7f", "x" * 300]
    return rng.choice(texts).encode() if rng.random() < 0.6 else rng.randbytes(rng.randrange(200))


def _json_bytes(rng: random.Random, value: bytes | None) -> Any:
    """As text where it can be, mostly; base64 says the same."""
    if value is None:
        return None
    try:
        if rng.random() < 0.8:
            return value.decode()
    except UnicodeDecodeError:
        pass
    return {"base64": base64.b64encode(value).decode()}


def survivors(rows: Sequence[Row]) -> list[Row]:
    """The records left in a log after key compaction of all its segments, recent tombstones included."""
    last = {row.key: row.offset for row in rows}
    return [row for row in rows if row.key is None or last[row.key] == row.offset]
