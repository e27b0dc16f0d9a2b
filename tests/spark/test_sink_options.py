"""Options and columns of a write, without a session: what cannot be used is refused by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import llog

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "leaderless-log[spark]"')

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from llog.audit_log import os_user
from llog.errors import InvalidArgument, MetadataDenied, MetadataFull, MetadataUncertain, SinkQueryTaken
from llog.pipeline.sink.commit import SinkResult, commit_batch
from llog.settings import Settings
from llog.spark.sink import driver as sink_driver
from llog.spark.sink.options import SinkOptions, check_columns, parse_sink_options
from llog.spark.sink.writer import LlogStreamWriter, LlogWriter
from tests.audit_lines import audit_lines

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "void": NullType(),
    "headers": HEADERS,
    "map": MapType(StringType(), BinaryType()),
}


def columns(text: str) -> StructType:
    """`name kind, name kind`: Spark's own parser needs a session."""
    pairs = [part.split() for part in text.split(",")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a b"}, "topic: 'a b' may only hold"),
        ({"topic": " "}, "topic: is empty"),
        ({"topik": "x"}, "topik: is not an option of the sink llog; did you mean topic?"),
        ({"path": "/x"}, "path: save() and start() take no path"),
        ({"subscribe": "x"}, "subscribe: is an option of reads; name the target by topic"),
        ({"kafka.bootstrap.servers": "x"}, "is for Kafka brokers"),
        ({"llog.s3.secret.access.key": "x"}, "set a secret in the environment"),
        ({"llog.nothing": "x"}, "there is no setting LLOG_NOTHING"),
        ({"compression": "brotli"}, "compression: 'brotli' must be one of none, gzip, snappy, lz4, zstd"),
        ({"blobBytes": "many"}, "blobBytes: "),
        ({"blobBytes": "0"}, "blobBytes: '0' must be more than 0 bytes"),
        ({"blobBytes": "3GiB"}, "blobBytes: 3GiB is more than 1073741824 bytes"),
        ({"batchId": "1"}, "batchId: needs the option queryId"),
        ({"queryId": "q", "batchId": "x"}, "batchId: 'x' must be a number"),
        ({"queryId": "q" * 161}, "queryId: 'qqq"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_sink_options(options, streaming=False)
    assert message in str(refused.value)


def test_a_stream_counts_its_batches_itself() -> None:
    with pytest.raises(InvalidArgument, match="batchId"):
        parse_sink_options({"queryId": "q", "batchId": "1"}, streaming=True)


def test_options_are_read_in_any_case_and_sparks_own_are_left_aside() -> None:
    given = {
        "TOPIC": "orders",
        "queryid": "q",
        "batchId": "7",
        "Compression": "ZSTD",
        "blobBytes": "4MiB",
        "checkpointLocation": "/x",
        "llog.metadata.url": "lmdb:///m",
    }
    assert parse_sink_options(given, streaming=False) == SinkOptions(
        topic="orders",
        query="q",
        batch=7,
        compression="zstd",
        blob_bytes=4 << 20,
        settings={"metadata_url": "lmdb:///m"},
    )


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("key string", "value: the table has no such column; it has key"),
        ("value string", "topic: set the option topic"),
        ("value int, topic string", "value: the column is int, but must be string or binary"),
        ("value string, topic int", "topic: the column is int, but must be string"),
        ("value string, topic string, partition string", "partition: the column is string, but must be integer"),
        ("value string, topic string, partition bigint", "partition: the column is bigint, but must be integer"),
        ("value string, topic string, timestamp bigint", "timestamp: the column is bigint, but must be timestamp"),
        ("value string, topic string, headers map", "must be array<struct<key:string,value:binary>>"),
        ("value string, topic string, partitoin int", "partitoin: is not a column of a record"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(ddl: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_columns(columns(ddl), SinkOptions())
    assert message in str(refused.value)


def test_a_table_that_was_read_from_here_can_be_written() -> None:
    read = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, headers headers"
    check_columns(columns(f"{read}, timestampType int"), SinkOptions())


def test_columns_without_values_may_be_of_no_type() -> None:
    nothing = "key void, value string, partition void, timestamp void, headers void"
    check_columns(columns(nothing), SinkOptions(topic="t"))


def test_logs_are_never_overwritten() -> None:
    with pytest.raises(InvalidArgument, match="can only be appended"):
        LlogWriter({"topic": "t"}, columns("value string"), overwrite=True)
    with pytest.raises(InvalidArgument, match="can only be appended"):
        LlogStreamWriter({"topic": "t"}, columns("value string"), overwrite=True)


def written(directory: Path, value: str, **options: str) -> None:
    """One row, as Spark writes it, without a session."""
    stores = {"llog.metadata.url": f"lmdb://{directory}/metadata", "llog.objects.url": f"file://{directory}/objects"}
    writer = LlogWriter({**stores, **options}, columns("value string"))
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": [value]})]))])


def values(directory: Path, topic: str) -> list[bytes]:
    urls = {"metadata_url": f"lmdb://{directory}/metadata", "objects_url": f"file://{directory}/objects"}
    found: list[bytes] = llog.scan(topic, settings=Settings.from_env({}, **urls)).to_arrow()["value"].to_pylist()
    return found


def test_a_topic_that_a_write_creates_has_an_audit_line_with_user_and_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, "x", topic="orders", queryId="q")
    [line] = audit_lines(caplog)
    assert (line["action"], line["object"], line["principal"]) == ("topic.create", "orders", f"spark:{os_user()}/q")


def test_a_batch_that_goes_to_two_topics_needs_two_query_ids(tmp_path: Path) -> None:
    """As in `foreachBatch`. The second topic would get nothing, as the repeat of a committed batch."""
    written(tmp_path, "x", topic="orders", queryId="q")
    written(tmp_path, "x", topic="orders", queryId="q")
    for batch in ("0", "1"):
        with pytest.raises(
            SinkQueryTaken, match="belongs to writes to topic orders, but this is writes to topic copies"
        ):
            written(tmp_path, "x", topic="copies", queryId="q", batchId=batch)
    written(tmp_path, "x", topic="copies", queryId="q-copies")
    for topic in ("orders", "copies"):
        assert values(tmp_path, topic) == [b"x"]


def test_a_commit_whose_answer_was_lost_is_asked_for_again_and_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = []

    async def loses_its_first_answer(*arguments: Any) -> SinkResult:
        commits.append(await commit_batch(*arguments))
        if len(commits) == 1:
            raise MetadataUncertain("put", "a commit plan")
        return commits[-1]

    monkeypatch.setattr(sink_driver, "commit_batch", loses_its_first_answer)
    written(tmp_path, "x", topic="orders")
    assert [commit.ours for commit in commits] == [True, False]
    assert values(tmp_path, "orders") == [b"x"]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "may be visible, and a repeated write would add them again: give a write the options queryId and batchId"),
        (
            {"queryId": "q"},
            "may be visible; repeat it with the same queryId and batchId, which adds only what is missing",
        ),
    ],
)
def test_a_commit_that_fails_says_that_rows_may_be_visible_and_how_to_write_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], advice: str
) -> None:
    async def stops_half_way(*arguments: Any) -> SinkResult:
        await commit_batch(*arguments)
        raise MetadataDenied("put", "a control record")

    with monkeypatch.context() as patched:
        patched.setattr(sink_driver, "commit_batch", stops_half_way)
        with pytest.raises(MetadataDenied, match=f"^put a control record: MetadataDenied; rows of this write {advice}"):
            written(tmp_path, "x", topic="orders", **options)
    written(tmp_path, "x", topic="orders", **options)
    assert values(tmp_path, "orders") == ([b"x"] if options else [b"x", b"x"])


def test_a_write_that_took_effect_does_not_fail_because_it_cannot_be_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_refused(*_: Any) -> None:
        raise MetadataFull("delete", "the records of a write")

    monkeypatch.setattr(sink_driver, "forget_query", is_refused)
    written(tmp_path, "x", topic="orders")
    assert values(tmp_path, "orders") == [b"x"]
    assert "could not be removed" in caplog.text


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        ({"spark.sql.execution.id": "7", "spark.sql.execution.root.id": "7"}, False),
        ({"spark.sql.execution.id": "8", "spark.sql.execution.root.id": "7"}, True),
        ({"spark.sql.execution.id": "8", "spark.sql.execution.root.id": "7", "sql.streaming.queryId": "q"}, False),
        ({"spark.sql.execution.id": "8"}, False),
        ({}, False),
    ],
)
def test_a_write_within_another_command_that_is_no_stream_s_creates_a_table(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], refused: bool
) -> None:
    task = SimpleNamespace(getLocalProperty=properties.get)
    monkeypatch.setattr(sink_driver, "TaskContext", SimpleNamespace(get=lambda: task))
    assert sink_driver.creates_table() is refused
