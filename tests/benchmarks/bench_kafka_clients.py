"""A real client with the settings it comes with, by the clock: how much of Kafka's rate it gets from ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from tests.benchmarks.harness import Duel, benchmark
from tests.benchmarks.kafka_load import Librdkafka, load_process
from tests.benchmarks.kafka_servers import KafkaTarget, apache_kafka, llog_kafka
from tests.benchmarks.log_setup import is_trial

RECORDS: Final = 200_000


@benchmark(
    "kafka_librdkafka",
    against="MB/s of Apache Kafka as it comes, without fsync (one producer with default settings, 1 KiB records)",
    at_least=0.7,
)
@asynccontextmanager
async def kafka_librdkafka() -> AsyncIterator[Duel]:
    records = 1_000 if is_trial() else RECORDS
    with apache_kafka() as kafka, llog_kafka() as broker, load_process() as load:

        def side(server: KafkaTarget) -> Callable[[], None]:
            def run() -> None:
                load.run(Librdkafka(server.port, server.named_topic()[0], records))

            return run

        def tidy() -> None:
            broker.tidy()
            kafka.tidy()

        yield Duel(side(broker), side(kafka), records * 1_024 / 1e6, "MB", after_each=tidy)
