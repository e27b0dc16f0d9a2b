"""Fuzz targets: RecordBatch headers, walking, checksums and patching."""

from __future__ import annotations

from collections.abc import Callable

from llog.errors import FormatError
from llog.formats.records.encode import encode_columns, encode_records
from llog.formats.records.record_batch import BatchRule, parse_header, patch_offsets, verify_crcs, walk
from llog.formats.records.record_columns import columns_from_rows

SOURCE = "memory://fuzz/object"


def header(data: bytes) -> None:
    parse_header(data, 0, SOURCE)


def walked(data: bytes) -> None:
    """The kernel takes exactly what the parser takes, batch by batch; the parser says why not."""
    batches = walk(data, SOURCE, rule=BatchRule.COMPACTED)
    for i in range(len(batches)):
        at = int(batches.position[i])
        assert parse_header(data, at, SOURCE, rule=BatchRule.COMPACTED) == batches.header(i)
    assert int(batches.length.sum()) == len(data)


def checked(data: bytes) -> None:
    verify_crcs(data, walk(data, SOURCE), SOURCE)


def patched(data: bytes) -> None:
    """Whatever was walked can be patched, and is then a row of batches with final offsets."""
    buffer = bytearray(data)
    before = walk(buffer, SOURCE)
    after = patch_offsets(buffer, before, 1_000, 7)
    try:
        assert walk(buffer, SOURCE, rule=BatchRule.COMPACTED).fields.tolist() == after.fields.tolist()
    except FormatError as error:
        raise AssertionError("patching made a sound batch unsound") from error


TARGETS: dict[str, Callable[[bytes], None]] = {
    "record_batch_header": header,
    "record_batch_walk": walked,
    "record_batch_crc": checked,
    "record_batch_patch": patched,
}

_ONE = bytes(encode_records([b"value"], keys=[b"key"], timestamps_ms=1_760_000_000_000))
_MANY = bytes(encode_columns(columns_from_rows([b"a", None, b"ccc"], timestamps_ms=5), producer_id=3, base_sequence=0))
_BATCHES = [_ONE, _MANY, _ONE + _MANY + _ONE]
SEEDS: dict[str, list[bytes]] = dict.fromkeys(TARGETS, _BATCHES)
