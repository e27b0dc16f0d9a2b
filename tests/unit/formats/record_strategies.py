"""What property tests of records draw from."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from llog.formats.records.record_columns import RecordColumns, columns_from_rows
from tests.unit.formats.reference_records import Record

SOAK = os.environ.get("LLOG_SOAK") == "1"


def examples(count: int) -> Any:
    """`count` examples by default, fifty times as many in a soak. Kernels compile on first use: no deadline."""
    return settings(
        max_examples=count * 50 if SOAK else count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# Lengths around the places where a varint gets longer.
payloads = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.sampled_from([0, 1, 62, 63, 64, 65, 127, 128, 8190, 8191, 8192]).map(lambda n: bytes(n % 251 for n in range(n))),
)
header_lists = st.lists(st.tuples(st.text(max_size=8), payloads), max_size=4)
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_000_500),
    st.sampled_from([-1, 0, 2**40, -(2**40), 2**53, -(2**53)]),
)


@st.composite
def records(draw: st.DrawFn, *, gaps: bool = False, min_size: int = 1, max_size: int = 12) -> list[Record]:
    """Records in offset order from some base on; with `gaps`, as compaction leaves them."""
    count = draw(st.integers(min_size, max_size))
    base = draw(st.sampled_from([0, 1, 1000, 2**40]))
    steps = draw(st.lists(st.integers(1, 200 if gaps else 1), min_size=count, max_size=count))
    offset, rows = base - 1, []
    for step in steps:
        offset += step
        rows.append(Record(offset, draw(timestamps), draw(payloads), draw(payloads), draw(header_lists)))
    return rows


def as_columns(rows: list[Record]) -> RecordColumns:
    return columns_from_rows(
        [row.value for row in rows],
        keys=[row.key for row in rows],
        headers=[row.headers for row in rows],
        timestamps_ms=[row.timestamp_ms for row in rows],
    )


def as_rows(columns: RecordColumns) -> list[Record]:
    return [
        Record(offset, timestamp, columns.keys[i], columns.values[i], columns.headers[i])
        for i, (offset, timestamp) in enumerate(
            zip(columns.offsets.tolist(), columns.timestamps_ms.tolist(), strict=True)
        )
    ]
