from __future__ import annotations

import pytest

from llog.cost.kafka import KafkaLayout, cross_zone_dollars_per_hour
from llog.cost.network import NetworkPrices
from llog.errors import InvalidArgument

MIB_PER_MB = 2**20 / 10**6


def test_the_published_sum_of_cross_zone_transfer_comes_out() -> None:
    """16.4 dollars an hour for 100 MB/s in and out: its megabyte is 2**20 bytes, and a byte crosses 7/3 times."""
    rate = 100 * MIB_PER_MB
    layout = KafkaLayout(replication_factor=2, consumers_read_in_zone=False)
    assert cross_zone_dollars_per_hour(rate, rate, layout=layout) == pytest.approx(16.4, abs=0.01)


def test_three_replicas_cost_at_least_the_published_sum() -> None:
    assert cross_zone_dollars_per_hour(100, 100) == pytest.approx(17.88, abs=0.01)
    everything_crosses = cross_zone_dollars_per_hour(100, 100, layout=KafkaLayout(consumers_read_in_zone=False))
    assert everything_crosses == pytest.approx(22.35, abs=0.01)


def test_one_zone_costs_nothing() -> None:
    assert cross_zone_dollars_per_hour(100, 300, layout=KafkaLayout(zones=1)) == 0


def test_consumers_of_a_zone_without_a_replica_cross() -> None:
    layout = KafkaLayout(zones=3, replication_factor=2)
    produced_only = cross_zone_dollars_per_hour(90, 0, layout=layout)
    assert cross_zone_dollars_per_hour(90, 90, layout=layout) > produced_only


def test_replicas_in_the_zone_of_the_leader_do_not_cross() -> None:
    assert KafkaLayout(zones=2, replication_factor=4).replica_crossings == 2
    assert KafkaLayout(zones=3, replication_factor=3).replica_crossings == 2


def test_the_price_of_a_crossing_can_be_changed() -> None:
    half = cross_zone_dollars_per_hour(100, 100, prices=NetworkPrices(cross_zone_per_gib=0.01))
    assert half == pytest.approx(cross_zone_dollars_per_hour(100, 100) / 2)


def test_a_layout_without_zones_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="zones"):
        KafkaLayout(zones=0)
