"""Byte-exact: HTTP, the Python reader, `llog.scan` and Spark agree on any mix of batches, whatever the logs went
through: nothing yet, compacted, merged, compacted by key; and while that goes on."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llog.log.context import LogContext
from llog.log.topics.admin import create_topic
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.plan import SegmentRules, Sizing
from llog.pipeline.key_compact.job import KeyCompactOptions, key_compact
from llog.pipeline.runtime.tasks import tools_of
from llog.settings import Settings
from llog.spark.runner.tasks import SparkTasks
from llog.wiring import Use, opened_log
from tests.clients.http_calls import running
from tests.spark.four_readers import KEYED, MIXED, FourReaders, produce_keyed, produce_mix, shown, survivors
from tests.unit.pipeline.compact.compact_stage import entries_of
from tests.unit.pipeline.mixed_log import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SOAK = os.environ.get("LLOG_SOAK") == "1"
SEEDS = range(20 if SOAK else 1)
LOGS = (KEYED, *MIXED)
# Small on purpose: every log gets several segments in several tasks, and merges find something to do.
SMALL = CompactOptions(
    rules=SegmentRules(target_bytes=6_000), sizing=Sizing(2, window_bytes_min=8_000, window_bytes_max=8_000)
)
LOOKS_MAX = 12 if SOAK else 3  # of one job
Look = Callable[[], Awaitable[None]]


class LooksBetween:
    """A metadata store in front of a job: before some of the job's writes every reader reads the logs."""

    def __init__(self, inner: Any, look: Look, rng: random.Random) -> None:
        self._inner, self._look, self._rng = inner, look, rng
        self.writes = self.looks = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name not in ("put", "delete", "write"):
            return call

        async def between(*arguments: Any, **named: Any) -> Any:
            self.writes += 1
            # The first is a claim; some jobs have few others, because writes of many logs share calls.
            if self.writes == 2 or (self.looks < LOOKS_MAX and self._rng.random() < 0.5):
                self.looks += 1
                await self._look()
            return await call(*arguments, **named)

        return between


@dataclass
class Cluster:
    """A broker process that never compacts, and jobs on Spark that do on request."""

    readers: FourReaders
    context: LogContext
    runner: SparkTasks

    async def compact(self, *, merge: bool = False) -> int:
        """How many segments it wrote."""
        report = await compact(self.context, self.runner, options=SMALL, merge=merge)
        assert not report.failed, report.failed
        return sum(log.runs + log.merges for log in report.logs)

    async def compact_by_key(self) -> None:
        from llog.spark.runner.key_aggregate import SparkKeyAggregate

        aggregate = SparkKeyAggregate(self.readers.spark, self.readers.settings, tools_of(self.context))
        options = KeyCompactOptions(force=True, bytes_per_second=None)
        [done] = (await key_compact(self.context, self.runner, aggregate, [KEYED], options=options)).logs
        assert done.state == "compacted", done.error

    @asynccontextmanager
    async def looking(self, look: Look, rng: random.Random) -> AsyncIterator[Cluster]:
        """The same, with looks in the middle of its jobs: there must be some."""
        watched: Any = LooksBetween(self.context.metadata, look, rng)
        yield replace(self, context=replace(self.context, metadata=watched))
        assert watched.looks > 0, "the test proved less than it says"

    async def is_all_in_segments(self) -> bool:
        return {entry.value.type for log in LOGS for entry in await entries_of(self.context, log)} == {"COMPACTED"}


@asynccontextmanager
async def started(spark: SparkSession, directory: Path) -> AsyncIterator[Cluster]:
    settings = Settings.from_env({"LLOG_DATA_DIR": str(directory / "data")})
    with running("broker", "--broker-id", "broker-1", directory=directory, name="broker") as broker:
        async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
            await create_topic(opened.context, KEYED.topic, config={"cleanup.policy": "compact"})
            runner = SparkTasks(spark, settings)
            yield Cluster(FourReaders(spark, settings, opened, broker.http), opened.context, runner)
            await runner.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_four_readers_agree_after_every_step(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with started(spark, tmp_path) as cluster:
        readers, expected = cluster.readers, list[Row]()
        for _ in range(2):  # the second time on top of segments, old and new
            await produce_mix(readers, rng, rounds=15)
            await produce_keyed(readers, rng, rounds=15)
            read = await readers.by_reader(LOGS)
            assert [row for row in read if row.offset <= _ends(expected).get(row[:2], 0)] == expected
            expected = read
            await readers.agree_on(expected, LOGS)

            assert await cluster.compact() > len(LOGS), "every log, and some in several segments"
            assert await cluster.is_all_in_segments()
            await readers.agree_on(expected, LOGS)

            while await cluster.compact(merge=True):
                await readers.agree_on(expected, LOGS)

            await cluster.compact_by_key()
            await readers.refresh()
            keyed, mixed = await readers.by_reader([KEYED]), await readers.by_reader(MIXED)
            assert len(keyed) < len(expected) - len(mixed), "some went"
            expected = survivors([row for row in expected if row[:2] == KEYED]) + mixed
            await readers.agree_on(expected, LOGS)


def _ends(rows: list[Row]) -> dict[tuple[Any, ...], int]:
    return {row[:2]: row.offset for row in rows}


@pytest.mark.parametrize("seed", SEEDS)
async def test_four_readers_agree_in_the_middle_of_compaction(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Mixed logs never change, and the keyed one holds its survivors at any time and no other record."""
    rng = random.Random(1_000 + seed)
    async with started(spark, tmp_path) as cluster:
        readers = cluster.readers
        await produce_mix(readers, rng, rounds=20)
        await produce_keyed(readers, rng, rounds=20)
        expected, keyed = await readers.by_reader(LOGS), await readers.by_reader([KEYED])
        async with cluster.looking(lambda: readers.agree_on(expected, LOGS), rng) as watched:
            assert await watched.compact() > len(LOGS)
        async with cluster.looking(lambda: readers.agree_on(expected, LOGS), rng) as watched:
            assert await watched.compact(merge=True) > 0
        stay = survivors(keyed)

        async def look_at_keys() -> None:
            _lies_between(await readers.by_reader([KEYED]), stay, keyed)
            for read in (readers.by_scan, readers.by_spark):
                _lies_between(await asyncio.to_thread(read, [KEYED]), stay, keyed)
            http = await asyncio.to_thread(readers.by_http, [KEYED])
            _lies_between(http, [shown(row) for row in stay], [shown(row) for row in keyed])

        async with cluster.looking(look_at_keys, rng) as watched:
            await watched.compact_by_key()
        await readers.refresh()
        await readers.agree_on(stay, [KEYED])


def _lies_between(found: list[Any], least: list[Any], most: list[Any]) -> None:
    offsets, needed = {row.offset for row in found}, {row.offset for row in least}
    assert needed <= offsets
    assert found == [row for row in most if row.offset in offsets]
