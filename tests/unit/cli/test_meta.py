"""`llog meta …`"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    cluster.write(4, compact=True)
    return cluster


def test_a_key_is_shown_with_its_meaning_and_without_the_root(cluster: Cluster) -> None:
    for key in ("llog/orders/partitions/0/meta/control", "orders/partitions/0/meta/control"):
        document = json.loads(cluster.run("meta", "show", key, "--json").stdout)
        assert (document["kind"], document["value"]["sequence_counter"]) == ("control", 9)
    done = cluster.run("meta", "show", "@topics/orders")
    assert done.exit_code == 0
    assert "topic, version" in done.stdout
    assert '"partition_count": 2' in done.stdout
    missing = cluster.run("meta", "show", "@topics/missing")
    assert (missing.exit_code, missing.stdout) == (5, "")


def test_keys_are_listed_with_and_without_values(cluster: Cluster) -> None:
    done = cluster.run("meta", "scan")
    assert done.exit_code == 0
    assert "llog/@topics/orders" in done.stdout
    keys = json.loads(cluster.run("meta", "scan", "orders/partitions/0/index", "--json").stdout)
    assert {key["kind"] for key in keys} == {"index_entry"}
    assert all(key["value"] is None for key in keys)
    [first, *_] = json.loads(cluster.run("meta", "scan", "@topics", "--values", "--json").stdout)
    assert first["value"]["state"] == "LIVE"
    limited = cluster.run("meta", "scan", "--limit", "2", "--json")
    assert len(json.loads(limited.stdout)) == 2
    assert "more than 2" in limited.stderr


def test_metadata_is_backed_up_to_a_file_and_restored_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.backup")
    done = cluster.run("meta", "backup", path)
    assert done.exit_code == 0, done.output
    assert "2 logs" in done.stdout
    assert cluster.run("meta", "backup", path).exit_code == 2, "a file is never overwritten"
    other = f"lmdb://{tmp_path}/other"
    tried = cluster.run("meta", "restore", path, "--dry-run", metadata=other)
    assert tried.exit_code == 0, tried.output
    assert "4 newer blobs; nothing was changed" in tried.stdout
    assert json.loads(cluster.run("meta", "scan", "--json", metadata=other).stdout) == []
    done = cluster.run("meta", "restore", path, "--yes", metadata=other)
    assert done.exit_code == 0, done.output
    assert "vacuum is held" in done.stdout
    assert cluster.run("log", "check", "--deep", metadata=other).exit_code == 0
    before, after = (
        json.loads(cluster.run("log", "describe", "orders", "0", "--json", metadata=url).stdout)
        for url in (None, other)
    )
    assert (before["next_offset"], before["index"]["valid"]) == (after["next_offset"], after["index"]["valid"])
    released = cluster.run("meta", "release-vacuum", metadata=other)
    assert "restored from backup" in released.stdout
    assert "not held" in cluster.run("meta", "release-vacuum", metadata=other).stdout
    again = cluster.run("meta", "restore", path, "--yes", metadata=other)
    assert again.exit_code == 1
    assert "not empty" in again.stderr


def test_metadata_is_backed_up_to_a_store_listed_and_recovered_from(cluster: Cluster, tmp_path: Path) -> None:
    document = json.loads(cluster.run("meta", "backup", cluster.settings.objects_url, "--json").stdout)
    where = document["backup"]
    assert where.startswith(f"{cluster.settings.objects_url}/llog/@backup/")
    [listed] = json.loads(cluster.run("meta", "backups", "--json").stdout)
    assert listed["backup"] == where
    assert where in cluster.run("meta", "backups", cluster.settings.objects_url).stdout
    cluster.write(2)
    other = f"lmdb://{tmp_path}/other"
    listing = cluster.run("meta", "restore", where, "--yes", metadata=other)
    assert listing.exit_code == 0, listing.output
    assert listing.stdout.count("found: orders:") == 4
    assert "with --recover" in listing.stdout
    recovered = json.loads(cluster.run("meta", "restore", where, "--recover", "--yes", "--json", metadata=other).stdout)
    assert {one["outcome"] for one in recovered["slices"]} == {"appended"}
    assert recovered["resumed"] is True
    after = json.loads(cluster.run("log", "describe", "orders", "1", "--json", metadata=other).stdout)
    assert after["next_offset"] == 13
    assert cluster.run("log", "check", "--deep", metadata=other).exit_code == 0


def test_a_restore_asks_first_and_takes_only_a_backup(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "metadata.backup"
    cluster.run("meta", "backup", str(path))
    other = f"lmdb://{tmp_path}/other"
    assert cluster.run("meta", "restore", str(path), metadata=other).exit_code == 1, "the question was not answered"
    path.write_bytes(path.read_bytes()[:-1])
    cut = cluster.run("meta", "restore", str(path), "--yes", metadata=other)
    assert cut.exit_code == 1
    assert "incomplete" in cut.stderr
    assert json.loads(cluster.run("meta", "scan", "--json", metadata=other).stdout) == []
    store = cluster.run("meta", "restore", cluster.settings.objects_url, "--yes", metadata=other)
    assert store.exit_code == 2
    assert "is not the URL of a backup" in store.stderr
