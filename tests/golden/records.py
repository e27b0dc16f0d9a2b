"""`python -m tests.golden.records`: write golden record batches that are not there yet; none is ever written again.

Compressed batches are kept to be read, not to be written alike: a compressor may find shorter forms one day.
"""

from __future__ import annotations

from pathlib import Path

from llog.formats.records.encode import encode_columns, encode_records
from llog.formats.records.record_batch import Codec, TimestampType
from llog.formats.records.record_columns import columns_from_rows

HERE = Path(__file__).parent / "records"
NOW_MS = 1_760_000_000_000

VALUES = [b"alpha", None, b"", "späß".encode(), bytes(range(256)) * 2]
KEYS = [b"k1", b"tombstone", None, b"", b"k5"]
HEADERS: list[list[tuple[str, bytes | None]]] = [[("trace", b"1"), ("ü", None)], [], [], [("", b"")], []]
TIMESTAMPS_MS = [NOW_MS, NOW_MS + 1, NOW_MS - 1, NOW_MS + 100_000, NOW_MS]


def current() -> dict[str, bytes]:
    columns = columns_from_rows(VALUES, keys=KEYS, headers=HEADERS, timestamps_ms=TIMESTAMPS_MS)
    files = {f"record_batch_{codec.name.lower()}.bin": encode_columns(columns, codec=codec) for codec in Codec}
    files["record_batch_values.bin"] = encode_records([b"a", b"b"], timestamps_ms=NOW_MS)
    files["record_batch_fields.bin"] = encode_columns(
        columns,
        base_offset=2**40,
        partition_leader_epoch=3,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        transactional=True,
        producer_id=4,
        producer_epoch=5,
        base_sequence=6,
    )
    return {name: bytes(data) for name, data in files.items()}


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, data in current().items():
        if not (HERE / name).exists():
            (HERE / name).write_bytes(data)
            print(f"wrote {HERE / name}")
