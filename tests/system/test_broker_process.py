"""Brokers and compactors as processes: stopped, killed, side by side, and on three tiers of stores.

What was acknowledged is there afterwards, once, wherever the process was when it ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

import llog
from llog.log.keys import WAL_PREFIX
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, ServerUnavailable, VersityGateway, binary
from tests.patience import PATIENCE_SECONDS, until
from tests.servers import started
from tests.system.broker_process import (
    LlogProcess,
    Producer,
    batch,
    check_stored,
    consume,
    produce,
    read_all,
    run_for,
    run_llog,
)

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
LOAD_SECONDS: Final = 10.0 if SOAK else 0.7
KILLS: Final = 10 if SOAK else 1
PRODUCERS: Final = 8
TOPIC: Final = "orders"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=PATIENCE_SECONDS)


def at(directory: Path, **settings: str) -> dict[str, str]:
    return {"LLOG_DATA_DIR": str(directory / "data")} | {
        f"LLOG_{name.upper()}": text for name, text in settings.items()
    }


# -- one broker ------------------------------------------------------------------------------------------------------


async def test_a_stop_answers_what_is_under_way_and_everything_acknowledged_is_there_afterwards(tmp_path: Path) -> None:
    settings = at(tmp_path, batch_max_delay_ms="10s")
    late = [batch(TOPIC, 1, [f"late {number}"]) for number in range(8)]
    with LlogProcess("broker", settings=at(tmp_path), log=tmp_path / "log-1") as broker:
        async with client() as http:
            url = broker.url
            landed = await produce(http, url, batch(TOPIC, 0, ["alpha", "beta"]))
            assert (landed["start_offset"], landed["end_offset"]) == (1, 2)
            answer = await consume(http, url, TOPIC, 0, 2)
            assert [record["payload"] for record in answer["records"]] == ["beta"]
        producers = [Producer(number, "load", 2) for number in range(PRODUCERS)]
        async with client() as http:
            working = await run_for(LOAD_SECONDS, producers, http, url)
            assert await asyncio.to_thread(broker.terminate) == 0, broker.output()
            await working
    with LlogProcess("broker", settings=settings, log=tmp_path / "log-2") as broker:
        async with client() as http:
            assert await check_stored(http, broker.url, "load", producers) >= PRODUCERS * 3
            # These wait for their batch, which is longer than the way from the signal to the stop.
            asked = [asyncio.ensure_future(produce(http, broker.url, body)) for body in late]

            async def are_buffered() -> bool:
                return all(future.done() for future in asked) or await _buffered(http, broker.url) >= len(late)

            await until(are_buffered, "all late requests in the buffer")
            code = await asyncio.to_thread(broker.terminate)
            answered = await asyncio.gather(*asked)
            assert code == 0, broker.output()
    with llog.LeaderlessLogReader(metadata_url=f"lmdb://{tmp_path}/data/metadata") as reader:
        for number, result in enumerate(answered):
            record = reader.read_offset(TOPIC, 1, int(result["start_offset"]))
            assert record.payload == f"late {number}".encode()


async def test_a_draining_broker_says_that_it_is_not_ready_and_goes_on_serving(tmp_path: Path) -> None:
    with LlogProcess("broker", settings=at(tmp_path, http_drain_ms="60s"), log=tmp_path / "log") as broker:
        async with client() as http:
            await produce(http, broker.url, batch(TOPIC, 0, ["before"]))
            broker.child.send_signal(signal.SIGTERM)

            async def is_draining() -> bool:
                return (await http.get(f"{broker.url}/ready")).status_code == 503

            await until(is_draining, "not ready")
            assert (await produce(http, broker.url, batch(TOPIC, 0, ["meanwhile"])))["start_offset"] == 2
            answer = await consume(http, broker.url, TOPIC, 0, 1)
            assert [record["payload"] for record in answer["records"]] == ["before", "meanwhile"]
        broker.child.send_signal(signal.SIGTERM)  # a second signal ends the wait
        assert await asyncio.to_thread(broker.child.wait, PATIENCE_SECONDS) == 0, broker.output()


async def test_a_kill_loses_nothing_acknowledged_and_what_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    producers = [Producer(number, "load", 2) for number in range(PRODUCERS)]
    with ExitStack() as running:

        def start(life: int) -> LlogProcess:
            return running.enter_context(LlogProcess("broker", settings=at(tmp_path), log=tmp_path / f"log-{life}"))

        broker = start(0)
        for kill in range(KILLS):
            async with client() as http:
                working = await run_for(LOAD_SECONDS, producers, http, broker.url)
                broker.kill()
                await working
            broker = start(kill + 1)
            async with client() as http:
                for producer in producers:
                    assert producer.unanswered is not None, "a producer stopped sending before the broker was gone"
                    await producer.send(http, broker.url, producer.unanswered)
                    producer.unanswered = None
        async with client() as http:
            for producer in producers:
                sent, offset = producer.acknowledged[-1]
                again = await producer.send(http, broker.url, sent)
                assert (again["start_offset"], again["repeated"]) == (offset, True)
            assert await check_stored(http, broker.url, "load", producers) > PRODUCERS * 3


def test_a_store_of_another_cluster_is_refused_with_words(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        with llog.embedded(tmp_path / name):
            pass
    mixed = at(
        tmp_path, metadata_url=f"lmdb://{tmp_path}/ours/metadata", objects_url=f"file://{tmp_path}/theirs/objects"
    )
    ended = run_llog("broker", settings=mixed)
    assert ended.returncode not in (0, 2), ended.stdout
    assert "it belongs to cluster" in ended.stderr
    assert f"file://{tmp_path}/theirs/objects" in ended.stderr
    assert "Traceback" not in ended.stderr


# -- several brokers -------------------------------------------------------------------------------------------------


async def _polls_at_the_end(http: httpx.AsyncClient, url: str, *, before: int = 0) -> int:
    """Lookups in the tail cache that found no record, without those counted before."""
    events = (await http.get(f"{url}/metrics")).json()["tail_cache"]["events"]
    return int(events["empty"] + events["miss"]) - before


async def test_a_writing_and_a_reading_broker_share_the_tail_through_a_directory(tmp_path: Path) -> None:
    settings = at(tmp_path, tail_cache_dir=str(tmp_path / "tail"), tail_refresh_ms="60s")
    with (
        LlogProcess("broker", "--role", "write", settings=settings, log=tmp_path / "log-w") as writing,
        LlogProcess("broker", "--role", "read", settings=settings, log=tmp_path / "log-r") as reading,
    ):
        async with client() as http:
            await produce(http, writing.url, batch(TOPIC, 0, ["first"]))
            assert list((await read_all(http, reading.url, TOPIC, 0)).values()) == ["first"]
            for offset in range(2, 7):
                polls = await _polls_at_the_end(http, reading.url)
                waiting = asyncio.ensure_future(consume(http, reading.url, TOPIC, 0, offset, max_wait_ms=60_000))
                await until(partial(_polls_at_the_end, http, reading.url, before=polls), "a poll at the end of the log")
                before = time.monotonic()
                await produce(http, writing.url, batch(TOPIC, 0, [f"record {offset}"]))
                answer = await waiting
                assert [record["payload"] for record in answer["records"]] == [f"record {offset}"]
                # A look at the store would come after a minute.
                assert time.monotonic() - before < 30, "it did not come through the directory"
            refused = await http.post(f"{reading.url}/produce", json=batch(TOPIC, 0, ["no"]))
            assert refused.status_code >= 400, refused.text
            asked = {"topic_partitions": [{"topic": TOPIC, "partition": 0, "fetch_offset": 1}]}
            refused = await http.post(f"{writing.url}/consume", json=asked)
            assert refused.status_code >= 400, refused.text
            assert len(await read_all(http, reading.url, TOPIC, 0)) == 6


@pytest.mark.serial
async def test_brokers_of_a_stack_see_each_others_appends_within_the_refresh(tmp_path: Path) -> None:
    refresh_ms = 200
    settings = at(tmp_path, tail_refresh_ms=f"{refresh_ms}ms")
    with LlogProcess("up", "--brokers", "2", "--port", "0", settings=settings, log=tmp_path / "log") as stack:
        one, other = _brokers(stack)
        took_ms, usual_ms = [], []
        async with client() as http:
            await produce(http, one, batch(TOPIC, 0, ["record 1"]))
            for offset in range(2, 9):
                polls = await _polls_at_the_end(http, other)
                waiting = asyncio.ensure_future(consume(http, other, TOPIC, 0, offset, max_wait_ms=60_000))
                await until(partial(_polls_at_the_end, http, other, before=polls), "a poll at the end of the log")
                before = time.monotonic()
                await produce(http, one, batch(TOPIC, 0, [f"record {offset}"]))
                usual_ms.append((time.monotonic() - before) * 1_000)
                before = time.monotonic()
                answer = await waiting
                took_ms.append((time.monotonic() - before) * 1_000)
                assert [record["payload"] for record in answer["records"]] == [f"record {offset}"]
            await asyncio.gather(*(produce(http, url, batch(TOPIC, 1, [url])) for url in (one, other) * 5))
            await asyncio.sleep((refresh_ms + 150) / 1_000)  # until then each may know its own appends alone
            assert sorted((await read_all(http, one, TOPIC, 1)).values()) == sorted([one, other] * 5)
            assert await read_all(http, one, TOPIC, 1) == await read_all(http, other, TOPIC, 1)
        # Half of the rounds may meet a busy machine; and on one that is busy all the time, nothing is quick.
        assert statistics.median(took_ms) < refresh_ms + 150 + 3 * statistics.median(usual_ms), took_ms
        children = psutil.Process(stack.child.pid).children()
        assert len(children) == 2
        assert all(os.getpgid(child.pid) == os.getpgid(stack.child.pid) for child in children)
        assert stack.terminate() == 0, stack.output()
        assert not any(map(_runs, children))


@pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1; otherwise with small processes: tests/unit/cli/test_stack.py")
def test_when_the_supervisor_dies_its_brokers_end(tmp_path: Path) -> None:
    with LlogProcess("up", "--brokers", "2", "--port", "0", settings=at(tmp_path), log=tmp_path / "log") as stack:
        _brokers(stack)
        children = psutil.Process(stack.child.pid).children()
        stack.kill()
        stack.wait(lambda: not any(map(_runs, children)), "end its brokers")


async def test_a_killed_broker_of_a_stack_comes_back_while_the_other_serves(tmp_path: Path) -> None:
    options = ("--brokers", "2", "--port", "0")
    with LlogProcess("up", *options, settings=at(tmp_path), log=tmp_path / "log") as stack:
        urls = _brokers(stack)
        victim = psutil.Process(stack.child.pid).children()[0]
        ports = {str(connection.laddr.port) for connection in victim.net_connections("tcp")}
        [other] = [url for url in urls if url.rpartition(":")[2] not in ports]
        async with client() as http:
            victim.kill()
            await produce(http, other, batch(TOPIC, 0, ["meanwhile"]))
            [back] = set(_brokers(stack, count=3)) - set(urls)
            assert (await produce(http, back, batch(TOPIC, 0, ["again"])))["start_offset"] == 2
        assert "SIGKILL" in stack.output()
        assert stack.terminate() == 0, stack.output()


def test_a_supervised_broker_ends_when_its_supervisor_is_gone(tmp_path: Path) -> None:
    """Then the other end of its standard input is closed."""
    ended = run_llog("broker", "--supervised", settings=at(tmp_path), standard_input="")
    assert ended.returncode == 0, ended.stderr


def test_a_stack_refuses_stores_that_processes_do_not_share(tmp_path: Path) -> None:
    ended = run_llog("up", "--brokers", "2", settings=at(tmp_path, metadata_url="memory://x"))
    assert ended.returncode == 2
    assert "LLOG_METADATA_URL" in ended.stderr


async def _buffered(http: httpx.AsyncClient, url: str) -> int:
    """How many requests wait for their commit."""
    return int((await http.get(f"{url}/metrics")).json()["batching"]["buffered_requests"])


def _brokers(stack: LlogProcess, count: int = 2) -> list[str]:
    stack.urls(count + 1)  # and the compactor's
    return [line.rpartition(" ")[2] for line in stack.output().splitlines() if line.startswith("broker ")]


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# -- three tiers -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.server)])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The settings of the far store."""
    if request.param == "file":
        if not SOAK and _has_s3():
            pytest.skip("the same is run with an S3 server; with LLOG_SOAK=1 both are")
        yield {"LLOG_OBJECTS_URL": f"file://{tmp_path}/far"}
        return
    for server in started(VersityGateway):
        yield {
            "LLOG_OBJECTS_URL": f"s3://{server.bucket}/log",
            "LLOG_S3_ENDPOINT_URL": server.endpoint,
            "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
        }


