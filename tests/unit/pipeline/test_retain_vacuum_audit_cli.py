"""`llog pipeline retain`, `vacuum` and `audit`: what they ask, print and end with. (In this process, without Spark.)"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from llog.cli.exits import FAILED, NOT_FOUND, USAGE
from llog.log.keys import Keys, Log
from llog.wiring import opened_log
from tests.unit.cli.feeding import FedCluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FedCluster:
    """Two partitions, six blobs, all of them two hours old."""
    cluster = FedCluster(tmp_path)
    then_ns = time.time_ns() - 2 * 3_600 * 10**9
    with monkeypatch.context() as earlier:
        earlier.setattr(time, "time_ns", lambda: then_ns)
        cluster.write(6)
    for blob in cluster.blobs():
        os.utime(blob, ns=(then_ns, then_ns))
    return cluster


def test_retention_goes_only_when_agreed_to(cluster: FedCluster) -> None:
    assert cluster.run("topic", "alter", "orders", "--config", "retention.bytes=0").exit_code == 0
    dry = cluster.run("pipeline", "retain", "--dry-run", "--json")
    assert dry.exit_code == 0, dry.output
    planned = json.loads(dry.stdout)
    assert (planned["dry_run"], planned["entries_removed"]) == (True, 12)
    refused = cluster.run("pipeline", "retain", "orders", stdin="n\n")
    assert refused.exit_code == FAILED
    assert "Delete the records beyond retention in orders?" in refused.stderr
    assert cluster.run("consume", "orders", "-p", "0", "-f", "%o,").stdout.startswith("1,2,")
    done = cluster.run("pipeline", "retain", "orders:0", "--yes")
    assert done.exit_code == 0, done.output
    assert "orders:0" in done.stdout
    assert "orders:1" not in done.stdout
    assert cluster.run("consume", "orders", "-p", "0", "-f", "%o,").stdout == ""
    assert cluster.run("consume", "orders", "-p", "1", "-f", "%o,").stdout.startswith("1,2,")
    assert cluster.run("pipeline", "retain", "nobody", "--yes").exit_code == NOT_FOUND
    assert cluster.run("pipeline", "retain", "orders:x", "--yes").exit_code == USAGE


def test_vacuum_asks_lists_and_deletes(cluster: FedCluster) -> None:
    for partition in ("0", "1"):
        assert cluster.run("delete-records", "orders", partition, "-1", "--yes").exit_code == 0
    refused = cluster.run("pipeline", "vacuum", "--in-process", stdin="n\n")
    assert refused.exit_code == FAILED
    assert "Delete unreferenced objects in file://" in refused.stderr
    dry = cluster.run("pipeline", "vacuum", "--in-process", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "6 blobs and 0 segments would be deleted" in dry.stdout
    assert len(cluster.blobs()) == 6
    report = json.loads(cluster.run("pipeline", "vacuum", "--in-process", "--yes", "--json").stdout)
    assert (report["blobs_deleted"], report["dry_run"], len(report["names"])) == (6, False, 6)
    assert [swept["deleted"] for swept in report["places"].values()] == [6]
    assert cluster.blobs() == []


def test_a_dry_vacuum_leaves_every_object_as_it_is_and_adds_none(cluster: FedCluster) -> None:
    for partition in ("0", "1"):
        assert cluster.run("delete-records", "orders", partition, "-1", "--yes").exit_code == 0
    root = Path(cluster.settings.objects_url.removeprefix("file://"))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert cluster.run("pipeline", "vacuum", "--in-process", "--dry-run").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.parametrize("command", [("vacuum",), ("pipeline", "vacuum", "--in-process")])
def test_a_vacuum_that_met_a_record_it_cannot_read_says_so_in_the_end(
    cluster: FedCluster, command: tuple[str, ...]
) -> None:
    for partition in ("0", "1"):
        assert cluster.run("delete-records", "orders", partition, "-1", "--yes").exit_code == 0
    key = Keys().index_entry(Log("orders", 0), 7)

    async def damage() -> None:
        async with opened_log(cluster.settings) as stores:
            await stores.context.metadata.put(key, b"{}")

    asyncio.run(damage())
    done = cluster.run(*command, "--yes")
    assert done.exit_code == FAILED, done.output
    assert key.path in done.stderr
    assert "0 blobs and 0 segments deleted" in done.stdout
    assert "6 kept: a record that may reference them cannot be read" in done.stdout
    told = cluster.run(*command, "--yes", "--json")
    report = json.loads(told.stdout)
    assert (told.exit_code, report["unreadable_count"], report["kept_unread"]) == (FAILED, 1, 6)


def test_an_audits_exit_code_says_clean_or_not(cluster: FedCluster) -> None:
    clean = cluster.run("pipeline", "audit", "--in-process")
    assert clean.exit_code == 0, clean.output
    assert "clean: 0 damaged, 0 leftovers" in clean.stdout
    blob = cluster.blobs()[0]
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)
    assert cluster.run("pipeline", "audit", "--in-process", "--fast").exit_code == 0
    found = cluster.run("pipeline", "audit", "--in-process")
    assert found.exit_code == FAILED
    assert "checksum" in found.stdout
    assert "NOT CLEAN: 1 damaged" in found.stdout
    assert found.stdout.count(blob.name) == 1, "in the column of objects, and nowhere else"
    assert "checksum: restore the object from a copy" in found.stdout
    document = json.loads(cluster.run("pipeline", "audit", "orders", "--in-process", "--json").stdout)
    assert (document["clean"], document["complete"], len(document["findings"])) == (False, True, 1)
    [finding] = document["findings"]
    assert blob.name in finding["object"]
    assert cluster.run("pipeline", "audit", "nobody", "--in-process").exit_code == NOT_FOUND


def test_leftovers_are_listed_and_count_when_asked(cluster: FedCluster) -> None:
    for partition in ("0", "1"):
        assert cluster.run("delete-records", "orders", partition, "-1", "--yes").exit_code == 0
    listed = cluster.run("pipeline", "audit", "--in-process")
    assert listed.exit_code == 0, listed.output
    assert "orphan: `llog vacuum` removes it" in listed.stdout
    assert "2.0 h old" in listed.stdout
    assert "clean: 0 damaged, 6 leftovers" in listed.stdout
    assert cluster.run("pipeline", "audit", "--in-process", "--strict").exit_code == FAILED


def test_before_there_is_a_cluster_there_is_nothing_to_do(tmp_path: Path) -> None:
    fresh = FedCluster(tmp_path)
    assert fresh.run("pipeline", "audit", "--in-process").exit_code == 0
    assert fresh.run("pipeline", "vacuum", "--in-process", "--dry-run").exit_code == 0
    assert fresh.run("pipeline", "retain", "--dry-run").stdout == "nothing to do\n"


def test_stores_of_another_cluster_are_never_clean(cluster: FedCluster, tmp_path: Path) -> None:
    words = ("pipeline", "audit", "--in-process", "--metadata-url", f"lmdb://{tmp_path}/empty")
    found = cluster.run(*words)
    assert found.exit_code == FAILED
    assert "store of others" in found.stdout
    assert "stores of one cluster" in found.stdout
    assert "orphan" not in found.stdout


def test_retention_takes_the_options_of_the_other_jobs(cluster: FedCluster) -> None:
    done = cluster.run("pipeline", "retain", "--dry-run", "--in-process", "--master", "local[2]")
    assert (done.exit_code, done.stdout) == (0, "nothing to do\n")
