"""Metrics of processes that run: every family is counted by the product itself, both pages agree, and each query of the
dashboard brings data from a real Prometheus."""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import httpx
import pytest

from llog.telemetry.families import FAMILIES, sample_names
from llog.telemetry.metrics import CONTENT_TYPE
from llog.testing.servers import PrometheusServer
from tests.patience import PATIENCE_SECONDS
from tests.servers import started
from tests.system.dashboard import ALERTS, ROOT, alert_rules, dashboard_queries
from tests.system.metered_cluster import SCENARIO, MeteredCluster
from tests.unit.telemetry.metric_pages import both_tell, samples_of

pytestmark = pytest.mark.slow


class Unmet(NamedTuple):
    """A family that no healthy cluster on one machine counts, and the test that shows it counted."""

    reason: str
    shown_by: str


NOT_HERE: Final = {
    "llog_kafka_handler_failures_total": Unmet(
        "only a bug in a handler",
        "tests/unit/kafka/net/test_connection.py::test_a_failing_handler_ends_its_connection_only",
    ),
    "llog_batching_listener_failures_total": Unmet(
        "only a bug in the tail cache", "tests/unit/broker/test_batching.py::test_a_cache_that_fails_changes_no_answer"
    ),
    "llog_append_uncertain_total": Unmet(
        "an embedded store answers every call",
        "tests/contract/log_suite.py::test_producer_state_decides_an_append_that_the_index_no_longer_shows",
    ),
    "llog_append_resolved_total": Unmet(
        "an embedded store answers every call",
        "tests/contract/log_suite.py::test_producer_state_decides_an_append_that_the_index_no_longer_shows",
    ),
    "llog_append_settles_total": Unmet(
        "an atomic store writes index entries with the commit",
        "tests/unit/log/append/test_settle_later.py::test_a_busy_log_is_left_alone",
    ),
    "llog_append_cleared_total": Unmet(
        "an atomic store leaves nothing pending",
        "tests/unit/log/append/test_settle_later.py::test_an_idle_log_is_cleared_by_a_timer_that_then_ends",
    ),
    "llog_append_yields_total": Unmet(
        "takes a writer that wins many times in a row, by chance",
        "tests/unit/log/append/test_fairness.py::test_a_writer_alone_on_its_log_yields_only_on_trial_and_ever_more_seldom",
    ),
    "llog_log_read_restarts_total": Unmet(
        "takes an object that goes between the index and the read of it",
        "tests/unit/broker/test_consume.py::test_a_missing_object_means_stale_metadata",
    ),
    "llog_compaction_pending_runs": Unmet(
        "takes a service that died at work",
        "tests/unit/compactor/test_service_chores.py::test_a_run_that_a_dead_compactor_left_is_resumed",
    ),
    "llog_compaction_pending_appends": Unmet(
        "takes a writer that died at work, on a store without transactions",
        "tests/unit/compactor/test_service_chores.py::test_an_append_that_a_dead_writer_left_is_shown_and_settled",
    ),
    "llog_recovery_events_total": Unmet(
        "takes a process that died at work",
        "tests/unit/compactor/test_service_chores.py::test_a_run_that_a_dead_compactor_left_is_resumed",
    ),
    "llog_metadata_sessions_lost_total": Unmet(
        "takes a process that was held for longer than its session lasts",
        "tests/unit/metadata/test_metered.py::test_a_lost_session_is_counted_and_its_owner_is_notified",
    ),
    "llog_s3_billing_list_failures_total": Unmet(
        "takes a store that fails when it is listed, which is every five minutes",
        "tests/unit/telemetry/test_billing.py::test_a_listing_that_fails_leaves_the_last_figures_and_is_counted",
    ),
    "llog_authorization_refusals_total": Unmet(
        "takes a cluster with access control lists",
        "tests/unit/telemetry/test_metrics.py::test_refused_principals_and_failed_authentications_are_counted",
    ),
    "llog_authentication_failures_total": Unmet(
        "takes a listener with SASL",
        "tests/unit/telemetry/test_metrics.py::test_refused_principals_and_failed_authentications_are_counted",
    ),
    "llog_metrics_overflow_total": Unmet(
        "takes more routes and fields than there are",
        "tests/unit/telemetry/test_metrics.py::test_invented_routes_and_fields_cannot_grow_the_page",
    ),
}
BY_CHANCE: Final = {
    "llog_compactor_workers_busy": "a visit may be over between two looks at the page",
    "llog_batch_buffered_bytes": "a flush may be over between two looks at the page",
    "llog_batch_buffered_requests": "a flush may be over between two looks at the page",
    "llog_clock_skew_seconds": "the stores of one machine may have one clock",
    "llog_compaction_lag_bytes": "a log may be compacted between two looks at the page",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredCluster]:
    with MeteredCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.wait_until_all_happened()
        yield cluster


