"""The jobs as functions, with their tasks in this process. (On a session: tests/spark/test_jobs.py.)"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from llog import LeaderlessLogWriter, SharedAppendGroup
from llog.errors import InvalidArgument, TopicNotFound
from llog.settings import Settings
from llog.spark import jobs


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Two topics, in shared blobs."""
    settings = Settings.from_env({}, data_dir=tmp_path / "data")
    with LeaderlessLogWriter(settings) as writer:
        for number in range(3):
            values = [f'{{"n": {number}}}', f'{{"n": {number + 10}}}']
            groups = [SharedAppendGroup(topic, 0, values, keys=["a", "b"]) for topic in ("orders", "visits")]
            writer.append_shared(groups)
    return settings


def test_every_job_is_a_function_that_returns_its_report(settings: Settings, tmp_path: Path) -> None:
    compacted = jobs.compact("orders", settings=settings, in_process=True)
    assert [(log.topic, log.outcome, log.offsets) for log in compacted.logs] == [("orders", "compacted", 6)]
    assert jobs.compact(settings=settings, in_process=True, merge=True).count("compacted") == 1, "the other topic"

    [cleaned] = jobs.key_compact("orders", settings=settings, in_process=True).logs
    assert cleaned.state == "not by key"
    assert jobs.retain("orders:0", settings=settings).failed == 0
    assert jobs.vacuum(settings=settings, in_process=True, dry_run=True).blobs_deleted == 0, "none is old enough"
    audited = jobs.audit(settings=settings, in_process=True)
    assert (audited.clean, audited.logs) == (True, 2)

    to, schema = f"parquet:{tmp_path}/out", '{"type": "object", "properties": {"n": {"type": "integer"}}}'
    exported = jobs.export("orders", to, decode="json", schema=schema, settings=settings, in_process=True)
    assert exported.records == 6
    assert jobs.export("orders", to, decode="json", schema=schema, settings=settings, in_process=True).records == 0
    found = duckdb.execute(f"select n from read_parquet('{tmp_path}/out/**/*.parquet') order by n").fetchall()
    assert found == [(0,), (1,), (2,), (10,), (11,), (12,)]


def test_spark_is_started_only_for_work(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from llog.spark.runner.tasks import SparkTasks

    class Started(Exception):
        pass

    async def start(*_: object, **__: object) -> SparkTasks:
        raise Started

    monkeypatch.setattr(SparkTasks, "start", start)
    with pytest.raises(Started):
        jobs.compact(settings=settings)
    jobs.compact(settings=settings, in_process=True)
    assert jobs.compact(settings=settings, merge=True).count("idle") == 2
    assert jobs.compact(settings=settings, min_age_ms=10**9).count("idle") == 2
    assert jobs.key_compact(settings=settings).logs == []
    with pytest.raises(Started):
        jobs.export("orders", f"parquet:{tmp_path}/out", settings=settings)
    jobs.export("orders", f"parquet:{tmp_path}/out", settings=settings, in_process=True)
    assert jobs.export("orders", f"parquet:{tmp_path}/out", settings=settings).records == 0


def test_a_session_that_could_not_be_is_refused_even_without_work(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from llog.spark.runner.on_demand import SparkOnDemand

    with pytest.raises(InvalidArgument, match="Spark master: 'nowhere' must be one of"):
        SparkOnDemand(Settings.from_env({}, data_dir=tmp_path), master="nowhere")
    with pytest.raises(InvalidArgument, match="memory://"):
        SparkOnDemand(Settings.from_env({}, metadata_url="memory://", objects_url="memory://x"))


def test_a_report_counts_the_requests_of_the_job(settings: Settings, tmp_path: Path) -> None:
    requests = jobs.compact(settings=settings, in_process=True).object_requests
    assert requests["put"] == 2, "a segment of each topic"
    assert sum(requests[name] for name in requests if "get" in name) == 4, "the cluster's id, and each blob once"
    exported = jobs.export("orders", f"parquet:{tmp_path}/out", settings=settings, in_process=True)
    assert exported.object_requests["put"] >= 1
    assert sum(jobs.audit(settings=settings, in_process=True).object_requests.values()) > 0
    assert jobs.vacuum(settings=settings, in_process=True, dry_run=True).object_requests["list"] >= 1


async def test_a_job_can_be_called_where_an_event_loop_runs_already(settings: Settings) -> None:
    """As in a cell of a notebook."""
    assert jobs.audit("visits", settings=settings, in_process=True, fast=True).clean


def test_stores_are_those_of_the_environment_where_no_settings_are_given(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLOG_DATA_DIR", str(settings.data_dir))
    assert jobs.compact("visits", in_process=True).count("compacted") == 1


def test_what_cannot_be_meant_is_refused_by_name(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(TopicNotFound, match="nowhere"):
        jobs.compact("nowhere", settings=settings, in_process=True)
    with pytest.raises(InvalidArgument, match=r"to.*parquet:URL"):
        jobs.export("orders", "csv:x", settings=settings, in_process=True)
    with pytest.raises(InvalidArgument, match=r"catalog.*parquet"):
        jobs.export("orders", f"parquet:{tmp_path}/out", catalog="sqlite:///x", settings=settings, in_process=True)
    with pytest.raises(InvalidArgument, match=r"decode.*avro-confluent"):
        jobs.export("orders", f"parquet:{tmp_path}/out", decode="xml", settings=settings, in_process=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="bytes_per_second"):
        jobs.key_compact(bytes_per_second=-1, settings=settings, in_process=True)
    assert not (tmp_path / "out").exists()
