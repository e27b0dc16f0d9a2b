"""Histograms of the load generator."""

from __future__ import annotations

import numpy as np
import pytest

from llog.loadtest.artifacts import Percentiles
from llog.loadtest.client.histograms import Latencies, decode, merge, new_histogram, percentiles


def test_gathered_values_equal_values_recorded_one_by_one() -> None:
    values = np.random.default_rng(1).lognormal(9, 3, 3_000).astype(np.int64) + 1
    one_by_one, latencies = new_histogram(), Latencies()
    for value in values.tolist():
        one_by_one.record_value(min(value, 3_600_000_000))
    for value in values[:1_000].tolist():
        latencies.add(value)
    latencies.add_many(values[1_000:])
    assert len(latencies) == len(values)
    gathered = decode(latencies.take())
    shares = [50.0, 99.0, 99.9]
    assert gathered.get_percentile_to_value_dict(shares) == one_by_one.get_percentile_to_value_dict(shares)
    assert latencies.take() == ""


def test_merged_intervals_describe_all_their_values() -> None:
    texts = []
    for milliseconds in range(1, 101):
        latencies = Latencies()
        latencies.add(milliseconds * 1_000)
        texts.append(latencies.take())
    found = percentiles(merge([*texts, ""]))
    assert found.count == 100
    assert (found.p50, found.p90, found.p99, found.max) == pytest.approx((50, 90, 99, 100), rel=0.002)
    assert found.mean == pytest.approx(50.5, rel=0.002)


def test_no_value_gives_zeros() -> None:
    assert percentiles(merge([])) == Percentiles()


def test_values_beyond_the_range_count_as_its_ends() -> None:
    latencies = Latencies()
    latencies.add(-5)
    latencies.add(10**12)
    found = percentiles(decode(latencies.take()))
    assert found.count == 2
    assert found.max == pytest.approx(3_600_000, rel=0.001)