# -- the pages ------------------------------------------------------------------------------------------------------


def test_every_family_is_counted_by_running_processes(cluster: MeteredCluster) -> None:
    silent = {row.name for row in FAMILIES if not any(cluster.largest(name) for name in sample_names(row))}
    assert not silent - NOT_HERE.keys() - BY_CHANCE.keys(), "exported, and never counted"


def test_every_exception_names_an_existing_family_and_an_existing_test() -> None:
    names = {row.name for row in FAMILIES}
    assert names >= NOT_HERE.keys() | BY_CHANCE.keys()
    for name, unmet in NOT_HERE.items():
        path, _, function = unmet.shown_by.partition("::")
        assert re.search(rf"def {function}\b", (ROOT / path).read_text()), f"{name}: {unmet.shown_by} is gone"


def test_whatever_is_exported_is_in_the_reference(cluster: MeteredCluster) -> None:
    reference = (ROOT / "docs/reference/metrics.md").read_text()
    known = {name for row in FAMILIES for name in sample_names(row)}
    exported = {name for name, _ in cluster.seen}
    assert exported == known, "each process shows families of the table, and together they show all"
    for row in FAMILIES:
        assert f"| `{row.name}` | {row.kind} |" in reference


@pytest.mark.parametrize("process", ["broker", "compactor"])
def test_both_pages_of_a_process_show_the_same_numbers(cluster: MeteredCluster, process: str) -> None:
    """Numbers move meanwhile: a counter lies between its values before and after. A gauge may come and go
    between two looks, but not at every look."""
    looks: list[set[str]] = []
    with httpx.Client(base_url=cluster.urls[process], timeout=PATIENCE_SECONDS) as client:
        while len(looks) < 5 and (not looks or looks[-1]):
            looks.append(_gauges_that_differ(client))
    assert not set.intersection(*looks)


def _gauges_that_differ(client: httpx.Client) -> set[str]:
    pages = [client.get(path) for path in ("/metrics/prometheus", "/metrics", "/metrics/prometheus")]
    assert [page.headers["content-type"] for page in pages] == [CONTENT_TYPE, "application/json", CONTENT_TYPE]
    earlier, later = samples_of(pages[0].text), samples_of(pages[2].text)
    compared, differently = 0, set[str]()
    for (row, shown, before), (_, _, after) in zip(
        both_tell(pages[1].json(), earlier), both_tell(pages[1].json(), later), strict=True
    ):
        assert before.keys() <= shown.keys() <= after.keys() or row.kind == "gauge", row.name
        for key, value in shown.items():
            low, high = before.get(key, 0.0), after.get(key, math.inf)
            same = low - 1e-9 <= value <= high + 1e-9
            compared += 1
            if row.kind == "gauge":
                differently |= {row.name} if low == high and not same else set()
            else:
                assert same, (row.name, key)
    assert compared > 200
    return differently


