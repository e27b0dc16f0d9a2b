"""The dashboard and the alert rules: every name is exported, and each alert fires for what it is about and not
otherwise. `test_metrics_running` asks a real Prometheus for the data."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from llog import errors
from llog.broker.produce.pool import MemoryPool
from llog.broker.produce.producer import BatchingProducer
from llog.compactor.chores import Chores
from llog.compactor.claims import Claims
from llog.compactor.service import CompactorService
from llog.errors import AppendNotCommitted, LogError, ObjectStoreUnavailable, VacuumRefused
from llog.log.append.append import Appender
from llog.log.fence import fence
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import Buffer
from llog.telemetry.families import APPEND_REFUSALS, APPEND_TROUBLES, FAMILIES, sample_names
from llog.telemetry.metrics import BrokerMetrics
from llog.testing.servers import ServerUnavailable, prometheus_program
from tests.patience import PATIENCE_SECONDS
from tests.system.dashboard import ALERTS, DASHBOARD, alert_rules, dashboard_queries, panels
from tests.system.promql import metrics_in
from tests.unit.broker.batching_bench import group
from tests.unit.compactor.stage import ORDERS, Cluster, ScriptedJobs, Writer
from tests.unit.telemetry.metric_pages import Series, samples_of

EXPORTED: Final = {name for row in FAMILIES for name in sample_names(row)}
MINUTES: Final = 40


# -- names ----------------------------------------------------------------------------------------------------------


def test_the_parser_finds_metrics_and_nothing_else() -> None:
    assert metrics_in('sum by (le, a) (rate(x_bucket{b="c_d", e=~"f"}[5m])) / on (g) group_left (h) y_total > 1e9') == {
        "x_bucket",
        "y_total",
    }
    assert metrics_in("topk(10, max by (t) (lag)) unless sum without(i) (increase(j[6h])) > 0 or k offset 5m") == {
        "lag",
        "j",
        "k",
    }


def test_every_metric_on_the_dashboard_is_exported() -> None:
    for title, expression in dashboard_queries():
        names = metrics_in(expression)
        assert names, f"{title}: {expression} asks for no metric"
        assert names <= EXPORTED, f"{title} asks for {names - EXPORTED}, which is not exported"
    [definition] = re.findall(r'"definition": "label_values\((\w+), instance\)"', DASHBOARD.read_text())
    assert definition in EXPORTED


def test_every_family_is_on_the_dashboard() -> None:
    shown = set().union(*(metrics_in(expression) for _, expression in dashboard_queries()))
    missing = [row.name for row in FAMILIES if not shown & set(sample_names(row))]
    assert not missing


def test_every_metric_in_an_alert_is_exported() -> None:
    rules = alert_rules()
    assert len(rules) == ALERTS.read_text().count("- alert:"), "an expression stands on the line behind its alert"
    for name, expression in rules.items():
        assert metrics_in(expression) <= EXPORTED, name
    about = " ".join(rules.values())
    for wanted in ("append_failures", "compaction_lag", "fenced", "clock_skew", "refused"):
        assert wanted in about


def test_every_error_of_an_append_is_either_the_producers_fault_or_an_alert() -> None:
    [named] = re.findall(r'error!~"([^"]+)"', alert_rules()["LlogCommitFailures"])
    assert tuple(named.split("|")) == APPEND_REFUSALS
    others = {"OffsetOutOfRange", "RecordsLost", "CompactionFailed", "SegmentNotFound"}
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, LogError)}
    assert kinds - {"LogError"} == {*APPEND_REFUSALS, *APPEND_TROUBLES} | others, "of an append, or of something else?"


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert {"uid", "title", "schemaVersion", "templating", "time", "panels"} <= set(dashboard)
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identities)) == len(identities)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & cells, f"{panel['title']} lies on another panel"
        taken |= cells
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)


# -- the rules, by Prometheus' own tool -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return prometheus_program().with_name("promtool")
    except ServerUnavailable as reason:
        pytest.skip(str(reason))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


@pytest.mark.server
def test_promtool_finds_nothing_wrong_with_the_rules(promtool: Path) -> None:
    checked = run(str(promtool), "check", "rules", "--lint=all", "--lint-fatal", str(ALERTS))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(alert_rules())} rules found" in checked.stdout


@pytest.mark.server
def test_each_alert_fires_for_what_it_is_about_and_not_otherwise(promtool: Path, tmp_path: Path) -> None:
    checked = run_rules(promtool, tmp_path, alert_tests())
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_series_of_these_tests_are_such_as_the_product_exports() -> None:
    """An alert that fires for a made-up series proves nothing."""
    labels = {name: set(row.labels) for row in FAMILIES for name in sample_names(row)}
    for test in alert_tests():
        for series in test["input_series"]:
            name, _, matchers = series["series"].partition("{")
            assert set(re.findall(r"(\w+)=", matchers)) <= labels[name], series


# -- problems as the metrics show them, a step a minute ----------------------------------------------------------------

Trouble = Callable[[BrokerMetrics, Cluster], AsyncIterator[None]]


class AwayStore(MemoryObjectStore):
    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        raise ObjectStoreUnavailable("put", name, "away")


async def commits_fail(metrics: BrokerMetrics, cluster: Cluster) -> AsyncIterator[None]:
    context = replace(cluster.open(), wal=AwayStore(cluster.wal.url))
    producer = BatchingProducer(
        Appender(context), max_bytes=1 << 20, max_delay_ms=0, pool=MemoryPool(1 << 20), metrics=metrics,
        now_ms=lambda: float(cluster.clock.now), sleep=asyncio.sleep,
    )  # fmt: skip
    while True:
        [outcome] = await producer.append([group(ORDERS, b"x")])
        assert isinstance(outcome, AppendNotCommitted)
        yield


@asynccontextmanager
async def service(metrics: BrokerMetrics, cluster: Cluster) -> AsyncIterator[ScriptedJobs]:
    context = cluster.open()
    runner = ScriptedJobs(context)
    seldom = {"compactor_discovery_interval_ms": 20_000, "compactor_idle_sleep_ms": 20_000}
    settings = cluster.settings(compactor_min_age_ms=0, compactor_error_sleep_ms=20_000, **seldom)
    there = CompactorService(context, settings, metrics, jobs=runner)
    await there.start()
    try:
        yield runner
    finally:
        await there.stop(timeout_ms=0)


async def compaction_fails(metrics: BrokerMetrics, cluster: Cluster) -> AsyncIterator[None]:
    await Writer(cluster.open()).append(ORDERS)
    async with service(metrics, cluster) as runner:
        runner.failing[ORDERS] = ObjectStoreUnavailable("put", "segment", "away")
        while True:
            await cluster.clock.advance(60_000)
            yield


async def a_log_is_fenced(metrics: BrokerMetrics, cluster: Cluster) -> AsyncIterator[None]:
    await Writer(cluster.open()).append(ORDERS)
    await fence(cluster.open(), ORDERS)
    async with service(metrics, cluster):
        while True:
            await cluster.clock.advance(60_000)
            yield


def chores(metrics: BrokerMetrics, cluster: Cluster) -> tuple[Chores, ScriptedJobs]:
    context = cluster.open()
    runner = ScriptedJobs(context)
    claims = Claims(context, metrics, compactor_id="one", session_timeout_ms=10_000)
    return Chores(context, cluster.settings(), claims=claims, jobs=runner, metrics=metrics), runner


async def clocks_differ(metrics: BrokerMetrics, cluster: Cluster) -> AsyncIterator[None]:
    cluster.backing.clock_ms = lambda: cluster.clock.now + 60_000
    compared, _ = chores(metrics, cluster)
    while True:
        await compared.compare_clocks()
        yield


async def vacuum_refuses(metrics: BrokerMetrics, cluster: Cluster) -> AsyncIterator[None]:
    yield  # Prometheus has seen the process before
    vacuuming, runner = chores(metrics, cluster)
    runner.refusal = VacuumRefused("clocks differ")
    while True:
        with pytest.raises(VacuumRefused):
            await vacuuming.vacuum()
        yield


TROUBLES: Final[dict[str, Trouble]] = {
    "LlogCommitFailures": commits_fail,
    "LlogCompactionLag": compaction_fails,
    "LlogCompactionFailing": compaction_fails,
    "LlogFencedLogs": a_log_is_fenced,
    "LlogClockSkew": clocks_differ,
    "LlogVacuumRefusing": vacuum_refuses,
}


@pytest.mark.server
async def test_what_the_pages_show_while_things_go_wrong_sets_the_alerts_off(promtool: Path, tmp_path: Path) -> None:
    """The series are not made up: they are the pages that the product's own parts fill, read once a minute."""
    tests = []
    for name, trouble in TROUBLES.items():
        cluster, pages, names = Cluster(), [], metrics_in(alert_rules()[name])
        metrics = BrokerMetrics(cluster.clock.now_ms)
        async with aclosing(trouble(metrics, cluster)) as steps:  # type: ignore[type-var]
            async for _ in steps:
                shown = metrics.prometheus().decode().splitlines(keepends=True)
                pages.append(samples_of("".join(line for line in shown if line.startswith(tuple(names)))))
                if len(pages) == MINUTES:
                    break
        tests.append(firing(name, series_of(pages, names), True))
    checked = run_rules(promtool, tmp_path, tests)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def series_of(pages: Sequence[Mapping[Series, float]], names: set[str]) -> list[tuple[str, str]]:
    """As promtool takes them: a value a minute, `_` where there was none."""
    answer = {series for page in pages for series in page if series[0] in names}
    found = []
    for name, labels in sorted(answer):
        selector = ",".join(f'{label}="{value}"' for label, value in labels)
        values = " ".join("_" if page.get((name, labels)) is None else repr(page[name, labels]) for page in pages)
        found.append((f"{name}{{{selector}}}" if labels else name, values))
    return found


