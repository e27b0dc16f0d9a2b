"""Calls a handler as a connection would: request and answer pass through the codec in the version of the call."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from itertools import count
from typing import Any

from msgspec import Struct

from llog.broker.broker import Broker
from llog.broker.cluster import ClusterView, Node
from llog.formats.records.encode import encode_records
from llog.kafka.apis.handler import Call, Client, Handler
from llog.kafka.codec import apis, decode, encode_bytes
from llog.kafka.services import KafkaServices
from llog.log.append.append import EncodedGroup
from llog.log.keys import Log
from llog.settings import Settings

_NUMBERS = count()
"""Of stores in memory, which a process shares by name."""


class ThreeNodes(ClusterView):
    """Partitions lead on nodes 1, 2 and 3 in turn; clients of zone `b` use node 2."""

    def __init__(self) -> None:
        super().__init__("cluster-1", Node(1, "one.test", 9092, "a"))
        self.set_others([Node(2, "two.test", 9093, "b"), Node(3, "three.test", 9094, "")])
        self.ranked = 0
        """Partitions whose leader was asked for."""

    def controller(self) -> int:
        return 3

    def leaders_of(self, topics: Sequence[tuple[str, int]], zone: str = "") -> list[list[int]]:
        self.ranked += sum(count for _, count in topics)
        ids = [node.node_id for node in self.nodes()]
        return [[2 if zone == "b" else ids[number % len(ids)] for number in range(count)] for _, count in topics]


class Caller:
    def __init__(self, broker: Broker, cluster: ThreeNodes) -> None:
        self.broker, self.cluster = broker, cluster
        self.services = KafkaServices(broker, cluster, broker.topics)
        self.client = Client("10.0.0.7", 4711, "127.0.0.1:9092")

    def call(self, request: Struct | None = None, key: int = 3, version: int = 0, client_id: str | None = None) -> Call:
        return Call(self.services, self.client, key, version, client_id, request)

    async def append(self, topic: str, partition: int, *values: bytes) -> None:
        batch = encode_records(list(values), timestamps_ms=self.broker.context.now_ms())
        [outcome] = (
            await self.broker.produce([EncodedGroup(Log(topic, partition), len(values), "kafka-v2", [batch])])
        )[0]
        assert not isinstance(outcome, Exception), outcome

    async def ask(self, request: Struct, version: int, client_id: str | None = "test") -> Any:
        [api] = (api for api in apis().values() if api.name + "Request" == type(request).__name__)
        module = import_module(f"llog.kafka.apis.{type(request).__module__.rpartition('.')[2]}")
        handler: Handler = module.HANDLER
        assert handler.key == api.key
        assert version in handler.served
        received = decode(api.request, version, encode_bytes(request, version))
        answer = handler.handle(self.call(received, api.key, version, client_id))
        if inspect.isawaitable(answer):
            answer = await answer
        assert answer is not None
        return decode(api.response, version, encode_bytes(answer, version))


@asynccontextmanager
async def caller(**settings: Any) -> AsyncIterator[Caller]:
    """A broker on stores in memory."""
    url = f"memory://kafka-{next(_NUMBERS)}"
    chosen = Settings.from_env({}, metadata_url=url, objects_url=url, **settings)
    broker = await Broker.open(chosen, warm=False)
    try:
        yield Caller(broker, ThreeNodes())
    finally:
        await broker.close()
