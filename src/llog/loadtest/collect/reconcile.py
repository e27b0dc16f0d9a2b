"""One run seen by several counters: clients, brokers, stores, bill. Pure.

Each comparison is a `Reconciled`; one that does not agree has a warning that names both sources and their numbers.

- Records accepted are exact: brokers count a record once it is committed and a repeat of an idempotent producer not
  again, so they count at least what was acknowledged, and at most that and the uncertain records.
- A broker that started again during the run lost what it counted between its last page and its end: the fault that
  killed it, or at the latest the start of its next life. Then the brokers may be short of the clients by what such a
  broker counts in that time at BURST_FACTOR of its highest rate, and a warning says how much that is.
- Payload bytes are exact where records are not compressed; of compressed ones the broker counts compressed bytes, and
  they are not compared. What a Kafka Fetch returns is exact only from the tail cache: up to FRAMING_BYTES_MAX more per
  record may be counted, and keys (see `llog_consume_payload_bytes_total`).
- Brokers may return more records than consumers received: answers to requests that were given up. SURPLUS_SHARE_MAX of
  them and one full answer per consumer pass.
- Requests to stores are compared with flushes and commits within bounds, because probes, retries, topic changes and
  settling make some too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from llog.broker.produce.producer import BATCH_FLUSHES_MAX
from llog.loadtest.artifacts import ClientSummary, Reconciled
from llog.loadtest.collect.coverage import coverage
from llog.loadtest.collect.evidence import Evidence
from llog.loadtest.collect.lives import Gap, below, sum_of
from llog.loadtest.collect.money import requests_of
from llog.stores.objects.pricing import S3_STANDARD_US_EAST_1

FRAMING_BYTES_MAX: Final = 24
"""Of a record in a batch, besides its key, value and headers."""
SURPLUS_SHARE_MAX: Final = 0.02
BURST_FACTOR: Final = 1.5
"""Rates are known as averages between two pages."""
PUTS_PER_FLUSH_MAX: Final = 2.0
OTHER_PUTS_MAX: Final = 100
"""By a broker, besides those of flushes: probes of the store's health."""
WRITES_PER_ROUND_MAX: Final = 8.0
"""Writes to the metadata store per attempt to move a control record."""
OTHER_WRITES_MAX: Final = 1_000
WRITES_PER_PARTITION_MAX: Final = 20
"""When topics are created."""
DOLLARS_TOLERANCE: Final = 1e-6
"""Of the sum, relative: pages show floating point numbers."""

RECORDS_ACCEPTED: Final = "records accepted"
_SOURCES: Final = ("cache", "store")


def reconcile(evidence: Evidence) -> list[Reconciled]:
    return [
        *_clients(evidence),
        *_produced(evidence),
        *_consumed(evidence),
        *_stores(evidence),
        *_bills(evidence),
        *coverage(evidence),
        *(_artifact(name, found) for name, found in evidence.artifacts.items()),
    ]


def is_short_of_records(reconciled: Iterable[Reconciled]) -> bool:
    """Whether brokers accepted fewer records than were acknowledged, and nothing explains it."""
    return any(row.what == RECORDS_ACCEPTED and not row.ok and row.found < row.expected for row in reconciled)


# -- the clients among themselves --------------------------------------------------------------------------------------


def _clients(evidence: Evidence) -> Iterable[Reconciled]:
    client = evidence.client
    if client is None:
        yield _row("client summary", 1, 0, False, "client-summary.json is missing: the load did not run to its end")
        return
    yield from _intent(client)
    yield from _losses(client)
    for kind, total in (("producer", client.records_acknowledged), ("consumer", client.records_received)):
        found = sum(sample.records for sample in evidence.client_samples if sample.kind == kind)
        warning = f"client-30s.jsonl has {found} records of all {kind}s, client-summary.json has {total}"
        yield _row(f"records in the lines of {kind}s", total, found, found == total, warning)
    limited = client.limited_by_generator
    yield _row(
        "generator keeps up",
        0,
        int(bool(limited)),
        not limited,
        f"the load generator was the limit, so client-summary.json describes it and not the brokers: {limited}",
    )


