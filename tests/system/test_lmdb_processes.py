"""Several processes on one LMDB directory: killed, paused, growing the map together."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.metadata.lmdb.environment import LMDB_MAP_BYTES_START
from llog.stores.metadata.port import Key
from tests.patience import until, wait_until
from tests.system.lmdb_worker import COUNTERS, ROUTE, counter_key, pair_keys

SOAK = os.environ.get("LLOG_SOAK") == "1"
KILLS = 50 if SOAK else 5

Line = dict[str, Any]


class Worker:
    def __init__(self, role: str, directory: Path, out: Path, seed: int) -> None:
        self.out = out
        with open(out, "wb") as stdout:
            command = [sys.executable, "-m", "tests.system.lmdb_worker", role, str(directory), str(seed)]
            self.process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE)

    def lines(self) -> list[Line]:
        """What was said so far; a line cut short by a kill was not said."""
        text = self.out.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for(self, kind: str) -> Line:
        def find() -> Line | None:
            line = next((line for line in self.lines() if line["kind"] == kind), None)
            assert line is not None or not self.process.poll(), f"the worker ended: {self.errors()}"
            return line

        found: Line = wait_until(find, f"a line {kind!r}", pause_seconds=0.02)
        return found

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


@contextmanager
def workers() -> Iterator[list[Worker]]:
    started: list[Worker] = []
    try:
        yield started
    finally:
        for worker in started:
            worker.kill()


@pytest.mark.slow
async def test_no_acknowledged_write_is_lost_when_processes_are_killed(tmp_path: Path) -> None:
    rng = random.Random(11)
    directory = tmp_path / "metadata"
    said: list[list[Line]] = []
    with workers() as running:
        seeds = iter(range(10_000))
        spawn = lambda: Worker("count", directory, tmp_path / f"out-{(seed := next(seeds))}", seed)  # noqa: E731
        running += [await asyncio.to_thread(spawn) for _ in range(3)]
        for worker in running:
            await asyncio.to_thread(worker.wait_for, "counter")
        for _ in range(KILLS):
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            victim = running.pop(rng.randrange(len(running)))
            assert victim.process.poll() is None, victim.errors()
            await asyncio.to_thread(victim.kill)
            said.append(victim.lines())
            running.append(await asyncio.to_thread(spawn))
            # The others go on: a lock held by the dead is taken over.
            survivor, before = running[0], len(running[0].lines())
            await until_more(survivor, before)
        for worker in running:
            assert worker.process.poll() is None, worker.errors()
            await asyncio.to_thread(worker.kill)
            said.append(worker.lines())
    await check_counters(directory, [line for lines in said for line in lines])
    for lines in said:
        versions = [line["version"] for line in lines if line["kind"] == "counter"]
        assert versions == sorted(set(versions)), "a process saw its own versions go back"


async def until_more(worker: Worker, before: int) -> None:
    def has_more() -> bool:
        assert worker.process.poll() is None, worker.errors()
        return len(worker.lines()) > before

    await until(has_more, "a line of a survivor after a kill", pause_seconds=0.02)


async def check_counters(directory: Path, lines: list[Line]) -> None:
    """Every acknowledged value was given once, and what is stored is at or just beyond the highest of them."""
    async with await LmdbStore.open(directory) as store:
        for kind, key_of in (("counter", counter_key), ("pair", lambda number: pair_keys(number)[0])):
            for number in range(COUNTERS):
                values = [line["value"] for line in lines if (line["kind"], line["number"]) == (kind, number)]
                assert len(values) == len(set(values)), "two processes were told the same value"
                record = await store.get(key_of(number))
                assert record is not None
                assert values
                # Each killed process may have committed one write it could not tell of.
                assert max(values) <= int(record.value) <= len(values) + KILLS + 3
        for number in range(COUNTERS):
            left, right = await store.get_many(pair_keys(number))
            assert left is not None
            assert right is not None
            assert left.value == right.value, "half a group was written"
        versions = [line["version"] for line in lines]
        assert len(versions) == len(set(versions)), "a version was given twice"
        assert await store.put(Key("after", ROUTE), b"1") > max(versions)


@pytest.mark.slow
async def test_the_map_grows_under_several_writing_processes(tmp_path: Path) -> None:
    directory = tmp_path / "metadata"
    async with await LmdbStore.open(directory) as store:
        with workers() as running:
            running += [Worker("fill", directory, tmp_path / f"out-{seed}", seed) for seed in range(2)]
            while any(worker.process.poll() is None for worker in running):
                # Reads go on, here too, while others grow the map.
                await store.scan(Key("fill", ROUTE), limit=3)
                await asyncio.sleep(0.02)
            assert [worker.process.returncode for worker in running] == [0, 0], [w.errors() for w in running]
            lines = [line for worker in running for line in worker.lines()]
        assert max(line["value"] for line in lines if line["kind"] == "map") > LMDB_MAP_BYTES_START
        written = {line["path"]: line["version"] for line in lines if line["kind"] == "fill"}
        found = {record.key.path: record.version async for record in store.scan_tree("fill")}
        assert found == written
        assert len(written) == 120
        await store.put(Key("fill/last", ROUTE), b"1" * 900_000)


@pytest.mark.slow
async def test_a_process_paused_past_its_lease_learns_that_it_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "metadata"
    key = Key("claim", ROUTE)
    with workers() as running:
        holder = Worker("hold", directory, tmp_path / "out", 0)
        running.append(holder)
        await asyncio.to_thread(holder.wait_for, "holding")
        async with await LmdbStore.open(directory) as store:
            assert await store.get(key) is not None
            os.kill(holder.process.pid, signal.SIGSTOP)

            async def is_expired() -> bool:
                return await store.get(key) is None

            await until(is_expired, "the end of the lease", pause_seconds=0.05)
            version = await store.put(key, b"theirs")
            os.kill(holder.process.pid, signal.SIGCONT)
            lost = await asyncio.to_thread(holder.wait_for, "lost")
            assert lost["value"] is True
            await asyncio.to_thread(holder.wait_for, "refused")
            record = await store.get(key)
            assert record is not None
            assert (record.value, record.version, record.ephemeral) == (b"theirs", version, False)