def test_the_pages_show_the_work_done(cluster: MeteredCluster) -> None:
    with httpx.Client(timeout=PATIENCE_SECONDS) as client:
        broker, compactor = (client.get(f"{cluster.urls[name]}/metrics").json() for name in ("broker", "compactor"))
    for page in (broker, compactor):
        assert page["loadtest"] == {
            "scenario": SCENARIO["name"], "run_id": SCENARIO["run_id"], "parameters": SCENARIO["parameters"],
        }  # fmt: skip
        assert page["metadata"]["store"] == "lmdb"
        assert page["s3"]["tiers"] == {"wal": {"store": "file"}, "objects": {"store": "file"}}
        assert page["s3"]["operations"]["list"]["requests"] > 0, "the listing behind the bill is on the bill"
        assert page["s3"]["billing"]["request_cost_usd"] > 0
        assert page["s3"]["billing"]["prices_usd"] == {
            "gb_month": 0.023, "per_1000_put_copy_post_list": 0.005, "per_10000_get_and_other": 0.004,
        }  # fmt: skip
    assert broker["log"]["append_records"] > broker["log"]["append_groups"] > 0
    assert broker["append"]["failures"]["LogFenced"] > 0
    assert broker["append"]["failures"]["AppendNotCommitted"] > 0
    assert broker["log"]["append_failures"] == sum(broker["append"]["failures"].values())
    assert broker["batching"]["flush_failures"] > 0
    assert broker["kafka"]["requests"]["Produce"]["NONE"] > 0
    assert {"NONE", "UNKNOWN_TOPIC_OR_PARTITION"} <= broker["kafka"]["requests"]["Fetch"].keys()
    assert {reason for reason, n in broker["kafka"]["refused"].items() if n} == {"size"}
    assert broker["kafka"]["handler_failures"] == 0
    assert broker["consume"]["append_to_consume_seconds"]["count"] > 0
    assert {"cache", "store", "empty"} == {source for source, n in broker["consume"]["requests"].items() if n}
    assert compactor["log"]["compact_runs"] > 0
    assert compactor["logs"]["fenced"] == 1
    assert compactor["http"]["requests"]["/metrics/prometheus"]["GET"]["200"] > 0


# -- a real Prometheus ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prometheus(cluster: MeteredCluster) -> Iterator[PrometheusServer]:
    targets = [url.removeprefix("http://") for url in cluster.urls.values()]
    yield from started(lambda: PrometheusServer(targets, rules=ALERTS))


def ask(prometheus: PrometheusServer, expression: str) -> list[float]:
    url = f"{prometheus.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        result = json.load(answer)["data"]["result"]
    return [float(row["value"][1]) for row in result]


@pytest.mark.server
def test_every_query_of_the_dashboard_brings_data(cluster: MeteredCluster, prometheus: PrometheusServer) -> None:
    # Only a page that Prometheus can read counts as up.
    scraped = 'count(sum_over_time(up{job="llog"}[1m]) >= 3)'
    cluster.wait_until("three scrapes of both", lambda: ask(prometheus, scraped) == [2.0])
    assert ask(prometheus, "count(llog_broker_info)") == [1.0]
    assert ask(prometheus, "count(llog_compactor_info)") == [1.0]

    def empty() -> list[str]:
        return [
            f"{title}: {expression}"
            for title, expression in dashboard_queries()
            if not any(map(math.isfinite, ask(prometheus, expression)))
        ]

    # A rate is a number once its series has grown under Prometheus' eyes: the rarest thing is a compaction.
    deadline: list[str] = []

    def all_bring_data() -> bool:
        deadline[:] = empty()
        return not deadline

    try:
        cluster.wait_until("data for every query", all_bring_data, seconds=45)
    except AssertionError:
        raise AssertionError(deadline) from None


@pytest.mark.server
def test_the_alert_rules_are_loaded_and_healthy(cluster: MeteredCluster, prometheus: PrometheusServer) -> None:
    def rules() -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{prometheus.url}/api/v1/rules", timeout=PATIENCE_SECONDS) as answer:
            groups = json.load(answer)["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    cluster.wait_until("evaluation", lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert {rule["name"]: rule["health"] for rule in rules()} == dict.fromkeys(alert_rules(), "ok")
    # What really is wrong with this cluster is on its way to fire; its clocks, for one, are right.
    cluster.wait_until(
        "the fenced log noticed",
        lambda: {rule["name"]: rule["state"] for rule in rules()}["LlogFencedLogs"] == "pending",
    )
    states = {rule["name"]: rule["state"] for rule in rules()}
    assert states["LlogClockSkew"] == states["LlogCompactionLag"] == states["LlogVacuumRefusing"] == "inactive"


@pytest.mark.server
def test_each_metric_of_an_alert_is_there_where_it_should_be(prometheus: PrometheusServer) -> None:
    """Names alone prove little: a matcher that fits no series would keep an alert silent for ever."""
    for expression in alert_rules().values():
        for selector in re.findall(r"\b(llog_\w+(?:\{[^}]*\})?)", expression):
            if "{" not in selector or 'kind=~"timeout' in selector or 'outcome=~"throttled' in selector:
                selector = selector.partition("{")[0]  # errors that this cluster does not have
            assert ask(prometheus, selector), f"{selector} fits no series of a running cluster"
