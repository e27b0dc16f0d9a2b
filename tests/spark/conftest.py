"""One Spark session for all tests that need one: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import llog.spark
from llog.errors import JavaUnusable
from llog.settings import Settings
from llog.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2,4]"


@pytest.fixture(scope="session")
def java() -> None:
    """Skips where Spark cannot run."""
    pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "leaderless-log[spark]"')
    try:
        find_java()
    except JavaUnusable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """The session that `llog.spark.session()` makes, on two cores, with four attempts per task."""
    session = llog.spark.session(Settings.from_env({}), master=MASTER, app_name="llog-tests")
    yield session
    session.stop()
