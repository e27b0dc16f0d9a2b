from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from llog.errors import StackFailed
from llog.loadtest.artifacts import BrokerPlace, CompactorPlace, StackRecord
from llog.loadtest.review import grafana, prometheus
from llog.loadtest.review.engine import find_engine, variables
from llog.loadtest.review.review import preferred_port
from llog.loadtest.review.targets import target_groups, write_targets

STACK = StackRecord(
    "20260131T000000Z-smoke",
    "up",
    "smoke",
    1,
    brokers=(BrokerPlace(0, "broker-0", "both", "http://127.0.0.1:18080", "127.0.0.1", 19092),),
    compactors=(CompactorPlace(0, "http://127.0.0.1:18090"),),
)


def test_every_broker_and_compactor_is_a_target_with_its_name(tmp_path: Path) -> None:
    write_targets(tmp_path / "targets.json", target_groups(STACK))
    groups = json.loads((tmp_path / "targets.json").read_text())
    assert [(group["targets"], group["labels"]["process"]) for group in groups] == [
        (["127.0.0.1:18080"], "broker-0"),
        (["127.0.0.1:18090"], "compactor-0"),
    ]
    assert {group["labels"]["run_id"] for group in groups} == {STACK.run_id}


def test_targets_are_replaced_whole_and_cleared_by_an_empty_list(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    write_targets(path, target_groups(STACK))
    before = path.stat().st_ino
    write_targets(path, [])
    assert json.loads(path.read_text()) == []
    assert path.stat().st_ino != before, "a new file took the place of the old one"
    assert list(tmp_path.iterdir()) == [path], "no scratch file is left"


def test_prometheus_listens_on_the_loopback_address_and_reads_the_targets(tmp_path: Path) -> None:
    command = prometheus.command(Path("prometheus"), tmp_path / "c.yml", tmp_path, 9090)
    assert "--web.listen-address=127.0.0.1:9090" in command
    [scrape] = prometheus.configuration(tmp_path / "targets.json", None)["scrape_configs"]
    assert scrape["metrics_path"] == "/metrics/prometheus"
    assert scrape["file_sd_configs"][0]["files"] == [str(tmp_path / "targets.json")]


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_processes_that_prometheus_shows_are_read_from_its_answer() -> None:
    found = {"metric": {"instance": "127.0.0.1:18080"}, "value": [1.0, "1"]}
    with answering(json.dumps({"status": "success", "data": {"result": [found]}}).encode()) as url:
        assert prometheus.shown_instances(url, "run") == {"127.0.0.1:18080"}


def test_another_server_at_its_port_is_an_error_and_none_is_asked_again() -> None:
    with answering(b"<html>") as url, pytest.raises(StackFailed, match="not that of Prometheus"):
        prometheus.shown_instances(url, "run")
    assert prometheus.shown_instances("http://127.0.0.1:9", "run") == set()


def test_grafana_gets_the_data_source_and_the_dashboard_of_the_repository(tmp_path: Path) -> None:
    dashboard = Path(__file__).parents[3] / "grafana" / "leaderless-log-observability.json"
    grafana.write_provisioning(tmp_path, dashboard, "http://127.0.0.1:9090")
    sources = json.loads((tmp_path / "datasources" / "llog.yaml").read_text())
    assert sources["datasources"][0]["url"] == "http://127.0.0.1:9090"
    provider = json.loads((tmp_path / "dashboards" / "llog.yaml").read_text())["providers"][0]
    copied = Path(provider["options"]["path"]) / dashboard.name
    assert json.loads(copied.read_text())["uid"] == grafana.DASHBOARD_UID
    assert grafana.settings(tmp_path, tmp_path, 3000)["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize(("name", "words"), [("grafana", ["server"]), ("grafana-server", [])])
def test_both_programs_of_grafana_are_started_with_their_home(tmp_path: Path, name: str, words: list[str]) -> None:
    program = tmp_path / "bin" / name
    program.parent.mkdir()
    program.touch()
    (tmp_path / "public").mkdir()
    assert grafana.command(program) == [str(program), *words, f"--homepath={tmp_path}"]


def engine_program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_an_engine_counts_only_if_its_daemon_answers_and_it_knows_compose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine_program(tmp_path, "docker", "exit 1")
    engine_program(tmp_path, "podman", '[ "$1" = info ]')
    compose = tmp_path / "review.yaml"
    assert find_engine(compose, STACK.run_id, ("docker", "podman")) is None
    engine_program(tmp_path, "podman", f'echo "$@" >> {tmp_path}/calls')
    engine = find_engine(compose, STACK.run_id, ("docker", "podman"))
    assert engine is not None
    project = f"llog-review-{STACK.run_id.lower()}"
    assert engine.up("grafana")[1:6] == ["compose", "-f", str(compose), "-p", project]
    engine.end({"PATH": "/usr/bin:/bin"})
    assert (tmp_path / "calls").read_text().splitlines()[-1].startswith(f"compose -f {compose} -p {project} down")


def test_the_compose_file_gets_every_variable_that_it_asks_for(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "deploy" / "review.yaml").read_text()
    given = variables(tmp_path, {"prometheus": 9090, "grafana": 3000})
    asked = {word.split("}")[0] for word in text.split("${")[1:]}
    assert asked == set(given)


def test_a_taken_port_is_replaced() -> None:
    with answering(b"") as url:
        taken = int(url.rpartition(":")[2])
        assert preferred_port(taken) != taken
