"""Records in and out of RecordBatches, a whole batch at a time.

`decode_records` turns a buffer of batches into columns; `encode_records` and `encode_columns` turn rows or columns
into ONE batch. Per record nothing runs in Python: kernels do it, at nearly the speed of copying. They compile on
first use, which takes seconds once per installation; a server calls `warm_up` before it serves.
"""

from __future__ import annotations

from llog.formats.records.decode import decode_batches, decode_in_chunks, decode_records
from llog.formats.records.encode import encode_columns, encode_records, record_bytes
from llog.formats.records.record_batch import patch_offsets, walk

__all__ = [
    "decode_batches",
    "decode_in_chunks",
    "decode_records",
    "encode_columns",
    "encode_records",
    "record_bytes",
    "warm_up",
]


def warm_up() -> None:
    """Compile or load every kernel, in a thread where an event loop already runs."""
    batch = encode_records([b"v", None], keys=[b"k", None], headers=[[("h", b"")], None], timestamps_ms=0)
    decode_records(batch, "warm-up")
    patch_offsets(batch, walk(batch, "warm-up"), 0, 0)
