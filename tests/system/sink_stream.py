"""A Spark driver that writes text files into a topic, a file per batch: `python -m tests.system.sink_stream DIRECTORY`.

It reads `in/`, keeps its checkpoint beside it, ends when every file is written, and is killed at any moment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llog.spark
from llog.settings import Settings
from tests.system.crashing import settings_at


def main(directory: Path) -> None:
    settings = settings_at(directory / "data")
    options = {
        "llog.metadata.url": settings.metadata_url,
        "llog.objects.url": settings.objects_url,
        "llog.wal.url": settings.wal_url,
        "topic": "orders",
        "checkpointLocation": str(directory / "checkpoint"),
    }
    spark = llog.spark.session(Settings.from_env({}), master="local[2,4]", config={"spark.driver.memory": "512m"})
    text = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(directory / "in"))
    rows = text.repartition(3)
    query = rows.writeStream.format("llog").options(**options).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
