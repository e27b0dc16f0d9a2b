"""What an export wrote, as Spark DataFrames: the files that its commits name, read by Spark's own Parquet reader.

No Iceberg jar is needed: the table says which files it holds now, and tables that an export made hold no deletes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llog.errors import ExportRefused
from llog.pipeline.export_read import parquet_files, table_files
from llog.stores.objects.port import ObjectStore

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession


def iceberg_dataframe(spark: SparkSession, table: Table) -> DataFrame:
    """The rows of an Iceberg table's current snapshot."""
    name = ".".join(table.name())
    if any(task.delete_files for task in table.scan().plan_files()):
        raise ExportRefused(f"iceberg:{name}", "somebody deleted rows of it, which plain files cannot tell")
    files = table_files(table)
    if not files:
        raise ExportRefused(f"iceberg:{name}", "holds no files yet")
    return spark.read.parquet(*files)


async def parquet_dataframe(spark: SparkSession, store: ObjectStore, topic: str) -> DataFrame:
    """The rows that exports of a topic have committed."""
    files = await parquet_files(store, topic)
    if not files:
        raise ExportRefused(f"parquet:{store.url}/{topic}", "holds no committed files yet")
    return spark.read.parquet(*files)
