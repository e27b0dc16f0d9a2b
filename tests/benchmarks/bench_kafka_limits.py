"""What the Kafka front end must stand: clients that ask for 10,000 partitions, and 10,000 idle connections."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

import psutil

from llog.kafka.codec.messages.api_versions import ApiVersionsRequest
from llog.kafka.codec.messages.metadata import MetadataRequest
from llog.testing.servers import free_port
from tests.benchmarks.harness import Cost, Duel, benchmark
from tests.benchmarks.http_servers import watched_server
from tests.benchmarks.kafka_servers import llog_kafka
from tests.benchmarks.kafka_wire import METADATA_KEY, METADATA_VERSION, KafkaSocket, request_frame
from tests.benchmarks.log_setup import is_trial

TOPICS: Final = 100
TOPIC_PARTITIONS: Final = 100
PARTITIONS: Final = TOPICS * TOPIC_PARTITIONS
HELD_MS_MAX: Final = 25.0
ASKED_PER_ROUND: Final = 5
CONNECTIONS: Final = 10_000
MEMORY_MB_MAX: Final = 150.0
API_VERSIONS_KEY, API_VERSIONS_VERSION = 18, 3


@benchmark(
    "kafka_metadata",
    against=f"{HELD_MS_MAX:.0f} ms (the longest that Metadata of {PARTITIONS:,} partitions held the loop)",
    at_most=1.0,
    worst=True,
)
@asynccontextmanager
async def kafka_metadata() -> AsyncIterator[Duel]:
    port, topics = free_port(), 2 if is_trial() else TOPICS
    clock: list[float] = []
    with watched_server({"LLOG_KAFKA_PORT": str(port)}) as broker, KafkaSocket(port) as client:
        for _ in range(topics):
            client.create_topic(TOPIC_PARTITIONS)

        def ours() -> Cost:
            broker.held()
            for _ in range(ASKED_PER_ROUND):
                answer = client.ask(METADATA_KEY, METADATA_VERSION, MetadataRequest(topics=None))
                assert sum(len(topic.partitions) for topic in answer.topics) == topics * TOPIC_PARTITIONS
            held = broker.held()
            clock.append(held["lag_ms"])
            return Cost(held["held_ms"] / 1_000)

        yield Duel(
            ours,
            lambda: Cost(HELD_MS_MAX / 1_000),
            1.0,
            "answers",
            per="s held",
            remarks=lambda: (
                f"by the clock: median {statistics.median(clock[1:]):.0f} ms, worst {max(clock[1:]):.0f} ms"
            ),
        )


@benchmark(
    "kafka_idle_connections",
    against=f"{MEMORY_MB_MAX:.0f} MB ({CONNECTIONS:,} connections that asked for ApiVersions and then nothing)",
    at_most=1.0,
    worst=True,
)
@asynccontextmanager
async def kafka_idle_connections() -> AsyncIterator[Duel]:
    count = 100 if is_trial() else CONNECTIONS - 1  # one more is open already
    hello = request_frame(API_VERSIONS_KEY, API_VERSIONS_VERSION, ApiVersionsRequest("bench", "1"))
    with llog_kafka() as broker:
        process = psutil.Process(broker.pid)
        before = process.memory_info().rss

        def ours() -> Cost:
            with ExitStack() as stack:
                for _ in range(count):
                    connection = stack.enter_context(KafkaSocket(broker.port, memory_bytes=16))
                    connection.send(hello)
                    connection.receive()
                return Cost(max(1.0, (process.memory_info().rss - before) / 1e6))

        yield Duel(ours, lambda: Cost(MEMORY_MB_MAX), 1.0, "rounds", per="MB")
