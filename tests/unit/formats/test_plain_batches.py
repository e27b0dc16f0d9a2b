"""Many batches of bare payloads: byte for byte what the general encoder writes, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.records import batch_kernels
from llog.formats.records.encode import encode_columns
from llog.formats.records.plain_batches import (
    NO_PRODUCER,
    PLAIN_KERNEL_RECORDS_MIN,
    Payloads,
    ProducerFields,
    encode_payloads,
    encode_plain_batches,
)
from llog.formats.records.record_batch import TimestampType
from llog.formats.records.record_columns import columns_from_rows

TEXTS = st.one_of(st.text(max_size=70), st.sampled_from(["", "x" * 63, "x" * 64, "é" * 4_100, "x" * 20_000]))


def general(texts: list[str], now_ms: int, producer: ProducerFields) -> bytes:
    columns = columns_from_rows([text.encode() for text in texts], timestamps_ms=now_ms)
    producer_id, epoch, sequence = producer
    batch = encode_columns(
        columns,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return bytes(batch)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(TEXTS, min_size=1, max_size=40), min_size=1, max_size=8),
    st.integers(0, 2**62),
    st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1)),
)
def test_the_bytes_are_those_of_the_general_encoder(
    batches: list[list[str]], now_ms: int, producer: ProducerFields
) -> None:
    producers = [producer if number % 2 else NO_PRODUCER for number in range(len(batches))]
    expected = [general(texts, now_ms, owner) for texts, owner in zip(batches, producers, strict=True)]
    few = encode_plain_batches(batches, timestamp_ms=now_ms, log_append_time=True, producers=producers)
    assert [bytes(batch.data) for batch in few] == expected
    assert [batch.payload_bytes_max for batch in few] == [max(len(t.encode()) for t in texts) for texts in batches]
    # So many that the kernels are asked, whatever was drawn.
    many = [*batches, ["x"] * PLAIN_KERNEL_RECORDS_MIN]
    encoded = encode_plain_batches(many, timestamp_ms=now_ms, log_append_time=True, producers=[*producers, NO_PRODUCER])
    assert [bytes(batch.data) for batch in encoded[:-1]] == expected


def test_without_the_processors_instruction_the_library_fills_in_the_same_checksums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = [[f"{row} of {number}" for row in range(40)] for number in range(3)]
    expected = [bytes(batch.data) for batch in encode_plain_batches(batches, timestamp_ms=5)]
    monkeypatch.setattr(batch_kernels, "CRC_AVAILABLE", False)
    assert [bytes(batch.data) for batch in encode_plain_batches(batches, timestamp_ms=5)] == expected


@pytest.mark.parametrize(
    ("starts", "sizes", "rows"),
    [
        ([0], [11], [1]),
        ([-1], [2], [1]),
        ([5], [-1], [1]),
        ([2**62], [2**62], [1]),
        ([0, 1], [1], [1]),
        ([0], [1], [2]),
        ([0, 1], [1, 1], [1]),
        ([0], [1], [0]),
    ],
)
def test_positions_outside_the_data_are_refused(starts: list[int], sizes: list[int], rows: list[int]) -> None:
    payloads = Payloads(np.zeros(10, np.uint8), np.array(starts, np.int64), np.array(sizes, np.int64))
    with pytest.raises(InvalidArgument):
        encode_payloads(payloads, rows, timestamp_ms=0)


def test_a_batch_that_grows_too_large_is_refused() -> None:
    data = np.zeros(1 << 20, np.uint8)
    payloads = Payloads(data, np.zeros(200, np.int64), np.full(200, len(data), np.int64))
    with pytest.raises(ValueTooLarge):
        encode_payloads(payloads, [200], timestamp_ms=0)
