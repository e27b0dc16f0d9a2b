"""Random histories of a few logs for tests of reading: every codec and encoding, keys, headers, nulls, many batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa

from llog.errors import PartitionNotInitialized
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import Codec
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.pipeline.compact.once import compact_once, merge_once
from llog.settings import Settings
from llog.wiring import OpenedLog, Use, open_log

NOW_MS = 1_760_000_000_000
LOGS = (Log("orders", 0), Log("orders", 1), Log("visits", 0))


class Row(NamedTuple):
    """A record as every reader must give it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_us: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...]


async def opened_for_writing(settings: Settings) -> OpenedLog:
    return await open_log(settings, blobs=Use.PUT, segments=Use.PUT)


def random_group(rng: random.Random, log: Log, *, records_max: int = 30, value_bytes_max: int = 300) -> EncodedGroup:
    """The records of one append: bare payloads, or one to four batches of random codecs."""
    if rng.random() < 0.2:
        payloads = [rng.randbytes(rng.randrange(value_bytes_max)) for _ in range(rng.randint(1, records_max))]
        return EncodedGroup(log, len(payloads), "bytes-batch-v1", encode_bytes_batch(payloads), NOW_MS)
    bodies, count, newest = [], 0, -1
    for _ in range(rng.randint(1, 4)):
        rows = rng.randint(1, records_max)
        timestamps = [NOW_MS + rng.randrange(100_000) for _ in range(rows)]
        batch = encode_records(
            [_maybe(rng, 0.1, value_bytes_max) for _ in range(rows)],
            keys=[_maybe(rng, 0.3, 20) for _ in range(rows)] if rng.random() < 0.8 else None,
            headers=[_headers(rng) for _ in range(rows)] if rng.random() < 0.5 else None,
            timestamps_ms=timestamps,
            codec=rng.choice(list(Codec)),
        )
        bodies.append(bytes(batch))
        count, newest = count + rows, max(newest, *timestamps)
    return EncodedGroup(log, count, "kafka-v2", bodies, newest)


def _maybe(rng: random.Random, nulls: float, bytes_max: int) -> bytes | None:
    return None if rng.random() < nulls else rng.randbytes(rng.randrange(bytes_max))


def _headers(rng: random.Random) -> list[tuple[str, bytes | None]] | None:
    return [(f"h{rng.randrange(9)}ü", _maybe(rng, 0.3, 9)) for _ in range(rng.randrange(3))] or None


async def append(opened: OpenedLog, groups: Sequence[EncodedGroup]) -> None:
    appender = Appender(opened.context, growth=Growth.HTTP)
    for outcome in await appender.append(groups):
        assert isinstance(outcome, Appended), outcome
    await appender.close()


async def write_history(
    opened: OpenedLog, rng: random.Random, *, appends: int, logs: Sequence[Log] = LOGS, compacting: float = 0.1
) -> None:
    """Appends of some logs each, with compactions and merges in between."""
    for _ in range(appends):
        await append(opened, [random_group(rng, log) for log in rng.sample(logs, rng.randint(1, len(logs)))])
        with suppress(PartitionNotInitialized):  # nobody has appended to that log yet
            if rng.random() < compacting:
                await compact_once(opened.context, rng.choice(logs), max_offsets=rng.choice([50, 500]))
            if rng.random() < compacting / 2:
                await merge_once(opened.context, rng.choice(logs), min_inputs=2)


async def rows_read(opened: OpenedLog, logs: Sequence[Log] = LOGS, *, start: int = 1) -> list[Row]:
    """What the Python reader gives, from `start` on."""
    rows = []
    for log in logs:
        async for run in iter_runs(opened.context, log, start):
            columns = run.columns
            for record, kind in zip(run.records(), columns.timestamp_types.tolist(), strict=True):
                rows.append(
                    Row(
                        *log, record.offset, record.key, record.payload, record.timestamp_ms * 1_000, kind,
                        record.headers,
                    )
                )  # fmt: skip
    return rows


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """The rows of a table, sorted by log and offset."""
    columns: dict[str, list[Any]] = {name: table.column(name).to_pylist() for name in table.schema.names}
    columns["timestamp"] = table.column("timestamp").cast(pa.int64()).to_pylist()
    headers = [tuple((header["key"], header["value"]) for header in row) for row in columns["headers"]]
    names = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType")
    rows = zip(*(columns[name] for name in names), headers, strict=True)
    return sorted((Row(*row) for row in rows), key=lambda row: row[:3])
