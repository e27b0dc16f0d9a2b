"""Counters as rates: restarts, pages that did not answer, gaps, the short interval at the end; histograms of pages."""

from __future__ import annotations

from math import isclose
from typing import Any

from llog.loadtest.artifacts import HostSample, MetricsSample, PageSample
from llog.loadtest.report import buckets
from llog.loadtest.report.increments import Grid, Growth, all_growths, amounts, leaves, rates

PATH = "log.append_records"


def sample(at_s: float, *pages: tuple[str, float, float] | str) -> MetricsSample:
    """Pages as (process, start time, counter), or the name of a process that did not answer."""
    found = tuple(
        PageSample(page, False, "refused")
        if isinstance(page, str)
        else PageSample(
            page[0], True, "", {"process": {"start_time_seconds": page[1]}, "log": {"append_records": page[2]}}
        )
        for page in pages
    )
    return MetricsSample(at_s, False, "measured", found, (), HostSample())


def per_s(*samples: MetricsSample) -> list[float | None]:
    grid = Grid.of((each.at_s for each in samples), 0.0)
    growths = all_growths(samples, lambda page: leaves(page, PATH))
    return [y for _, y in rates(growths, grid).get("", ())]


def test_rates_of_processes_add_up() -> None:
    first = sample(0, ("a", 1, 100), ("b", 1, 0))
    second = sample(10, ("a", 1, 200), ("b", 1, 50))
    assert per_s(first, second, sample(20, ("a", 1, 200), ("b", 1, 150))) == [15, 10]


def test_a_restarted_process_counts_from_its_new_start() -> None:
    before, after = sample(0, ("a", 1, 1_000)), sample(10, ("a", 5, 60))
    assert per_s(before, after, sample(20, ("a", 5, 160))) == [6, 10]


def test_a_counter_that_falls_shows_a_restart_without_start_times() -> None:
    assert per_s(sample(0, ("a", 0, 1_000)), sample(10, ("a", 0, 60)), sample(20, ("a", 0, 160))) == [6, 10]


def test_a_page_that_did_not_answer_leaves_a_longer_interval_not_a_hole() -> None:
    first, last = sample(0, ("a", 1, 0), ("b", 1, 0)), sample(20, ("a", 1, 200), ("b", 1, 400))
    assert per_s(first, sample(10, ("a", 1, 100), "b"), last) == [30, 30]


def test_an_interval_without_any_reading_is_a_gap() -> None:
    first, second = sample(0, ("a", 1, 0)), sample(10, ("a", 1, 100))
    assert per_s(first, second, sample(20, "a"), sample(30, "a")) == [10, None, None]


def test_the_forced_sample_at_the_end_makes_no_interval_of_its_own() -> None:
    listed = [sample(at_s, ("a", 1, at_s * 10)) for at_s in (0, 10, 20)]
    assert per_s(*listed, sample(20.5, ("a", 1, 405))) == [10, 305 / 10.5]


def test_forced_samples_at_changes_of_phase_make_no_short_intervals() -> None:
    assert Grid.of((-0.3, 4.2, 4.7, 9.7, 14.7, 18.2, 19.7, 20.2), 0).times == (-0.3, 4.2, 9.7, 14.7, 18.2, 20.2)
    assert Grid.of((5.0,), 0).times == (5.0,)
    assert Grid.of((), 0).times == ()


def test_growth_in_a_stretch_is_the_share_that_falls_into_it() -> None:
    growths = [Growth(0, 10, {"x": 100.0}), Growth(10, 20, {"x": 300.0})]
    assert amounts(growths, 5, 15) == {"x": 200.0}
    assert amounts(growths, 0, 20) == {"x": 400.0}
    assert amounts(growths, 40, 50) is None


def test_only_numbers_of_a_page_are_read() -> None:
    page: Any = {"a": {"b": 1, "c": {"d": 2.5}, "text": "x", "flag": True}}
    assert leaves(page, "a") == {"b": 1.0, "c.d": 2.5}
    assert leaves(page, "a.b") == {"": 1.0}
    assert leaves(page, "a.b.c") == {}
    assert leaves("damaged", "a") == {}


def test_percentiles_are_interpolated_inside_their_bucket() -> None:
    growth = {"count": 100.0, "sum": 2.0, "buckets.0.01": 50.0, "buckets.0.02": 90.0, "buckets.+Inf": 100.0}
    assert buckets.mean(growth) == 0.02
    assert buckets.percentile(growth, 0.5) == 0.01
    assert isclose(buckets.percentile(growth, 0.7) or 0, 0.015)
    assert buckets.percentile(growth, 0.99) == 0.02, "above the last bound, that bound"


def test_a_histogram_without_values_has_no_percentiles() -> None:
    empty = {"count": 0.0, "sum": 0.0, "buckets.0.01": 0.0, "buckets.+Inf": 0.0}
    assert buckets.mean(empty) is None
    assert buckets.percentile(empty, 0.5) is None
    assert buckets.percentile({}, 0.5) is None
