"""The two metrics pages: every family, the same numbers on both, bounded, nothing secret."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import re
from pathlib import Path

import pytest

from llog.broker.consume.consume import ConsumeMetrics
from llog.broker.produce.producer import BatchingMetrics
from llog.broker.tail.cache import TailMetrics
from llog.compactor.metrics import CompactorMetrics
from llog.errors import SettingsError
from llog.http.routes.runtime import FrontEndMetrics
from llog.kafka.sasl import FAILURES
from llog.log.metrics import LogMetrics
from llog.security.security import REFUSALS
from llog.stores.metering import MetadataStoreStats
from llog.telemetry.collectors import METRICS_LAG_ROWS_MAX, CompactionLag
from llog.telemetry.families import FAMILIES, SECTIONS, family, markdown, sample_names
from llog.telemetry.metrics import BrokerMetrics
from llog.telemetry.registry import METRICS_LABEL_SETS_MAX
from llog.telemetry.scenario import LoadTestScenario, parse_scenario, scenario_from_env
from tests.unit.telemetry.metric_pages import Series, both_tell, samples_of
from tests.unit.telemetry.metrics_activity import LOG_NAMES, NOW_MS, Activity

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def active() -> Activity:
    activity = Activity()
    await activity.round()
    return activity


def samples(metrics: BrokerMetrics) -> dict[Series, float]:
    return samples_of(metrics.prometheus().decode())


def value(metrics: BrokerMetrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, tuple(sorted(labels.items()))]


# -- the table ------------------------------------------------------------------------------------------------------


def test_names_follow_the_conventions() -> None:
    names = [row.name for row in FAMILIES]
    assert len(set(names)) == len(names)
    for row in FAMILIES:
        assert re.fullmatch(r"(llog|process)_[a-z0-9_]+", row.name)
        assert row.name.endswith("_total") == (row.kind == "counter"), row.name
        assert row.name.endswith("_info") == (row.kind == "info"), row.name
        assert not re.search(r"_(ms|kb|mb|msec)(_|$)", row.name), "seconds and bytes only"
        assert bool(row.buckets) == (row.kind == "histogram" and not row.collected)
        assert all(len(values) == len(row.labels) for values in row.starts)


def test_json_paths_form_a_tree_and_name_only_labels_of_their_family() -> None:
    paths = [(path, row) for row in FAMILIES for path in row.at]
    leaves = [path for path, row in paths if row.kind != "info"]
    assert len(set(leaves)) == len(leaves)
    for one, other in itertools.permutations(leaves, 2):
        assert not other.startswith(one + "."), f"{one} is a leaf and the beginning of {other}"
    for path, row in paths:
        assert set(re.findall(r"{(\w+)}", path)) <= set(row.labels), path


def test_every_name_that_the_log_counts_has_a_family_of_its_own() -> None:
    assert LOG_NAMES
    for name in LOG_NAMES:
        assert family(f"llog_{name}_total").labels == ()


def test_refused_principals_and_failed_authentications_are_counted() -> None:
    metrics = BrokerMetrics()
    metrics.count(REFUSALS, 3)
    metrics.count(FAILURES)
    assert value(metrics, "llog_authorization_refusals_total") == 3
    assert value(metrics, "llog_authentication_failures_total") == 1


def test_the_reference_page_is_in_step_with_the_table() -> None:
    assert (ROOT / "docs/reference/metrics.md").read_text() == markdown(), "run `make docs`"
    assert all(f"| `{row.name}` | {row.kind} |" in markdown() for row in FAMILIES)


# -- the pages ------------------------------------------------------------------------------------------------------


def test_every_family_is_exported_from_the_first_moment() -> None:
    page = BrokerMetrics().prometheus().decode()
    for row in FAMILIES:
        assert f"# HELP {row.name} " in page
        assert f"# TYPE {row.name} {'gauge' if row.kind == 'info' else row.kind}\n" in page
    assert "_created" not in page


async def test_every_family_has_a_sample_once_things_happened(active: Activity) -> None:
    seen = {name for name, _ in samples(active.metrics)}
    assert seen == {name for row in FAMILIES for name in sample_names(row)}


async def test_the_json_page_is_json_and_has_every_section_of_the_contract(active: Activity) -> None:
    page = json.loads(json.dumps(active.metrics.snapshot(), allow_nan=False))
    assert set(page) == {
        "broker", "loadtest", "compactor", "http", "batching", "append", "log", "consume", "tail_cache", "compaction",
        "logs", "vacuum", "clock", "metadata", "oxia", "s3", "metrics", "process", "wal",
        "kafka", "security",
    }  # fmt: skip
    assert page["oxia"] == page["metadata"]
    assert page["broker"]["broker_id"] == "broker-1"
    assert (page["broker"]["metadata_store"], page["broker"]["object_store"]) == ("oxia", "memory")
    assert page["broker"]["batch"] == {"max_bytes": 8 << 20, "max_delay_seconds": 0.5, "max_buffer_bytes": 512 << 20}
    assert page["loadtest"] == {
        "scenario": "steady", "run_id": "run-1", "parameters": {"brokers": 3, "record_bytes": 1_024},
    }  # fmt: skip
    assert page["http"]["requests"]["/produce"] == {"POST": {"200": 1, "503": 1}}
    assert page["compactor"]["workers"] == {"busy": 1, "total": 4}
    assert page["compactor"]["discovery"] == {"targets": 16, "count": 1, "at_seconds": NOW_MS / 1_000}
    assert page["compaction"]["lag"]["offsets"] == {"orders": {"0": 1_000}, "other": {"other": 0}}
    assert page["s3"]["operations"]["put"]["requests"] == 1
    assert page["s3"]["operations"]["get"]["outcomes"]["not_found"] == 1
    assert page["s3"]["tiers"] == {"objects": {"store": "memory"}}
    assert page["metadata"]["operations"]["put"]["calls"] == 2
    assert page["metadata"]["operations"]["put"]["errors"]["conflict"] == 1
    assert page["metadata"]["operations"]["put"]["latency_seconds"]["count"] == 2
    assert page["metrics"]["overflow"]["unknown"] == 1, "a name without a family was counted once"
    assert page["append"]["failures"] == {
        "AppendNotCommitted": 1, "AppendUncertain": 0, "LogBusy": 0, "InconsistentReadState": 0, "LogFenced": 2,
    }  # fmt: skip
    assert page["log"]["append_failures"] == 1 + 3, "once by its name, and by error"
    assert page["vacuum"]["deleted_bytes"] == 3_000


async def test_both_pages_tell_the_same_numbers(active: Activity) -> None:
    page, answer = active.metrics.snapshot(), samples(active.metrics)
    compared = list(both_tell(page, answer))
    assert {row.name for row, _, _ in compared} == {row.name for row in FAMILIES if row.kind != "info"}
    for row, in_json, in_text in compared:
        if not row.name.startswith("process_"):  # they move between the two pages
            assert in_json == pytest.approx(in_text), row.name


async def test_pages_can_be_made_in_another_thread_while_things_happen() -> None:
    activity = Activity()

    def make_pages() -> int:
        return min(len(activity.metrics.prometheus()) + len(activity.metrics.snapshot()) for _ in range(5))

    pages = asyncio.create_task(asyncio.to_thread(make_pages))
    rounds = 0
    while not pages.done():
        await activity.round()
        for partition in range(100):
            activity.metrics.set_compaction_lag("orders", partition, rounds % 2, rounds % 2)
        rounds += 1
        await asyncio.sleep(0)
    assert await pages > 0
    assert activity.metrics.snapshot()["batching"]["records"] == rounds * 1_000


def test_the_section_is_called_oxia_too_only_where_it_is() -> None:
    metrics = BrokerMetrics()
    metrics.attach_metadata("lmdb:///data/metadata", MetadataStoreStats())
    page = metrics.snapshot()
    assert "oxia" not in page
    assert page["metadata"]["store"] == "lmdb"
    assert page["metadata"]["operations"]["write"] == {"calls": 0, "items": 0}
    other = BrokerMetrics()
    other.attach_metadata("oxia+tls://host:6648/ns", MetadataStoreStats())
    assert other.snapshot()["oxia"]["store"] == "oxia"


def test_two_brokers_in_one_process_do_not_mix() -> None:
    one, other = BrokerMetrics(), BrokerMetrics()
    one.observe_flush("size", 1, 10, 100, 1, 1, 1)
    assert one.snapshot()["batching"]["records"] == 10
    assert other.snapshot()["batching"]["records"] == 0


def test_a_process_that_is_no_broker_does_not_say_it_is_one() -> None:
    metrics = BrokerMetrics()
    metrics.set_compactor(
        compactor_id="c", host="h", port=1, started_at_ms=1_000,
        metadata_url="postgres://llog:hunter2@db/llog", wal_url="file:///w", objects_url="s3://private-bucket",
    )  # fmt: skip
    page = metrics.prometheus().decode()
    assert "\nllog_broker_info" not in page
    assert "\nllog_loadtest_info" not in page
    assert "broker_id" not in metrics.snapshot()["broker"]
    shown = metrics.snapshot()["compactor"]
    assert (shown["metadata_store"], shown["wal_store"], shown["object_store"]) == ("postgresql", "file", "s3")
    assert "hunter2" not in page + json.dumps(metrics.snapshot())
    assert "private-bucket" not in page + json.dumps(metrics.snapshot())


# -- what the methods count -----------------------------------------------------------------------------------------


def test_milliseconds_become_seconds_in_the_right_bucket() -> None:
    metrics = BrokerMetrics()
    metrics.observe_flush("delay", 3, 200, 5_000, queue_wait_ms=500, upload_ms=40, commit_ms=3)
    metrics.observe_append_to_consume(15)
    seen = metrics.snapshot()
    assert seen["batching"]["queue_wait_seconds"]["sum"] == 0.5
    assert seen["batching"]["upload_seconds"]["buckets"]["0.02"] == 0
    assert seen["batching"]["upload_seconds"]["buckets"]["0.05"] == 1
    assert seen["batching"]["commit_seconds"]["buckets"]["+Inf"] == 1
    assert seen["batching"]["blob_bytes"]["sum"] == 5_000
    assert seen["consume"]["append_to_consume_seconds"]["buckets"]["0.02"] == 1
    assert seen["batching"]["flushes"]["delay"] == 1
    assert seen["batching"]["flushes"]["size"] == 0, "known reasons begin at zero"


def test_invented_routes_and_fields_cannot_grow_the_page() -> None:
    metrics = BrokerMetrics()
    for number in range(3 * METRICS_LABEL_SETS_MAX):
        metrics.observe_http(f"/{number}", "GET", 404, 0.001, 0, 10)
        metrics.http_validation_failure("/produce", f"field-{number}" + "x" * 10_000)
    page, others = metrics.snapshot(), 2 * METRICS_LABEL_SETS_MAX
    assert len(page["http"]["requests"]) == METRICS_LABEL_SETS_MAX + 1
    assert page["http"]["requests"]["other"]["other"]["other"] == others
    assert page["http"]["response_bytes"]["other"] == others * 10
    assert page["metrics"]["overflow"]["llog_http_requests_total"] == others
    assert len(metrics.prometheus()) < 1 << 20


def test_the_logs_furthest_behind_are_named_and_the_rest_is_one_row() -> None:
    metrics = BrokerMetrics()
    for partition in range(3 * METRICS_LAG_ROWS_MAX):
        metrics.set_compaction_lag("orders", partition, offsets=partition + 1, byte_length=1_000 * (partition + 1))
    shown = metrics.snapshot()["compaction"]["lag"]
    assert len(shown["bytes"]["orders"]) == METRICS_LAG_ROWS_MAX
    assert str(3 * METRICS_LAG_ROWS_MAX - 1) in shown["bytes"]["orders"]
    assert "0" not in shown["bytes"]["orders"]
    whole = sum(range(3 * METRICS_LAG_ROWS_MAX + 1))
    assert sum(shown["offsets"]["orders"].values()) + shown["offsets"]["other"]["other"] == whole
    assert sum(shown["bytes"]["orders"].values()) + shown["bytes"]["other"]["other"] == 1_000 * whole
    assert shown["logs"] == 3 * METRICS_LAG_ROWS_MAX
    for partition in range(3 * METRICS_LAG_ROWS_MAX):
        metrics.set_compaction_lag("orders", partition, offsets=0, byte_length=0)
    nothing = {"other": {"other": 0}}
    assert metrics.snapshot()["compaction"]["lag"] == {
        "offsets": nothing, "bytes": nothing, "seconds": nothing, "logs": 0,
    }  # fmt: skip


def test_the_age_of_the_lag_goes_on_by_itself_and_the_oldest_is_never_hidden() -> None:
    now_ms = 1_000_000
    lag = CompactionLag(lambda: None, lambda: now_ms)

    def ages() -> dict[tuple[str, ...], float]:
        [shown] = [metric for metric in lag.collect() if metric.name == "llog_compaction_lag_seconds"]
        return {tuple(sample.labels.values()): sample.value for sample in shown.samples}

    for partition in range(METRICS_LAG_ROWS_MAX):
        lag.set("orders", partition, 10, 1_000, now_ms - 5_000)
    lag.set("orders", METRICS_LAG_ROWS_MAX, 1, 1, now_ms - 60_000)
    lag.set("young", 0, 1, 0, None)
    now_ms += 1_000
    assert ages()["orders", "0"] == 6
    assert ages()["other", "other"] == 61, "it has too few bytes for a row of its own"
    lag.set("orders", METRICS_LAG_ROWS_MAX, 0, 0, None)
    assert ages()["other", "other"] == 0


def test_lags_of_more_logs_than_can_be_known_are_counted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.telemetry.collectors.METRICS_LAG_LOGS_MAX", 2)
    metrics = BrokerMetrics()
    for partition in range(3):
        metrics.set_compaction_lag("orders", partition, 1, 1)
    metrics.set_compaction_lag("orders", 0, 5, 5)
    assert metrics.snapshot()["compaction"]["lag"]["offsets"]["orders"] == {"0": 5, "1": 1}
    assert value(metrics, "llog_metrics_overflow_total", family="llog_compaction_lag_offsets") == 1


def test_a_visit_that_rewrote_nothing_says_nothing_about_candidates() -> None:
    metrics = BrokerMetrics()
    metrics.observe_compaction("idle", "compact", 0, 0, {})
    metrics.observe_compaction("compacted", "retain", 7, 0, {"run": 1_500.0})
    shown = metrics.snapshot()["compaction"]
    assert shown["runs"]["compact"]["idle"] == 1
    assert set(shown["candidate"]) == {"retain"}
    assert shown["candidate"]["retain"]["entries"]["sum"] == 7
    assert shown["stages"]["run"]["sum"] == 1.5


def test_the_log_can_count_here() -> None:
    metrics: LogMetrics = BrokerMetrics()
    metrics.count("log_read_gets")
    metrics.count("log_read_bytes", 512)
    shown = metrics.snapshot()["log"]  # type: ignore[attr-defined]
    assert (shown["read_gets"], shown["read_bytes"]) == (1, 512)


@pytest.mark.parametrize(
    "port", [BatchingMetrics, TailMetrics, ConsumeMetrics, FrontEndMetrics, CompactorMetrics, LogMetrics]
)
def test_it_implements_the_metrics_port_of_every_part(port: type) -> None:
    wanted = {name: member for name, member in vars(port).items() if inspect.isfunction(member) and name[0] != "_"}
    for name, member in wanted.items():
        ours = inspect.signature(getattr(BrokerMetrics, name)).parameters
        assert list(inspect.signature(member).parameters) == list(ours), name


# -- load test scenario ---------------------------------------------------------------------------------------------


def test_a_scenario_is_read_from_the_environment_and_replaces_the_one_before() -> None:
    assert scenario_from_env({}) is None
    assert scenario_from_env({"LLOG_LOADTEST_SCENARIO": ""}) is None
    text = '{"name": "steady", "run_id": "7", "parameters": {"brokers": 3, "rate": 0.5}}'
    scenario = scenario_from_env({"LLOG_LOADTEST_SCENARIO": text})
    assert scenario == LoadTestScenario("steady", "7", {"brokers": 3, "rate": 0.5})
    metrics = BrokerMetrics()
    metrics.set_loadtest(scenario)
    metrics.set_loadtest(LoadTestScenario("other", parameters={"partitions": 4}))
    assert metrics.snapshot()["loadtest"] == {"scenario": "other", "run_id": "", "parameters": {"partitions": 4}}


@pytest.mark.parametrize(
    "text",
    [
        "steady", "[]", "{}", '{"name": 1}', '{"name": "a", "surprise": 1}', '{"name": "a", "parameters": {"b": "c"}}',
        '{"name": "a", "parameters": {"Not A Name": 1}}', '{"name": "' + "x" * 200 + '"}', "\ud800", " " * 20_000,
        json.dumps({"name": "a", "parameters": {f"p{i}": i for i in range(65)}}),
    ],
)  # fmt: skip
def test_a_scenario_that_is_none_is_refused_with_words(text: str) -> None:
    with pytest.raises(SettingsError, match="LLOG_LOADTEST_SCENARIO"):
        parse_scenario(text)


def test_every_section_of_the_table_has_families() -> None:
    assert all(SECTIONS.values())


def test_runs_in_flight_are_shown_by_state() -> None:
    metrics = BrokerMetrics()
    metrics.set_compaction_pending({"UPDATING_CURSOR": 2}, 0)
    text = metrics.prometheus().decode()
    for state, count in (("WRITING_COMPACTED_INDEX", 0), ("UPDATING_CURSOR", 2), ("DELETING_OLD", 0)):
        assert f'llog_compaction_pending_runs{{state="{state}"}} {count}.0' in text
