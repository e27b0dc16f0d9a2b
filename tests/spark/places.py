"""The stores of the data source's tests, and how Spark reads from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llog.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Places:
    """Stores on disk, which Spark's processes see too."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings.from_env(
            {}, metadata_url=f"lmdb://{directory}/metadata", objects_url=f"file://{directory}/objects"
        )
        self.options = {
            "llog.metadata.url": self.settings.metadata_url,
            "llog.objects.url": self.settings.objects_url,
            "llog.wal.url": self.settings.wal_url,
        }

    def read(self, spark: SparkSession, **options: object) -> DataFrame:
        texts = {name: str(value) for name, value in {"subscribe": "orders,visits", **options}.items()}
        if {"assign", "subscribePattern"} & texts.keys():
            del texts["subscribe"]
        return spark.read.format("llog").options(**self.options, **texts).load()
