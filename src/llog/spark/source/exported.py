"""Exported data as Spark DataFrames: the committed files, read by Spark's own Parquet reader.

No Iceberg jar is needed: the table says which files it holds, and tables written by exports hold no deletes. Files may
have fewer or narrower columns than the target has by now; Spark reads all of them with the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from llog.errors import ExportRefused
from llog.pipeline.export.evolution import unpacked
from llog.pipeline.export.iceberg import columns_in, table_files
from llog.pipeline.export.parquet import committed
from llog.stores.objects.port import ObjectStore

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

_NO_FILE_SYSTEM: Final = ("No FileSystem for scheme", "S3AFileSystem not found")
_ADD_ONE: Final = (
    "this Spark session has no file system for s3://: start it with the package org.apache.hadoop:hadoop-aws and"
    " spark.hadoop.fs.s3.impl=org.apache.hadoop.fs.s3a.S3AFileSystem"
)


def iceberg_dataframe(spark: SparkSession, table: Table) -> DataFrame:
    """The rows of an Iceberg table's current snapshot."""
    name = ".".join(table.name())
    if any(task.delete_files for task in table.scan().plan_files()):
        raise ExportRefused(
            f"iceberg:{name}",
            "rows were deleted from it, so its files alone do not give its rows; read it with an Iceberg reader",
        )
    files = table_files(table)
    if not files:
        raise ExportRefused(f"iceberg:{name}", "holds no files yet")
    newest = columns_in(table) if len(table.schemas()) > 1 else None
    return _read(spark, f"iceberg:{name}", files, newest)


async def parquet_dataframe(spark: SparkSession, store: ObjectStore, topic: str) -> DataFrame:
    """The rows that exports of a topic committed."""
    commits = await committed(store, topic)
    files = [store.uri(file.name) for commit in commits for file in commit.files]
    if not files:
        raise ExportRefused(f"parquet:{store.url}/{topic}", "holds no committed files yet")
    changed = len({commit.subject.columns for commit in commits}) > 1
    newest = unpacked(commits[-1].subject.arrow) if changed else None
    return _read(spark, f"parquet:{store.url}/{topic}", files, newest, directory=f"{store.url}/{topic}")


def _read(
    spark: SparkSession, title: str, files: Sequence[str], newest: pa.Schema | None, *, directory: str | None = None
) -> DataFrame:
    """Spark reads files with its own file systems; by default it has none for buckets."""
    try:
        reader = spark.read if directory is None else spark.read.option("basePath", directory)
        if newest is not None:
            from pyspark.sql.pandas.types import from_arrow_schema

            reader = reader.schema(from_arrow_schema(newest))
        frame = reader.parquet(*files)
        frame.schema  # noqa: B018  (a Connect session opens the files only now)
    except Exception as error:
        if any(text in str(error) for text in _NO_FILE_SYSTEM):
            raise ExportRefused(title, f"{_ADD_ONE}, or read it without Spark") from error
        raise
    return frame
