"""Golden record batches: what earlier releases wrote is read, and uncompressed ones are still written alike."""

from __future__ import annotations

import pytest

from llog.formats.records.decode import decode_records
from llog.formats.records.record_batch import BatchRule, Codec, parse_header
from tests.golden.records import HEADERS, HERE, KEYS, TIMESTAMPS_MS, VALUES, current
from tests.unit.formats.record_strategies import as_rows
from tests.unit.formats.reference_records import Record

NAMES = sorted(path.name for path in HERE.iterdir())
PACKED = [f"record_batch_{codec.name.lower()}.bin" for codec in Codec if codec is not Codec.NONE]
ROWS = [Record(i, *row) for i, row in enumerate(zip(TIMESTAMPS_MS, KEYS, VALUES, HEADERS, strict=True))]


def test_there_is_a_golden_file_for_every_kind_of_batch() -> None:
    assert sorted(current()) == NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PACKED])
def test_this_release_writes_the_golden_bytes(name: str) -> None:
    assert current()[name] == (HERE / name).read_bytes()


@pytest.mark.parametrize("codec", Codec)
def test_golden_batches_of_every_codec_are_read(codec: Codec) -> None:
    data = (HERE / f"record_batch_{codec.name.lower()}.bin").read_bytes()
    assert parse_header(data, 0, "golden").codec is codec
    assert as_rows(decode_records(data, "golden")) == ROWS


def test_the_golden_batch_with_every_field_is_read() -> None:
    data = (HERE / "record_batch_fields.bin").read_bytes()
    header = parse_header(data, 0, "golden", rule=BatchRule.COMPACTED)
    assert (header.base_offset, header.partition_leader_epoch, header.is_transactional) == (2**40, 3, True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 5, 6)
    columns = decode_records(data, "golden", rule=BatchRule.COMPACTED)
    assert columns.timestamps_ms.tolist() == [max(TIMESTAMPS_MS)] * len(ROWS)