# -- and by hand: what must set each off, and what must not -----------------------------------------------------------


def firing(name: str, series: Sequence[tuple[str, str]], fires: bool) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": selector, "values": values} for selector, values in series],
        "promql_expr_test": [
            {
                "expr": f'count(count by (alertname) (ALERTS{{alertname="{name}",alertstate="firing"}})) or vector(0)',
                "eval_time": f"{MINUTES - 2}m",
                "exp_samples": [{"labels": "{}", "value": int(fires)}],
            }
        ],
    }


def run_rules(promtool: Path, directory: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    test = directory / "rules_test.yml"
    # JSON is YAML too.
    test.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    return run(str(promtool), "test", "rules", str(test))


def alert_tests() -> list[dict[str, Any]]:
    """For each alert a series that must set it off, and one beside it that must not."""
    bad_and_good = {
        "LlogCommitFailures": (
            [('llog_append_failures_total{error="AppendUncertain"}', "0+60x60")],
            [
                ('llog_append_failures_total{error="AppendUncertain"}', "7x60"),
                *((f'llog_append_failures_total{{error="{error}"}}', "0+60x60") for error in APPEND_REFUSALS),
            ],
        ),
        "LlogMetadataStoreErrors": (
            [('llog_metadata_errors_total{kind="unavailable"}', "0+60x60")],
            [('llog_metadata_errors_total{kind="conflict"}', "0+60x60")],
        ),
        "LlogObjectStoreErrors": (
            [('llog_s3_calls_total{operation="put",outcome="throttled"}', "0+60x60")],
            [('llog_s3_calls_total{operation="put",outcome="ok"}', "0+60x60")],
        ),
        "LlogBackPressure": (
            [("llog_batching_rejections_total", "0+1x60")],
            [("llog_batching_rejections_total", "9x60")],
        ),
        "LlogWalFilling": (
            [("llog_wal_bytes", "80x60"), ("llog_wal_max_bytes", "100x60")],
            [("llog_wal_bytes", "70x60"), ("llog_wal_max_bytes", "100x60")],
        ),
        "LlogCompactionLag": (
            [('llog_compaction_lag_seconds{topic="orders",partition="0"}', "0+60x60")],
            [('llog_compaction_lag_seconds{topic="orders",partition="0"}', "90x60")],
        ),
        "LlogCompactionFailing": (
            [('llog_compaction_runs_total{outcome="failed",kind="compact"}', "0+1x60")],
            [('llog_compaction_runs_total{outcome="busy",kind="compact"}', "0+1x60")],
        ),
        "LlogFencedLogs": ([("llog_fenced_logs", "1x60")], [("llog_fenced_logs", "0x60")]),
        "LlogClockSkew": ([("llog_clock_skew_seconds", "12x60")], [("llog_clock_skew_seconds", "0.3x60")]),
        "LlogVacuumRefusing": (
            [
                ('llog_vacuum_events_total{kind="refused"}', "0x10 1x50"),
                ('llog_vacuum_events_total{kind="run"}', "0x60"),
            ],
            [
                ('llog_vacuum_events_total{kind="refused"}', "0x10 1x50"),
                ('llog_vacuum_events_total{kind="run"}', "0x20 1x40"),
            ],
        ),
        "LlogSessionsLost": (
            [("llog_metadata_sessions_lost_total", "0+1x60")],
            [("llog_metadata_sessions_lost_total", "2x60")],
        ),
    }
    assert set(bad_and_good) == set(alert_rules())
    return [
        firing(name, series, fires)
        for name, cases in bad_and_good.items()
        for series, fires in zip(cases, (True, False), strict=True)
    ]
