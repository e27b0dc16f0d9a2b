"""Other people's parsers judge our batches, and we read theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
import pytest
from aiokafka.record._crecords import default_records as aiokafka_compiled
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy, _DefaultRecordBatchPy

from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import Codec, TimestampType, patch_offsets, walk
from tests.unit.formats.record_strategies import as_columns, as_rows
from tests.unit.formats.reference_records import Record

SOURCE = "memory://bucket/blob"
NOW_MS = 1_800_000_000_000

ROWS = [
    Record(0, NOW_MS, b"key", b"value", [("trace", b"1"), ("ümlaut", b"\x00\xff")]),
    Record(1, NOW_MS + 5, None, b"no key", []),
    Record(2, NOW_MS - 5, b"tombstone", None, [("h", b"")]),
    Record(3, NOW_MS + 70_000, b"", b"", []),
    Record(4, NOW_MS, b"big", b"0123456789abcdef" * 5000, []),
]

Reader = Callable[[bytes], Any]
Builder = Callable[..., Any]
READERS: dict[str, Reader] = {
    "kafka-python": kafka_records.DefaultRecordBatch,
    "aiokafka": _DefaultRecordBatchPy,
    "aiokafka compiled": aiokafka_compiled.DefaultRecordBatch,
}
BUILDERS: dict[str, Builder] = {
    "kafka-python": kafka_records.DefaultRecordBatchBuilder,
    "aiokafka": _DefaultRecordBatchBuilderPy,
    "aiokafka compiled": aiokafka_compiled.DefaultRecordBatchBuilder,
}


def read_by(reader: Reader, data: bytes) -> list[Record]:
    batch = reader(data)
    assert batch.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, [(k, v) for k, v in r.headers]) for r in batch]


def built_by(builder: Builder, codec: Codec, rows: list[Record]) -> bytes:
    batch = builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=7,
        producer_epoch=1,
        base_sequence=3,
        batch_size=1_000_000,
    )
    for row in rows:
        assert batch.append(row.offset, row.timestamp_ms, row.key, row.value, row.headers) is not None
    return bytes(batch.build())


def test_the_compiled_parser_is_another_one() -> None:
    assert aiokafka_records.DefaultRecordBatch is aiokafka_compiled.DefaultRecordBatch
    assert len(set(READERS.values())) == len(READERS)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", READERS)
def test_clients_read_our_batches(name: str, codec: Codec) -> None:
    data = bytearray(encode_columns(as_columns(ROWS), codec=codec))
    assert read_by(READERS[name], bytes(data)) == ROWS
    patch_offsets(data, walk(data, SOURCE), 1000, 4)
    assert read_by(READERS[name], bytes(data)) == [row._replace(offset=1000 + row.offset) for row in ROWS]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", BUILDERS)
def test_we_read_the_batches_of_clients(name: str, codec: Codec) -> None:
    data = built_by(BUILDERS[name], codec, ROWS)
    batches = walk(data, SOURCE)
    assert batches.codec.tolist() == [int(codec)]
    assert (batches.producer_id.tolist(), batches.base_sequence.tolist()) == ([7], [3])
    assert as_rows(decode_records(data, SOURCE)) == ROWS
    assert as_rows(decode_records(data * 3, SOURCE)) == ROWS * 3


@pytest.mark.parametrize("name", ["kafka-python", "aiokafka", "aiokafka compiled"])
def test_uncompressed_batches_are_byte_for_byte_those_of_clients(name: str) -> None:
    ours = encode_columns(as_columns(ROWS), producer_id=7, producer_epoch=1, base_sequence=3)
    theirs = bytearray(built_by(BUILDERS[name], Codec.NONE, ROWS))
    theirs[12:16] = b"\xff\xff\xff\xff"  # the leader epoch, which is the broker's to fill in
    assert bytes(ours) == bytes(theirs)


@pytest.mark.parametrize("name", READERS)
def test_clients_see_log_append_time(name: str) -> None:
    data = encode_columns(as_columns(ROWS), timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert {row.timestamp_ms for row in read_by(READERS[name], bytes(data))} == {NOW_MS + 70_000}
