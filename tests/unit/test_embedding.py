"""A broker inside a program: it starts at once, answers everywhere, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from kafka.admin import KafkaAdminClient, NewTopic

import llog
import llog.testing
from llog import embedding
from llog.errors import ClusterMismatch, InvalidArgument, PartitionNotInitialized, SettingsError, StoreClosed
from llog.kafka.codec.messages.describe_cluster import DescribeClusterRequest
from llog.stores.objects import memory
from tests.kafka_client import KafkaClient
from tests.patience import PATIENCE_SECONDS, until, wait_until

START_SECONDS_MAX = 1.0


def post(url: str, path: str, body: object) -> dict[str, Any]:
    answer = httpx.post(f"{url}{path}", json=body, timeout=PATIENCE_SECONDS)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("llog-")}


def test_records_go_in_and_out_by_calls_by_http_and_by_the_faces() -> None:
    with llog.embedded() as broker:
        landed = broker.produce("orders", ["alpha", b"beta"], keys=["a", None])
        assert (landed.start_offset, landed.end_offset) == (1, 2)
        told = post(
            broker.url, "/consume", {"topic_partitions": [{"topic": "orders", "partition": 0, "fetch_offset": 1}]}
        )
        [result] = told["results"]
        assert [record["payload"] for record in result["records"]] == ["alpha", "beta"]
        with llog.LeaderlessLogReader(broker.settings) as reader:
            assert [record.payload for record in reader.iter_from("orders", 0, 1)] == [b"alpha", b"beta"]
        with llog.LeaderlessLogWriter(broker.settings) as writer:
            writer.append_shared([llog.SharedAppendGroup("orders", 0, ["gamma"])])
        assert [record.payload for record in broker.consume("orders", 3, max_wait_ms=2_000)] == [b"gamma"]


def test_kafka_clients_connect_to_the_bootstrap_address() -> None:
    async def nodes(address: str) -> list[tuple[int, str]]:
        async with KafkaClient.connected(int(address.rpartition(":")[2])) as client:
            answer = await client.ask(DescribeClusterRequest(), 1)
        return [(node.broker_id, f"{node.host}:{node.port}") for node in answer.brokers]

    with llog.embedded(memory=True) as broker:
        assert asyncio.run(nodes(broker.bootstrap)) == [(0, broker.bootstrap)]
    with llog.embedded(memory=True, kafka_port="") as broker:
        assert broker.bootstrap == ""


def test_a_temporary_directory_goes_and_a_given_one_stays(tmp_path: Path) -> None:
    with llog.embedded() as broker:
        temporary = broker.settings.data_dir
        assert temporary.is_dir()
    assert not temporary.exists()
    with llog.embedded(tmp_path) as broker:
        broker.produce("orders", ["alpha"])
    with llog.embedded(tmp_path) as broker:
        assert [record.payload for record in broker.consume("orders")] == [b"alpha"]


async def test_it_works_under_a_running_loop() -> None:
    """As in a notebook."""
    with llog.testing.broker() as broker:
        broker.produce("orders", ["alpha"])
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            answer = await client.get(f"{broker.url}/health")
        assert answer.json()["status"] == "ok"
        waiting = asyncio.get_running_loop().run_in_executor(
            None, lambda: broker.consume("orders", 2, max_wait_ms=60_000)
        )
        async with httpx.AsyncClient(base_url=broker.url, timeout=PATIENCE_SECONDS) as client:

            async def is_polled() -> bool:
                events = (await client.get("/metrics")).json()["tail_cache"]["events"]
                return bool(events["empty"] or events["miss"])

            await until(is_polled, "a poll at the end of the log")
        broker.produce("orders", ["beta"])
        assert [record.payload for record in await waiting] == [b"beta"]


def test_two_at_once_know_nothing_of_each_other() -> None:
    with llog.testing.broker() as one, llog.testing.broker() as other:
        one.produce("orders", ["alpha"])
        assert one.url != other.url
        with pytest.raises(PartitionNotInitialized):
            other.consume("orders")


def test_many_start_at_once_in_threads() -> None:
    """As under a test runner that uses them."""

    def use(number: int) -> list[bytes | None]:
        with llog.testing.broker() as broker:
            broker.produce("orders", [f"{number}"])
            return [record.payload for record in broker.consume("orders")]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(use, range(4))) == [[b"%d" % number] for number in range(4)]


def test_what_was_held_in_memory_is_given_back() -> None:
    before = set(memory._places)
    with llog.testing.broker() as broker:
        broker.produce("orders", ["alpha"])
        assert set(memory._places) - before == {broker.settings.objects_url}
    assert set(memory._places) == before


async def test_the_first_requests_wait_for_compiled_code_and_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = threading.Event()
    monkeypatch.setattr(embedding, "warm_up", lambda: loaded.wait(PATIENCE_SECONDS))
    with llog.testing.broker() as broker:
        body = {"topic_partitions": [{"topic": "orders", "partition": 0, "records": ["alpha"]}]}
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            asked = asyncio.ensure_future(client.post(f"{broker.url}/produce", json=body))
            await asyncio.sleep(0.2)  # no signal shows that a request waits; an early answer would take milliseconds
            assert not asked.done()
            loaded.set()
            assert (await asked).status_code == 200


def test_variables_of_the_shell_are_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLOG_OBJECTS_URL", f"file://{tmp_path}/production")
    monkeypatch.setenv("LLOG_DATA_DIR", f"{tmp_path}/production")
    with llog.embedded() as broker:
        broker.produce("orders", ["alpha"])
    assert not (tmp_path / "production").exists()


def test_closing_ends_its_threads_and_refuses_what_comes_later() -> None:
    before = own_threads()
    broker = llog.embedded()
    broker.produce("orders", ["alpha"])
    broker.close()
    broker.close()
    assert own_threads() <= before
    with pytest.raises(StoreClosed):
        broker.produce("orders", ["beta"])
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{broker.url}/health", timeout=1.0)


def test_a_start_that_fails_raises_here_and_leaves_nothing(tmp_path: Path) -> None:
    before = own_threads()
    with pytest.raises(SettingsError):
        llog.embedded(batch_max_bytes="many")
    with pytest.raises(InvalidArgument):
        llog.embedded(tmp_path, memory=True)
    with llog.embedded(tmp_path / "one"), pytest.raises(ClusterMismatch):
        llog.embedded(tmp_path / "other", objects_url=f"file://{tmp_path}/one/objects")
    with llog.testing.broker() as broker, pytest.raises(SettingsError, match=r"LLOG_HTTP_PORT.*a free port"):
        llog.embedded(http_port=int(broker.url.rpartition(":")[2]))
    wait_until(lambda: own_threads() <= before, "the end of all threads of the broker")


@pytest.mark.serial
@pytest.mark.parametrize("how", ["llog.embedded()", "llog.embedded(memory=True)", "llog.testing.broker()"])
def test_the_first_one_of_a_process_starts_within_a_second(how: str) -> None:
    """Imports are not counted: a process that imports nothing else pays them once, whatever it does. Nor is the time
    that a busy machine gives to others."""
    program = (
        "import time, llog, llog.testing, llog.embedding, llog.stores.metadata.lmdb, llog.stores.objects.file\n"
        f"before = time.process_time(); broker = {how}; print(time.process_time() - before); broker.close()"
    )

    def seconds() -> float:
        return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)

    # Others on the same core may slow down one of them all the same.
    assert any(seconds() < START_SECONDS_MAX for _ in range(3))


def test_a_program_may_end_without_closing_it() -> None:
    """Its thread ends before the interpreter is finalized, where native threads would crash the process."""
    program = """
import atexit, threading, llog
atexit.register(lambda: print(*(thread.name for thread in threading.enumerate() if thread.name == "llog-embedded")))
broker = llog.embedded()
broker.produce("orders", ["alpha"])
print(broker.settings.data_dir)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ended.returncode == 0, ended.stderr
    directory, still_running = ended.stdout.splitlines()
    assert (still_running, ended.stderr) == ("", "")
    assert not Path(directory).exists()


def test_records_of_a_topic_that_a_kafka_client_made_are_read_from_offset_zero() -> None:
    with llog.embedded() as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.create_topics([NewTopic("orders", 1, 1)])
        admin.close()
        broker.produce("orders", ["first", "second"])
        assert [(record.offset, record.payload) for record in broker.consume("orders")] == [
            (0, b"first"),
            (1, b"second"),
        ]
