"""The single numbers of a run: what the page shows first, and what a comparison compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from llog.cost.kafka import cross_zone_dollars_per_hour
from llog.loadtest.artifacts import ClientSummary, Percentiles, Summary
from llog.loadtest.collect.money import kafka_inputs
from llog.loadtest.report.model import Better, Figure, Table
from llog.loadtest.report.run_data import RunData

KAFKA_INPUTS: Final = {
    "produce_mb_per_s": "MB/s produced",
    "consume_mb_per_s": "MB/s consumed",
    "zones": "zones",
    "replication_factor": "replicas of each partition",
    "cross_zone_per_gib": "dollars per GiB that crosses, for sending and receiving",
    "producer_crossings": "crossings of a byte from its producer to the leader",
    "replica_crossings": "crossings of a byte from the leader to replicas",
    "consumer_crossings": "crossings of a consumed byte; 0: consumers read in their zone",
}
"""The texts of `MoneyRates.kafka_inputs`."""


def figures_of(data: RunData) -> tuple[Figure, ...]:
    found: list[Figure] = []
    if data.client is not None:
        found += _of_clients(data, data.client)
    if data.summary is not None:
        found += _of_summary(data.summary, data.config.scenario.stack.objects)
    return tuple(found)


def _of_clients(data: RunData, client: ClientSummary) -> Iterator[Figure]:
    produces, consumes = data.config.scenario.produces, data.config.scenario.consumers.clients > 0
    if produces:
        offered = f"{client.offered_mb_per_s:.4g} MB/s offered"
        yield Figure("produced", "Produced", client.produced_mb_per_s, "MB/s", "higher", True, offered)
        yield Figure("offered", "Offered", client.offered_mb_per_s, "MB/s")
    if consumes:
        yield Figure("consumed", "Consumed", client.consumed_mb_per_s, "MB/s", "higher", True)
    if produces:
        yield from _spread("produce", "Produce latency", client.latency, True)
        yield from _spread("service", "Service time", client.service)
        yield from _spread("send-delay", "Send delay", client.send_delay)
    if consumes:
        yield from _spread("end-to-end", "End to end", client.end_to_end, True)
        yield from _spread("consume", "Consume request", client.consume)
    failed = float(sum(client.failed.values()))
    yield Figure("failed", "Failed requests", failed, "requests", "lower", True, f"of {client.due_requests:,}")
    loss = client.loss
    if consumes:
        note = f"of {client.records_acknowledged:,} acknowledged"
        yield Figure("missing", "Lost records", float(loss.missing), "records", "lower", True, note)
        yield Figure("duplicates", "Duplicates", float(loss.duplicates), "records", "lower", True)
        yield Figure("reordered", "Reordered", float(loss.reordered), "records", "lower")
        yield Figure("unacknowledged", "Received without acknowledgement", float(loss.unacknowledged), "records")
        unread = float(client.partitions_unfinished)
        yield Figure("unfinished", "Partitions not read to their end", unread, "partitions", "lower")
        yield Figure("misplaced", "Records in another partition", float(client.records_misplaced), "records", "lower")
    yield Figure("retried", "Requests sent again", float(sum(client.retried.values())), "requests", "lower")
    yield Figure("uncertain", "Uncertain records", float(client.uncertain_records), "records", "lower")


def _spread(prefix: str, label: str, found: Percentiles, headline: bool = False) -> Iterator[Figure]:
    """No figures of a latency that nobody measured."""
    if not found.count:
        return
    better: Better = "lower"
    yield Figure(f"{prefix}-p50", f"{label} p50", found.p50, "ms", better, headline)
    yield Figure(f"{prefix}-p99", f"{label} p99", found.p99, "ms", better, headline)
    yield Figure(f"{prefix}-p999", f"{label} p99.9", found.p999, "ms", better)
    yield Figure(f"{prefix}-max", f"{label} max", found.max, "ms", better)
    yield Figure(f"{prefix}-mean", f"{label} mean", found.mean, "ms", better)


def _of_summary(summary: Summary, objects: str) -> Iterator[Figure]:
    for kind, label in (("broker", "Broker CPU"), ("compactor", "Compactor CPU"), ("server", "Store CPU")):
        costs = [cost for cost in summary.costs if cost.kind == kind]
        if costs:
            total = sum(cost.cpu_s_per_gb for cost in costs)
            yield Figure(f"cpu-{kind}", label, total, "CPU-s/GB", "lower", kind == "broker", _count(len(costs)))
    money = summary.money
    note = "of a directory, which is flushed more often than S3" if objects == "directory" else ""
    yield Figure("dollars-per-hour", "S3 requests", money.requests_per_hour, "$/h", "lower", True, note)
    yield Figure("dollars-per-gb", "S3 requests per GB", money.per_gb, "$/GB", "lower")
    yield Figure("storage", "S3 storage", money.storage_per_month, "$/month", "lower")
    kafka = money.kafka_cross_zone_per_hour
    yield Figure("kafka", "Kafka across zones", kafka, "$/h", "", True, "transfer for the same load")


def _count(processes: int) -> str:
    return "one process" if processes == 1 else f"{processes} processes"


def kafka_table(inputs: Mapping[str, float], dollars_per_hour: float) -> Table:
    """The cost of the same load on Kafka replicated across zones, with its inputs."""
    ordered = {name: inputs[name] for name in (*KAFKA_INPUTS, *inputs) if name in inputs}
    rows = tuple((KAFKA_INPUTS.get(name, name.replace("_", " ")), value) for name, value in ordered.items())
    about = "Only transfer between zones; brokers and disks of Kafka would come on top. Network prices of us-east-1."
    result = ("dollars per hour for transfer between zones", dollars_per_hour)
    return Table("kafka-inputs", "The same load on Kafka across zones", ("input", "value"), (*rows, result), about)


def kafka_of(data: RunData) -> tuple[Mapping[str, float], float] | None:
    """Inputs and dollars per hour: as the summary has them, otherwise from the clients' rates."""
    if data.summary is not None:
        return data.summary.money.kafka_inputs, data.summary.money.kafka_cross_zone_per_hour
    if data.client is None:
        return None
    rates = data.client.produced_mb_per_s, data.client.consumed_mb_per_s
    return kafka_inputs(*rates), cross_zone_dollars_per_hour(*rates)
