"""A broker process, from the first moment on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from llog.broker.broker import Broker
from llog.errors import SettingsError
from llog.http.json import plain_scan
from llog.kafka.codec.messages.describe_cluster import DescribeClusterRequest
from llog.process import serve, starting
from llog.settings import Settings
from llog.settings.listening import listening_socket
from llog.testing.servers import free_port
from tests.kafka_client import KafkaClient
from tests.patience import PATIENCE_SECONDS, until


def in_memory(name: str, **given: object) -> Settings:
    url = f"memory://serve-{name}"
    return Settings.from_env({}, **{"metadata_url": url, "objects_url": url, "http_port": 0, "kafka_port": 0, **given})


class Serving:
    """`async with Serving(settings) as broker:` is a broker that serves in this loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self.stop = settings, asyncio.Event()
        self.broker: asyncio.Future[Broker] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Broker:
        def started(_: str, broker: Broker) -> None:
            self.broker.set_result(broker)

        task = self._task = asyncio.create_task(serve.serve(self._settings, self.stop, on_started=started))
        both: list[asyncio.Future[Any]] = [task, self.broker]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        return self.broker.result()

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        assert self._task is not None
        await self._task


async def status_of(url: str) -> str:
    """The status, once the address answers."""
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as http:

        async def ask() -> str:
            try:
                return str((await http.get(f"{url}/health")).json()["status"])
            except httpx.TransportError:
                return ""

        return str(await until(ask, "an answer from /health"))


async def test_health_says_starting_until_the_kernels_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first start takes seconds to compile them; a supervisor would take silence for a dead process."""
    loading, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        loading.set()
        go_on.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(plain_scan, "warm_up", slowly)
    monkeypatch.setattr(starting, "STARTING_SILENCE_MS", 1)
    settings, stop = in_memory("slowly", http_port=free_port()), asyncio.Event()
    serving = asyncio.create_task(serve.serve(settings, stop, patient=True))
    try:
        assert await asyncio.to_thread(loading.wait, PATIENCE_SECONDS)
        url = f"http://127.0.0.1:{settings.http_port}"
        assert await status_of(url) == "starting"
        go_on.set()

        async def is_ok() -> bool:
            return await status_of(url) == "ok"

        await until(is_ok, "status ok")
    finally:
        go_on.set()
        stop.set()
        await serving


async def described(port: int) -> list[tuple[int, str, int]]:
    """The nodes that the cluster consists of."""
    async with KafkaClient.connected(port) as client:
        answer = await client.ask(DescribeClusterRequest(), 1)
    return [(node.broker_id, node.host, node.port) for node in answer.brokers]


async def test_one_process_serves_http_and_kafka_and_registers_both() -> None:
    async with Serving(in_memory("both")) as broker:
        assert broker.kafka is not None
        port = broker.kafka[1]
        assert await status_of(f"http://127.0.0.1:{broker.port}") == "ok"
        assert await described(port) == [(0, "127.0.0.1", port)]
        health = broker.health()
        assert (health["kafka"], health["node_id"], health["nodes"]) == (f"127.0.0.1:{port}", 0, [0])


async def test_brokers_on_the_same_stores_are_nodes_of_one_cluster() -> None:
    settings = in_memory("two", client_identifier="one")
    async with Serving(settings) as one, Serving(settings.replaced(client_identifier="two", node_id=7)) as two:
        assert one.kafka is not None
        assert two.kafka is not None
        nodes, port = [(0, *one.kafka), (7, *two.kafka)], one.kafka[1]
        assert await described(two.kafka[1]) == nodes, "a broker that starts sees those that are there"

        async def is_seen() -> bool:
            return await described(port) == nodes

        await until(is_seen, "the other node")
        assert one.cluster.cluster_id == two.cluster.cluster_id != ""
        assert one.cluster.controller() == two.cluster.controller()


async def test_an_advertised_address_is_what_clients_are_given() -> None:
    async with Serving(in_memory("advertised", kafka_advertised="kafka.example:443")) as broker:
        assert broker.kafka == ("kafka.example", 443)
        [node] = broker.cluster.nodes()
        assert (node.host, node.port) == ("kafka.example", 443)


async def test_without_a_kafka_port_only_http_is_served() -> None:
    async with Serving(in_memory("off", kafka_port="", kafka_host="0.0.0.0")) as broker:
        assert broker.health()["kafka"] is None
        assert await status_of(f"http://127.0.0.1:{broker.port}") == "ok"


async def test_a_taken_kafka_port_names_its_setting_and_leaves_nothing_behind() -> None:
    http_port = free_port()
    with listening_socket("127.0.0.1", 0, of="LLOG_KAFKA", backlog=1) as taken:
        settings = in_memory("taken", http_port=http_port, kafka_port=taken.getsockname()[1])
        with pytest.raises(SettingsError, match="LLOG_KAFKA_PORT"):
            await serve.serve(settings, asyncio.Event())
    with listening_socket("127.0.0.1", http_port, of="LLOG_HTTP", backlog=1):
        pass  # the HTTP front end, which had started, is gone
    async with Serving(in_memory("taken")) as broker:
        assert broker.cluster.node_id == 0, "the broker that could not start gave its node id back"


async def test_a_node_id_that_another_broker_has_ends_the_start() -> None:
    settings = in_memory("ids", client_identifier="one", node_id=3, session_timeout_ms=2_000)
    async with Serving(settings):
        with pytest.raises(SettingsError, match=r"LLOG_NODE_ID.*3.*broker one"):
            await serve.serve(settings.replaced(client_identifier="two"), asyncio.Event())


async def test_a_draining_broker_is_reachable_and_leads_nothing_until_the_ports_close() -> None:
    settings = in_memory("drain", client_identifier="one", http_drain_ms="60s")
    draining = Serving(settings)
    async with Serving(settings.replaced(client_identifier="two", http_drain_ms=0)) as other:
        one = await draining.__aenter__()
        assert one.kafka is not None
        await until(lambda: len(other.cluster.nodes()) == 2, "the other node")
        draining.stop.set()
        await until(lambda: other.cluster.nodes()[one.cluster.node_id].draining, "the notice of the draining node")
        assert one.cluster.draining
        assert not other.cluster.draining
        topic = "3f0e6b6e-2d0b-4c58-8f5e-7a9b3a1c2d4e"
        for view in (one.cluster, other.cluster):
            assert view.leaders_of([(topic, 50)]) == [[other.cluster.node_id] * 50]
        assert len(await described(one.kafka[1])) == 2, "it still answers"
        assert draining._task is not None
        draining._task.cancel()
        await asyncio.gather(draining._task, return_exceptions=True)
        await until(lambda: len(other.cluster.nodes()) == 1, "the end of the other node")
