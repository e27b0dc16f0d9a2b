"""What the seeds say of metrics, against running brokers and a running compactor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.http_calls import (
    Json,
    Running,
    a_batch,
    consumed,
    post_produce,
    produced,
    running,
    unused_topic,
    wanted,
)
from tests.patience import wait_until

pytestmark = pytest.mark.slow
SCENARIO = {"name": "steady", "run_id": "run-7", "parameters": {"brokers": 3, "partitions": 64}}


class Pair:
    """A broker under a load test, and the compactor of its stores."""

    def __init__(self, broker: Running, compactor: Running, written: list[Json]) -> None:
        self.broker, self.compactor, self.written = broker, compactor, written


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("metrics")
    with running("broker", directory=directory, name="before") as before:
        topic = unused_topic()
        written = [result for _ in range(6) for result in produced(before.http, a_batch(topic, 0, "x" * 500))]
    settings = {
        "llog_compactor_min_age_ms": "0",
        "llog_compactor_discovery_interval_ms": "200ms",
        "llog_compactor_idle_sleep_ms": "100ms",
        "llog_compactor_trigger_age_ms": "0",
        "llog_loadtest_scenario": json.dumps(SCENARIO),
    }
    with (
        running("broker", directory=directory, name="broker", **settings) as broker,
        running("compactor", directory=directory, name="compactor", **settings) as compactor,
    ):
        yield Pair(broker, compactor, written)


def at(page: Any, path: str) -> Any:
    for name in path.split("."):
        page = page[name]
    return page


def prometheus(running_at: Running) -> dict[str, float]:
    """Samples by name and labels."""
    samples = {}
    for line in running_at.http.get("/metrics/prometheus").text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    return samples


def assert_histogram(answer: Json) -> None:
    assert set(answer) == {"count", "sum", "buckets"}
    counts = list(answer["buckets"].values())
    assert counts == sorted(counts)
    assert counts[-1] == answer["count"]


# -- the two pages ---------------------------------------------------------------------------------------------------


def test_metrics_are_json(http: httpx.Client) -> None:
    answer = http.get("/metrics")
    assert answer.headers["content-type"] == "application/json"
    assert isinstance(answer.json(), dict)


def test_metrics_prometheus_is_text_that_prometheus_reads(http: httpx.Client) -> None:
    answer = http.get("/metrics/prometheus")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(answer.text))
    assert {family.type for family in families} <= {"counter", "gauge", "histogram"}
    assert all(family.name.startswith(("llog_", "process_")) and family.documentation for family in families)


def test_both_pages_tell_the_same_numbers(broker: Running, topic: str) -> None:
    produced(broker.http, a_batch(topic, 0, "a", "b"))
    samples, page = prometheus(broker), broker.get("/metrics")
    assert samples["llog_log_append_records_total"] == at(page, "log.append_records") > 0
    assert samples["llog_batch_blob_bytes_sum"] == at(page, "batching.blob_bytes.sum") > 0
    put = 'llog_s3_requests_total{operation="put",store="file",tier="objects"}'
    assert samples[put] == at(page, "s3.operations.put.requests")


# -- the broker's own ------------------------------------------------------------------------------------------------


def test_metrics_show_the_broker_its_role_and_its_batch_settings(broker: Running) -> None:
    answer = broker.get("/metrics")["broker"]
    health = broker.get("/health")
    assert (answer["broker_id"], answer["role"]) == ("broker-1", "both")
    assert (answer["host"], answer["port"]) == (health["host"], str(health["port"]))
    assert answer["started_at_seconds"] == pytest.approx(health["started_at_ms"] / 1_000)
    assert answer["batch"] == {
        "max_bytes": 8_388_608, "max_delay_seconds": 0.013, "max_buffer_bytes": 536_870_912,
    }  # fmt: skip


def test_http_requests_are_counted_by_path_method_and_status(broker: Running, topic: str) -> None:
    before = broker.metric("http.requests./produce.POST.200"), broker.metric("http.requests./produce.POST.400")
    produced(broker.http, a_batch(topic, 0, "x"))
    assert post_produce(broker.http, a_batch(topic, 0)).status_code == 400
    after = broker.metric("http.requests./produce.POST.200"), broker.metric("http.requests./produce.POST.400")
    assert after == (before[0] + 1, before[1] + 1)
    assert_histogram(broker.get("/metrics")["http"]["request_seconds"]["/produce"])


def test_validation_failures_are_counted_by_field(broker: Running, topic: str) -> None:
    def failures() -> int:
        answer = broker.get("/metrics")["http"].get("validation_failures", {})
        return int(answer.get("/produce", {}).get("topic_partitions[].records", 0))

    before = failures()
    assert post_produce(broker.http, a_batch(topic, 0, "x"), a_batch(topic, 1)).status_code == 400
    assert failures() == before + 1


def test_batching_shows_depth_flushes_queue_wait_and_blob_sizes(broker: Running, topic: str) -> None:
    blobs = at(broker.get("/metrics"), "batching.blob_bytes")
    produced(broker.http, a_batch(topic, 0, "x" * 5_000))
    answer = broker.get("/metrics")["batching"]
    assert (answer["buffered_bytes"], answer["buffered_requests"]) == (0, 0)
    assert sum(answer["flushes"].values()) == answer["blob_bytes"]["count"] == blobs["count"] + 1
    assert answer["blob_bytes"]["sum"] - blobs["sum"] >= 5_000
    for name in ("queue_wait_seconds", "upload_seconds", "commit_seconds", "blob_bytes", "flush_groups"):
        assert_histogram(answer[name])


def test_accepted_records_and_bytes_are_counted(broker: Running, topic: str) -> None:
    records, size = broker.metric("log.append_records"), broker.metric("log.append_bytes")
    produced(broker.http, a_batch(topic, 0, "x" * 100, "y" * 100))
    assert broker.metric("log.append_records") == records + 2
    assert broker.metric("log.append_bytes") >= size + 200


def test_consume_and_tail_cache_are_counted(broker: Running, topic: str) -> None:
    produced(broker.http, a_batch(topic, 0, "x"))
    before = broker.get("/metrics")
    consumed(broker.http, wanted(topic, 0, 1))
    after = broker.get("/metrics")
    for path in ("consume.requests.cache", "consume.partitions", "consume.records.cache", "tail_cache.events.hit"):
        assert at(after, path) == at(before, path) + 1, path
    assert at(after, "consume.bytes.cache") > at(before, "consume.bytes.cache")
    assert_histogram(at(after, "consume.append_to_consume_seconds"))


def test_metadata_operations_have_counters_and_latency(broker: Running, topic: str) -> None:
    produced(broker.http, a_batch(topic, 0, "x"))
    answer = broker.get("/metrics")["metadata"]
    assert answer["store"] == "lmdb"
    for operation in ("get", "put", "write"):
        assert answer["operations"][operation]["calls"] > 0
        assert_histogram(answer["operations"][operation]["latency_seconds"])


def test_s3_operations_have_counters_bytes_and_latency_by_operation(broker: Running, topic: str) -> None:
    put = at(broker.get("/metrics"), "s3.operations.put")
    produced(broker.http, a_batch(topic, 0, "x" * 4_000))
    answer = broker.get("/metrics")["s3"]["operations"]
    assert {"put", "list", "get", "range_get"} <= set(answer)
    assert answer["put"]["requests"] == put["requests"] + 1
    assert answer["put"]["bytes"] >= put["bytes"] + 4_000
    assert_histogram(answer["put"]["latency_seconds"])


def test_metrics_are_of_this_process_alone_and_asking_for_them_writes_nothing(pair: Pair) -> None:
    before = pair.broker.get("/metrics")
    assert at(before, "log.append_records") == 0, "what an earlier process appended"
    for _ in range(3):
        after = pair.broker.get("/metrics")
    for path in ("s3.operations.put.requests", "metadata.operations.put.calls", "metadata.operations.write.calls"):
        assert at(after, path) == at(before, path)


def test_a_load_test_is_shown_with_its_scenario_and_parameters(pair: Pair, broker: Running) -> None:
    answer = pair.broker.get("/metrics")["loadtest"]
    assert (answer["scenario"], answer["run_id"]) == ("steady", "run-7")
    assert answer["parameters"] == {"brokers": 3, "partitions": 64}
    samples = prometheus(pair.broker)
    assert samples['llog_loadtest_info{run_id="run-7",scenario="steady"}'] == 1
    assert samples['llog_loadtest_parameter{parameter="partitions"}'] == 64
    assert "parameters" not in broker.get("/metrics")["loadtest"]


# -- S3 billing ------------------------------------------------------------------------------------------------------


def test_the_prices_are_s3_standard_in_us_east_1(broker: Running) -> None:
    answer = broker.get("/metrics")["s3"]["billing"]
    assert answer["assumptions"] == "S3 Standard, us-east-1"
    assert answer["prices_usd"] == {
        "gb_month": 0.023, "per_1000_put_copy_post_list": 0.005, "per_10000_get_and_other": 0.004,
    }  # fmt: skip
    assert answer["store"] == "file", "what the store really is"


def test_the_request_cost_follows_from_the_counted_requests(broker: Running, topic: str) -> None:
    produced(broker.http, a_batch(topic, 0, "x"))
    answer = broker.get("/metrics")["s3"]
    requests = {name: operation["requests"] for name, operation in answer["operations"].items()}
    expected = (requests["put"] + requests["list"]) * 0.005 / 1_000
    expected += (requests["get"] + requests["range_get"] + requests["head"]) * 0.004 / 10_000
    assert answer["billing"]["request_cost_usd"] == pytest.approx(expected)


def test_stored_objects_and_bytes_come_from_a_listing_under_the_root_prefix(pair: Pair) -> None:
    wait_until(lambda: pair.broker.metric("s3.billing.object_count") > 0, "the first listing")
    page = pair.broker.get("/metrics")["s3"]
    assert page["operations"]["list"]["requests"] >= 1, "a listing is counted as the operation `list`"
    billing = page["billing"]
    # The compactor may have written since; what the first process wrote is there in any case.
    assert billing["object_count"] >= len({result["wal_uri"] for result in pair.written})
    written = [Path(result["wal_uri"].removeprefix("file://")) for result in pair.written]
    assert billing["stored_bytes"] >= sum(path.stat().st_size for path in written if path.exists())
    assert billing["stored_gb"] == pytest.approx(billing["stored_bytes"] / 2**30)
    assert billing["storage_cost_usd_per_month"] == pytest.approx(billing["stored_gb"] * 0.023)


def test_the_listing_is_cached_between_pages(broker: Running) -> None:
    wait_until(lambda: broker.metric("s3.operations.list.requests") > 0, "the first listing")
    before = broker.metric("s3.operations.list.requests")
    for _ in range(10):
        broker.get("/metrics")
    assert broker.metric("s3.operations.list.requests") == before


# -- the compactor service -------------------------------------------------------------------------------------------


def test_the_compactor_serves_health_metrics_and_prometheus_and_nothing_of_a_broker(pair: Pair) -> None:
    answer = pair.compactor.get("/health")
    assert answer["status"] in ("ok", "starting")
    assert answer["compactor_id"]
    assert pair.compactor.http.get("/metrics/prometheus").status_code == 200
    for path in ("/produce", "/consume"):
        assert pair.compactor.http.post(path, json={}).status_code == 404


def test_the_compactor_shows_its_id_workers_discovery_and_claims(pair: Pair) -> None:
    wait_until(lambda: pair.compactor.metric("compactor.discovery.targets") > 0, "a discovery")
    answer = pair.compactor.get("/metrics")["compactor"]
    assert answer["compactor_id"] == pair.compactor.get("/health")["compactor_id"]
    assert answer["workers"]["total"] >= 1
    assert answer["discovery"]["count"] >= 1
    assert answer["discovery"]["at_seconds"] > 0
    wait_until(lambda: pair.compactor.metric("compactor.claims.acquired") > 0, "a claim")
    wait_until(lambda: pair.compactor.metric("compactor.claims.released") > 0, "its release")


def test_compaction_shows_outcomes_lag_pending_recovery_candidates_and_stages(pair: Pair) -> None:
    def compacted() -> bool:
        runs = pair.compactor.get("/metrics")["compaction"]["runs"]
        return any(kind["compacted"] for kind in runs.values())

    wait_until(compacted, "a compaction", seconds=20.0)
    answer = pair.compactor.get("/metrics")["compaction"]
    assert set(answer["pending"]) == {"runs", "states", "appends"}
    assert {"run_resumed", "pending_settled"} <= set(answer["recovery"])
    assert answer["lag"]["logs"] >= 0
    for candidate in answer["candidate"].values():
        for histogram in candidate.values():
            assert_histogram(histogram)
    assert answer["candidate"]["compact"]["entries"]["sum"] >= 1
    assert answer["stages"]
    for stage in answer["stages"].values():
        assert_histogram(stage)


def test_the_compactor_shows_the_same_billing_estimate(pair: Pair) -> None:
    answer = pair.compactor.get("/metrics")["s3"]["billing"]
    assert answer["prices_usd"]["gb_month"] == 0.023
    assert answer["request_cost_usd"] > 0


# -- families by name ------------------------------------------------------------------------------------------------

FAMILIES = """
llog_broker_info llog_broker_started_timestamp_seconds llog_batch_max_bytes llog_batch_max_delay_seconds
llog_batch_max_buffer_bytes llog_tail_cache_max_bytes
llog_http_requests_total llog_http_request_seconds_bucket llog_http_request_bytes_total llog_http_response_bytes_total
llog_http_validation_failures_total
llog_batch_buffered_bytes llog_batch_buffered_requests llog_batch_flushes_total llog_batch_records_total
llog_batching_rejections_total llog_batch_blob_bytes_sum llog_batch_queue_wait_seconds_sum
llog_batch_upload_seconds_sum llog_batch_commit_seconds_sum
llog_consume_requests_total llog_consume_partitions_total llog_consume_records_total llog_consume_bytes_total
llog_consume_wait_seconds_sum llog_append_to_consume_seconds_sum llog_tail_cache_events_total llog_tail_cache_bytes
llog_compactor_workers llog_compactor_workers_busy llog_compactor_targets llog_compactor_discoveries_total
llog_compactor_claims_total llog_compaction_runs_total llog_compaction_lag_offsets llog_compaction_lag_bytes
llog_compaction_pending_runs llog_compaction_pending_appends llog_recovery_events_total
llog_metadata_calls_total llog_metadata_errors_total llog_metadata_call_seconds_sum
llog_s3_calls_total llog_s3_requests_total llog_s3_bytes_total llog_s3_call_seconds_sum
llog_s3_billing_requests_usd_total llog_s3_billing_objects llog_s3_billing_stored_bytes llog_s3_billing_stored_gb
llog_s3_billing_storage_usd_per_month llog_s3_billing_price_usd
llog_log_append_records_total llog_log_append_bytes_total llog_fenced_logs
"""


def test_every_family_is_on_the_page_of_a_broker_in_use(broker: Running, topic: str) -> None:
    produced(broker.http, a_batch(topic, 0, "x"))
    consumed(broker.http, wanted(topic, 0, 1))
    assert post_produce(broker.http, a_batch(topic, 0)).status_code == 400
    names = {sample.partition("{")[0] for sample in prometheus(broker)}
    assert [name for name in FAMILIES.split() if name not in names] == []
