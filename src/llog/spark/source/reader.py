"""The data source's batch reader: planned in a Python process of the driver, read in executors.

The planning process opens stores and closes them. A partition carries everything its reader needs, because Spark
pickles the reader before it plans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, InputPartition

from llog.pipeline.scan.plan import plan_scan
from llog.pipeline.scan.record_shape import Shape
from llog.settings import Settings
from llog.spark.source.options import SourceOptions
from llog.spark.source.worker import encode_works, read_work
from llog.spark.user_errors import in_one_sentence
from llog.wiring import opened_log


class SplitPartition(InputPartition):
    """An encoded split, which Spark pickles."""

    def __init__(self, work: bytes) -> None:
        super().__init__(None)
        self.work = work

    def __repr__(self) -> str:
        return f"SplitPartition({len(self.work)} bytes)"


class LlogReader(DataSourceReader):
    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._request = replace(options.request, shape=Shape(tuple(columns)))

    @in_one_sentence()
    def partitions(self) -> Sequence[InputPartition]:
        return asyncio.run(self._plan(self._options.settings_in_force()))

    async def _plan(self, settings: Settings) -> list[InputPartition]:
        async with opened_log(settings) as opened:
            splits = await plan_scan(opened.context, self._request)
            works = await encode_works(opened.context, settings, self._request, splits)
        return [SplitPartition(work) for work in works]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes a partition of its own if there is nothing to read.
        if isinstance(partition, SplitPartition):
            with in_one_sentence():
                yield from read_work(partition.work)
