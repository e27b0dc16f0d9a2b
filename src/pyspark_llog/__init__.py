"""Registers the data source `llog` in Spark by itself.

Spark imports every installed module with a name that begins with `pyspark_` and registers its `DefaultSource`. So
`spark.read.format("llog")` works without a call if the driver (on Connect, the server) has llog installed. Elsewhere
call `llog.spark.register(spark)`.
"""

from __future__ import annotations

from llog.spark.source.source import LlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
