from __future__ import annotations

import random
from math import inf

import pytest

from llog.broker.produce.flush import Pacing, pacing_of, plan_flush
from llog.cost.activity import activity_of, flushes_of, mean_interval_ms
from llog.cost.estimate import estimate_of
from llog.cost.inputs import CostInputs, PriceList, input_names, inputs_of
from llog.errors import InvalidArgument
from llog.limits import COMPACT_WINDOW_BYTES_IN_SERVICE, MIB
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.rewrite.publish import Run
from llog.pipeline.compact.plan import SegmentRules, Sizing, plan_round
from tests.unit.pipeline.compact.test_compact_plan import entry

# Ten brokers, each with two blobs a second, 20 partitions in each blob, 200 records of each partition in a blob.
# Compaction writes 100,000 records per segment and 5,000 per index key.
PUBLISHED = inputs_of(
    {
        "brokers": 10,
        "partitions": 20,
        "owners": 10,
        "delay_ms": 500.0,
        "pacing": "fixed",
        "records_per_s": 10 * 2 * 20 * 200.0,
        "records_per_group": 1.0,
        "record_bytes": 100.0,
        "segment_records": 100_000.0,
        "records_per_segment_key": 5_000.0,
        "merge": False,
    }
)


def test_the_published_sums_come_out() -> None:
    activity = activity_of(PUBLISHED)
    assert activity.keys_per_day == pytest.approx(34_560_000)
    assert activity.blobs_per_day == pytest.approx(1_728_000)
    assert activity.segments is not None
    assert activity.segments.keys_per_day == pytest.approx(1_382_400)
    assert activity.segments.per_day == pytest.approx(69_120)


def test_requests_for_100_mb_per_s_cost_less_than_the_published_60_cents() -> None:
    """Its compaction writes segments of 100,000 records, and its blobs have 8 MiB or 500 ms."""
    changes = {"brokers": 5, "owners": 5, "records_per_s": 100_000.0, "record_bytes": 1_000.0}
    estimate = estimate_of(inputs_of(changes, PUBLISHED))
    assert 0.2 < estimate.requests_dollars_per_hour < 0.6
    assert estimate.kafka.dollars_per_hour > 16.4


def simulated_interval_ms(pacing: Pacing, upload_ms: float, requests_per_ms: float, seed: int) -> float:
    """The broker's own rule, driven with requests at random times."""
    chance, now, last, uploaded = random.Random(seed), 0.0, -inf, -inf
    flushes = 3_000
    arrival = chance.expovariate(requests_per_ms)
    for _ in range(flushes):
        first = arrival
        now = max(now, first)
        while True:
            uploading = now < uploaded
            due = plan_flush(
                pacing, now_ms=now, first_ms=first, last_start_ms=last, uploading=uploading, full=False, urgency=""
            )
            if due.reason:
                break
            now = min(due.at_ms, uploaded) if uploading else due.at_ms
        last, uploaded = now, now + upload_ms
        while arrival <= now:
            arrival += chance.expovariate(requests_per_ms)
    return now / flushes


@pytest.mark.parametrize("requests_per_ms", [0.0005, 0.002, 0.01, 0.3])
@pytest.mark.parametrize(("upload_ms", "delay_ms"), [(20, 500), (200, 500), (320, 500), (900, 500), (20, 100)])
def test_the_flush_interval_is_that_of_the_brokers_rule(
    requests_per_ms: float, upload_ms: float, delay_ms: float
) -> None:
    pacing = pacing_of("s3", delay_ms)
    simulated = simulated_interval_ms(pacing, upload_ms, requests_per_ms, seed=7)
    predicted = mean_interval_ms(pacing, 0.0, upload_ms, requests_per_ms)
    assert predicted == pytest.approx(simulated, rel=0.05)


def test_a_full_buffer_flushes_before_the_delay() -> None:
    busy = inputs_of({"records_per_s": 100_000.0, "record_bytes": 1_000.0})
    assert flushes_of(busy).blob_bytes == pytest.approx(8 * MIB)
    assert flushes_of(busy).interval_ms == pytest.approx(8 * MIB / 100_000)


def test_a_flush_holds_at_least_one_request() -> None:
    rare = inputs_of({"records_per_s": 0.1, "records_per_group": 10.0, "partitions_per_request": 4})
    flushes = flushes_of(rare)
    assert flushes.requests == pytest.approx(1, rel=1e-4)
    assert flushes.keys == pytest.approx(4, rel=1e-4)
    assert flushes.interval_ms == pytest.approx(400_000, rel=0.01)


def test_a_local_store_flushes_far_more_often_than_s3() -> None:
    here = inputs_of({"store": "local", "upload_ms": 1.0, "delay_ms": 13.0})
    there = inputs_of({})
    assert 1 / flushes_of(here).interval_ms > 4 * (1 / flushes_of(there).interval_ms)


