from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from llog.cli.app import app
from llog.loadtest.scenario.read import shipped
from tests.unit.cost.test_live import page


def run(*arguments: str, **environ: str) -> Any:
    return CliRunner().invoke(app, ["cost", *arguments], env={"LLOG_HTTP_READ_TOKEN": None, **environ})


def document(*arguments: str, **environ: str) -> Any:
    done = run(*arguments, "--json", **environ)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_has_a_cost(name: str) -> None:
    found = document(name, "--records-per-second", "1000")
    assert found["source"] == name
    assert found["dollars_per_month"] > 0


def test_a_scenario_is_read_with_its_changes() -> None:
    found = document("blog-5-brokers", "--set", "stack.brokers=10")
    assert found["inputs"]["brokers"]["brokers"] == 10
    assert found["inputs"]["brokers"]["metadata_store"] == "separate"
    assert found["inputs"]["load"]["partitions_per_request"] == 2
    assert found["inputs"]["load"]["records_per_s"] == pytest.approx(100e6 / 1_024)


def test_an_option_overrides_the_scenario() -> None:
    found = document("smoke", "--delay-ms", "200", "--consumers-fanout", "3", "--input", "cold_reads=2")
    assert found["inputs"]["brokers"]["delay_ms"] == 200
    assert found["inputs"]["load"]["consumers_fanout"] == 3
    assert found["inputs"]["load"]["cold_reads"] == 2


def test_brokers_that_only_read_count_as_machines_not_as_writers() -> None:
    found = document("consume-split")["inputs"]
    assert (found["brokers"]["brokers"], found["brokers"]["readers"]) == (2, 2)
    assert found["load"]["tail_cache_share"] == 1
    split = document("consume-split", "--set", "stack.share_tail_cache=false")["inputs"]
    assert split["load"]["tail_cache_share"] == 0


def test_a_scenario_that_searches_its_rate_needs_one(tmp_path: Path) -> None:
    scenario = tmp_path / "search.yaml"
    scenario.write_text("{name: search, load: {search: {}}}")
    refused = run(str(scenario))
    assert refused.exit_code == 2
    assert "--records-per-second" in refused.output
    assert document(str(scenario), "--records-per-second", "500")["inputs"]["load"]["records_per_s"] == 500


def test_the_text_names_machines_as_not_counted_and_compares_with_kafka() -> None:
    text = run("--brokers", "5", "--records-per-second", "100000", "--record-bytes", "1000").output
    assert "not counted" in text
    assert "transfer between 3 zones" in text
    assert "$17.88 an hour" in text


def test_explain_shows_every_figure_item_input_and_price() -> None:
    arguments = ("--brokers", "5", "--records-per-second", "100000")
    found, text = document(*arguments), run(*arguments, "--explain").output
    for part in found["inputs"].values():
        for name in part:
            assert f"  {name}=" in text
    for name in found["prices"]:
        assert f"  {name}=" in text
    for line in (*found["figures"], *found["items"], found["kafka"]):
        assert line["formula"] in text


def test_local_stores_are_priced_as_if_they_were_s3_and_the_text_says_so() -> None:
    assert "nobody bills these requests" in run("smoke").output
    assert "nobody bills these requests" not in run("blog-1-broker").output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--set", "stack.brokers=1"), "name one"),
        (("--brokers", "0"), "brokers"),
        (("--input", "speed=1"), "speed"),
        (("--input", "cold_reads=often"), "cold_reads"),
        (("--price", "put"), "put"),
        (("--kafka-zones", "0"), "kafka_zones"),
        (("--live", "http://127.0.0.1:1", "smoke"), "no scenario"),
        (("no-such-scenario",), "no such scenario"),
    ],
)
def test_wrong_arguments_end_with_exit_code_2_and_name_what_is_wrong(arguments: tuple[str, ...], reason: str) -> None:
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert reason in refused.output
    assert refused.stdout == ""


class _Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.headers.get("authorization") != "Bearer secret":
            self.send_response(401)
            self.end_headers()
            return
        server: Any = self.server
        server.readings += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(page(10.0 * server.readings)).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metrics_url() -> Iterator[str]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Metrics)
    server.readings = 0
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_live_reads_pages_with_the_read_token(metrics_url: str) -> None:
    found = document("--live", metrics_url, "--window", "0.05", LLOG_HTTP_READ_TOKEN="secret")
    assert found["source"] == metrics_url
    assert found["inputs"] is None
    assert next(figure["value"] for figure in found["figures"] if figure["name"] == "produced") > 0


def test_a_refused_token_names_its_variable_and_never_shows_it(metrics_url: str) -> None:
    refused = run("--live", metrics_url, "--window", "0.05", LLOG_HTTP_READ_TOKEN="wrong-token")
    assert refused.exit_code == 2
    assert "LLOG_HTTP_READ_TOKEN" in refused.output
    assert "wrong-token" not in refused.output


COST_PAGE = (Path(__file__).parents[3] / "docs" / "cost.md").read_text()


@pytest.mark.parametrize("line", re.findall(r"^llog cost .*$", COST_PAGE, re.MULTILINE))
def test_the_examples_of_the_cost_page_run(line: str) -> None:
    done = run(*shlex.split(line)[2:])
    assert done.exit_code == 0, done.output


def test_the_worked_example_of_the_cost_page_gives_its_table() -> None:
    [line] = re.findall(r"^llog cost --brokers 10 .*$", COST_PAGE, re.MULTILINE)
    found = {figure["name"]: figure["value"] for figure in document(*shlex.split(line)[2:])["figures"]}
    for when in ("before", "after"):
        [(objects, keys)] = re.findall(rf"^\| {when} compaction \| (\S+) \| (\S+) \|$", COST_PAGE, re.MULTILINE)
        assert found[f"objects {when} compaction"] == pytest.approx(int(objects.replace(",", "")))
        assert found[f"index keys {when} compaction"] == pytest.approx(int(keys.replace(",", "")))
