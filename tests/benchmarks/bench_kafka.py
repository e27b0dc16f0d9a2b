"""The Kafka front end against Apache Kafka: processor seconds of the server per gigabyte, and rates by the clock.

A raw client (`kafka_load`) sends the same frames to both: 1 KiB records, 16 partitions, acks=all, a batch of 64 records
for each partition in a request, five requests in flight on each of four connections. Ours answers when the records are
on disk. Kafka does so with `flush.messages=1`; without it, it answers from memory, and the kernel writes later at
nobody's cost.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Final

from tests.benchmarks.harness import Cost, Duel, benchmark
from tests.benchmarks.kafka_load import Fetch, LoadProcess, Produce, load_process
from tests.benchmarks.kafka_servers import (
    FSYNC,
    PARTITIONS,
    KafkaTarget,
    Measured,
    apache_kafka,
    llog_kafka,
    llog_kafka_on_s3,
    measure,
)
from tests.benchmarks.log_setup import is_trial

REQUESTS: Final = 200
FETCH_BATCHES: Final = 120
"""Per partition: 126 MB in all, which the tail cache holds."""
PASSES: Final = 3
WARM_UP_REQUESTS: Final = 8
WARM_UP_ROUNDS: Final = 6
"""Java compiles what runs often; a server that has run for a while is measured."""
SEED_MB_PER_SECOND: Final = 28.0


class Figures:
    """What the rounds measured beside the ratio: reported, never judged."""

    def __init__(self) -> None:
        self._measured: dict[str, list[Measured]] = {}

    def add(self, name: str, measured: Measured) -> Measured:
        self._measured.setdefault(name, []).append(measured)
        return measured

    def costs(self, name: str) -> list[float]:
        """Of the rounds; the first of each is a warm-up."""
        return [measured.cpu_per_gb for measured in self._measured[name][1:] or self._measured[name]]

    def ratio(self, ours: str, baseline: str) -> str:
        ratios = [a / b for a, b in zip(self.costs(ours), self.costs(baseline), strict=True)]
        return f"{statistics.median(ratios):.2f} × {baseline} ({min(ratios):.2f}–{max(ratios):.2f})"

    def summary(self) -> str:
        lines = []
        for name, all_measured in self._measured.items():
            measured = all_measured[1:] or all_measured
            costs, rates = self.costs(name), [m.loaded.rate for m in measured]
            p99 = statistics.median(m.loaded.p99_ms for m in measured)
            lines.append(
                f"{name} {statistics.median(costs):.2f} CPU-s/GB ({min(costs):.2f}–{max(costs):.2f}),"
                f" {statistics.median(rates):,.0f} MB/s, p99 {p99:.0f} ms"
            )
        return "; ".join(lines)


class Rounds:
    """Produce and fetch rounds on one server, each on a new topic."""

    def __init__(self, server: KafkaTarget, load: LoadProcess, figures: Figures) -> None:
        self.server, self._load, self._figures = server, load, figures

    def warm_up(self) -> None:
        for _ in range(1 if is_trial() else WARM_UP_ROUNDS):
            self._load.run(Produce(self.server.topic(), 4 if is_trial() else REQUESTS // 2))
            self.server.tidy()

    def produce(self, name: str, configs: Mapping[str, str] | None = None) -> Measured:
        topic = self.server.topic(configs)
        self._load.run(Produce(topic, WARM_UP_REQUESTS))
        measured = measure(self.server, self._load, Produce(topic, WARM_UP_REQUESTS if is_trial() else REQUESTS))
        return self._figures.add(name, measured)

    def fetch(self, first: str, again: str) -> tuple[Measured, Measured]:
        """What was just written is read once, and then again and again."""
        topic, batches = self.server.topic(), 8 if is_trial() else FETCH_BATCHES
        self._load.run(Produce(topic, batches))
        once = measure(self.server, self._load, Fetch(topic, batches))
        more = measure(self.server, self._load, Fetch(topic, batches, passes=PASSES))
        return self._figures.add(first, once), self._figures.add(again, more)


@benchmark(
    "kafka_produce",
    against="CPU-s per GB of Apache Kafka with flush.messages=1 (raw client, 1 KiB records, 16 partitions, acks=all)",
    at_most=1.0,
    goal="1.0 × Kafka without fsync",
)
@asynccontextmanager
async def kafka_produce() -> AsyncIterator[Duel]:
    figures = Figures()
    with apache_kafka() as kafka, llog_kafka() as broker, load_process() as load:
        ours, theirs = Rounds(broker, load, figures), Rounds(kafka, load, figures)
        ours.warm_up()
        theirs.warm_up()

        def both_of_kafka() -> Cost:
            theirs.produce("Kafka without fsync")
            return Cost(theirs.produce("Kafka with fsync", FSYNC).cpu_per_gb)

        def tidy() -> None:
            broker.tidy()
            kafka.tidy()

        yield Duel(
            lambda: Cost(ours.produce("llog").cpu_per_gb),
            both_of_kafka,
            1_000,
            "MB",
            after_each=tidy,
            per="CPU-s",
            remarks=lambda: f"{figures.ratio('llog', 'Kafka without fsync')}; {figures.summary()}",
        )


@asynccontextmanager
async def fetched(*, again: bool) -> AsyncIterator[Duel]:
    figures = Figures()
    with apache_kafka() as kafka, llog_kafka() as broker, load_process() as load:
        sides = []
        for server in (broker, kafka):
            rounds = Rounds(server, load, figures)
            rounds.warm_up()

            def side(rounds: Rounds = rounds, name: str = server.name) -> Cost:
                return Cost(rounds.fetch(f"{name} first", f"{name} again")[again].cpu_per_gb)

            sides.append(side)

        def tidy() -> None:
            broker.tidy()
            kafka.tidy()

        yield Duel(sides[0], sides[1], 1_000, "MB", after_each=tidy, per="CPU-s", remarks=figures.summary)


@benchmark("kafka_fetch", against="CPU-s per GB of Apache Kafka (records just written, read once)", at_most=1.2)
def kafka_fetch() -> AbstractAsyncContextManager[Duel]:
    return fetched(again=False)


@benchmark(
    "kafka_fetch_again", against="CPU-s per GB of Apache Kafka (records of the tail that were read before)", at_most=1.2
)
def kafka_fetch_again() -> AbstractAsyncContextManager[Duel]:
    return fetched(again=True)


@asynccontextmanager
async def rated(opened: Callable[[], AbstractContextManager[KafkaTarget]]) -> AsyncIterator[Duel]:
    figures = Figures()
    with opened() as broker, load_process() as load:
        rounds = Rounds(broker, load, figures)

        def ours() -> Cost:
            loaded = rounds.produce("llog").loaded
            return Cost(loaded.seconds / loaded.megabytes * 1_000)

        seed = Cost(1_000 / SEED_MB_PER_SECOND)
        yield Duel(ours, lambda: seed, 1_000, "MB", after_each=broker.tidy, remarks=figures.summary)


@benchmark(
    "kafka_files",
    against=f"{SEED_MB_PER_SECOND:.0f} MB/s (one broker on LMDB and files, {PARTITIONS} partitions)",
    at_least=1.0,
)
def kafka_files() -> AbstractAsyncContextManager[Duel]:
    return rated(llog_kafka)


@benchmark(
    "kafka_s3",
    against=f"{SEED_MB_PER_SECOND:.0f} MB/s (one broker on LMDB and versitygw, {PARTITIONS} partitions)",
    at_least=1.0,
)
def kafka_s3() -> AbstractAsyncContextManager[Duel]:
    return rated(llog_kafka_on_s3)
