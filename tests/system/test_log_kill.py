"""Processes of every kind work on real stores and are killed at random moments: the log keeps its promises.

The clients, the recovery and the checker are those of the simulation (`llog.testing.history`); here the stores are
LMDB with files, PostgreSQL with an S3 server, Oxia with an S3 server, and a kill is a kill -9.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from llog.log.context import LogContext
from llog.settings import Settings
from llog.testing.history import Checker, Client, Dump, Noted, Phase, decode_lines, dump_stores, operations_of
from llog.testing.history.recovery import clean, compact_all, probe, resume
from llog.testing.servers import (
    ACCESS_KEY,
    SECRET_KEY,
    Minio,
    OxiaServer,
    PostgresServer,
    S3Server,
    ServerProcess,
    VersityGateway,
)
from tests.patience import wait_until
from tests.servers import started
from tests.system.log_worker import GRACE_VARIABLE, LOGS, opened, recorder

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
KILLS: Final = 50 if SOAK else 3
ROOT: Final = Path(__file__).parents[2]
STEADY_SECONDS_MAX: Final = 120.0
"""How long a process may take to begin its work."""
ROLES: Final = ("writer", "producer", "compactor", "writer+compactor", "vacuum+retention+reader+fencer+deleter")
"""Five processes: each costs a small machine two seconds to start."""
VICTIMS: Final = (0, 1, 2, 3, 0, 1, 2, 3, 4)
"""Positions in ROLES; who writes or compacts dies more often."""


class Worker:
    """One place in the cast; whoever is killed there is followed by another."""

    def __init__(self, role: str, number: int, directory: Path, env: Mapping[str, str]) -> None:
        self.role, self._number, self._directory, self._env = role, number, directory, env
        self._life = 0
        self.start()

    def start(self) -> None:
        self._life += 1
        self.name = f"{self._number}.{self._life}"
        self._history = self._directory / f"history-{self.name}"
        args = [sys.executable, "-m", "tests.system.log_worker", self.role, self.name, str(self._history)]
        self.process = ServerProcess(args, log=self._directory / f"log-{self.name}", env=self._env)
        self.process.start()

    def recorded_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._directory.glob(f"{self._history.name}.*"))

    def wait_at_work(self) -> None:
        """Until it has recorded something; chores record nothing, so theirs is a matter of time."""
        self.process.wait_ready(
            f"worker {self.name} ({self.role})",
            lambda: self.recorded_bytes() > 0 or self.role == "compactor",
            STEADY_SECONDS_MAX,
        )

    def check_alive(self) -> None:
        assert self.process.running, f"{self.role} ended by itself:\n{self.process.log.read_text()[-3_000:]}"


def run_and_kill(directory: Path, env: Mapping[str, str], rng: random.Random) -> None:
    workers = [Worker(role, number, directory, env) for number, role in enumerate(ROLES)]
    try:
        for worker in workers:
            worker.wait_at_work()
        time.sleep(1.0)  # all of them at work together
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.2, 1.0))
            victim = workers[rng.choice(VICTIMS)]
            victim.wait_at_work()
            for worker in workers:
                worker.check_alive()
            victim.process.kill()
            victim.start()
        for worker in workers:
            worker.wait_at_work()
        wait_until(lambda: is_enough(directory), "a history that proves something", seconds=STEADY_SECONDS_MAX)
        for worker in workers:
            worker.check_alive()
    finally:
        for worker in workers:
            worker.process.kill()
    time.sleep(1.0)  # what the dead had sent arrives now, or never


def read_history(directory: Path) -> list[Noted]:
    found: list[Noted] = []
    for path in sorted(directory.glob("history-*")):
        found += decode_lines(path.read_bytes())
    return sorted(found, key=lambda noted: noted.at)


def is_enough(directory: Path) -> bool:
    operations = operations_of(read_history(directory))
    landed = sum(append.outcome == "landed" for append in operations.appends)
    return landed > 5 * KILLS and any(read.answer is not None and read.answer.records for read in operations.reads)


async def judge(directory: Path, env: Mapping[str, str], *, cleaning: bool) -> None:
    """The same phases as in the simulation."""
    operations = operations_of(read_history(directory))
    settings = Settings.from_env(env)
    async with opened(settings, "judge") as context:
        checker = Checker(context.keys, grace_ms=context.options.vacuum_grace_ms)
        dump = await _dump(context)
        checker.check(operations, dump, Phase.LEFT)
        for log in LOGS:
            await resume(context, log)
        dump = await _dump(context, dump)
        checker.check(operations, dump, Phase.RECOVERED)
        record = recorder(directory / "history-probe", "probe")
        await probe(Client("probe", context, record, encoding="kafka-v2"), LOGS)
        operations = operations_of(read_history(directory))
        for log in LOGS:
            await compact_all(context, log)
        dump = await _dump(context, dump)
        checker.check(operations, dump, Phase.COMPACTED)
        if cleaning:
            await clean(context, LOGS)
            checker.check(operations, await _dump(context, dump), Phase.CLEANED)


async def _dump(context: LogContext, before: Dump | None = None) -> Dump:
    assert context.wal is not None
    return await dump_stores(context.metadata, context.wal, context.keys, now_ms=context.now_ms(), before=before)


async def play(directory: Path, env: dict[str, str], *, grace_ms: int, cleaning: bool) -> None:
    env |= {GRACE_VARIABLE: str(grace_ms), "PYTHONPATH": str(ROOT)}
    rng = random.Random(20)
    os.environ[GRACE_VARIABLE] = str(grace_ms)
    await asyncio.to_thread(partial(run_and_kill, directory, env, rng))
    await judge(directory, env, cleaning=cleaning)


def s3_env(server: S3Server) -> dict[str, str]:
    return {
        "LLOG_OBJECTS_URL": f"s3://{server.bucket}/log",
        "LLOG_S3_ENDPOINT_URL": server.endpoint,
        "LLOG_S3_REGION_NAME": "us-east-1",
        "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
        "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
    }


started_once = contextmanager(started)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_lmdb_and_files(tmp_path: Path) -> None:
    env = {"LLOG_METADATA_URL": f"lmdb://{tmp_path}/metadata", "LLOG_OBJECTS_URL": f"file://{tmp_path}/objects"}
    await play(tmp_path, env, grace_ms=2_500, cleaning=True)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(900)
async def test_postgres_and_s3(tmp_path: Path) -> None:
    with started_once(VersityGateway) as objects, started_once(PostgresServer) as metadata:
        env = {"LLOG_METADATA_URL": metadata.url, **s3_env(objects)}
        # An S3 server tells whole seconds: a shorter grace would be refused as a clock that is wrong.
        await play(tmp_path, env, grace_ms=12_000, cleaning=SOAK)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(900)
async def test_oxia_and_s3(tmp_path: Path) -> None:
    with started_once(Minio) as objects, started_once(lambda: OxiaServer(shards=2)) as metadata:
        env = {"LLOG_METADATA_URL": f"oxia://{metadata.address}", **s3_env(objects)}
        await play(tmp_path, env, grace_ms=12_000, cleaning=SOAK)