def _intent(client: ClientSummary) -> Iterable[Reconciled]:
    intended, acknowledged = client.records_intended, client.records_acknowledged
    failed = f", {client.uncertain_records} of the others are uncertain" if client.uncertain_records else ""
    yield _row(
        "records intended",
        intended,
        acknowledged,
        intended == acknowledged,
        f"producers had {intended} records to send, and {acknowledged} were acknowledged{failed}",
    )


def _losses(client: ClientSummary) -> Iterable[Reconciled]:
    loss = client.loss
    for what, count, reason in (
        ("missing", loss.missing, "were acknowledged to producers and not received by consumers"),
        ("duplicate", loss.duplicates, "were received more often than once"),
        ("reordered", loss.reordered, "were received behind a later record of their producer and partition"),
    ):
        places = ", ".join(sorted(client.losses)[:5])
        warning = f"{count} records {reason}{f'; partitions {places}' if places else ''}"
        yield _row(f"{what} records", 0, count, not count, warning)
    unread = client.partitions_unfinished
    yield _row(
        "partitions not read to their end",
        0,
        unread,
        not unread,
        f"consumers did not reach the end of {unread} partitions within consumers.drain_s, so records that are missing"
        " there would not be found",
    )


# -- clients and brokers -----------------------------------------------------------------------------------------------


def _produced(evidence: Evidence) -> Iterable[Reconciled]:
    client, brokers = evidence.client, evidence.brokers
    if client is None or not brokers:
        return
    acknowledged, found = client.records_acknowledged, sum_of(brokers, "log.append_records")
    unknown, why = _lost_counts(evidence, "log.append_records")
    ok = acknowledged - unknown <= found <= acknowledged + client.uncertain_records
    yield _row(
        RECORDS_ACCEPTED,
        acknowledged,
        found,
        ok,
        f"client-summary.json has {acknowledged} acknowledged records (and {client.uncertain_records} uncertain),"
        f" the brokers' llog_log_append_records_total is {found:.0f}{why}",
    )
    if evidence.scenario.records.compression != "none":
        return
    sent, stored = client.payload_bytes_acknowledged, sum_of(brokers, "log.append_payload_bytes")
    unknown, why = _lost_counts(evidence, "log.append_payload_bytes")
    spare = client.uncertain_records * evidence.scenario.records.bytes
    yield _row(
        "payload bytes accepted",
        sent,
        stored,
        sent - unknown <= stored <= sent + spare,
        f"client-summary.json has {sent} acknowledged bytes of values, the brokers'"
        f" llog_log_append_payload_bytes_total is {stored:.0f}{why}",
    )


def _consumed(evidence: Evidence) -> Iterable[Reconciled]:
    client, brokers, scenario = evidence.client, evidence.brokers, evidence.scenario
    if client is None or not brokers or not scenario.consumers.clients:
        return
    received, returned, unknown, why = client.records_received, 0.0, 0.0, ""
    received_bytes, returned_bytes, unknown_bytes = client.payload_bytes_received, 0.0, 0.0
    for source in _SOURCES:
        returned += sum_of(brokers, f"consume.records.{source}")
        returned_bytes += sum_of(brokers, f"consume.payload_bytes.{source}")
        more, reason = _lost_counts(evidence, f"consume.records.{source}")
        unknown, why = unknown + more, why or reason
        unknown_bytes += _lost_counts(evidence, f"consume.payload_bytes.{source}")[0]
    answers = scenario.consumers.clients * scenario.consumers.max_bytes
    spare = received * SURPLUS_SHARE_MAX + answers / scenario.records.bytes
    yield _row(
        "records returned",
        received,
        returned,
        received - unknown <= returned <= received + spare,
        f"client-summary.json has {received} received records, the brokers' llog_consume_records_total is"
        f" {returned:.0f}{why}",
    )
    if scenario.records.compression != "none" or (scenario.load.protocol == "kafka" and scenario.records.keys):
        return
    framing = FRAMING_BYTES_MAX * returned if scenario.load.protocol == "kafka" else 0
    spare_bytes = received_bytes * SURPLUS_SHARE_MAX + answers + framing
    yield _row(
        "payload bytes returned",
        received_bytes,
        returned_bytes,
        received_bytes - unknown_bytes <= returned_bytes <= received_bytes + spare_bytes,
        f"client-summary.json has {received_bytes} received bytes of values, the brokers'"
        f" llog_consume_payload_bytes_total is {returned_bytes:.0f}{why}",
    )


