"""Batches of bare payloads: byte for byte what the general encoder writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.records.encode import encode_columns
from llog.formats.records.plain_batches import encode_plain_records
from llog.formats.records.record_batch import TimestampType
from llog.formats.records.record_columns import columns_from_rows

SIZES = st.sampled_from(
    [0, 1, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 4_089, 4_090, 4_095, 4_096, 8_187, 8_192, 70_000]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=20), st.booleans(), st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_the_bytes_are_those_of_the_general_encoder(sizes: list[int], append: bool, now_ms: int, sequence: int) -> None:
    values = [bytes([row % 256]) * size for row, size in enumerate(sizes)]
    kind = TimestampType.LOG_APPEND_TIME if append else TimestampType.CREATE_TIME
    producer: dict[str, Any] = {"producer_id": 9, "producer_epoch": 3, "base_sequence": sequence}
    general = encode_columns(columns_from_rows(values, timestamps_ms=now_ms), timestamp_type=kind, **producer)
    assert encode_plain_records(values, timestamp_ms=now_ms, log_append_time=append, **producer) == bytes(general)


@pytest.mark.parametrize("count", [63, 64, 65, 66, 4_095, 4_096, 4_097, 20_000])
def test_many_records_are_counted_right(count: int) -> None:
    values = [b"x" * (row % 80) for row in range(count)]
    general = encode_columns(columns_from_rows(values, timestamps_ms=5))
    assert encode_plain_records(values, timestamp_ms=5) == bytes(general)


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        encode_plain_records([], timestamp_ms=0)
    with pytest.raises(ValueTooLarge):
        encode_plain_records([bytes(65 << 20)] * 2, timestamp_ms=0)
