"""`llog segments …`"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llog import LeaderlessLogWriter, SharedAppendGroup
from llog.cli.exits import NOT_FOUND
from tests.unit.cli.feeding import FedCluster


@pytest.fixture
def cluster(tmp_path: Path) -> FedCluster:
    cluster = FedCluster(tmp_path)
    for _ in range(3):
        cluster.write(2)
        assert cluster.run("compact", "orders:0").exit_code == 0
    return cluster


def listed(cluster: FedCluster, *more: str) -> list[dict[str, object]]:
    documents: list[dict[str, object]] = json.loads(cluster.run("segments", "list", "orders", *more, "--json").stdout)
    return documents


def test_segments_are_listed_by_offset_with_their_state(cluster: FedCluster) -> None:
    found = listed(cluster)
    assert [(s["partition"], s["start_offset"], s["end_offset"]) for s in found] == [(0, 1, 4), (0, 5, 8), (0, 9, 12)]
    assert {s["state"] for s in found} == {"COPY_SEGMENT_FINISHED"}
    assert all(s["referenced"] for s in found)
    assert listed(cluster, "1") == listed(cluster, "--epoch", "9") == []
    table = cluster.run("segments", "list", "orders")
    assert table.exit_code == 0
    assert all(str(s["segment_id"]) in table.stdout for s in found)


def test_after_a_merge_sources_are_shown_as_being_deleted(cluster: FedCluster) -> None:
    assert cluster.run("compact", "orders:0", "--merge").exit_code == 0
    states = {(s["start_offset"], s["end_offset"]): (s["state"], s["referenced"]) for s in listed(cluster)}
    assert states[1, 12] == ("COPY_SEGMENT_FINISHED", True)
    assert states[1, 4] == ("DELETE_SEGMENT_STARTED", False)


def test_the_segment_of_an_offset_is_found_and_described(cluster: FedCluster) -> None:
    found = json.loads(cluster.run("segments", "find", "orders", "0", "7", "--json").stdout)
    assert (found["start_offset"], found["end_offset"], found["epoch"]) == (5, 8, 0)
    done = cluster.run("segments", "find", "orders", "0", "7", "--epoch", "0").stdout
    assert found["segment_id"] in done
    assert found["data_key"] in done
    described = cluster.run("segments", "describe", "orders", "0", found["segment_id"])
    assert "5 … 8" in described.stdout
    again = json.loads(cluster.run("segments", "describe", "orders", "0", found["segment_id"], "--json").stdout)
    assert again == {key: value for key, value in found.items() if key != "epoch"}


@pytest.mark.parametrize(
    "words",
    [
        ("find", "orders", "0", "13"),
        ("find", "orders", "0", "7", "--epoch", "1"),
        ("describe", "orders", "0", "018bcfe5687b7000800000000000abcd"),
        ("list", "missing"),
        ("size", "orders", "7"),
        ("deletion", "missing"),
    ],
)
def test_what_does_not_exist_has_an_exit_code_of_its_own(cluster: FedCluster, words: tuple[str, ...]) -> None:
    done = cluster.run("segments", *words)
    assert done.exit_code == NOT_FOUND
    assert done.stdout == ""
    assert done.stderr.startswith("llog: ")


def test_size_is_shown_by_partition(cluster: FedCluster) -> None:
    sizes = json.loads(cluster.run("segments", "size", "orders", "--json").stdout)
    assert [(s["partition"], s["segments"]) for s in sizes] == [(0, 3), (1, 0)]
    assert (
        sizes[0]["size_bytes"]
        == sizes[0]["referenced_bytes"]
        == sum(int(str(s["size_bytes"])) for s in listed(cluster))
    )
    assert sizes[0]["highest_offsets"] == {"0": 12}
    assert f"{sizes[0]['size_bytes']:,}" in cluster.run("segments", "size", "orders").stdout


def test_a_deletion_is_shown_partition_by_partition(cluster: FedCluster) -> None:
    assert json.loads(cluster.run("segments", "deletion", "orders", "--json").stdout)["partitions"] == [None, None]
    assert cluster.run("topic", "delete", "orders", "--yes").exit_code == 0
    done = json.loads(cluster.run("segments", "deletion", "orders", "--json").stdout)
    assert (done["state"], done["done"]) == ("DELETED", True)
    assert "DELETE_PARTITION_FINISHED" in cluster.run("segments", "deletion", "orders").stdout


def test_a_timestamp_that_is_no_date_is_shown_as_the_number_it_is(cluster: FedCluster) -> None:
    any_time = f"message.timestamp.after.max.ms={2**63 - 1}"
    assert cluster.run("topic", "create", "far", "--config", any_time).exit_code == 0
    with LeaderlessLogWriter(cluster.settings) as writer:
        writer.append_shared([SharedAppendGroup("far", 0, [b"x"], timestamps_ms=[2**63 - 1])])
        writer.append_shared([SharedAppendGroup("first", 0, [b"x"], timestamps_ms=[0])])
    for topic, shown in (("far", f"{2**63 - 1} ms"), ("first", "1970-01-01T00:00:00.000+00:00")):
        assert cluster.run("compact", f"{topic}:0").exit_code == 0
        [segment] = json.loads(cluster.run("segments", "list", topic, "--json").stdout)
        assert shown in cluster.run("segments", "describe", topic, "0", segment["segment_id"]).stdout
        assert cluster.run("segments", "list", topic).exit_code == 0