def test_more_owners_spread_a_partition_over_more_blobs() -> None:
    one = activity_of(inputs_of({"brokers": 5, "partitions": 100, "records_per_s": 1e5}))
    all_of_them = activity_of(inputs_of({"brokers": 5, "owners": 5, "partitions": 100, "records_per_s": 1e5}))
    assert all_of_them.keys_per_day > 2 * one.keys_per_day
    assert all_of_them.blobs_per_day == pytest.approx(one.blobs_per_day, rel=0.01)


def test_a_window_of_compaction_ends_the_segments_of_all_partitions() -> None:
    activity = activity_of(inputs_of({"partitions": 40, "records_per_s": 100_000.0, "record_bytes": 1_000.0}))
    assert activity.segments is not None
    assert activity.segments.bytes == pytest.approx(COMPACT_WINDOW_BYTES_IN_SERVICE / 40)
    assert activity.segments.left_per_day < activity.segments.per_day / 8


def test_without_a_compactor_blobs_stay_for_the_retention() -> None:
    activity = activity_of(inputs_of({"compactors": 0, "retention_hours": 24.0}))
    assert activity.segments is None
    assert activity.objects == pytest.approx(activity.blobs_per_day)
    assert activity.segment_bytes == 0
    assert activity.wal_bytes == pytest.approx(1_000 * 1_024 * 86_400)


def test_reads_from_the_cache_need_no_request() -> None:
    cached = activity_of(inputs_of({"consumers_fanout": 3.0}))
    missed = activity_of(inputs_of({"consumers_fanout": 3.0, "tail_cache_share": 0.0}))
    assert cached.tail_gets_per_day == 0
    assert missed.tail_gets_per_day == pytest.approx(3 * missed.blobs_per_day)


def test_cold_readers_pay_for_what_they_get() -> None:
    cold = activity_of(inputs_of({"cold_reads": 1.0, "records_per_s": 1e5, "record_bytes": 1_000.0, "partitions": 4}))
    assert cold.cold_gets_per_day == pytest.approx(1e8 * 86_400 / (4 * MIB))


def test_an_atomic_store_writes_once_per_flush() -> None:
    separate = inputs_of({"compactors": 0, "records_per_s": 1e5})
    atomic = inputs_of({"metadata_store": "atomic"}, separate)
    assert activity_of(atomic).metadata_writes_per_s == pytest.approx(activity_of(atomic).blobs_per_day / 86_400)
    assert activity_of(separate).metadata_writes_per_s > 10 * activity_of(atomic).metadata_writes_per_s


def test_items_add_up_and_machines_count_only_with_a_price() -> None:
    plain = estimate_of(CostInputs())
    assert plain.dollars_per_month == pytest.approx(sum(item.dollars_per_month for item in plain.items))
    assert [item.name for item in plain.items if not item.counted] == ["machines"]
    with_machines = estimate_of(CostInputs(), PriceList().changed(["core-hour=0.05"]))
    assert with_machines.dollars_per_month - plain.dollars_per_month == pytest.approx(4 * 730 * 0.05)


def test_a_price_changes_its_items() -> None:
    dear = estimate_of(CostInputs(), PriceList().changed(["put=0.01"]))
    plain = estimate_of(CostInputs())
    for before, after in zip(plain.items, dear.items, strict=True):
        factor = 2 if before.name.startswith(("PUT", "LIST")) else 1
        assert after.dollars_per_month == pytest.approx(factor * before.dollars_per_month)


@pytest.mark.parametrize("change", ["puts=1", "put", "put=-1", "put=nan", "put=inf", "put=much"])
def test_a_wrong_price_is_refused_with_its_name(change: str) -> None:
    with pytest.raises(InvalidArgument, match="put"):
        PriceList().changed([change])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"brokers": 0}, "brokers"),
        ({"brokers": 2, "owners": 3}, "owners"),
        ({"partitions": 2, "partitions_per_request": 3}, "partitions_per_request"),
        ({"records_per_s": "many"}, "records_per_s"),
        ({"store": "tape"}, "store"),
    ],
)
def test_wrong_inputs_are_refused_with_their_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        inputs_of(changes)


def test_input_names_differ_between_the_parts() -> None:
    assert len(set(input_names())) == len(input_names())


def test_the_plan_of_compaction_ends_segments_where_the_model_does() -> None:
    """40 partitions in every blob of 5 MB: a round of the service's size makes segments of 128 MiB / 40."""
    logs = [Log("load", partition) for partition in range(40)]
    slice_bytes = 5_000_000 // len(logs)

    def slice_of(log: Log, number: int) -> Entry:
        return entry(number + 1, f"b{number:04d}", size=slice_bytes, at=log.partition * slice_bytes)

    entries = {log: Run(tuple(slice_of(log, number) for number in range(80))) for log in logs}
    sizing = Sizing.in_process(COMPACT_WINDOW_BYTES_IN_SERVICE)
    plan = plan_round(entries, sizing, SegmentRules())
    segments = [planned.run for runs in plan.runs.values() for planned in runs]
    mean_bytes = sum(len(run.entries) for run in segments) * slice_bytes / len(segments)
    assert mean_bytes == pytest.approx(COMPACT_WINDOW_BYTES_IN_SERVICE / len(logs), rel=0.1)
