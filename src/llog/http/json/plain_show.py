"""Records that are an offset and a text, as the JSON of an answer, without an object per record.

Nearly all records are: no key, no header, no time of their own, and a payload of UTF-8. Everything else is shown
record by record (`consume_answer`). A test compares both.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from llog.formats.buffers import Buffer
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.records.record_columns import Bytes, RecordColumns

_FRAME: Final = tuple(np.frombuffer(text, np.uint8) for text in (b'{"offset":', b',"payload":"', b'"}'))
# A comma, and an offset's digits.
_ROW_BYTES_MAX: Final = sum(map(len, _FRAME)) + 1 + 19


def shown_columns(columns: RecordColumns) -> memoryview | None:
    """The records with commas between, beside which there is nothing to show. None: not all are text."""
    from llog.http.json import plain_show_kernel as kernel

    values = columns.values
    if len(values.validity):
        return None
    # Most texts have little that is escaped, and those that have more are shown one by one.
    size = (int(values.offsets[-1]) - int(values.offsets[0])) * 5 // 4 + len(columns) * _ROW_BYTES_MAX
    output = np.empty(size, np.uint8)
    offsets, bounds = np.ascontiguousarray(columns.offsets, np.int64), np.ascontiguousarray(values.offsets, np.int32)
    end = kernel.show_columns(output, 0, True, offsets, bounds, values.data, _FRAME)
    return None if end < 0 else output[:end].data


def show_batches(output: Bytes, at: int, batches: Buffer, from_offset: int, *, first: bool) -> tuple[int, int] | None:
    """Write the records from an offset on into `output`; where that ends, and how many they are. None: not all are
    nothing but text, or there is no room for them. `first`: they follow on nothing, so there is no comma."""
    from llog.http.json import plain_show_kernel as kernel

    data = np.frombuffer(memoryview(batches).toreadonly(), np.uint8)  # always that, or it would be compiled twice
    end, records = kernel.show_batches(output, at, first, data, from_offset, _FRAME)
    return None if end < 0 else (end, records)


def warm_up() -> None:
    """Compile or load the kernels: not on somebody's first request."""
    batch = encode_records([b"warm"], timestamps_ms=0)
    show_batches(np.empty(256, np.uint8), 0, batch, 0, first=True)
    shown_columns(decode_records(batch, "warm-up"))
