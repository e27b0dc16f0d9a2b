"""The session is set up as it says, and its workers start warm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import llog.spark
from llog.errors import InvalidArgument
from llog.settings import Settings
from llog.spark.sessions.session import SQL_CONFIG, STATIC_CONFIG, master_of, warm_config
from tests.spark.conftest import MASTER
from tests.spark.sample_tasks import OBEY, Order, Told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_every_setting_is_in_force(spark: SparkSession) -> None:
    wanted = warm_config(MASTER, os.environ)
    assert wanted.keys() > SQL_CONFIG.keys() | STATIC_CONFIG.keys()
    assert {name: spark.conf.get(name) for name in wanted} == wanted
    assert master_of(spark) == MASTER
    assert spark.sql("SELECT current_timezone()").head()[0] == "UTC"  # type: ignore[index]


def test_there_is_one_session_and_what_it_cannot_give_is_refused(spark: SparkSession) -> None:
    assert llog.spark.session() is spark
    assert llog.spark.session(master=MASTER, config={"spark.sql.ansi.enabled": "true"}) is spark
    with pytest.raises(InvalidArgument, match=r"local\[2,4\]"):
        llog.spark.session(master="local[7]")
    with pytest.raises(InvalidArgument, match=r"spark\.driver\.memory"):
        llog.spark.session(config={"spark.driver.memory": "3g"})


async def test_workers_are_forked_with_everything_loaded_and_nothing_started(
    spark: SparkSession, tmp_path: Path
) -> None:
    from llog.spark.runner.tasks import SparkTasks

    runner = SparkTasks(spark, Settings.from_env({}, data_dir=tmp_path))
    [outcome] = await runner.run(OBEY, [Order("describe")])
    await runner.close()
    assert isinstance(outcome, Told)
    facts = outcome.facts
    assert facts["loaded_by"] == facts["parent"], "imported by the parent, before the fork"
    assert (facts["kernels"], facts["pyarrow"]) == ("True", "True")
    assert facts["threads_of_parent"] == "1", "a thread does not survive a fork, and its locks do"
