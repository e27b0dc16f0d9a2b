"""Brokers are killed and stopped under load: what was acknowledged stays, and nothing is there twice.

The load never sends anything again (`broker_load`), so whatever appears twice is the broker's doing. Moments are drawn
from the run's seed: `TEST_SEED`, which the header of a run names, repeats them.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest

from llog.testing.servers import ACCESS_KEY, SECRET_KEY, Minio, OxiaServer
from tests.patience import PATIENCE_SECONDS, until
from tests.servers import started
from tests.system.broker_load import Load, check, read_logs
from tests.system.broker_process import LlogProcess

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
KILLS_EMBEDDED: Final = 50 if SOAK else 3
KILLS_OF_TWO: Final = 20 if SOAK else 2
ATTEMPTS_PER_KILL_MAX: Final = 4
LIFE_SECONDS_MAX: Final = 1.5 if SOAK else 0.5
STOPS: Final = 5 if SOAK else 1
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
started_once = contextmanager(started)


class Place:
    """A broker that is started again after each end."""

    def __init__(self, name: str, directory: Path, settings: dict[str, str], running: ExitStack) -> None:
        self._name, self._directory, self._running = name, directory, running
        self._settings = settings | {"LLOG_CLIENT_IDENTIFIER": name}
        self.lives = 0
        self.url: str | None = None

    def start(self) -> None:
        log = self._directory / f"{self._name}-{self.lives}.log"
        self.process = self._running.enter_context(LlogProcess("broker", settings=self._settings, log=log))
        self.lives += 1

    async def listen(self) -> str:
        self.url = await asyncio.to_thread(lambda: self.process.url)
        return self.url

    def kill(self) -> None:
        assert self.process.child.poll() is None, f"it ended by itself: {self.process.output()}"
        self.url = None
        self.process.kill()


async def kill_under_load(places: list[Place], load: Load, kills: int, rng: random.Random) -> None:
    """Kill a broker at a random moment of its life, `kills` times; the others and the load go on.

    A kill counts when it left a request unanswered. A request may be answered between the last look at the load and
    the kill, so some do not.
    """
    for place in places:
        place.start()
    for place in places:
        await place.listen()
    load.start(*((lambda place=place: place.url) for place in places))
    try:
        counted = 0
        for _ in range(ATTEMPTS_PER_KILL_MAX * kills):
            victim = rng.choice(places)
            await load.wait_acknowledged(20)
            await asyncio.sleep(rng.uniform(0.0, LIFE_SECONDS_MAX))
            unanswered = load.fates.answers["unanswered"]
            await until(lambda: load.in_flight)
            victim.kill()
            victim.start()
            await victim.listen()
            await load.wait_acknowledged(20)
            counted += load.fates.answers["unanswered"] > unanswered
            if counted == kills:
                break
        assert counted == kills, f"only {counted} kills met a request in flight"
        await load.stop()
    finally:
        await load.abort()


async def check_everywhere(places: list[Place], load: Load, *, answered_all: bool = False) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        answer = [await read_logs(client, await place.listen(), range(load.partitions)) for place in places]
    for stored in answer:
        assert stored == answer[0], "two brokers show different records of the same logs"
        check(load.fates, stored, answered_all=answered_all)


async def test_a_broker_killed_again_and_again_loses_nothing_acknowledged(tmp_path: Path, rng: random.Random) -> None:
    load = Load(rng, producers=8)
    with ExitStack() as running:
        place = Place("only", tmp_path, {"LLOG_DATA_DIR": str(tmp_path / "data")}, running)
        await kill_under_load([place], load, KILLS_EMBEDDED, rng)
        await check_everywhere([place], load)
    print(f"{place.lives - 1} kills, {load.fates.acknowledged_count} records acknowledged: {dict(load.fates.answers)}")


@pytest.mark.server
async def test_either_of_two_brokers_killed_loses_nothing_acknowledged(tmp_path: Path, rng: random.Random) -> None:
    load = Load(rng, producers=8)
    with started_once(Minio) as objects, started_once(lambda: OxiaServer(shards=2)) as oxia, ExitStack() as running:
        settings = {
            "LLOG_METADATA_URL": f"oxia://{oxia.address}",
            "LLOG_OBJECTS_URL": f"s3://{objects.bucket}/log",
            "LLOG_S3_ENDPOINT_URL": objects.endpoint,
            "LLOG_S3_REGION_NAME": "us-east-1",
            "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
            "LLOG_BATCH_MAX_DELAY_MS": "20ms",  # more flushes, so more moments to die in
        }
        places = [Place(name, tmp_path, settings, running) for name in ("left", "right")]
        await kill_under_load(places, load, KILLS_OF_TWO, rng)
        await check_everywhere(places, load)
        places[0].kill()
        places[0].start()  # one that remembers nothing
        await check_everywhere(places[:1], load)
    print(f"{KILLS_OF_TWO} kills, {load.fates.acknowledged_count} records acknowledged: {dict(load.fates.answers)}")


# -- stopping --------------------------------------------------------------------------------------------------------


async def test_a_stop_under_load_answers_all_it_accepted_and_a_restart_loses_nothing(
    tmp_path: Path, rng: random.Random
) -> None:
    load = Load(rng, producers=8)
    with ExitStack() as running:
        place = Place("only", tmp_path, {"LLOG_DATA_DIR": str(tmp_path / "data")}, running)
        place.start()
        await place.listen()
        load.start(lambda: place.url)
        for _ in range(STOPS):
            await load.wait_acknowledged(20)
            await asyncio.sleep(rng.uniform(0.0, LIFE_SECONDS_MAX))
            code = await asyncio.to_thread(place.process.terminate)
            assert code == 0, place.process.output()
            place.url = None
            place.start()
            await place.listen()
        await load.wait_acknowledged(20)
        await load.stop()
        await check_everywhere([place], load, answered_all=True)
    print(f"{STOPS} stops, {load.fates.acknowledged_count} records acknowledged: {dict(load.fates.answers)}")


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    patient = {"LLOG_HTTP_READ_TIMEOUT_MS": "600s", "LLOG_HTTP_STOP_TIMEOUT_MS": "600s"}
    settings = {"LLOG_DATA_DIR": str(tmp_path / "data")} | patient
    with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
        address = urlsplit(broker.url)
        assert address.hostname is not None
        with socket.create_connection((address.hostname, address.port or 0)) as slow:
            # A request that does not end: the first signal leaves it its time.
            slow.sendall(b"POST /produce HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\nexpect: 100-continue\r\n\r\n")
            assert slow.recv(64).startswith(b"HTTP/1.1 100"), "the broker waits for the body"
            slow.sendall(b'{"topic_partitions": [')
            broker.child.send_signal(signal.SIGTERM)
            broker.wait_closed(address.geturl())
            assert broker.child.poll() is None, "it did not wait for the request under way"
            broker.child.send_signal(signal.SIGTERM)
            broker.child.wait(PATIENCE_SECONDS)
