"""`llog offsets …`"""

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
    told = cluster.run("offsets", "orders", "-p", "1")
    assert told.exit_code == 0
    assert "orders:1" in told.stdout
    assert "orders:0" not in told.stdout


def test_an_option_may_come_before_the_topic(cluster: FedCluster) -> None:
    assert len(json.loads(cluster.run("offsets", "--json", "orders").stdout)) == 2
    assert (
        cluster.run("offsets", "topic", "orders", "--json").stdout == cluster.run("offsets", "orders", "--json").stdout
    )


def test_offsets_are_found_by_timestamp(cluster: FedCluster) -> None:
    [first] = json.loads(cluster.run("offsets", "orders", "-p", "0", "--timestamp-ms", "0", "--json").stdout)
    assert first["since"]["offset"] == 1
    [none] = json.loads(cluster.run("offsets", "orders", "-p", "0", "--timestamp-ms", str(2**50), "--json").stdout)
    assert none["since"] is None
    assert "none" in cluster.run("offsets", "orders", "--timestamp-ms", str(2**50)).stdout


def test_a_topic_called_group_is_reached_by_the_long_form(cluster: FedCluster) -> None:
    cluster.run("topic", "create", "group")
    [one] = json.loads(cluster.run("offsets", "topic", "group", "--json").stdout)
    assert one["topic"] == "group"


def test_help_is_help_and_not_a_topic(cluster: FedCluster) -> None:
    for word in ("-h", "--help"):
        told = cluster.run("offsets", word)
        assert told.exit_code == 0
        assert "group" in told.stdout


def test_a_position_that_is_set_is_shown_with_how_far_it_is_behind(cluster: FedCluster) -> None:
    empty = cluster.run("offsets", "group", "readers")
    assert empty.exit_code == 0
    assert "no position" in empty.stdout
    set_ = cluster.run("offsets", "group", "readers", "commit", "--topic", "orders", "--to", "-2", "--json")
    assert [(one["offset"], one["error"]) for one in json.loads(set_.stdout)] == [(5, None), (5, None)]
    assert cluster.run("offsets", "group", "readers", "commit", "-t", "orders", "-p", "0", "--to", "3").exit_code == 0
    found = json.loads(cluster.run("offsets", "group", "readers", "fetch", "--json").stdout)
    assert [(one["partition"], one["offset"], one["behind"]) for one in found] == [(0, 3, 4), (1, 5, 2)]
    [one] = json.loads(cluster.run("offsets", "group", "readers", "-t", "orders", "-p", "1", "--json").stdout)
    assert one["partition"] == 1
    assert "orders:0" in cluster.run("offsets", "group", "readers").stdout
    assert json.loads(cluster.run("offsets", "group", "others", "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("nobody",), NOT_FOUND, "nobody: no such topic"),
        (("orders", "-p", "9"), NOT_FOUND, "the topic has 2 partitions"),
        (("group", "readers", "commit"), 2, "--topic"),
        (("group", "readers", "commit", "-t", "orders", "--to", "soon"), 2, "--to"),
        (("group", "readers", "commit", "-t", "nobody", "--to", "1"), NOT_FOUND, "nobody: no such topic"),
        (("group", "readers", "--to", "1"), 2, "is for commit"),
        (("group", "readers", "-p", "1"), 2, "needs --topic"),
        (("group", "readers", "remove"), 2, "remove"),
    ],
)
def test_what_is_wrong_is_named(cluster: FedCluster, arguments: tuple[str, ...], code: int, named: str) -> None:
    told = cluster.run("offsets", *arguments)
    assert told.exit_code == code
    assert told.stdout == ""
    assert named in told.stderr
