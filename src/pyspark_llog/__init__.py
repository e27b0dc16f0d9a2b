"""What Spark finds by itself: it imports every module whose name begins with `pyspark_` and takes its `DefaultSource`.

So `spark.read.format("llog")` works in any session whose driver has llog installed, without a call. Only the session's
driver looks (on Connect: the server); elsewhere `llog.spark.register(spark)` does it.
"""

from __future__ import annotations

from llog.spark.source.source import LlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
