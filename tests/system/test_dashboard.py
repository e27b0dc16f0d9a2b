"""The dashboard and the alert rules: every name is exported, every query brings data from a real Prometheus, and each
alert fires for what it is about and not otherwise."""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llog.broker.metric_families import FAMILIES, sample_names
from llog.broker.metrics import CONTENT_TYPE
from llog.testing.servers import PrometheusServer, wait_until
from tests.servers import started
from tests.system.promql import metrics_in
from tests.unit.broker.metrics_activity import Activity

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "grafana/leaderless-log-observability.json"
ALERTS = ROOT / "grafana/alerts.yml"
EXPORTED = {name for row in FAMILIES for name in sample_names(row)}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def dashboard_queries() -> list[tuple[str, str]]:
    """Title and expression, with what Grafana fills in filled in."""
    variables = {"$instance": ".*", "$__rate_interval": "30s"}
    queries = []
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, text in variables.items():
                expression = expression.replace(variable, text)
            assert "$" not in expression, f"unknown variable in {expression}"
            queries.append((panel["title"], expression))
    return queries


def alert_rules() -> dict[str, str]:
    """Expressions by alert; each stands on one line."""
    return dict(re.findall(r"- alert: (\w+)\n +expr: (.+)\n", ALERTS.read_text()))


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
        assert names <= EXPORTED, f"{title} asks for {names - EXPORTED}, which nobody exports"
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


# -- with a real Prometheus -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scraped() -> Iterator[str]:
    """A page whose every counter has grown each time it is asked for."""
    loop = asyncio.new_event_loop()
    activity, one_at_a_time = Activity(), threading.Lock()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with one_at_a_time:
                loop.run_until_complete(activity.round())
                body = activity.metrics.prometheus()
            self.send_response(200)
            self.send_header("content-type", CONTENT_TYPE)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
    loop.close()


@pytest.fixture(scope="module")
def prometheus(scraped: str) -> Iterator[PrometheusServer]:
    yield from started(lambda: PrometheusServer([scraped], rules=ALERTS))


def ask(prometheus: PrometheusServer, expression: str) -> list[float]:
    url = f"{prometheus.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        result = json.load(answer)["data"]["result"]
    return [float(row["value"][1]) for row in result]


@pytest.mark.server
def test_every_query_of_the_dashboard_brings_data(prometheus: PrometheusServer) -> None:
    # Only a page that Prometheus can read counts as up.
    wait_until("three scrapes", lambda: ask(prometheus, 'sum_over_time(up{job="llog"}[1m]) >= 3') != [], 60)
    empty = [
        f"{title}: {expression}"
        for title, expression in dashboard_queries()
        if not any(map(math.isfinite, ask(prometheus, expression)))
    ]
    assert not empty


@pytest.mark.server
def test_the_rules_are_loaded_and_healthy(prometheus: PrometheusServer) -> None:
    def rules() -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{prometheus.url}/api/v1/rules", timeout=10) as answer:
            groups = json.load(answer)["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    wait_until("evaluation", lambda: all(rule["health"] != "unknown" for rule in rules()), 60)
    assert {rule["name"]: rule["health"] for rule in rules()} == dict.fromkeys(alert_rules(), "ok")


@pytest.mark.server
def test_each_alert_fires_for_what_it_is_about_and_not_otherwise(prometheus: PrometheusServer, tmp_path: Path) -> None:
    test = tmp_path / "alerts_test.yml"
    # JSON is YAML too.
    test.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": alert_tests()}))
    checked = subprocess.run(
        [str(prometheus.promtool), "test", "rules", str(test)], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def alert_tests() -> list[dict[str, Any]]:
    """For each alert a series that must set it off, and one beside it that must not."""
    bad_and_good = {
        "LlogCommitFailures": (
            [("llog_log_append_failures_total", "0+60x60"), ("llog_batching_flush_failures_total", "0x60")],
            [("llog_log_append_failures_total", "7x60"), ("llog_batching_flush_failures_total", "0x60")],
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
        "LlogCompactionLag": (
            [('llog_compaction_lag_bytes{topic="orders",partition="0"}', "2e9x60")],
            [('llog_compaction_lag_bytes{topic="orders",partition="0"}', "5e8x60")],
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
    tests = []
    for name, cases in bad_and_good.items():
        for series, fires in zip(cases, (True, False), strict=True):
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": selector, "values": values} for selector, values in series],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                            "eval_time": "58m",
                            "exp_samples": [{"labels": "{}", "value": int(fires)}],
                        }
                    ],
                }
            )
    return tests
