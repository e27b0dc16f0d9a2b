"""Records as readers return them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from llog.formats.records.record_columns import Header, RecordColumns


class LogRecord(NamedTuple):
    offset: int
    payload: bytes | None
    """None is a tombstone."""
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int = -1


class RecordRun(NamedTuple):
    """Records that were read together, and the next offset to read (which may lie beyond the last record's)."""

    columns: RecordColumns
    next_offset: int

    def records(self) -> Iterator[LogRecord]:
        columns = self.columns
        rows = zip(
            columns.offsets.tolist(),
            columns.values.tolist(),
            columns.keys.tolist(),
            columns.timestamps_ms.tolist(),
            strict=True,
        )
        for row, (offset, value, key, timestamp_ms) in enumerate(rows):
            yield LogRecord(offset, value, key, tuple(columns.headers[row]), timestamp_ms)
