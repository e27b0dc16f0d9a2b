"""The shape in which a reader wants its records: columns, Arrow batches of bounded size.

A batch shares the memory of the decoded columns and holds about SPLIT_BATCH_BYTES_MAX, unless a single record is
larger. No Python runs per record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from llog.errors import InvalidArgument
from llog.formats.arrow import SCHEMA, to_arrow
from llog.formats.records.record_columns import Longs, RecordColumns
from llog.limits import SPLIT_BATCH_BYTES_MAX
from llog.pipeline.scan.splits import SplitPart

# Bytes of a record in the fixed-width columns, plus its offsets in the others.
_ROW_BYTES: Final = 48


class Shape(msgspec.Struct, frozen=True):
    columns: tuple[str, ...] | None = None
    """In this order; None: all of them."""

    def __post_init__(self) -> None:
        for name in self.columns or ():
            if name not in SCHEMA.names:
                raise InvalidArgument("columns", f"{name!r} must be one of {', '.join(SCHEMA.names)}")

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA if self.columns is None else pa.schema([SCHEMA.field(name) for name in self.columns])

    def batches_of(self, columns: RecordColumns, part: SplitPart, stop_offset: int) -> Iterator[pa.RecordBatch]:
        """The wanted records below `stop_offset`."""
        rows = columns.row_of(stop_offset)
        if rows == 0:
            return
        batch = to_arrow(columns, topic=part.topic, partition=part.partition)
        selected = batch if self.columns is None else batch.select(list(self.columns))
        begin = 0
        for end in _cuts(columns, rows):
            yield selected.slice(begin, end - begin)
            begin = end


def _cuts(columns: RecordColumns, rows: int) -> list[int]:
    """The rows at which batches end."""
    ends = _bytes_up_to(columns)
    if int(ends[rows - 1]) <= SPLIT_BATCH_BYTES_MAX + SPLIT_BATCH_BYTES_MAX // 4:
        return [rows]
    cuts: list[int] = []
    begin, before = 0, 0
    while begin < rows:
        end = int(np.searchsorted(ends[:rows], before + SPLIT_BATCH_BYTES_MAX, side="right"))
        begin = max(begin + 1, end)
        before = int(ends[begin - 1])
        cuts.append(begin)
    return cuts


def _bytes_up_to(columns: RecordColumns) -> Longs:
    """For each row, the bytes of all rows up to and including it."""
    headers = columns.headers
    lists = headers.offsets.astype(np.int64)
    ends: Longs = np.arange(1, len(columns) + 1, dtype=np.int64) * _ROW_BYTES
    for offsets in (
        columns.keys.offsets,
        columns.values.offsets,
        headers.keys.offsets[lists],
        headers.values.offsets[lists],
    ):
        ends += offsets[1:].astype(np.int64) - int(offsets[0])
    return ends
