"""Handlers that tests hold in their hands, in the place of real APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from llog.kafka.apis.api_versions import HANDLER as API_VERSIONS
from llog.kafka.apis.handler import Answer, Call, Handler
from llog.kafka.codec.messages.fetch import FetchRequest, FetchResponse
from llog.kafka.codec.messages.metadata import MetadataResponse
from llog.kafka.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 9, 12, 12


class Held:
    """A handler whose answers the test gives, in any order."""

    def __init__(self, answer: type[Any]) -> None:
        self.calls: list[Call] = []
        self.answers: list[asyncio.Future[Any]] = []
        self._answer = answer

    def handle(self, call: Call) -> Awaitable[Answer]:
        self.calls.append(call)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.answers.append(future)
        return future

    def has_been_called(self, times: int) -> bool:
        return len(self.calls) >= times

    def answer(self, number: int, **fields: Any) -> None:
        self.answers[number].set_result(self._answer(**fields))


def handlers(
    produce: Callable[[Call], Any] | None = None,
    fetch: Callable[[Call], Any] | None = None,
    metadata: Callable[[Call], Any] | None = None,
) -> Mapping[int, Handler]:
    """ApiVersions and these; what is not given answers at once, with nothing in it."""
    return {
        0: Handler(key=0, handle=produce or (lambda call: ProduceResponse())),
        1: Handler(key=1, handle=fetch or (lambda call: FetchResponse()), ends_with_client=True),
        3: Handler(key=3, handle=metadata or (lambda call: MetadataResponse(cluster_id="at once"))),
        18: API_VERSIONS,
    }


def produce_of(records: bytes, acks: int = -1) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=records)
    return ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[TopicProduceData("t", partition_data=[partition])])


def fetch_of() -> FetchRequest:
    return FetchRequest(max_wait_ms=60_000)
