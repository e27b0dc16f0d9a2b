"""`llog offsets` and `llog group …`"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llog.cli.exits import NOT_FOUND
from tests.unit.cli.feeding import FedCluster


@pytest.fixture
def cluster(tmp_path: Path) -> FedCluster:
    cluster = FedCluster(tmp_path)
    cluster.write(3)
    return cluster


def test_a_topic_shows_where_its_logs_begin_and_end(cluster: FedCluster) -> None:
    cluster.run("delete-records", "orders", "1", "3", "--yes")
    found = json.loads(cluster.run("offsets", "orders", "--json").stdout)
    assert [(one["partition"], one["log_start_offset"], one["next_offset"]) for one in found] == [(0, 1, 7), (1, 3, 7)]
    done = cluster.run("offsets", "orders", "-p", "1")
    assert done.exit_code == 0
    assert "orders:1" in done.stdout
    assert "orders:0" not in done.stdout


def test_offsets_are_found_by_timestamp(cluster: FedCluster) -> None:
    [first] = json.loads(cluster.run("offsets", "orders", "-p", "0", "--timestamp-ms", "0", "--json").stdout)
    assert first["since"]["offset"] == 1
    [none] = json.loads(cluster.run("offsets", "orders", "-p", "0", "--timestamp-ms", str(2**50), "--json").stdout)
    assert none["since"] is None
    assert "none" in cluster.run("offsets", "orders", "--timestamp-ms", str(2**50)).stdout


def test_the_former_spelling_is_answered_with_the_new_one(cluster: FedCluster) -> None:
    for former in (("group", "readers"), ("group", "readers", "commit", "--topic", "orders", "--to", "1")):
        done = cluster.run("offsets", *former)
        assert done.exit_code == 2
        assert "`llog group" in done.stderr
    assert "`llog offsets" in cluster.run("offsets", "topic", "orders").stderr


def test_a_topic_may_be_called_group(cluster: FedCluster) -> None:
    cluster.run("topic", "create", "group")
    [one] = json.loads(cluster.run("offsets", "group", "--json").stdout)
    assert one["topic"] == "group"


def test_a_position_is_shown_with_how_far_it_is_behind(cluster: FedCluster) -> None:
    empty = cluster.run("group", "describe", "readers")
    assert empty.exit_code == 0
    assert "no position" in empty.stdout
    done = cluster.run("group", "commit", "readers", "--topic", "orders", "--to", "-2", "--json")
    assert [(one["offset"], one["error"]) for one in json.loads(done.stdout)] == [(5, None), (5, None)]
    assert cluster.run("group", "commit", "readers", "-t", "orders", "-p", "0", "--to", "3").exit_code == 0
    positions = json.loads(cluster.run("group", "describe", "readers", "--json").stdout)
    assert [(one["partition"], one["offset"], one["behind"]) for one in positions] == [(0, 3, 4), (1, 5, 2)]
    [one] = json.loads(cluster.run("group", "describe", "readers", "-t", "orders", "-p", "1", "--json").stdout)
    assert one["partition"] == 1
    assert "orders:0" in cluster.run("group", "describe", "readers").stdout
    assert json.loads(cluster.run("group", "describe", "others", "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("offsets", "missing"), NOT_FOUND, "missing: no such topic"),
        (("offsets", "orders", "-p", "9"), NOT_FOUND, "the topic has 2 partitions"),
        (("group", "commit", "readers", "--to", "1"), 2, "--topic"),
        (("group", "commit", "readers", "-t", "orders"), 2, "--to"),
        (("group", "commit", "readers", "-t", "orders", "--to", "soon"), 2, "--to"),
        (("group", "commit", "readers", "-t", "missing", "--to", "1"), NOT_FOUND, "missing: no such topic"),
        (("group", "describe", "readers", "-p", "1"), 2, "needs --topic"),
        (("group", "remove", "readers"), 2, "remove"),
    ],
)
def test_the_error_names_what_is_wrong(cluster: FedCluster, arguments: tuple[str, ...], code: int, named: str) -> None:
    done = cluster.run(*arguments)
    assert done.exit_code == code
    assert done.stdout == ""
    assert named in done.stderr
