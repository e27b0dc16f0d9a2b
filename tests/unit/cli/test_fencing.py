"""`llog fence` and `llog unfence`"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llog.cli.exits import NOT_FOUND, USAGE
from tests.unit.cli.feeding import FedCluster


@pytest.fixture
def cluster(tmp_path: Path) -> FedCluster:
    cluster = FedCluster(tmp_path)
    cluster.write(1)
    return cluster


def test_a_log_is_closed_and_opened_and_its_neighbour_stays_open(cluster: FedCluster) -> None:
    closed = json.loads(cluster.run("fence", "orders", "0", "--reason", "migration", "--json").stdout)
    assert (closed["log_state"], closed["fence_reason"]) == ("FENCED", "migration")
    assert cluster.run("produce", "orders", "-p", "0", stdin=b"x\n").exit_code == 1
    assert cluster.run("produce", "orders", "-p", "1", stdin=b"x\n").exit_code == 0
    opened = cluster.run("unfence", "orders", "0")
    assert opened.exit_code == 0
    assert "orders:0 is OPEN" in opened.stdout
    assert cluster.run("produce", "orders", "-p", "0", stdin=b"x\n").exit_code == 0


def test_closing_twice_changes_nothing(cluster: FedCluster) -> None:
    first = json.loads(cluster.run("fence", "orders", "0", "--json").stdout)
    second = json.loads(cluster.run("fence", "orders", "0", "--reason", "other", "--json").stdout)
    assert first == second


def test_an_old_epoch_does_not_close_a_log_that_was_opened_since(cluster: FedCluster) -> None:
    before = json.loads(cluster.run("unfence", "orders", "0", "--json").stdout)["epoch"]
    cluster.run("fence", "orders", "0")
    cluster.run("unfence", "orders", "0")
    again = cluster.run("fence", "orders", "0", "--expected-epoch", str(before), "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)["log_state"] == "OPEN"
    assert f"--expected-epoch {before + 2}" in again.stderr
    assert cluster.run("produce", "orders", "-p", "0", stdin=b"x\n").exit_code == 0


def test_a_log_that_is_not_there_ends_with_a_code_of_its_own(cluster: FedCluster) -> None:
    for command in ("fence", "unfence"):
        done = cluster.run(command, "missing", "0")
        assert done.exit_code == NOT_FOUND
        assert "missing" in done.stderr
        assert cluster.run(command, "no/topic", "0").exit_code == 2


@pytest.mark.parametrize("reason", ["x" * 1_001, b"\xff".decode(errors="surrogateescape")])
def test_a_reason_that_no_control_record_should_hold_is_refused(cluster: FedCluster, reason: str) -> None:
    refused = cluster.run("fence", "orders", "0", "--reason", reason)
    assert refused.exit_code == USAGE
    assert "--reason" in refused.stderr
    assert cluster.run("fence", "orders", "0", "--reason", "ü" * 1_000).exit_code == 0