def _has_s3() -> bool:
    try:
        return bool(binary("versitygw"))
    except ServerUnavailable:
        return False


async def test_records_move_from_the_local_disk_to_the_far_store_and_survive_the_disk(
    tmp_path: Path, objects: dict[str, str]
) -> None:
    disk = tmp_path / "disk"
    wal, payloads = disk / "wal", [f"record {number}" for number in range(200)]
    settings = objects | {
        "LLOG_METADATA_URL": f"lmdb://{disk}/metadata",
        "LLOG_WAL_URL": f"file://{wal}",
        # An S3 server reports whole seconds, and clocks may differ by a tenth of the grace.
        "LLOG_WAL_GRACE_MS": "12s" if "LLOG_S3_ENDPOINT_URL" in objects else "10s",
        "LLOG_COMPACTOR_TRIGGER_AGE_MS": "0",
        "LLOG_COMPACTOR_MIN_AGE_MS": "0",
        "LLOG_COMPACTOR_DISCOVERY_INTERVAL_MS": "200ms",
        "LLOG_COMPACTOR_IDLE_SLEEP_MS": "100ms",
    }
    with (
        LlogProcess("broker", settings=settings, log=tmp_path / "log-b") as broker,
        LlogProcess("compactor", settings=settings, log=tmp_path / "log-c") as compactor,
    ):
        async with client() as http:
            for first in range(0, len(payloads), 20):
                landed = await produce(http, broker.url, batch(TOPIC, 0, payloads[first : first + 20]))
                assert str(landed["wal_uri"]).startswith(f"file://{wal}/"), "acknowledged elsewhere"
            compactor.urls()
            await asyncio.to_thread(compactor.wait, lambda: not _blobs(wal), "empty the local store")
            assert list((await read_all(http, broker.url, TOPIC, 0)).values()) == payloads
        assert await asyncio.to_thread(compactor.terminate) == 0, compactor.output()
        backed_up = run_llog("meta", "backup", objects["LLOG_OBJECTS_URL"], "--json", settings=settings)
        assert backed_up.returncode == 0, backed_up.stderr
        assert await asyncio.to_thread(broker.terminate) == 0, broker.output()
    shutil.rmtree(disk)
    refused = run_llog("broker", settings=settings)
    assert refused.returncode != 0
    assert "llog meta restore" in refused.stderr, refused.stderr
    await _restored_and_read(tmp_path, settings, _backup_of(backed_up.stdout), payloads)


async def _restored_and_read(tmp_path: Path, settings: dict[str, str], backup: str, payloads: list[str]) -> None:
    restored = run_llog("meta", "restore", backup, "--yes", settings=settings)
    assert restored.returncode == 0, restored.stdout + restored.stderr
    with LlogProcess("broker", settings=settings, log=tmp_path / "log-again") as broker:
        async with client() as http:
            assert list((await read_all(http, broker.url, TOPIC, 0)).values()) == payloads
            landed: dict[str, Any] = await produce(http, broker.url, batch(TOPIC, 0, ["afterwards"]))
            assert landed["start_offset"] > len(payloads)


def _blobs(wal: Path) -> list[Path]:
    return [path for path in (wal / "llog" / WAL_PREFIX).rglob("*") if path.is_file()]


def _backup_of(answer: str) -> str:
    return str(json.loads(answer)["backup"])