def _lost_counts(evidence: Evidence, path: str) -> tuple[float, str]:
    """The most that brokers counted after the last pages of their earlier lives, and how a warning says so."""
    lost, names = 0.0, []
    for broker in evidence.brokers:
        for gap in broker.gaps:
            lost += broker.rate_max(path) * BURST_FACTOR * (_end_in(gap, broker.name, evidence) - gap.last_seen_s)
            names.append(broker.name)
    if not names:
        return 0.0, ""
    return lost, f"; {', '.join(dict.fromkeys(names))} started again and lost at most {lost:.0f} of its counts"


def _end_in(gap: Gap, name: str, evidence: Evidence) -> float:
    """When the life before a gap ended, at the latest."""
    kills = [fault.at_s for fault in evidence.faults if fault.target == name and fault.phase == "begin"]
    return min((at_s for at_s in kills if gap.last_seen_s <= at_s <= gap.restarted_s), default=gap.restarted_s)


# -- stores and bill ---------------------------------------------------------------------------------------------------


def _stores(evidence: Evidence) -> Iterable[Reconciled]:
    brokers = evidence.brokers
    if not brokers:
        return
    flushes = sum(sum(below(broker.totals, "batching.flushes").values()) for broker in brokers)
    failures, puts = sum_of(brokers, "batching.flush_failures"), requests_of(brokers)["put"]
    under_way = BATCH_FLUSHES_MAX * len(brokers)
    yield _row(
        "puts of flushes",
        flushes,
        puts,
        flushes - failures <= puts <= flushes * PUTS_PER_FLUSH_MAX + OTHER_PUTS_MAX * len(brokers) + under_way,
        f"brokers made {flushes:.0f} flushes ({failures:.0f} failed), and llog_s3_requests_total has {puts} of"
        " operation put",
    )
    runs, rounds = sum_of(brokers, "append.runs"), sum_of(brokers, "append.cas_rounds")
    writes = sum(
        broker.total(f"metadata.operations.{operation}.items")
        for broker in brokers
        for operation in ("put", "write", "delete")
    )
    most = rounds * WRITES_PER_ROUND_MAX + OTHER_WRITES_MAX + evidence.scenario.partitions * WRITES_PER_PARTITION_MAX
    yield _row(
        "metadata writes of commits",
        runs,
        writes,
        runs <= rounds and runs <= writes <= most,
        f"brokers committed {runs:.0f} runs of pieces in {rounds:.0f} attempts, and llog_metadata_items_total has"
        f" {writes:.0f} writes",
    )


def _bills(evidence: Evidence) -> Iterable[Reconciled]:
    for service in evidence.services:
        counted = S3_STANDARD_US_EAST_1.requests_usd(requests_of([service]))
        billed = service.total("s3.billing.request_cost_usd")
        yield _row(
            f"bill of {service.name}",
            counted,
            billed,
            abs(counted - billed) <= DOLLARS_TOLERANCE * max(counted, billed),
            f"{service.name} shows a bill of ${billed:.6f}, its counted requests cost ${counted:.6f}",
        )


def _artifact(name: str, found: bool) -> Reconciled:
    return _row(f"artifact {name}", 1, int(found), found, f"the run directory has no {name}, or it is empty")


def _row(what: str, expected: float, found: float, ok: bool, warning: str) -> Reconciled:
    return Reconciled(what, expected, found, ok, "" if ok else warning)
