"""A broker in memory and short forms of what consumers ask: Fetch, ListOffsets, OffsetForLeaderEpoch.

Requests and answers pass through the codec, in the version of the call."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from msgspec import Struct

from llog.broker.broker import Broker
from llog.broker.cluster import ClusterView, Node
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import BatchRule, walk
from llog.kafka.apis import fetch, list_offsets, offset_for_leader_epoch
from llog.kafka.apis.handler import Call, Client
from llog.kafka.codec import apis, decode, encode_bytes
from llog.kafka.codec.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from llog.kafka.services import KafkaServices
from llog.log.append.append import Appended, EncodedGroup
from llog.log.append.pieces import Piece
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.settings import Settings
from tests.patience import until

_NUMBERS = count()
_HANDLERS = {module.HANDLER.key: module.HANDLER for module in (fetch, list_offsets, offset_for_leader_epoch)}
LONG_POLL_MS = 300_000
"""Longer than any test: a request that is answered was woken."""
ORDERS = Log("orders", 0)


_OWN = Node(1, "one", 9092, "a")


class Reader:
    def __init__(self, broker: Broker) -> None:
        self.broker, self.context = broker, broker.context
        self.cluster = ClusterView("cluster", _OWN)
        self.cluster.set_others([Node(2, "two", 9093, "b")])
        self.services = KafkaServices(broker, self.cluster, broker.topics)

    async def ask(self, request: Struct, version: int, hold: Callable[[int], bool] = lambda _: True) -> Any:
        [api] = (api for api in apis().values() if api.name + "Request" == type(request).__name__)
        received = decode(api.request, version, encode_bytes(request, version))
        client = Client("10.0.0.7", 4711, "127.0.0.1:9092")
        call = Call(self.services, client, api.key, version, "test", received, hold=hold)
        answer: Any = _HANDLERS[api.key].handle(call)
        answer = await answer if inspect.isawaitable(answer) else answer
        return decode(api.response, version, encode_bytes(answer, version))

    async def fetch(self, *wanted: tuple[Log, int] | Log, version: int = 18, **fields: Any) -> list[PartitionData]:
        """The partitions of the answer, in order; `partition_max_bytes` and the like are fields of each partition."""
        answer = await self.fetch_answer(*wanted, version=version, **fields)
        assert answer.error_code == 0
        return [partition for topic in answer.responses for partition in topic.partitions]

    async def fetch_answer(self, *wanted: tuple[Log, int] | Log, version: int = 18, **fields: Any) -> FetchResponse:
        own = {name: fields.pop(name) for name in FetchPartition.__struct_fields__ if name in fields}
        own.setdefault("partition_max_bytes", 1 << 20)
        topics = [await self._topic(one, version, own) for one in wanted]
        hold = fields.pop("hold", lambda _: True)
        answer: FetchResponse = await self.ask(FetchRequest(topics=topics, **fields), version, hold)
        return answer

    async def drain(self, log: Log, offset: int, **fields: Any) -> bytes:
        """All batches from an offset on, however many answers that takes."""
        data = b""
        while True:
            [answer] = await self.fetch((log, offset), **fields)
            assert answer.error_code == 0
            records = data_of(answer)
            headers = walk(records, "answer", rule=BatchRule.COMPACTED)
            data += records
            if len(headers) == 0 or int(headers.last_offset[-1]) + 1 == answer.high_watermark:
                return data
            offset = int(headers.last_offset[-1]) + 1

    async def _topic(self, wanted: tuple[Log, int] | Log, version: int, own: dict[str, Any]) -> FetchTopic:
        log, offset = (wanted, 1) if isinstance(wanted, Log) else wanted
        partitions = [FetchPartition(log.partition, fetch_offset=offset, **own)]
        if version < 13:
            return FetchTopic(topic=log.topic, partitions=partitions)
        [known] = (await self.services.topics.find([log.topic])).values()
        return FetchTopic(topic_id=getattr(known, "id_bytes", b"?" * 16), partitions=partitions)

    async def append(self, *groups: EncodedGroup) -> list[Appended]:
        done = await self.broker.produce(groups)
        appended = [outcome for outcome in done.outcomes if isinstance(outcome, Appended)]
        assert len(appended) == len(groups), done.outcomes
        return appended

    async def create(
        self, topic: str, partitions: int = 1, first_offset: int = 0, config: Mapping[str, str] | None = None
    ) -> None:
        await create_topic(self.context, topic, partitions=partitions, first_offset=first_offset, config=config)
        self.services.topics.forget(topic)

    def drain_node(self) -> None:
        self.cluster.set_own(_OWN._replace(draining=True))

    async def waiting(self, polls: int) -> None:
        """Until so many polls wait for an append."""
        watch = self.broker._consume.watch
        await until(lambda: watch.waiter_count == polls, f"{polls} waiting polls")


@asynccontextmanager
async def reader(**settings: Any) -> AsyncIterator[Reader]:
    url = f"memory://fetching-{next(_NUMBERS)}"
    chosen = Settings.from_env({}, metadata_url=url, objects_url=url, **settings)
    broker = await Broker.open(chosen, warm=False)
    try:
        yield Reader(broker)
    finally:
        await broker.close()


def batch(*payloads: bytes | None, timestamps_ms: int | Sequence[int] = 5, **options: Any) -> memoryview:
    return encode_records(list(payloads), timestamps_ms=timestamps_ms, **options)


def group(log: Log, *batches: memoryview, counts: Sequence[int] | None = None) -> EncodedGroup:
    """A piece for each batch."""
    sizes = counts or [int.from_bytes(one[57:61], "big") for one in batches]
    newest_ms = max(int.from_bytes(one[35:43], "big") for one in batches)
    pieces = tuple(Piece(size, len(one)) for size, one in zip(sizes, batches, strict=True))
    return EncodedGroup(log, sum(sizes), "kafka-v2", list(batches), newest_ms, pieces=pieces)


def data_of(answer: PartitionData) -> bytes:
    assert isinstance(answer.records, bytes | memoryview)
    return bytes(answer.records)


def rows(answer: PartitionData | bytes) -> list[tuple[int, bytes | None]]:
    """Offsets and values of all records in the batches, also of those below the wanted offset."""
    data = answer if isinstance(answer, bytes) else data_of(answer)
    columns = decode_records(data, "answer", rule=BatchRule.COMPACTED)
    return list(zip(columns.offsets.tolist(), columns.values.tolist(), strict=True))
