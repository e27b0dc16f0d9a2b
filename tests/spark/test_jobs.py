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


def test_jobs_run_on_the_session_that_they_are_given_and_leave_it_running(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings.from_env({}, data_dir=tmp_path / "data")
    with LeaderlessLogWriter(settings) as writer:
        for number in range(3):
            writer.append_shared([SharedAppendGroup("orders", 0, [f"{number}"], keys=["a"])])
    compacted = jobs.compact(spark=spark, settings=settings)
    assert (compacted.count("compacted"), compacted.tasks) == (1, 1)
    assert jobs.export("orders", f"parquet:{tmp_path}/out", spark=spark, settings=settings).records == 3
    assert jobs.audit(spark=spark, settings=settings).clean
    assert spark.read.parquet(f"{tmp_path}/out/orders").count() == 3, "the session is still there"
