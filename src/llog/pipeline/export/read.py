"""Reading what an export wrote: which files, and DuckDB over them. (Spark's part is `llog.spark.source.exported`.)

The caller brings the connection: DuckDB is not needed to export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llog.pipeline.export.parquet import committed
from llog.stores.objects.port import ObjectStore

if TYPE_CHECKING:
    from pyiceberg.table import Table


async def parquet_files(store: ObjectStore, topic: str) -> list[str]:
    """The URIs of every committed file of a topic."""
    return [store.uri(file.name) for commit in await committed(store, topic) for file in commit.files]


def table_files(table: Table) -> list[str]:
    """The URIs of the files that the table's current snapshot names."""
    return [task.file.file_path for task in table.scan().plan_files()]


def duckdb_files(connection: Any, files: list[str], *, hive_partitioning: bool = True) -> Any:
    """A DuckDB relation over Parquet files; those of an Iceberg table hold all of its columns: no `hive_partitioning`
    there."""
    plain = [file.removeprefix("file://") for file in files]
    return connection.read_parquet(plain, hive_partitioning=hive_partitioning, union_by_name=True)


def duckdb_table(connection: Any, table: Table, **selection: Any) -> Any:
    """A DuckDB relation over an Iceberg table, through Arrow; `selection` as for the table's `scan` (row_filter,
    selected_fields, snapshot_id)."""
    return connection.from_arrow(table.scan(**selection).to_arrow())
