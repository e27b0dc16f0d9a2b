"""Three tiers by commands alone: fresh bytes on a local disk, segments and backups in the object store, and the disk
lost. What an operator would type, in that order; each step is observed from the outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from llog.log.keys import WAL_PREFIX
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.system.broker_process import run_llog

GRACE_MS: Final = 10_000
RECORDS: Final = [f"record {number}" for number in range(100)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # some twenty processes, one after the other


class Operator:
    def __init__(self, root: Path) -> None:
        self.disk, self.far = root / "disk", root / "far"
        self.settings = {
            "LLOG_METADATA_URL": f"lmdb://{self.disk}/metadata",
            "LLOG_WAL_URL": f"file://{self.disk}/wal",
            "LLOG_OBJECTS_URL": f"file://{self.far}",
            "LLOG_WAL_GRACE_MS": f"{GRACE_MS}ms",
            "LLOG_COMPACTOR_MIN_AGE_MS": "0",
        }

    def __call__(self, *arguments: str, stdin: str | None = None, code: int = 0) -> str:
        done = run_llog(*arguments, settings=self.settings, standard_input=stdin)
        assert done.returncode == code, f"llog {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        return json.loads(self(*arguments, "--json", stdin=stdin))

    def blobs(self) -> list[Path]:
        return [path for path in (self.disk / "wal" / "llog" / WAL_PREFIX).rglob("*") if path.is_file()]


@pytest.fixture
def llog(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


def test_records_leave_the_disk_and_outlive_it(llog: Operator) -> None:
    landed = llog.json("produce", "orders", stdin="\n".join(RECORDS))
    assert (landed["start_offset"], landed["end_offset"]) == (1, len(RECORDS))
    assert len(llog.blobs()) == 1, "it is acknowledged on the local disk"
    entry = llog.json("log", "describe", "orders", "0", "--entries", "1")["entries"][0]
    assert entry["data_key"].startswith(f"file://{llog.disk}/wal/")

    assert llog.json("compact", "orders:0")["logs"][0]["outcome"] == "compacted"
    [segment] = llog.json("segments", "list", "orders")
    assert segment["data_key"].startswith(f"file://{llog.far}/"), "compaction carries it to the object store"
    assert llog("consume", "orders").splitlines() == RECORDS

    wait_until(
        lambda: llog.json("vacuum", "--dry-run")["blobs_deleted"] == 1,
        "a blob older than the grace",
        seconds=GRACE_MS / 1_000 + PATIENCE_SECONDS,
        pause_seconds=1,
    )
    assert len(llog.blobs()) == 1, "a rehearsal deletes nothing"
    assert "without an answer" in llog("vacuum", stdin="", code=1)
    assert len(llog.blobs()) == 1
    assert llog.json("vacuum", "--yes")["blobs_deleted"] == 1
    assert llog.blobs() == [], "what was moved is gone from the local disk"
    assert llog("consume", "orders").splitlines() == RECORDS

    backup = llog.json("meta", "backup", llog.settings["LLOG_OBJECTS_URL"])["backup"]
    assert [one["backup"] for one in llog.json("meta", "backups")] == [backup]

    shutil.rmtree(llog.disk)
    for command in (("broker",), ("compactor",), ("produce", "orders")):
        assert "llog meta restore" in llog(*command, stdin="lost\n", code=4), "an empty disk is no new cluster"
    assert "WRONG" in json.dumps(_doctor(llog)["findings"])

    rehearsed = llog.json("meta", "restore", backup, "--dry-run")
    assert (rehearsed["dry_run"], rehearsed["logs"]) == (True, 1)
    llog("meta", "restore", backup, stdin="n\n", code=1)
    assert llog.json("meta", "restore", backup, "--yes")["dry_run"] is False
    assert llog.json("log", "check", "--deep")["ok"]
    assert llog("consume", "orders").splitlines() == RECORDS
    assert llog.json("meta", "release-vacuum")["released"] is not None
    again = llog.json("produce", "orders", stdin="afterwards\n")
    assert again["start_offset"] > len(RECORDS)
    assert llog("consume", "orders").splitlines() == [*RECORDS, "afterwards"]


def _doctor(llog: Operator) -> Any:
    return json.loads(run_llog("doctor", "--json", settings=llog.settings).stdout)
