"""The data source's batch reader: planned in a Python process of the driver, read in executors.

What must stay true: whoever plans opens stores in its own process and closes them; a partition carries all that its
reader needs, because Spark takes the reader's picture before it plans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from llog.opening import opened_log
from llog.pipeline.scan.plan import ScanRequest, plan_scan
from llog.pipeline.scan.record_shape import Shape
from llog.settings import Settings
from llog.spark.source.filters import push_filters
from llog.spark.source.options import SourceOptions
from llog.spark.source.worker import encoded_works, read_work


class SplitPartition(InputPartition):
    """A split, as bytes: Spark pickles it."""

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
        return asyncio.run(self._planned(self._options.settings_in_force()))

    async def _planned(self, settings: Settings) -> list[InputPartition]:
        async with opened_log(settings) as opened:
            splits = await plan_scan(opened.context, self._request)
            works = await encoded_works(opened.context, settings, self._request, splits)
        return [SplitPartition(work) for work in works]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own where there is nothing to read.
        return read_work(partition.work) if isinstance(partition, SplitPartition) else iter(())

    def narrow(self, filters: Iterable[Filter]) -> list[Filter]:
        # Spark plans a table (a DataFrame, a view) once for all queries over it, so a plan that is narrowed by the
        # filters of one would give the others too few rows: only where the caller says that there are no others.
        if not self._options.push_filters:
            return list(filters)
        request: ScanRequest
        request, left = push_filters(self._request, filters)
        self._request = request
        return left


class _PushFilters:
    """What Spark calls with filters, in sessions where it pushes them (spark.sql.python.filterPushdown.enabled).

    In others it refuses every reader that has a `pushFilters` of its own, and a reader cannot know in which it is. So
    this one says that it is the base class's (Spark compares `__func__`), and is not called there.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: LlogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)

    def __reduce__(self) -> tuple[Any, ...]:
        return _PushFilters, (self._reader,)
