from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.errors import InvalidArgument
from llog.formats.arrow import HEADERS_TYPE, SCHEMA, from_arrow, to_arrow
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_columns
from tests.unit.formats.record_strategies import as_columns, as_rows, examples, records
from tests.unit.formats.reference_records import Record, encode_batch

SOURCE = "memory://bucket/blob"


def as_table_rows(rows: list[Record]) -> list[dict[str, object]]:
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return [
        {
            "key": row.key,
            "value": row.value,
            "topic": "orders",
            "partition": 3,
            "offset": row.offset,
            "timestamp": epoch + dt.timedelta(milliseconds=row.timestamp_ms),
            "timestampType": 0,
            "headers": [{"key": key, "value": value} for key, value in row.headers],
        }
        for row in rows
    ]


@examples(40)
@given(records())
def test_records_are_rows_of_the_table(rows: list[Record]) -> None:
    rows = [row._replace(timestamp_ms=row.timestamp_ms % 2**41) for row in rows]
    columns = decode_records(encode_batch(rows, base_offset=rows[0].offset), SOURCE)
    table = to_arrow(columns, topic="orders", partition=3)
    table.validate(full=True)
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == as_table_rows(rows)


@examples(40)
@given(records(), st.data())
def test_columns_come_back_from_the_table_whole_and_sliced(rows: list[Record], data: st.DataObject) -> None:
    table = to_arrow(as_columns(rows))
    expected = [row._replace(offset=i) for i, row in enumerate(rows)]
    assert as_rows(from_arrow(table, timestamp_ms=0)) == expected
    first = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - first))
    sliced = from_arrow(table.slice(first, count), timestamp_ms=0)
    assert as_rows(sliced) == expected[first : first + count]
    again = decode_records(encode_columns(sliced), SOURCE)
    assert as_rows(again) == [row._replace(offset=i) for i, row in enumerate(expected[first : first + count])]
    # A sliced column keeps its bitmap, which begins somewhere in a byte.
    assert to_arrow(sliced).equals(to_arrow(as_columns(rows)).slice(first, count))


def test_the_schema_is_that_of_spark_s_kafka_source() -> None:
    assert SCHEMA.names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert all(field.nullable for field in SCHEMA)
    assert SCHEMA.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_values_are_shared_not_copied() -> None:
    columns = decode_records(encode_batch([Record(0, 1, b"k", b"v" * 1000, [("h", b"x")])]), SOURCE)
    table = to_arrow(columns)
    address = columns.values.data.ctypes.data
    assert table.column("value").buffers()[2].address == address
    assert from_arrow(table, timestamp_ms=0).values.data.ctypes.data == address


def test_no_records_are_an_empty_table() -> None:
    table = to_arrow(decode_records(b"", SOURCE))
    table.validate(full=True)
    assert table.num_rows == 0
    assert len(from_arrow(table, timestamp_ms=0)) == 0


def test_topic_and_partition_are_null_when_not_given() -> None:
    table = to_arrow(as_columns([Record(0, 1, None, b"v", [])]))
    assert table.to_pylist()[0]["topic"] is table.to_pylist()[0]["partition"] is None


def test_log_append_time_shows_in_the_table() -> None:
    data = encode_batch([Record(0, 1, None, b"v", [])], attributes=0x08, max_timestamp=5)
    row = to_arrow(decode_records(data, SOURCE)).to_pylist()[0]
    assert (row["timestampType"], row["timestamp"].microsecond) == (1, 5000)


@pytest.mark.parametrize("timestamp", [2**62, -(2**62), 2**63 // 1000 + 1])
def test_a_timestamp_beyond_microseconds_is_the_last_that_they_can_tell(timestamp: int) -> None:
    columns = decode_records(encode_batch([Record(7, timestamp, None, b"v", [])], base_offset=7), SOURCE)
    [shown] = to_arrow(columns)["timestamp"].cast(pa.int64()).to_pylist()
    last = (2**63 - 1) // 1_000 * 1_000
    assert shown == (last if timestamp > 0 else -last)


def test_a_table_of_values_alone_is_enough() -> None:
    table = pa.record_batch({"value": pa.array(["text", None])})
    assert as_rows(from_arrow(table, timestamp_ms=9)) == [Record(0, 9, None, b"text", []), Record(1, 9, None, None, [])]


def test_other_types_that_mean_the_same_are_taken() -> None:
    table = pa.record_batch(
        {
            "key": pa.array([b"k", None], pa.large_binary()),
            "value": pa.array([b"v", b"w"], pa.binary()),
            "timestamp": pa.array([1_500_000, None], pa.timestamp("ns")),
            "headers": pa.array(
                [None, [("h", b"x")]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
            "other": pa.array([1, 2]),
        }
    )
    rows = as_rows(from_arrow(table, timestamp_ms=9))
    assert rows == [Record(0, 1, b"k", b"v", []), Record(1, 9, None, b"w", [("h", b"x")])]


def test_null_lists_that_hide_headers_have_none() -> None:
    items = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": None}], HEADERS_TYPE.value_type)
    offsets = pa.array([0, 1, 2], pa.int32())
    hidden = pa.ListArray.from_arrays(offsets, items, type=HEADERS_TYPE, mask=pa.array([True, False]))
    table = pa.record_batch({"value": pa.array([b"v", b"w"]), "headers": hidden})
    assert [row.headers for row in as_rows(from_arrow(table, timestamp_ms=9))] == [[], [("b", None)]]


@pytest.mark.parametrize(
    "columns",
    [
        {"key": pa.array([b"k"])},
        {"value": pa.array([1.5])},
        {"value": pa.array([b"v"]), "offset": pa.array([None], pa.int64())},
        {"value": pa.array([b"v"]), "offset": pa.array(["x"])},
        {"value": pa.array([b"v"]), "timestamp": pa.array(["soon"])},
        {"value": pa.array([b"v"]), "headers": pa.array([["x"]])},
        {"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS_TYPE)},
        {"value": pa.array([b"v"]), "headers": pa.array([[None]], HEADERS_TYPE)},
    ],
)
def test_tables_of_other_shapes_are_refused(columns: dict[str, pa.Array]) -> None:
    with pytest.raises(InvalidArgument):
        from_arrow(pa.record_batch(columns), timestamp_ms=0)
