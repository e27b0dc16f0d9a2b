"""`llog delete-records` and `llog vacuum`"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from llog.cli.exits import NOT_FOUND
from tests.unit.cli.feeding import FedCluster


@pytest.fixture
def cluster(tmp_path: Path) -> FedCluster:
    cluster = FedCluster(tmp_path)
    cluster.write(6)
    return cluster


# -- delete records --------------------------------------------------------------------------------------------------


def test_records_go_only_when_agreed_to(cluster: FedCluster) -> None:
    dry = json.loads(cluster.run("delete-records", "orders", "0", "5", "--dry-run", "--json").stdout)
    assert (dry["offsets"], dry["log_start_offset"]) == (4, 5)
    refused = cluster.run("delete-records", "orders", "0", "5", stdin="n\n")
    assert refused.exit_code == 1
    assert "4 offsets of orders:0: 1 … 4" in refused.stderr
    assert cluster.run("consume", "orders", "-p", "0", "-f", "%o,").stdout.startswith("1,2,")
    done = cluster.run("delete-records", "orders", "0", "5", stdin="y\n")
    assert done.exit_code == 0, done.output
    assert "now begins at 5" in done.stdout
    assert cluster.run("consume", "orders", "-p", "0", "-f", "%o,").stdout.startswith("5,6,")
    assert cluster.run("consume", "orders", "-p", "1", "-f", "%o,").stdout.startswith("1,2,")


def test_minus_one_empties_a_log_and_its_offsets_go_on(cluster: FedCluster) -> None:
    done = cluster.run("delete-records", "orders", "0", "-1", "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["log_start_offset"] == 13
    assert cluster.run("consume", "orders", "-p", "0").stdout == ""
    cluster.run("produce", "orders", "-p", "0", stdin=b"next\n")
    assert cluster.run("consume", "orders", "-p", "0", "-f", "%o").stdout == "13"


def test_an_offset_that_is_not_there_is_refused(cluster: FedCluster) -> None:
    done = cluster.run("delete-records", "orders", "0", "99", "--yes")
    assert done.exit_code == 1
    assert "99" in done.stderr
    assert cluster.run("delete-records", "orders", "7", "1", "--yes").exit_code == NOT_FOUND
    assert cluster.run("delete-records", "orders", "0", "1", "--yse").exit_code == 2


# -- vacuum ----------------------------------------------------------------------------------------------------------


def test_what_is_young_is_left_alone(cluster: FedCluster) -> None:
    for partition in ("0", "1"):
        assert cluster.run("delete-records", "orders", partition, "-1", "--yes").exit_code == 0
    done = cluster.run("vacuum", "--yes", "--json")
    assert json.loads(done.stdout)["blobs_deleted"] == 0
    assert len(cluster.blobs()) == 6


def test_vacuum_takes_what_nothing_names_and_a_dry_run_only_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FedCluster(tmp_path)
    two_hours_ago_ns = time.time_ns() - 2 * 3_600 * 10**9
    with monkeypatch.context() as earlier:
        earlier.setattr(time, "time_ns", lambda: two_hours_ago_ns)
        cluster.write(2)
    for blob in cluster.blobs():
        os.utime(blob, ns=(two_hours_ago_ns, two_hours_ago_ns))
    for partition in ("0", "1"):
        assert cluster.run("delete-records", "orders", partition, "-1", "--yes").exit_code == 0
    dry = cluster.run("vacuum", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "2 blobs and 0 segments would be deleted" in dry.stdout
    assert all(f"file://{blob}" in dry.stdout.splitlines() for blob in cluster.blobs())
    assert len(cluster.blobs()) == 2
    assert json.loads(cluster.run("vacuum", "--yes", "--json").stdout)["blobs_deleted"] == 2
    assert cluster.blobs() == []


def test_vacuum_asks_first(cluster: FedCluster) -> None:
    refused = cluster.run("vacuum", stdin="n\n")
    assert refused.exit_code == 1
    assert "Delete unreferenced objects in file://" in refused.stderr
    done = cluster.run("vacuum", "--yes")
    assert done.exit_code == 0, done.output
    assert "blobs" in done.stdout
