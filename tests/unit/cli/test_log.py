"""`llog log …`"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llog.cli.exits import NOT_FOUND
from tests.unit.cli.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    cluster.write(6, compact=True)
    return cluster


def test_a_log_is_described_for_people_and_for_programs(cluster: Cluster) -> None:
    done = cluster.run("log", "describe", "orders", "0", "--entries", "3")
    assert done.exit_code == 0, done.output
    assert "1 … 12, next 13" in done.stdout
    assert "COMPACTED" in done.stdout
    document = json.loads(cluster.run("log", "describe", "orders", "0", "--json").stdout)
    assert (document["next_offset"], document["cursor"], document["log_state"]) == (13, 7, "OPEN")
    assert document["index"]["compacted_by_level"] == {"1": 1}
    assert document["entries"] == []


def test_a_log_that_is_not_there_fails_with_words(cluster: Cluster) -> None:
    for command in (("describe", "missing", "0"), ("check", "missing"), ("check", "orders", "7")):
        done = cluster.run("log", *command)
        assert done.exit_code == NOT_FOUND
        assert done.stdout == ""
        assert command[1] in done.stderr
    assert cluster.run("log", "describe", "no/topic", "0").exit_code == 2


def test_a_sound_cluster_passes_every_check(cluster: Cluster) -> None:
    for arguments in ((), ("orders",), ("orders", "1"), ("--deep",)):
        done = cluster.run("log", "check", *arguments)
        assert done.exit_code == 0, done.output
        assert "FAULTS" not in done.stdout
    document = json.loads(cluster.run("log", "check", "--json").stdout)
    assert document["ok"] is True
    assert [(log["topic"], log["partition"]) for log in document["logs"]] == [("orders", 0), ("orders", 1)]


def test_a_missing_blob_is_found_and_ends_with_code_1(cluster: Cluster) -> None:
    cluster.blobs()[-1].unlink()
    done = cluster.run("log", "check")
    assert done.exit_code == 1
    # (Which two offsets it held, its name does not tell: within a millisecond names have no order.)
    assert re.search(r"orders:0: I8 missing object at \d+ … \d+", done.stderr)
    document = json.loads(cluster.run("log", "check", "orders", "1", "--json").stdout)
    assert document["ok"] is False
    assert document["logs"][0]["faults"][0]["kind"] == "missing object"


def test_a_flipped_bit_is_found_by_a_deep_check(cluster: Cluster) -> None:
    blob = cluster.blobs()[-1]
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.chmod(0o600)
    blob.write_bytes(bytes(data))
    assert cluster.run("log", "check").exit_code == 0
    assert cluster.run("log", "check", "--deep").exit_code == 1
