"""The transfer between zones of Kafka with replicated partitions, for the load that the diskless log carries.

The model counts how often each produced byte crosses a zone border:

    from a producer to the leader     (zones - 1) / zones, because leaders are spread evenly and clients know no zones
    from the leader to its replicas   1 per replica in another zone
    from the leader to a consumer     (zones - 1) / zones per read, or 0 if consumers read from a replica of their zone

Disks and machines are left out, and clients of object storage in the same region pay no transfer.
"""

from __future__ import annotations

import msgspec

from llog.cost.network import NETWORK_US_EAST_1, NetworkPrices
from llog.errors import InvalidArgument
from llog.limits import GIB

BYTES_PER_MB = 1_000_000
SECONDS_PER_HOUR = 3_600


class KafkaLayout(msgspec.Struct, frozen=True, kw_only=True):
    zones: int = 3
    replication_factor: int = 3
    consumers_read_in_zone: bool = True
    """Consumers fetch from a replica of their own zone (KIP-392). The default favours Kafka."""

    def __post_init__(self) -> None:
        if self.zones < 1:
            raise InvalidArgument("kafka_zones", f"must be at least 1, not {self.zones}")
        if self.replication_factor < 1:
            raise InvalidArgument("kafka_replication_factor", f"must be at least 1, not {self.replication_factor}")

    @property
    def client_crossings(self) -> float:
        """Of a byte between a client and the leader."""
        return (self.zones - 1) / self.zones

    @property
    def replica_crossings(self) -> int:
        """Of a produced byte between the leader and its replicas; replicas are placed in as many zones as there are."""
        return self.replication_factor - max(1, self.replication_factor // self.zones)

    @property
    def consumer_crossings(self) -> float:
        """Of a consumed byte. A zone without a replica reads from another zone."""
        if not self.consumers_read_in_zone:
            return self.client_crossings
        return max(0, self.zones - self.replication_factor) / self.zones


def cross_zone_bytes_per_s(produce_mb_per_s: float, consume_mb_per_s: float, layout: KafkaLayout) -> float:
    """`consume_mb_per_s` counts all readers together: two groups at the tail read twice what is produced."""
    produced = produce_mb_per_s * (layout.client_crossings + layout.replica_crossings)
    return (produced + consume_mb_per_s * layout.consumer_crossings) * BYTES_PER_MB


def cross_zone_dollars_per_hour(
    produce_mb_per_s: float,
    consume_mb_per_s: float,
    *,
    layout: KafkaLayout | None = None,
    prices: NetworkPrices = NETWORK_US_EAST_1,
) -> float:
    """What the zones' borders cost Kafka per hour for this load. A megabyte is 10**6 bytes."""
    crossing = cross_zone_bytes_per_s(produce_mb_per_s, consume_mb_per_s, layout or KafkaLayout())
    return crossing * SECONDS_PER_HOUR / GIB * prices.cross_zone_per_gib
