"""Records that are nothing but an offset and plain text, as the JSON of an answer, without an object per record.

Nearly all records are: no key, no header, no time of their own, and a payload of ASCII in which JSON escapes nothing.
Everything else is shown record by record (`consume`). A test compares both.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from llog.formats.record_columns import BinaryColumn, Bytes, RecordColumns
from llog.formats.records import decode_records, encode_records

_BEFORE: Final = np.frombuffer(b'{"offset":', np.uint8)
_BETWEEN: Final = np.frombuffer(b',"payload":"', np.uint8)
_BEHIND: Final = np.frombuffer(b'"}', np.uint8)
# A comma, and an offset's digits.
_ROW_BYTES_MAX: Final = len(_BEFORE) + len(_BETWEEN) + len(_BEHIND) + 1 + 20
_SPACE: Final = 0x20
_DELETE: Final = 0x7F
_ESCAPED: Final = (0x22, 0x5C)


def is_printable(data: Bytes) -> bool:
    """ASCII without control characters."""
    return not len(data) or bool(data.min() >= _SPACE and data.max() < _DELETE)


def is_plain_json(column: BinaryColumn) -> bool:
    """Is none of the values null, and can each stand between quotes as it is?"""
    data = column.data[int(column.offsets[0]) : int(column.offsets[-1])]
    return not len(column.validity) and is_printable(data) and not any((data == byte).any() for byte in _ESCAPED)


def shown_plain(columns: RecordColumns) -> memoryview:
    """The records with commas between; their values are plain, none is null, and there is nothing beside them."""
    from llog.http import plain_show_kernel as kernel

    bounds, rows = columns.values.offsets, len(columns)
    size = int(bounds[-1]) - int(bounds[0]) + rows * _ROW_BYTES_MAX
    output = np.empty(size, np.uint8)
    offsets = np.ascontiguousarray(columns.offsets, np.int64)
    filled = kernel.show_plain(
        output, offsets, np.ascontiguousarray(bounds, np.int32), columns.values.data, _BEFORE, _BETWEEN, _BEHIND
    )
    return output[:filled].data


def warm_up() -> None:
    """Compile or load the kernel: not on somebody's first request."""
    columns = decode_records(encode_records([b"warm"], timestamps_ms=0), "warm-up")
    assert is_plain_json(columns.values)
    shown_plain(columns)
