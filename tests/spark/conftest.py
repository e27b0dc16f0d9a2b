"""What the tests on Spark share: one session for all, which takes seconds to start, and logs on disk to read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import llog.spark
from llog.settings import Settings
from llog.testing.kafka_server import java_packages
from llog.testing.servers import ServerUnavailable
from llog.wiring import OpenedLog
from tests.servers import need_spark
from tests.spark.places import Places
from tests.unit.pipeline.mixed_log import opened_for_writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2,4]"


def kafka_jars() -> list[str]:
    """Spark's own Kafka connector; empty where it was not fetched. Jars are named when a session starts."""
    try:
        return [str(jar) for jar in sorted(java_packages("spark-kafka").glob("*.jar"))]
    except ServerUnavailable:
        return []


@pytest.fixture(scope="session")
def java() -> None:
    """Skips where Spark cannot run."""
    need_spark()


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """The session that `llog.spark.session()` makes, on two cores, with four attempts per task."""
    config = {"spark.jars": ",".join(kafka_jars())}
    session = llog.spark.session(Settings.from_env({}), master=MASTER, app_name="llog-tests", config=config)
    yield session
    session.stop()


@pytest.fixture
def places(spark: SparkSession, tmp_path: Path) -> Places:
    llog.spark.register(spark)
    return Places(tmp_path)


@pytest.fixture
async def opened(places: Places) -> AsyncIterator[OpenedLog]:
    log = await opened_for_writing(places.settings)
    yield log
    await log.close()
