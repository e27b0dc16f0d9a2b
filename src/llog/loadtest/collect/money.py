"""Dollars of a run, as if its stores were S3.

    per hour    counted requests of brokers and compactors in the measured phase, at the prices of
                `llog.stores.objects.pricing`, scaled to an hour
    per month   stored bytes: the last listing of the bucket, or the encoded bytes of all appends where that is more,
                because listings are minutes apart
    per GB      the requests per hour, by the GB (10**9 bytes of record values) produced in an hour; of a run that only
                consumed, by the GB consumed

The comparison is the transfer between zones of Kafka with three replicas in three zones, for the rates that the clients
saw (`llog.cost.kafka`): each produced byte crosses 2/3 times from producer to leader and 2 times to replicas, at 0.02
dollars per GiB (0.01 in each direction). Consumers read in their zone, which favours Kafka; otherwise another 2/3 per
consumed byte. 100 MB/s in and out cost $17.88 per hour so, and $22.35 with consumers that read from leaders; the seed's
"at least $16.4" is below both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from llog.cost.kafka import KafkaLayout, cross_zone_dollars_per_hour
from llog.cost.network import NETWORK_US_EAST_1
from llog.loadtest.artifacts import MoneyRates
from llog.loadtest.collect.evidence import BYTES_PER_GB, Evidence
from llog.loadtest.collect.lives import Lived
from llog.stores.metering import OBJECT_OPERATIONS
from llog.stores.objects.pricing import S3_STANDARD_US_EAST_1

HOUR_S: Final = 3_600
_MB: Final = 1e6


def requests_path(operation: str) -> str:
    return f"s3.operations.{operation}.requests"


def requests_of(lived: Iterable[Lived]) -> dict[str, int]:
    """By operation, over the run."""
    services = tuple(lived)
    return {
        operation: round(sum(each.total(requests_path(operation)) for each in services))
        for operation in OBJECT_OPERATIONS
    }


def money_of(evidence: Evidence) -> MoneyRates:
    seconds = evidence.measured.seconds
    grown = {
        operation: round(sum(evidence.grown(requests_path(operation), lived) for lived in evidence.services))
        for operation in OBJECT_OPERATIONS
    }
    per_hour = S3_STANDARD_US_EAST_1.requests_usd(grown) * HOUR_S / seconds if seconds else 0.0
    produced, consumed = rates_mb_per_s(evidence)
    gb_per_hour = (produced or consumed) * _MB * HOUR_S / BYTES_PER_GB
    return MoneyRates(
        requests_per_hour=per_hour,
        storage_per_month=S3_STANDARD_US_EAST_1.storage_usd_per_month(_stored_bytes(evidence)),
        per_gb=per_hour / gb_per_hour if gb_per_hour else 0.0,
        kafka_cross_zone_per_hour=cross_zone_dollars_per_hour(produced, consumed),
        kafka_inputs=kafka_inputs(produced, consumed),
    )


def rates_mb_per_s(evidence: Evidence) -> tuple[float, float]:
    """Produced and consumed in the measured phase, as the clients counted; without their summary, as the brokers."""
    if evidence.client is not None:
        return evidence.client.produced_mb_per_s, evidence.client.consumed_mb_per_s
    seconds = evidence.measured.seconds
    if not seconds:
        return 0.0, 0.0
    produced = sum(evidence.grown("log.append_payload_bytes", lived) for lived in evidence.brokers)
    consumed = sum(
        evidence.grown(f"consume.payload_bytes.{source}", lived)
        for lived in evidence.brokers
        for source in ("cache", "store")
    )
    return produced / seconds / _MB, consumed / seconds / _MB


def kafka_inputs(produced_mb_per_s: float, consumed_mb_per_s: float) -> Mapping[str, float]:
    layout = KafkaLayout()
    return {
        "produce_mb_per_s": produced_mb_per_s,
        "consume_mb_per_s": consumed_mb_per_s,
        "zones": layout.zones,
        "replication_factor": layout.replication_factor,
        "cross_zone_per_gib": NETWORK_US_EAST_1.cross_zone_per_gib,
        "producer_crossings": layout.client_crossings,
        "replica_crossings": layout.replica_crossings,
        "consumer_crossings": layout.consumer_crossings,
    }


def _stored_bytes(evidence: Evidence) -> int:
    listed = max((_last_listing(lived) for lived in evidence.services), default=0.0)
    appended = sum(lived.total("log.append_bytes") for lived in evidence.brokers)
    return round(max(listed, appended))


def _last_listing(lived: Lived) -> float:
    return float(lived.page.get("s3", {}).get("billing", {}).get("stored_bytes", 0.0))
