"""The data source's batch reader: planned in a Python process of the driver, read in executors.

The planning process opens stores and closes them. A partition carries everything its reader needs, because Spark
pickles the reader before it plans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from llog.pipeline.scan.plan import ScanRequest, plan_scan
from llog.pipeline.scan.record_shape import Shape
from llog.settings import Settings
from llog.spark.source.filters import push_filters
from llog.spark.source.options import SourceOptions
from llog.spark.source.worker import encode_works, read_work
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
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        return asyncio.run(self._plan(self._options.settings_in_force()))

    async def _plan(self, settings: Settings) -> list[InputPartition]:
        async with opened_log(settings) as opened:
            splits = await plan_scan(opened.context, self._request)
            works = await encode_works(opened.context, settings, self._request, splits)
        return [SplitPartition(work) for work in works]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes a partition of its own if there is nothing to read.
        return read_work(partition.work) if isinstance(partition, SplitPartition) else iter(())

    def narrow(self, filters: Iterable[Filter]) -> list[Filter]:
        # Spark plans a table (a DataFrame, a view) once for all queries over it. A plan narrowed by the filters of one
        # query would give the others too few rows, so the caller must say that there are no others.
        if not self._options.push_filters:
            return list(filters)
        request: ScanRequest
        request, left = push_filters(self._request, filters)
        self._request = request
        return left


class _PushFilters:
    """Called by Spark with filters in sessions that push them (spark.sql.python.filterPushdown.enabled).

    Other sessions refuse a reader with its own `pushFilters`, and a reader cannot know its session. So this object
    poses as the base class's method (Spark compares `__func__`); such sessions do not call it.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: LlogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)

    def __reduce__(self) -> tuple[Any, ...]:
        return _PushFilters, (self._reader,)
