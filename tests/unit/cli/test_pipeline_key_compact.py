"""`llog pipeline key-compact`, in process: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from llog.cli.exits import FAILED, NOT_FOUND, OK, USAGE
from llog.wiring import Use, opened_log
from tests.unit.cli.cluster import Cluster
from tests.unit.cli.feeding import FedCluster
from tests.unit.pipeline.key_compact.key_stage import LOG, Row, Stage, at_a_time


async def _fill(cluster: Cluster) -> None:
    async with opened_log(cluster.settings, blobs=Use.PUT, segments=Use.PUT) as opened:
        context = at_a_time(opened.context, opened.context.now_ms())
        stage = await Stage.open({"delete.retention.ms": "0"}, context=context)
        await stage.write(Row(b"a", b"1"), Row(b"a", b"2"), Row(b"b", None))
        await stage.compact()


async def _records(cluster: Cluster) -> list[bytes | None]:
    async with opened_log(cluster.settings) as opened:
        stage = Stage(opened.context, [0], None, log=LOG)  # type: ignore[arg-type]
        return [record.payload for record in await stage.read()]


def test_a_dry_run_tells_and_the_real_one_does(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    asyncio.run(_fill(cluster))
    dry = cluster.run("pipeline", "key-compact", "--in-process", "--dry-run", "--json")
    assert dry.exit_code == OK
    [done] = json.loads(dry.stdout)["logs"]
    assert (done["state"], done["superseded"], done["tombstones"]) == ("compacted", 1, 1)
    assert asyncio.run(_records(cluster)) == [b"1", b"2", None]
    assert "to be compacted" in cluster.run("pipeline", "key-compact", "--in-process", "--dry-run").stdout
    real = cluster.run("pipeline", "key-compact", "prices:0", "--in-process", "--mb-per-second", "0")
    assert real.exit_code == OK
    assert "prices:0" in real.stdout
    assert asyncio.run(_records(cluster)) == [b"2"]
    again = json.loads(cluster.run("pipeline", "key-compact", "--in-process", "--json").stdout)
    assert again["object_requests"]["get"] == 1
    assert again["logs"] == [{**again["logs"][0], "state": "clean", "clean_until": 4}]
    assert not again["dry_run"]


def test_a_log_that_could_not_be_done_is_told_and_ends_with_1(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    asyncio.run(_fill(cluster))
    [segment] = [path for path in (tmp_path / "objects").rglob("compacted/*") if path.is_file()]
    segment.write_bytes(segment.read_bytes()[:-40])
    ended = cluster.run("pipeline", "key-compact", "--in-process")
    assert ended.exit_code == FAILED
    assert "prices:0" in ended.stderr


def test_what_is_asked_wrongly_is_refused_by_name(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    asyncio.run(_fill(cluster))
    assert cluster.run("pipeline", "key-compact", "nowhere", "--in-process").exit_code == NOT_FOUND
    assert cluster.run("pipeline", "key-compact", "prices:x", "--in-process").exit_code == USAGE
    assert cluster.run("pipeline", "key-compact", "--mb-per-second", "-1").exit_code == USAGE


def test_offsets_that_are_still_in_blobs_are_reported_as_skipped(tmp_path: Path) -> None:
    cluster = FedCluster(tmp_path)
    asyncio.run(_fill(cluster))
    assert "shared blobs" not in cluster.run("pipeline", "key-compact", "--in-process").stderr
    assert cluster.run("produce", "prices", "-p", "0", "-K", ":", stdin="a:3\nb:4\n").exit_code == OK
    done = cluster.run("pipeline", "key-compact", "--in-process")
    assert "2 offsets of 1 logs are still in shared blobs" in done.stderr
    assert "run `llog pipeline compact` first" in done.stderr
