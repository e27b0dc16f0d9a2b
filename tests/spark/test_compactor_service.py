"""The compactor service with its tasks in Spark, which joins while the service is at work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from llog.compactor import service
from llog.compactor.backends import Backend, Backends
from llog.compactor.service import serve
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.read.records import LogRecord
from llog.log.topics.admin import create_topic
from llog.settings import Settings
from llog.spark.runner.compaction import spark_backend
from llog.spark.runner.tasks import SparkTasks
from llog.wiring import Use, opened_log
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.pipeline.compact.compact_stage import cursor_and_counter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
LOGS = [Log("orders", partition) for partition in range(8)]
PRICES = Log("prices", 0)


async def records_of(context: LogContext, log: Log) -> AsyncIterator[LogRecord]:
    async for run in iter_runs(context, log, 1):
        for record in run.records():
            yield record


async def test_the_service_begins_without_spark_and_goes_on_with_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "llog")  # what the service did, if this fails
    eager = {
        "LLOG_DATA_DIR": str(tmp_path),
        "LLOG_COMPACTOR_PORT": "0",
        "LLOG_COMPACTOR_MIN_AGE_MS": "0",
        "LLOG_COMPACTOR_TRIGGER_AGE_MS": "0",
        "LLOG_COMPACTOR_IDLE_SLEEP_MS": "50",
        "LLOG_COMPACTOR_DISCOVERY_INTERVAL_MS": "200",
    }
    settings = Settings.from_env(eager)
    stop, joining, changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    states: list[str] = []

    def on_spark(state: str) -> None:
        states.append(state)
        changed.set()

    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    item_counts: list[int] = []

    class Watched(SparkTasks):
        async def run(self, task: Any, items: Any, on_done: Any = None, **parts: Any) -> Any:
            item_counts.append(len(items))
            return await super().run(task, items, on_done, **parts)

    async def join() -> Backend:
        await joining.wait()
        return spark_backend(Watched(spark, settings), settings)

    # However little there is to do.
    monkeypatch.setattr(service, "Backends", partial(Backends, local_bytes_max=0))
    monkeypatch.setattr(service, "COMPACTOR_KEYS_INTERVAL_MS", 200)
    serving = asyncio.create_task(serve(settings, stop, on_started=told.set_result, join_spark=join, on_spark=on_spark))
    url = await told
    async with (
        httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client,
        opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened,
    ):
        appender = Appender(opened.context, growth=Growth.HTTP)

        async def append(log: Log, *keys: bytes) -> None:
            body = encode_records([b"x"] * len(keys), keys=list(keys), timestamps_ms=1)
            [outcome] = await appender.append([EncodedGroup(log, len(keys), "kafka-v2", [body], 1)])
            assert isinstance(outcome, Appended)

        async def all_compacted() -> bool:
            return not [log for log in LOGS if len(set(await cursor_and_counter(opened.context, log))) > 1]

        async def is_cleaned() -> bool:
            return [record.offset async for record in records_of(opened.context, PRICES)] == [2, 3]

        async def append_and_wait() -> None:
            for log in LOGS:
                await append(log, b"a")
            await until(all_compacted, "all logs compacted", pause_seconds=0.05)

        await append_and_wait()
        assert (await client.get(f"{url}/health")).json()["spark"] == "starting"
        assert item_counts == []
        joining.set()
        await changed.wait()
        assert states == ["ready"]

        async def puts_and_cost() -> tuple[int, float]:
            s3 = (await client.get(f"{url}/metrics")).json()["s3"]
            return s3["operations"]["put"]["requests"], s3["billing"]["tiers"]["objects"]["request_cost_usd"]

        before = await puts_and_cost()
        await append_and_wait()
        puts, cost = await puts_and_cost()
        assert puts - before[0] >= len(LOGS), "the segments that tasks of Spark put"
        assert cost > before[1]
        health = (await client.get(f"{url}/health")).json()
        assert (health["spark"], health["status"]) == ("ready", "ok")
        assert sum(item_counts) >= 1
        item_counts.clear()
        await create_topic(opened.context, PRICES.topic, partitions=1, config={"cleanup.policy": "compact"})
        await append(PRICES, b"a", b"b", b"a")
        await until(is_cleaned, "the newest record of each key alone", pause_seconds=0.05)
        assert sum(item_counts) >= 3, "compaction, a scan and a rewrite"
        await appender.close()
    stop.set()
    await serving
