"""How long a produce takes over the Kafka protocol, and what many small ones cost.

A producer without linger sends what it has as soon as fewer than five requests are in flight; 5 MB of 1 KiB records
become due each second and are spread over 16 partitions. Latency counts from when a record was due.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from tests.benchmarks.harness import Cost, Duel, benchmark
from tests.benchmarks.kafka_load import LoadProcess, Pipeline, Target, Trickle, load_process
from tests.benchmarks.kafka_servers import FSYNC, KafkaTarget, Measured, apache_kafka, llog_kafka, measure
from tests.benchmarks.log_setup import is_trial

RECORDS_PER_SECOND: Final = 5_000
ROUND_SECONDS: Final = 4.0
WARM_UP_SECONDS: Final = 1.0
CORES_MAX: Final = 0.3
IN_FLIGHT: Final = 5
PIPELINE_ROUNDS: Final = 20


class Trickles:
    def __init__(self, server: KafkaTarget, load: LoadProcess, configs: Mapping[str, str] | None = None) -> None:
        self._server, self._load, self._configs = server, load, configs
        self._measured: list[Measured] = []

    def run(self) -> Measured:
        topic = self._server.topic(self._configs)
        self._load.run(Trickle(topic, 0.2 if is_trial() else WARM_UP_SECONDS, RECORDS_PER_SECOND))
        command = Trickle(topic, 0.2 if is_trial() else ROUND_SECONDS, RECORDS_PER_SECOND)
        self._measured.append(measure(self._server, self._load, command))
        return self._measured[-1]

    def summary(self) -> str:
        measured = self._measured[1:] or self._measured  # the first is a warm-up
        p50, p99, cores, requests = (
            statistics.median(values)
            for values in zip(
                *((m.loaded.p50_ms, m.loaded.p99_ms, m.cores, m.loaded.requests / m.loaded.seconds) for m in measured),
                strict=True,
            )
        )
        worst = max(m.loaded.p99_ms for m in measured)
        return (
            f"{self._server.name} p50 {p50:.1f} ms, p99 {p99:.1f} ms (worst {worst:.1f}), {cores:.2f} of a core,"
            f" {requests:.0f} requests/s"
        )


@benchmark("kafka_latency", against="p99 of Apache Kafka with flush.messages=1 (5 MB/s without linger)", at_most=1.0)
@asynccontextmanager
async def kafka_latency() -> AsyncIterator[Duel]:
    with apache_kafka() as kafka, llog_kafka() as broker, load_process() as load:
        ours, theirs = Trickles(broker, load), Trickles(kafka, load, FSYNC)

        def tidy() -> None:
            broker.tidy()
            kafka.tidy()

        yield Duel(
            lambda: Cost(ours.run().loaded.p99_ms / 1_000),
            lambda: Cost(theirs.run().loaded.p99_ms / 1_000),
            1,
            "answers",
            after_each=tidy,
            per="s of p99",
            remarks=lambda: f"{ours.summary()}; {theirs.summary()}",
        )


@benchmark("kafka_latency_cpu", against=f"{CORES_MAX} of a core (5 MB/s without linger)", at_most=1.0)
@asynccontextmanager
async def kafka_latency_cpu() -> AsyncIterator[Duel]:
    with llog_kafka() as broker, load_process() as load:
        ours = Trickles(broker, load)
        yield Duel(
            lambda: Cost(ours.run().cores),
            lambda: Cost(CORES_MAX),
            1,
            "s",
            after_each=broker.tidy,
            per="CPU-s",
            remarks=ours.summary,
        )


@benchmark("kafka_in_flight", against="one request at a time (five in flight on one partition)", at_most=1.5)
@asynccontextmanager
async def kafka_in_flight() -> AsyncIterator[Duel]:
    """Five requests in flight share a flush, or wait for the next: they cost about one flush delay, not five."""
    with llog_kafka() as broker, load_process() as load:
        rounds = 2 if is_trial() else PIPELINE_ROUNDS
        topic: Target = broker.topic()

        def pipelined(in_flight: int) -> Cost:
            return Cost(load.run(Pipeline(topic, rounds, in_flight)).p50_ms / 1_000)

        yield Duel(lambda: pipelined(IN_FLIGHT), lambda: pipelined(1), 1, "rounds")
        broker.tidy()
