"""The jobs as functions, on a session of the caller's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llog import LeaderlessLogWriter, SharedAppendGroup
from llog.settings import Settings
from llog.spark import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _written(directory: Path) -> Settings:
    settings = Settings.from_env({}, data_dir=directory)
    with LeaderlessLogWriter(settings) as writer:
        for number in range(3):
            writer.append_shared([SharedAppendGroup("orders", 0, [f"{number}"], keys=["a"])])
    return settings


def test_jobs_run_on_the_session_that_they_are_given_and_leave_it_running(spark: SparkSession, tmp_path: Path) -> None:
    settings = _written(tmp_path / "data")
    compacted = jobs.compact(spark=spark, settings=settings)
    assert (compacted.count("compacted"), compacted.tasks) == (1, 1)
    alone = jobs.compact(in_process=True, settings=_written(tmp_path / "alone"))
    assert compacted.object_requests == alone.object_requests, "tasks in Spark count as those in this process"
    assert compacted.object_requests["put"] == 1
    assert jobs.export("orders", f"parquet:{tmp_path}/out", spark=spark, settings=settings).records == 3
    assert jobs.audit(spark=spark, settings=settings).clean
    assert spark.read.parquet(f"{tmp_path}/out/orders").count() == 3, "the session is still there"
