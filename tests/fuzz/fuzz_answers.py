"""Fuzz targets: answers made straight from batches, which say what the decoded records would say, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from llog.formats.records.decode import decode_batches
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import BatchRule, TimestampType, walk
from llog.formats.records.record_columns import columns_from_rows
from llog.http.json.consume_answer import show_batches, texts

SOURCE = "memory://fuzz/object"


def shown_batches(data: bytes) -> None:
    """Batches as they come; whoever calls it has walked over them before, so for others only the bounds count."""
    output = np.empty(2 * len(data), np.uint8)
    shown = show_batches(output, 0, data, 1, first=True)
    batches = walk(data, SOURCE, rule=BatchRule.COMPACTED)
    if shown is None:
        return
    columns = decode_batches(data, batches, SOURCE, rule=BatchRule.COMPACTED)
    decoded = zip(columns.offsets.tolist(), texts(columns.values), strict=True)
    told = json.loads(b"[%b]" % output[: shown[0]].tobytes())
    assert [(row["offset"], row["payload"]) for row in told] == [row for row in decoded if row[0] >= 1], told


def _batch(*payloads: bytes) -> bytes:
    columns = columns_from_rows(payloads, timestamps_ms=5)
    return bytes(encode_columns(columns, timestamp_type=TimestampType.LOG_APPEND_TIME))


TARGETS: dict[str, Callable[[bytes], None]] = {"shown_batches": shown_batches}
SEEDS: dict[str, list[bytes]] = {
    "shown_batches": [
        _batch(b"a text of some length, with nothing in it", 'Käse, "quoted"\n\\'.encode() * 3),
        _batch(b"x" * 200) + _batch(b"", "€😀".encode() * 9, b"y" * 70),
    ]
}
