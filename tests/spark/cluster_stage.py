"""Logs on Oxia and S3 for programs that run jobs on a cluster: what was written is kept as rows, to compare with.

The servers belong to the test that starts the program, and are named in its environment by names that no setting has:
an executor inherits that environment, and must not learn from it where the metadata is.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import Codec
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.settings import Settings
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, OxiaServer, S3Server
from llog.wiring import OpenedLog, Use, opened_log
from tests.unit.pipeline.mixed_log import Row, rows_read

METADATA_URL: Final = "TEST_CLUSTER_METADATA_URL"
BUCKET: Final = "TEST_CLUSTER_BUCKET"
ENDPOINT: Final = "TEST_CLUSTER_ENDPOINT"
GRACE_MS: Final = 20_000
"""Of vacuum; a store tells its time in whole seconds, and clocks may differ by a tenth of it."""
WRITERS: Final = 3
UNTIMED: Final = -1
TIMED_SECONDS_MAX: Final = 300
_CODECS: Final = tuple(Codec)

Body = tuple[bytes | None, bytes | None, int, int, tuple[tuple[str, bytes | None], ...]]
"""A row without its place: key, value, time in µs, kind of time, headers."""


def cluster_environment(oxia: OxiaServer, s3: S3Server) -> dict[str, str]:
    return {
        METADATA_URL: f"oxia://{oxia.address}",
        BUCKET: s3.bucket,
        ENDPOINT: s3.endpoint,
        # Secrets are what an executor may take from its environment, and needs to.
        "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
        "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
    }


def settings_here(directory: Path, *, endpoint: str | None = None) -> Settings:
    return Settings.from_env(
        None,
        data_dir=directory,
        metadata_url=os.environ[METADATA_URL],
        objects_url=f"s3://{os.environ[BUCKET]}",
        s3_endpoint_url=endpoint or os.environ[ENDPOINT],
        s3_region_name="us-east-1",
        vacuum_grace_ms=GRACE_MS,
    )


def source_options(settings: Settings) -> dict[str, str]:
    """For the data source: stores by option, secrets by environment."""
    named = ("metadata_url", "objects_url", "wal_url", "s3_endpoint_url", "s3_region_name")
    found = {f"llog.{name.replace('_', '.')}": getattr(settings, name) for name in named}
    return {option: value for option, value in found.items() if value is not None}


@asynccontextmanager
async def opened_here(settings: Settings, writer: str = "driver") -> AsyncIterator[OpenedLog]:
    named = settings.replaced(client_identifier=writer)
    async with opened_log(named, blobs=Use.PUT, segments=Use.PUT) as opened:
        yield opened


@dataclass
class Books:
    """What every log must hold, as it was written."""

    rows: dict[Log, list[Row]] = field(default_factory=dict)

    def add(self, log: Log, start_offset: int, bodies: Sequence[Body]) -> None:
        kept = self.rows.setdefault(log, [])
        for number, (key, value, timestamp_us, kind, headers) in enumerate(bodies):
            kept.append(Row(*log, start_offset + number, key, value, timestamp_us, kind, headers))
        kept.sort(key=lambda row: row.offset)

    def of(self, *topics: str) -> list[Row]:
        """In the order of topics, partitions and offsets."""
        return [row for log in sorted(self.rows) if log.topic in topics for row in self.rows[log]]

    def forget_below(self, log: Log, offset: int) -> None:
        self.rows[log] = [row for row in self.rows[log] if row.offset >= offset]

    async def check(self, opened: OpenedLog, when: str) -> None:
        """The Python reader gives every log as it was written, byte for byte."""
        for log in sorted(self.rows):
            found = await rows_read(opened, [log], start=self.rows[log][0].offset)
            rows = self.rows[log] = _with_times(self.rows[log], found)
            wrong = next((pair for pair in zip(found, rows, strict=False) if pair[0] != pair[1]), None)
            assert wrong is None, f"{when}: {log}: read {wrong[0]}, written {wrong[1]}"
            assert len(found) == len(rows), f"{when}: {log}: {len(found)} records of {len(rows)}"

    async def check_deep(self, opened: OpenedLog) -> None:
        for log in self.rows:
            found = await check_log(opened.context, log, deep=True)
            assert found.settled, log
            assert found.faults == (), (log, found.faults)


def _with_times(rows: Sequence[Row], found: Sequence[Row]) -> list[Row]:
    """Bare payloads get the time of their append from whoever appended them; it is what the first reader is told, if
    that is within the last minutes, and must stay so."""
    read = {row.offset: row.timestamp_us for row in found}
    earliest_us = (time.time_ns() // 1_000) - TIMED_SECONDS_MAX * 1_000_000
    return [
        row._replace(timestamp_us=read[row.offset])
        if row.timestamp_us == UNTIMED and read.get(row.offset, UNTIMED) > earliest_us
        else row
        for row in rows
    ]


async def fill(
    settings: Settings, books: Books, logs: Sequence[Log], *, seed: int, appends: int, age_ms: Mapping[str, int]
) -> None:
    """So many appends by each of some writers at the same time; records of a topic are as old as is said."""

    async def write(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        async with opened_here(settings, f"writer-{number}") as opened:
            for turn in range(appends):
                chosen = logs if turn == 0 else rng.sample(logs, rng.randint(1, len(logs)))
                await append(opened, books, rng, turn, chosen, age_ms)

    await asyncio.gather(*(write(number) for number in range(WRITERS)))


async def append(
    opened: OpenedLog, books: Books, rng: random.Random, turn: int, logs: Sequence[Log], age_ms: Mapping[str, int]
) -> None:
    now_ms = time.time_ns() // 1_000_000
    appender = Appender(opened.context, growth=Growth.HTTP)
    made = [a_group(rng, turn, log, now_ms, age_ms.get(log.topic)) for log in logs]
    outcomes = await appender.append([group for group, _ in made])
    for (group, bodies), outcome in zip(made, outcomes, strict=True):
        assert isinstance(outcome, Appended), outcome
        books.add(group.log, outcome.start_offset, bodies)
    await appender.close()


def a_group(
    rng: random.Random, turn: int, log: Log, now_ms: int, age_ms: int | None
) -> tuple[EncodedGroup, list[Body]]:
    """Turn by turn all codecs, and bare payloads now and then; keys, headers and values are there, empty or null."""
    if age_ms is None and turn % 6 == 5:
        payloads = [rng.randbytes(rng.randrange(300)) for _ in range(rng.randint(1, 20))]
        group = EncodedGroup(log, len(payloads), "bytes-batch-v1", encode_bytes_batch(payloads), now_ms)
        return group, [(None, payload, UNTIMED, 1, ()) for payload in payloads]
    bodies: list[Body] = []
    batches = []
    for number in range(rng.randint(1, 3)):
        rows = [_body(rng, now_ms - (age_ms or 0)) for _ in range(rng.randint(1, 20))]
        batches.append(
            bytes(
                encode_records(
                    [row[1] for row in rows],
                    keys=[row[0] for row in rows],
                    headers=[list(row[4]) or None for row in rows],
                    timestamps_ms=[row[2] // 1_000 for row in rows],
                    codec=_CODECS[(turn + number) % len(_CODECS)],
                )
            )
        )
        bodies += rows
    newest_ms = max(row[2] for row in bodies) // 1_000
    return EncodedGroup(log, len(bodies), "kafka-v2", batches, newest_ms), bodies


def _body(rng: random.Random, now_ms: int) -> Body:
    headers = tuple((f"h{n}ü", _maybe(rng, 0.3, 9)) for n in range(rng.choice([0, 0, 1, 3])))
    return _maybe(rng, 0.2, 20), _maybe(rng, 0.1, 300), (now_ms - rng.randrange(5_000)) * 1_000, 0, headers


def _maybe(rng: random.Random, nulls: float, bytes_max: int) -> bytes | None:
    return None if rng.random() < nulls else rng.randbytes(rng.randrange(bytes_max))


def without_places(rows: Sequence[Row]) -> Counter[tuple[int, Body]]:
    """By partition, for copies: they have offsets of their own, and the time is the writer's in any case."""
    return Counter((row.partition, (row.key, row.value, row.timestamp_us, 0, row.headers)) for row in rows)
