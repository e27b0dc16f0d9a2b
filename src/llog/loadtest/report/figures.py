"""The single numbers of a run: what the page shows first, and what a comparison compares."""

from __future__ import annotations

from collections.abc import Iterator

from llog.cost.kafka import KafkaLayout, cross_zone_dollars_per_hour
from llog.cost.network import NETWORK_US_EAST_1
from llog.loadtest.artifacts import ClientSummary, Percentiles, Summary
from llog.loadtest.report.model import Better, Figure, Table
from llog.loadtest.report.run_data import RunData


def figures_of(data: RunData) -> tuple[Figure, ...]:
    found: list[Figure] = []
    if data.client is not None:
        found += _of_clients(data, data.client)
    if data.summary is not None:
        found += _of_summary(data.summary, data.client)
    return tuple(found)


def _of_clients(data: RunData, client: ClientSummary) -> Iterator[Figure]:
    produces, consumes = data.config.scenario.produces, data.config.scenario.consumers.clients > 0
    if produces:
        offered = f"{client.offered_mb_per_s:.4g} MB/s offered"
        yield Figure("produced", "Produced", client.produced_mb_per_s, "MB/s", "higher", True, offered)
        yield Figure("offered", "Offered", client.offered_mb_per_s, "MB/s", "higher")
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


def _of_summary(summary: Summary, client: ClientSummary | None) -> Iterator[Figure]:
    for kind, label in (("broker", "Broker CPU"), ("compactor", "Compactor CPU"), ("server", "Store CPU")):
        costs = [cost for cost in summary.costs if cost.kind == kind]
        if costs:
            total = sum(cost.cpu_s_per_gb for cost in costs)
            yield Figure(f"cpu-{kind}", label, total, "CPU-s/GB", "lower", kind == "broker", _count(len(costs)))
    money = summary.money
    yield Figure("dollars-per-hour", "S3 requests", money.requests_per_hour, "$/h", "lower", True)
    yield Figure("dollars-per-gb", "S3 requests per GB", money.per_gb, "$/GB", "lower")
    yield Figure("storage", "S3 storage", money.storage_per_month, "$/month", "lower")
    if client is not None:
        yield Figure("kafka", "Kafka's transfer between zones", kafka_dollars(client), "$/h", "", True, "the same load")


def _count(processes: int) -> str:
    return "one process" if processes == 1 else f"{processes} processes"


def kafka_dollars(client: ClientSummary) -> float:
    return cross_zone_dollars_per_hour(client.produced_mb_per_s, client.consumed_mb_per_s)


def kafka_table(client: ClientSummary) -> Table:
    """The cost of the same load on Kafka replicated across zones, with its inputs."""
    layout, prices = KafkaLayout(), NETWORK_US_EAST_1
    in_zone = "yes" if layout.consumers_read_in_zone else "no"
    rows: tuple[tuple[str | float, str], ...] = (
        (client.produced_mb_per_s, "MB/s produced"),
        (client.consumed_mb_per_s, "MB/s consumed"),
        (float(layout.zones), "zones"),
        (float(layout.replication_factor), "replicas of each partition"),
        (layout.client_crossings, "share of produced bytes that cross a zone on the way to the leader"),
        (float(layout.replica_crossings), "copies of each byte that cross a zone on the way to replicas"),
        (
            layout.consumer_crossings,
            f"share of consumed bytes that cross a zone; consumers read in their zone: {in_zone}",
        ),
        (prices.cross_zone_per_gib, "dollars per GiB that crosses, sending and receiving (us-east-1)"),
        (kafka_dollars(client), "dollars per hour for the transfer between zones"),
    )
    about = "Only transfer between zones; brokers and disks of Kafka would come on top."
    return Table("kafka-inputs", "The same load on Kafka across zones", ("value", "of"), rows, about)
