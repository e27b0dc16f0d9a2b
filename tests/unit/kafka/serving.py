"""A Kafka server on a broker whose stores are in memory.

async with serve() as kafka, kafka.client() as client:
    await client.ask(MetadataRequest(), 12)
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from llog.broker.broker import Broker
from llog.broker.cluster import ClusterView, Node
from llog.kafka.apis.handler import Call, Client, Handler
from llog.kafka.net.memory import FRAME_BYTES_MAX, FRONT_END_BYTES_MAX
from llog.kafka.server import KafkaServer
from llog.kafka.services import KafkaServices
from llog.settings import Settings
from tests.kafka_client import KafkaClient, api_of


@dataclass(frozen=True)
class ServedKafka:
    server: KafkaServer
    broker: Broker
    services: KafkaServices

    def client(self, **options: Any) -> AbstractAsyncContextManager[KafkaClient]:
        return KafkaClient.connected(self.server.port, **options)

    def call(self, request: Struct, version: int, *, client: Client | None = None) -> Call:
        """What a handler is given for this request, for tests without a socket."""
        key = api_of(type(request)).key
        return Call(self.services, client or Client("127.0.0.1", 1, ""), key, version, "test", request)


@asynccontextmanager
async def serve(
    *,
    handlers: Mapping[int, Handler] | None = None,
    connections_max: int = 100,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    front_end_bytes_max: int = FRONT_END_BYTES_MAX,
    **overrides: Any,
) -> AsyncIterator[ServedKafka]:
    """`overrides`: settings, such as `batch_max_delay_ms=0`."""
    name = f"memory://kafka-{random.getrandbits(48):x}"
    stores = {"metadata_url": name, "objects_url": name}
    settings = Settings.from_env({}, **(stores | overrides))
    broker = await Broker.open(settings, warm=False)
    try:
        cluster = ClusterView("test-cluster", Node(1, "127.0.0.1", 0))
        services = KafkaServices(broker, cluster, broker.topics)
        server = KafkaServer(
            services,
            settings,
            "127.0.0.1",
            0,
            handlers=handlers,
            connections_max=connections_max,
            frame_bytes_max=frame_bytes_max,
            front_end_bytes_max=front_end_bytes_max,
        )
        await server.start()
        try:
            yield ServedKafka(server, broker, services)
        finally:
            await server.stop(at_once=True)
    finally:
        await broker.close()
