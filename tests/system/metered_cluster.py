"""A broker and a compaction service as processes, busy with everything that metrics tell of.

    with MeteredCluster(directory) as cluster:
        cluster.wait_until_all_happened()
        cluster.seen            # the largest value of every series that either page has shown so far

The load goes on in a thread of its own until the cluster is left: appends and reads over HTTP, from memory and from the
stores, long polls, refused requests, a fenced log, more than the buffer takes, a second writer in the way, a Kafka
client, and for a moment a WAL store that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from llog.api.aio import AsyncLeaderlessLogWriter
from llog.api.groups import SharedAppendGroup
from llog.settings import Settings
from tests.patience import wait_until
from tests.system.broker_process import LlogProcess
from tests.system.metered_kafka import metered_kafka

PATIENCE_SECONDS: Final = 90.0
SCENARIO: Final = {"name": "steady", "run_id": "run-1", "parameters": {"brokers": 1, "record_bytes": 1_000}}
BIG: Final = "x" * 300_000
Series = tuple[str, tuple[tuple[str, str], ...]]


def settings_of(directory: Path) -> dict[str, str]:
    return {
        "LLOG_METADATA_URL": f"lmdb://{directory}/metadata",
        "LLOG_WAL_URL": f"file://{directory}/wal",
        "LLOG_OBJECTS_URL": f"file://{directory}/objects",
        "LLOG_LOADTEST_SCENARIO": json.dumps(SCENARIO),
        # Small, so that everything there is to count happens within seconds.
        "LLOG_BATCH_MAX_BYTES": "524288",
        "LLOG_BATCH_MAX_BUFFER_BYTES": "1048576",
        "LLOG_TAIL_CACHE_MAX_BYTES": "65536",
        "LLOG_COMPACTOR_TRIGGER_AGE_MS": "500",
        "LLOG_WAL_GRACE_MS": "10000",
        "LLOG_COMPACTOR_MIN_AGE_MS": "0",
        "LLOG_COMPACTOR_DISCOVERY_INTERVAL_MS": "500",
        "LLOG_COMPACTOR_IDLE_SLEEP_MS": "200",
        "LLOG_COMPACTOR_IDLE_JITTER_MS": "50",
        "LLOG_COMPACTOR_ERROR_SLEEP_MS": "200",
        "LLOG_COMPACTOR_ERROR_JITTER_MS": "50",
    }


def samples_of(page: str) -> Iterator[tuple[Series, float]]:
    for metric in text_string_to_metric_families(page):
        for sample in metric.samples:
            yield (sample.name, tuple(sorted(sample.labels.items()))), sample.value


def batches(topic: str, records: list[str], *partitions: int) -> dict[str, Any]:
    return {"topic_partitions": [{"topic": topic, "partition": p, "records": records} for p in partitions]}


class MeteredCluster:
    def __init__(self, directory: Path) -> None:
        self._directory, self._settings = directory, settings_of(directory)
        self._stack, self._stop = ExitStack(), threading.Event()
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self.seen: dict[Series, float] = {}
        self._kafka_port = 0
        self.urls: dict[str, str] = {}
        """Of `broker` and `compactor`."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            processes = {
                name: starting.enter_context(
                    LlogProcess(name, settings=self._settings, log=self._directory / f"{name}.log")
                )
                for name in ("broker", "compactor")
            }
            self.urls = {name: process.url for name, process in processes.items()}
            self._kafka_port = processes["broker"].kafka_port
            self._stack = starting.pop_all()
        for work in (self._load, self._sample):
            thread = threading.Thread(target=self._guarded, args=(work,))
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._stack.close()
        if error is None and self._failure is not None:
            raise self._failure

    # -- what the pages showed ---------------------------------------------------------------------------------------
    def largest(self, name: str, **labels: str) -> float:
        """Of all series of that name and those labels."""
        wanted = set(labels.items())
        found = [
            value for (sample, having), value in list(self.seen.items()) if sample == name and wanted <= set(having)
        ]
        return max(found, default=0.0)

    def wait_until(self, what: str, ready: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        def ready_or_failed() -> bool:
            if self._failure is not None:
                raise self._failure
            return ready()

        wait_until(ready_or_failed, what, seconds=seconds, pause_seconds=0.1)

    def wait_until_all_happened(self) -> None:
        """What takes longest: compaction, a vacuum that finds blobs old enough, and reads of what is compacted."""
        slow = {
            "a compaction": ("llog_compaction_runs_total", {"outcome": "compacted", "kind": "compact"}),
            "a vacuum": ("llog_vacuum_deleted_bytes_total", {}),
            "a fenced log": ("llog_fenced_logs", {}),
            "a failed append": ("llog_append_failures_total", {"error": "AppendNotCommitted"}),
            "back-pressure": ("llog_batching_rejections_total", {}),
            "a conflict": ("llog_append_conflicts_total", {}),
            "a Kafka client refused": ("llog_kafka_refused_total", {}),
        }
        for what, (name, labels) in slow.items():
            self.wait_until(what, lambda name=name, labels=labels: self.largest(name, **labels) > 0)  # type: ignore[misc]

    def _sample(self) -> None:
        with httpx.Client(timeout=PATIENCE_SECONDS) as client:
            while not self._stop.wait(0.25):
                for url in self.urls.values():
                    for series, value in samples_of(client.get(f"{url}/metrics/prometheus").text):
                        self.seen[series] = max(value, self.seen.get(series, 0.0))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failure = error

    # -- load --------------------------------------------------------------------------------------------------------
    def _load(self) -> None:
        asyncio.run(self._busy())

    async def _busy(self) -> None:
        async with (
            httpx.AsyncClient(base_url=self.urls["broker"], timeout=PATIENCE_SECONDS) as client,
            await AsyncLeaderlessLogWriter.open(Settings.from_env(self._settings)) as rival,
            metered_kafka(self._kafka_port) as kafka,
        ):
            await self._begin(client)
            number = 0
            while not self._stop.is_set():
                if number == 3:
                    await self._without_wal(client)
                await asyncio.gather(
                    self._round(client), self._contend(client, rival), self._refused(client), kafka.round()
                )
                number += 1
                await asyncio.sleep(0.05)

    async def _begin(self, client: httpx.AsyncClient) -> None:
        created = await client.post("/topics", json={"topic": "closed", "partitions": 1})
        assert created.status_code < 300, created.text
        assert (await client.post("/produce", json=batches("closed", ["x"], 0))).status_code == 200
        fenced = await client.post("/topics/closed/partitions/0/fence")
        assert fenced.status_code < 300, fenced.text

    async def _round(self, client: httpx.AsyncClient) -> None:
        """Records in, the same records out of memory, old ones out of the stores."""
        answer = await client.post("/produce", json=batches("orders", ["y" * 1_000] * 10, 0, 1, 2))
        if answer.status_code != 200:
            return  # refused for want of room, or while the WAL store was away
        next_offsets = [result["end_offset"] + 1 for result in answer.json()["results"]]
        tail = [self._from("orders", p, offset - 10) for p, offset in enumerate(next_offsets)]
        await client.post("/consume", json={"topic_partitions": tail, "max_wait_ms": 0})
        await client.post("/consume", json={"topic_partitions": [self._from("orders", 0, 1)], "max_bytes": 20_000})
        ends = [self._from("orders", p, offset) for p, offset in enumerate(next_offsets)]
        await client.post("/consume", json={"topic_partitions": ends, "max_wait_ms": 30})

    async def _contend(self, client: httpx.AsyncClient, rival: AsyncLeaderlessLogWriter) -> None:
        """Two writers of one log, and positions that many commit at once."""
        with contextlib.suppress(Exception):  # the WAL store may be away
            await rival.append_shared([SharedAppendGroup("orders", 3, [b"z"])])
        group = {"group": "readers", "offsets": [{"topic": "orders", "partition": 0, "offset": 1}]}
        await asyncio.gather(
            client.post("/produce", json=batches("orders", ["z"], 3)),
            *(client.post("/offsets/commit", json=group) for _ in range(4)),
        )

    async def _refused(self, client: httpx.AsyncClient) -> None:
        assert (await client.post("/produce", json={"topic_partitions": []})).status_code == 400
        assert (await client.post("/produce", json=batches("closed", ["x"], 0))).status_code == 409
        assert (await client.get("/nothing")).status_code == 404
        if not self.largest("llog_batching_rejections_total"):
            much = [client.post("/produce", json=batches("orders", [BIG], p)) for p in range(8)]
            await asyncio.gather(*much)

    async def _without_wal(self, client: httpx.AsyncClient) -> None:
        """For a moment there is no directory where blobs go."""
        wal, away = self._directory / "wal", self._directory / "wal-away"
        wal.rename(away)
        wal.write_text("in the way")
        try:
            answer = await client.post("/produce", json=batches("orders", ["x"], 0))
            assert answer.status_code in (409, 503), answer.text
        finally:
            wal.unlink()
            away.rename(wal)

    @staticmethod
    def _from(topic: str, partition: int, offset: int) -> dict[str, Any]:
        return {"topic": topic, "partition": partition, "fetch_offset": offset}
