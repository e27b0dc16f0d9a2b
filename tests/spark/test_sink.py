"""Tables and streams written through Spark: acknowledged rows are read by everybody, and a repeat adds nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import llog.testing
from llog import LeaderlessLogReader, LeaderlessLogWriter
from llog.settings import Settings
from tests.clients.http_calls import payloads
from tests.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SOAK = os.environ.get("LLOG_SOAK") == "1"


class Sink:
    """One cluster on files, and what Spark needs to know of it."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        self.options = {
            "llog.metadata.url": f"lmdb://{directory}/metadata",
            "llog.objects.url": f"file://{directory}/objects",
            "llog.wal.url": f"file://{directory}/objects",
        }
        urls = {name.removeprefix("llog.").replace(".", "_"): url for name, url in self.options.items()}
        self.settings = Settings.from_env({}, **urls)

    def write(self, rows: DataFrame, **options: str) -> None:
        rows.write.format("llog").mode("append").options(**self.options, **options).save()

    def records(self, topic: str, partition: int = 0) -> list[Any]:
        with LeaderlessLogReader(self.settings) as reader:
            return list(reader.iter_from(topic, partition, 1))

    def payloads(self, topic: str, partition: int = 0) -> list[str]:
        return [(record.payload or b"").decode() for record in self.records(topic, partition)]

    def stream(self, directory: Path, checkpoint: str, **options: str) -> Any:
        """Text files of a directory, a file per batch, until there are no more."""
        text = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(directory))
        location = str(self.directory / checkpoint)
        writing = text.writeStream.format("llog").options(**self.options, **options)
        query = writing.option("checkpointLocation", location).trigger(availableNow=True).start()
        query.awaitTermination()
        return query


@pytest.fixture
def sink(tmp_path: Path, spark: SparkSession) -> Sink:
    return Sink(tmp_path, spark)


def test_rows_of_a_table_are_records_for_the_python_reader_and_for_http(sink: Sink) -> None:
    rows = sink.spark.range(100).selectExpr(
        "concat('k', id) key",
        "concat('v', id) value",
        "timestamp_millis(1000 + id) timestamp",
        "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary))) headers",
    )
    sink.write(rows.repartition(3), topic="orders", compression="zstd")
    found = {record.key: record for record in sink.records("orders")}
    assert len(found) == 100
    record = found[b"k7"]
    assert (record.payload, record.timestamp_ms, record.headers) == (b"v7", 1007, (("h", b"7"),))
    urls = {name: getattr(sink.settings, name) for name in ("metadata_url", "objects_url", "wal_url")}
    with (
        llog.testing.broker(sink.directory, **urls) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE_SECONDS) as http,
    ):
        assert sorted(payloads(http, "orders")) == sorted(f"v{n}" for n in range(100))


def test_rows_choose_their_topic_and_partition(sink: Sink) -> None:
    with LeaderlessLogWriter(sink.settings) as writer:
        for name in ("t0", "t1"):
            writer.initialize_partition(name, 2)
    rows = sink.spark.range(60).selectExpr(
        "cast(id as string) value", "concat('t', id % 2) topic", "cast(id % 3 as int) partition"
    )
    for _ in range(2):  # the first time some of the logs do not exist yet
        sink.write(rows)
    for number in (0, 1):
        for partition in (0, 1, 2):
            wanted = [str(n) for n in range(60) if n % 2 == number and n % 3 == partition]
            assert sorted(sink.payloads(f"t{number}", partition)) == sorted(wanted * 2)


def test_a_row_never_adds_a_partition_and_keys_keep_their_places(sink: Sink) -> None:
    with LeaderlessLogWriter(sink.settings) as writer:
        writer.initialize_partition("orders", 2)
    keyed = sink.spark.range(100).selectExpr("cast(id as string) value", "concat('key-', id) key")
    sink.write(keyed, topic="orders")
    before = [sorted(sink.payloads("orders", partition)) for partition in range(3)]
    stray = sink.spark.range(1).selectExpr("'stray' value", "50 partition")
    with pytest.raises(Exception, match="orders:50: the topic has 3 partitions"):
        sink.write(stray, topic="orders")
    sink.write(keyed, topic="orders")
    assert [sorted(sink.payloads("orders", partition)) for partition in range(3)] == [sorted(one * 2) for one in before]


def test_a_repeated_write_under_a_query_id_adds_nothing_however_it_is_split(sink: Sink) -> None:
    rows = sink.spark.range(40).selectExpr("cast(id as string) value")
    sink.write(rows.coalesce(1), topic="orders", queryId="nightly")
    sink.write(rows.repartition(5), topic="orders", queryId="nightly")
    assert len(sink.payloads("orders")) == 40
    sink.write(rows, topic="orders", queryId="nightly", batchId="1")
    sink.write(rows, topic="orders")
    assert sorted(sink.payloads("orders")) == sorted([str(n) for n in range(40)] * 3)


def test_a_stream_is_written_once_over_restarts(sink: Sink, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    inbox.mkdir()
    for number in range(2):
        (inbox / f"{number}.txt").write_text("\n".join(f"{number}-{n}" for n in range(5)))
    first = sink.stream(inbox, "checkpoint", topic="orders")
    assert sorted(sink.payloads("orders")) == [f"{a}-{n}" for a in range(2) for n in range(5)]
    (inbox / "2.txt").write_text("2-0")
    _forget_last_commit(tmp_path / "checkpoint")  # as if the driver had died before it could note its last batch
    second = sink.stream(inbox, "checkpoint", topic="orders")
    assert first.id == second.id
    wanted = sorted([f"{a}-{n}" for a in range(2) for n in range(5)] + ["2-0"])
    assert sorted(sink.payloads("orders")) == wanted


@pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1: two more streams; what refuses is tested without Spark")
def test_a_new_checkpoint_under_the_same_query_id_is_refused(sink: Sink, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    inbox.mkdir()
    (inbox / "0.txt").write_text("row")
    sink.stream(inbox, "one", topic="orders", queryId="q")
    with pytest.raises(Exception, match="belongs to checkpoint"):
        sink.stream(inbox, "two", topic="orders", queryId="q")
    assert sink.payloads("orders") == ["row"]


def _forget_last_commit(checkpoint: Path) -> None:
    last = max(checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_what_cannot_be_written_is_named(sink: Sink) -> None:
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as refused:
        sink.write(sink.spark.range(1).selectExpr("1 value"), topic="t")
    assert "value: the column is int, but must be string or binary" in str(refused.value)


@pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1: Spark tries a task four times")
def test_a_bad_row_fails_the_write_and_leaves_nothing_visible(sink: Sink) -> None:
    rows = sink.spark.range(4).selectExpr("cast(id as string) value", "cast(id - 2 as int) partition")
    with pytest.raises(Exception, match=r"partition: -[12] must be from 0"):
        sink.write(rows.repartition(2), topic="orders")
    assert sink.payloads("orders") == []


@pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1: Spark tries a task four times")
def test_a_row_larger_than_its_topic_accepts_fails_the_write_and_is_named(sink: Sink) -> None:
    rows = sink.spark.range(2).selectExpr("repeat('x', cast(1048576 * id as int)) value")
    with pytest.raises(Exception, match=r"orders:0: a record takes 1048\d+ bytes, more than the topic's max\.message"):
        sink.write(rows.coalesce(1), topic="orders")
    assert sink.payloads("orders") == []
