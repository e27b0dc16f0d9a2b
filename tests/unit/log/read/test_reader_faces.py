"""The reader's faces: what programs call, with and without an event loop."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llog import (
    AsyncLeaderlessLogReader,
    LeaderlessLogCompactor,
    LeaderlessLogReader,
    LeaderlessLogWriter,
    SharedAppendGroup,
)
from llog.errors import OffsetOutOfRange, StoreClosed
from llog.log.metrics import READ_BYTES, READ_GETS, READ_RECORDS
from llog.settings import Settings
from llog.telemetry.metering import Meters
from llog.telemetry.metrics import BrokerMetrics


class Counts(dict[str, int]):
    def count(self, name: str, value: int = 1) -> None:
        self[name] = self.get(name, 0) + value


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    objects = f"memory://faces-{time.time_ns()}"
    settings = Settings.from_env({}, metadata_url=f"lmdb://{tmp_path}/metadata", objects_url=objects, wal_url=objects)
    with LeaderlessLogWriter(settings) as writer, LeaderlessLogCompactor(settings) as compactor:
        for i in range(5):
            group = SharedAppendGroup("t", 0, [f"{i}-a", f"{i}-b"], timestamps_ms=[100 * i, 100 * i + 50])
            writer.append_shared([group])
            if i == 2:
                assert compactor.compact_once("t", 0) is not None
    return settings


EXPECTED = [(2 * i + j + 1, b"%d-%s" % (i, name)) for i in range(5) for j, name in enumerate((b"a", b"b"))]


def test_the_plain_reader_reads_ranges_and_finds_timestamps(settings: Settings) -> None:
    counts = Counts()
    with LeaderlessLogReader(settings, metrics=counts) as reader:
        assert [(r.offset, r.payload) for r in reader.iter_from("t", 0, 1)] == EXPECTED
        assert counts[READ_GETS] == 3, "one segment and two slices"
        assert counts[READ_RECORDS] == 10
        assert counts[READ_BYTES] > 0
        assert [r.offset for r in reader.read_range("t", 0, 5, 8)] == [5, 6, 7, 8]
        assert [r.offset for r in reader.read_range("t", 0, 9, 99)] == [9, 10]
        assert reader.read_range("t", 0, 5, 4) == []
        assert reader.read_range("t", 0, 11, 12) == []
        assert reader.read_offset("t", 0, 4).payload == b"1-b"
        assert reader.offset_for_timestamp("t", 0, 151) == (5, 200)
        assert reader.offset_for_timestamp("t", 0, 451) is None
        assert reader.max_timestamp("t", 0) == (10, 450)
        assert (reader.log_start_offset("t", 0), reader.high_watermark("t", 0)) == (1, 10)
        for outside in (0, 12):
            with pytest.raises(OffsetOutOfRange):
                next(iter(reader.iter_from("t", 0, outside)))


def test_an_iteration_may_be_dropped_and_outlives_nothing(settings: Settings) -> None:
    with LeaderlessLogReader(settings) as reader:
        for record in reader.iter_from("t", 0, 3):
            assert record.offset == 3
            break
        runs = list(reader.iter_runs("t", 0, 1, end_offset=6))
        assert [len(run.columns) for run in runs] == [6]
        unfinished = reader.iter_runs("t", 0, 1)
        next(unfinished)
    with pytest.raises(StoreClosed):
        list(unfinished)


async def test_the_asynchronous_reader_gives_the_same_answers(settings: Settings) -> None:
    counts = Counts()
    async with await AsyncLeaderlessLogReader.open(settings, metrics=counts) as reader:
        assert [(r.offset, r.payload) async for r in reader.iter_from("t", 0, 1)] == EXPECTED
        assert counts[READ_RECORDS] == 10
        assert [r.offset for r in await reader.read_range("t", 0, 2, 3)] == [2, 3]
        assert await reader.offset_for_timestamp("t", 0, 350) == (8, 350)
        assert await reader.max_timestamp("t", 0) == (10, 450)
        assert await reader.log_start_offset("t", 0) == 1


def test_a_broker_s_metrics_count_for_a_face_too_stores_included(settings: Settings) -> None:
    metrics = BrokerMetrics()
    meters = Meters(settings, metrics)
    with LeaderlessLogReader(settings, metrics=metrics, wrapping=meters.wrapping) as reader:
        assert reader.read_offset("t", 0, 9).payload == b"4-a"
    with LeaderlessLogCompactor(settings, metrics=metrics, wrapping=meters.wrapping) as compactor:
        assert compactor.compact_once("t", 0) is not None
    shown = metrics.snapshot()
    assert shown["log"]["read_gets"] == 1
    assert shown["log"]["compact_runs"] == 1
    assert shown["s3"]["operations"]["range_get"]["bytes"] > 0
    assert shown["s3"]["operations"]["put"]["requests"] > 0
    assert shown["metadata"]["operations"]["write"]["calls"] > 0
    assert shown["s3"]["billing"]["request_cost_usd"] > 0
