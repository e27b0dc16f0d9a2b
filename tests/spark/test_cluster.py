"""Executors in processes of their own, which know the stores by what is sent to them, and the metadata not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from llog.testing.servers import Minio, OxiaServer
from tests.servers import started
from tests.spark.cluster_stage import cluster_environment
from tests.spark.cluster_watch import EXECUTOR, notes, touches, watched
from tests.spark.clusters import LOCAL_CLUSTER, STANDALONE, environment_of

pytestmark = pytest.mark.spark
soak = pytest.mark.skipif(os.environ.get("LLOG_SOAK") != "1", reason="starts a cluster of two executors: LLOG_SOAK=1")
ROOT: Final = Path(__file__).parents[2]
started_once = contextmanager(started)
on_each_kind = pytest.mark.parametrize("kind", [LOCAL_CLUSTER, STANDALONE])


def facts_of(program: str, directory: Path, environ: Mapping[str, str], timeout_s: int = 280) -> dict[str, Any]:
    """What a program of this directory tells at its end. A process has one session, so each program has its own."""
    command = [sys.executable, "-m", f"tests.spark.{program}", str(directory)]
    ended = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    told = [line for line in ended.stdout.splitlines() if line.startswith("FACTS ")]
    # A JVM that cannot start says why before the reason, and one that ends says more behind it.
    before, traceback, reason = ended.stderr.rpartition("\nTraceback (most recent call last)")
    assert told, f"{ended.stdout[-2_000:]}\n{before[-3_000:]}{traceback}{reason[:6_000]}\n{ended.stderr[-2_000:]}"
    facts: dict[str, Any] = json.loads(told[0].removeprefix("FACTS "))
    return facts


@pytest.fixture
def servers(java: None) -> Iterator[dict[str, str]]:
    """Oxia and S3, as an environment for those programs."""
    with started_once(lambda: OxiaServer(shards=2, sync=False)) as oxia, started_once(Minio) as s3:
        yield cluster_environment(oxia, s3)


def test_the_watch_tells_a_drivers_import_from_an_executors_and_refuses_that(tmp_path: Path) -> None:
    environ = {**os.environ, **watched(tmp_path / "watch")}
    grandchild = "import importlib; importlib.import_module('lmdb')"
    child = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {grandchild!r}]))"
    as_driver = subprocess.run([sys.executable, "-c", child], env=environ, check=False)
    as_executor = [sys.executable, "-c", child, EXECUTOR.decode()]  # a parent with that word in its command line
    refused = subprocess.run(as_executor, env=environ, capture_output=True, text=True, check=False)
    assert (as_driver.returncode, refused.returncode) == (0, 1)
    assert "No module named 'lmdb' on this executor" in refused.stderr
    noted = {(note.name, note.executor is None) for note in touches(notes(tmp_path / "watch"))}
    assert {one for one in noted if one[0] == "lmdb"} == {("lmdb", True), ("lmdb", False)}


@soak
def test_executors_of_a_cluster_need_nothing_but_the_object_store(java: None, tmp_path: Path) -> None:
    facts = facts_of("cluster_program", tmp_path, {"PYTHONPATH": str(ROOT)})
    assert facts.pop("executors") >= 1
    assert facts == {"copied": ["1000"] * 8, "survived": [20, 21], "preloaded": True}


@soak
@pytest.mark.server
@pytest.mark.timeout(1_500)
@on_each_kind
def test_the_whole_pipeline_runs_on_a_cluster_whose_executors_never_touch_the_metadata(
    servers: dict[str, str], tmp_path: Path, kind: str
) -> None:
    environ = {**servers, **watched(tmp_path / "watch"), **environment_of(kind)}
    facts = facts_of("cluster_jobs", tmp_path, environ, timeout_s=1_400)
    assert max(facts["levels"]) >= 2
    assert facts["executors"] == 2
    assert facts["misuse"], "what would have been noticed"


@soak
@pytest.mark.server
@pytest.mark.timeout(800)
@on_each_kind
def test_an_executor_lost_in_the_middle_of_compaction_loses_nothing(
    servers: dict[str, str], tmp_path: Path, kind: str
) -> None:
    environ = {**servers, "PYTHONPATH": str(ROOT), **environment_of(kind)}
    facts = facts_of("cluster_loss", tmp_path, environ, timeout_s=700)
    assert facts["lost tasks"] >= 1, "it had nothing to do when it was killed"
    assert facts["published before"] >= 1
    assert facts["replaced"] is True
