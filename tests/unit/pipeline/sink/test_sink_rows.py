"""Which log each row goes to, and its record there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from llog.errors import InvalidArgument
from llog.formats.arrow import HEADERS_TYPE
from llog.formats.records.decode import decode_records
from llog.formats.records.record_batch import Codec
from llog.log.keys import Log
from llog.pipeline.sink.rows import RoundRobin, Router, encode_groups, join_batches

NOW_MS = 1_700_000_000_000


def split(table: pa.Table, *, topic: str | None = None, counts: dict[str, int] | None = None) -> dict[Log, list[bytes]]:
    router = Router(topic, counts or {}, RoundRobin())
    groups = encode_groups(join_batches(table.to_batches()), router, codec=Codec.NONE, timestamp_ms=NOW_MS)
    found: dict[Log, list[bytes]] = {}
    for group in groups:
        body = b"".join(bytes(buffer) for buffer in group.body)
        found[group.log] = [value or b"" for value in decode_records(body, "test").values.tolist()]
        assert len(found[group.log]) == group.msg_count
    return found


def keyed(*keys: bytes | None) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array([b"v%d" % n for n in range(len(keys))])})


@pytest.mark.parametrize(
    ("key", "partition"),
    # Kafka's own test vectors (UtilsTest.testMurmur2), its default partitioner over 1,000 partitions.
    [
        (b"21", (-973932308 & 0x7FFFFFFF) % 1000),
        (b"foobar", (-790332482 & 0x7FFFFFFF) % 1000),
        (b"a-little-bit-long-string", (-985981536 & 0x7FFFFFFF) % 1000),
        (b"a-little-bit-longer-string", (-1486304829 & 0x7FFFFFFF) % 1000),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", (-58897971 & 0x7FFFFFFF) % 1000),
        (b"abc", (479470107 & 0x7FFFFFFF) % 1000),
    ],
)
def test_a_key_goes_where_kafka_sends_it(key: bytes, partition: int) -> None:
    assert list(split(keyed(key), topic="t", counts={"t": 1000})) == [Log("t", partition)]


def test_rows_without_a_key_take_turns() -> None:
    found = split(keyed(*[None] * 5), topic="t", counts={"t": 2})
    assert found == {Log("t", 0): [b"v0", b"v2", b"v4"], Log("t", 1): [b"v1", b"v3"]}


def test_a_named_partition_counts_before_the_key_and_null_is_not_named() -> None:
    table = keyed(b"abc", b"abc", None).append_column("partition", pa.array([7, None, None], pa.int32()))
    found = split(table, topic="t", counts={"t": 1000})
    assert found == {Log("t", 7): [b"v0"], Log("t", 479470107 % 1000): [b"v1"], Log("t", 0): [b"v2"]}


def test_rows_of_one_log_keep_their_order() -> None:
    numbers = np.random.default_rng(1).integers(0, 5, 10_000)
    table = pa.table(
        {
            "value": pa.array([f"{n}" for n in range(10_000)]),
            "topic": pa.array([f"t{n % 2}" for n in numbers]),
            "partition": pa.array(numbers, pa.int32()),
        }
    )
    found = split(table)
    assert {(log.topic, log.partition) for log in found} == {(f"t{n % 2}", n) for n in range(5)}
    for log, values in found.items():
        assert [int(v) for v in values] == np.flatnonzero(numbers == log.partition).tolist()


def test_columns_arrive_as_they_are() -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "headers": pa.array([[{"key": "h", "value": b"1"}], None], headers),
            "key": pa.array(["k", None], pa.large_string()),
            "value": pa.array([None, "ü"], pa.string()),
            "timestamp": pa.array([1_000_000, None], pa.timestamp("us", tz="UTC")),
            "other": pa.array([1, 2]),
        }
    )
    [group] = encode_groups(
        join_batches(table.to_batches()), Router("t", {}, RoundRobin()), codec=Codec.ZSTD, timestamp_ms=NOW_MS
    )
    columns = decode_records(bytes(group.body[0]), "test")
    assert columns.keys.tolist() == [b"k", None]
    assert columns.values.tolist() == [None, "ü".encode()]
    assert columns.timestamps_ms.tolist() == [1_000, NOW_MS]
    assert [columns.headers[row] for row in range(2)] == [[("h", b"1")], []]
    assert group.max_timestamp_ms == NOW_MS


def test_large_groups_are_cut_into_batches_of_a_megabyte() -> None:
    values = [b"x" * 300_000] * 7 + [b"y" * 3_000_000] + [b"z"]
    [group] = encode_groups(
        join_batches(pa.table({"value": pa.array(values, pa.binary())}).to_batches()),
        Router("t", {}, RoundRobin()),
        codec=Codec.NONE,
        timestamp_ms=NOW_MS,
    )
    counts = [len(decode_records(bytes(part), "test").offsets) for part in group.body]
    assert counts == [3, 3, 1, 1, 1]
    whole = b"".join(bytes(part) for part in group.body)
    assert decode_records(whole, "test").values.tolist() == values


def test_headers_count_when_groups_are_cut() -> None:
    headers = [[{"key": "h", "value": b"x" * 300_000}]] * 7
    table = pa.table({"value": pa.array([b"v"] * 7, pa.binary()), "headers": pa.array(headers, HEADERS_TYPE)})
    [group] = encode_groups(
        join_batches(table.to_batches()), Router("t", {}, RoundRobin()), codec=Codec.NONE, timestamp_ms=NOW_MS
    )
    assert [len(decode_records(bytes(part), "test").offsets) for part in group.body] == [3, 3, 1]


@pytest.mark.parametrize(
    ("table", "argument"),
    [
        (pa.table({"value": ["a"]}), "topic"),
        (pa.table({"value": ["a"], "topic": pa.array([None], pa.string())}), "topic"),
        (pa.table({"value": ["a"], "topic": ["a b"]}), "topic"),
        (pa.table({"value": ["a"], "topic": ["t"], "partition": pa.array([-1], pa.int32())}), "partition"),
        (pa.table({"key": ["a"], "topic": ["t"]}), "table"),
        (pa.table({"value": [1.5], "topic": ["t"]}), "value"),
    ],
)
def test_bad_rows_are_refused_by_name(table: pa.Table, argument: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        split(table)
    assert refused.value.argument == argument


def test_columns_of_no_type_count_as_empty() -> None:
    nothing = pa.nulls(2)
    table = pa.table(
        {"value": ["a", "b"], "key": nothing, "partition": nothing, "timestamp": nothing, "headers": nothing}
    )
    assert split(table, topic="t", counts={"t": 2}) == {Log("t", 0): [b"a"], Log("t", 1): [b"b"]}
