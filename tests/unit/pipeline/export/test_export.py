"""Exports: every record once, after crashes, repeated and concurrent runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from llog.errors import (
    ExportFailed,
    ExportRefused,
    ObjectNotFound,
    RecordsLost,
    TopicNotFound,
)
from llog.formats.arrow import SCHEMA
from llog.log.cleanup.retention import delete_records
from llog.log.keys import Log
from llog.log.topics.admin import add_partitions, create_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.pipeline.export.decode import Decoding
from llog.pipeline.export.job import export
from llog.pipeline.export.parquet import committed
from llog.pipeline.export.plan import Sizes
from llog.pipeline.export.task import EXPORT_FILES_PER_TASK_MAX, ExportItem, export_split
from llog.pipeline.runtime.tasks import LocalTasks, TaskTools, tools_of
from llog.settings import Settings
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.unit.pipeline.export.exporting import DAY_0_MS, KINDS, ORDER_SCHEMA, Exporting, target_of

ORDERS = Log("orders", 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_each_run_adds_what_came_since_the_last_and_nothing_else(exporting: Exporting, kind: str) -> None:
    await exporting.write(40)
    await exporting.write(20, partition=1)
    first = await exporting.run(await target_of(exporting, kind))
    assert (first.records, first.commits, first.bad_records) == (60, 1, 0)
    exporting.check(kind)
    again = await exporting.run(await target_of(exporting, kind))
    assert (again.records, again.commits, again.files) == (0, 0, 0)
    assert [(p.partition, p.next_offset, p.log_end_offset) for p in again.partitions] == [(0, 41, 41), (1, 21, 21)]
    await compact_once(exporting.context, ORDERS)
    await exporting.write(15)
    assert (await exporting.run(await target_of(exporting, kind))).records == 15
    exporting.check(kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_many_small_commits_hold_the_same_as_one(exporting: Exporting, kind: str) -> None:
    await exporting.write(300, batch=30, value=lambda n: b"%d" % n + b"x" * 3_000)
    await exporting.write(100, partition=1)
    sizes = Sizes(split_bytes=64 * 1_024, commit_bytes=200_000)
    report = await exporting.run(await target_of(exporting, kind), sizes=sizes)
    assert report.commits > 3
    assert report.tasks > report.commits
    exporting.check(kind)


async def test_parquet_files_lie_by_partition_and_date_are_compressed_and_hold_the_other_columns_of_the_source(
    exporting: Exporting,
) -> None:
    await exporting.write(10, days=2)
    await exporting.run(await exporting.parquet())
    root = exporting.directory / "parquet" / "orders"
    files = sorted(str(file.relative_to(root).parent) for file in root.rglob("*.parquet"))
    assert files == ["partition=0/date=2024-10-04", "partition=0/date=2024-10-05"]
    for file in root.rglob("*.parquet"):
        whole = pq.ParquetFile(file)
        assert whole.schema_arrow.equals(pa.schema([field for field in SCHEMA if field.name != "partition"]))
        assert whole.metadata.row_group(0).column(0).compression == "ZSTD"
        offsets = whole.read()["offset"].to_pylist()
        assert offsets == sorted(offsets)


async def test_without_dates_there_is_one_file_per_partition(exporting: Exporting) -> None:
    await exporting.write(10, days=5)
    report = await exporting.run(await exporting.parquet(), by_date=False)
    assert report.files == 1
    exporting.check("parquet")


@pytest.mark.parametrize("kind", KINDS)
async def test_files_that_are_divided_by_date_are_not_mixed_with_others(exporting: Exporting, kind: str) -> None:
    await exporting.write(10, days=5)
    await exporting.run(await target_of(exporting, kind))
    await exporting.write(10, days=5)

    async def otherwise() -> None:
        target = await (exporting.iceberg(by_date=False) if kind == "iceberg" else exporting.parquet())
        await exporting.run(target, by_date=False)

    with pytest.raises(ExportRefused, match="divided"):
        await otherwise()
    await exporting.run(await target_of(exporting, kind))
    exporting.check(kind)


async def test_a_plan_that_somebody_left_is_finished_before_the_next_and_as_it_was_made(exporting: Exporting) -> None:
    await exporting.write(20)
    target = await exporting.parquet()

    class Dies(LocalTasks):
        async def run(self, *arguments: Any, **named: Any) -> Any:
            await super().run(*arguments, **named)
            raise KeyboardInterrupt

    tools = TaskTools(exporting.context.find_object, exporting.open_store)
    with pytest.raises(KeyboardInterrupt):
        await export(exporting.context, Dies(tools), "orders", target)
    await exporting.write(5)
    while await compact_once(exporting.context, ORDERS) is not None:
        pass
    # The later run would divide files otherwise; the plan says how its own are made, and that all others are.
    with pytest.raises(ExportRefused, match="by partition and date"):
        await exporting.run(await exporting.parquet(), by_date=False)
    assert len(exporting.found("parquet")) == 20
    report = await exporting.run(await exporting.parquet())
    assert (report.commits, report.records) == (1, 5)
    exporting.check("parquet")


@pytest.mark.parametrize("kind", KINDS)
async def test_two_exporters_at_once_add_each_record_once(exporting: Exporting, kind: str) -> None:
    await exporting.write(60, value=lambda n: b"%d" % n + b"y" * 2_000)
    sizes = Sizes(split_bytes=64 * 1_024, commit_bytes=65_536)
    targets = [await target_of(exporting, kind) for _ in range(2)]
    reports = await asyncio.gather(*(exporting.run(target, sizes=sizes) for target in targets), return_exceptions=True)
    for report in reports:
        assert not isinstance(report, BaseException) or (isinstance(report, ExportFailed) and report.retriable)
    exporting.check(kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_records_that_retention_took_first_are_an_error_or_a_gap_that_was_allowed(
    exporting: Exporting, kind: str
) -> None:
    await exporting.write(10)
    await exporting.run(await target_of(exporting, kind))
    await exporting.write(10)
    await delete_records(exporting.context, ORDERS, 16)
    with pytest.raises(RecordsLost, match="allow-gaps"):
        await exporting.run(await target_of(exporting, kind))
    report = await exporting.run(await target_of(exporting, kind), allow_gaps=True)
    assert report.records == 5
    assert [offset for _, offset, _ in exporting.found(kind)] == [*range(1, 11), *range(16, 21)]


async def test_a_plan_that_retention_overtook_says_how_to_go_on_and_does(exporting: Exporting) -> None:
    await exporting.write(20, days=1)
    target = await exporting.parquet()

    class Dies(LocalTasks):
        async def run(self, *arguments: Any, **named: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await export(exporting.context, Dies(tools_of(exporting.context)), "orders", target)
    await delete_records(exporting.context, ORDERS, 16)
    with pytest.raises(RecordsLost, match="allow-gaps"):
        await exporting.run(target)
    report = await exporting.run(target, allow_gaps=True)
    assert (report.resumed, [offset for _, offset, _ in exporting.found("parquet")]) == (1, [*range(16, 21)])


@pytest.mark.parametrize("allow_gaps", [True, False])
async def test_records_that_retention_takes_between_two_commits_are_a_gap_like_any_other(
    exporting: Exporting, allow_gaps: bool
) -> None:
    await exporting.write(90, days=1, batch=30, value=lambda n: b"%d" % n + b"x" * 3_000)

    class Retaining(LocalTasks):
        async def run(self, *arguments: Any, **named: Any) -> Any:
            outcomes = await super().run(*arguments, **named)
            await delete_records(exporting.context, ORDERS, 46)
            return outcomes

    runner = Retaining(TaskTools(exporting.context.find_object, exporting.open_store))
    sizes, target = Sizes(split_bytes=64 * 1_024, commit_bytes=64 * 1_024), await exporting.parquet()

    async def run() -> Any:
        return await export(exporting.context, runner, "orders", target, sizes=sizes, allow_gaps=allow_gaps)

    if not allow_gaps:
        with pytest.raises(RecordsLost, match="allow-gaps"):
            await run()
        return
    assert (await run()).commits == 3
    assert [offset for _, offset, _ in exporting.found("parquet")] == [*range(1, 31), *range(46, 91)]


async def test_a_partition_that_came_or_filled_after_the_first_export_loses_nothing_in_silence(
    exporting: Exporting,
) -> None:
    await exporting.write(10)
    await exporting.write(5, partition=1)
    await delete_records(exporting.context, Log("orders", 1), 6)
    target = await exporting.parquet()
    assert (await exporting.run(target)).records == 10, "the first export begins at the start of the log"
    assert (await exporting.run(target)).records == 0
    await add_partitions(exporting.context, "orders", 3)
    for partition in (1, 2):
        await exporting.write(6, partition=partition)
    await delete_records(exporting.context, Log("orders", 2), 3)
    with pytest.raises(RecordsLost, match="orders:2: offset 1 is lost"):
        await exporting.run(target)
    await delete_records(exporting.context, Log("orders", 1), 8)
    with pytest.raises(RecordsLost, match="orders:1: offset 6 is lost"):
        await exporting.run(target)
    assert (await exporting.run(target, allow_gaps=True)).records == 8


@pytest.mark.parametrize("kind", KINDS)
async def test_another_incarnation_of_the_topic_and_other_columns_are_refused(exporting: Exporting, kind: str) -> None:
    await exporting.write(10)
    await exporting.run(await target_of(exporting, kind))
    other = Decoding("json", ORDER_SCHEMA)
    with pytest.raises(ExportRefused, match="column"):
        await exporting.run(await target_of(exporting, kind, other), decoding=other)
    await delete_topic(exporting.context, "orders")
    with pytest.raises(TopicNotFound):
        await exporting.run(await target_of(exporting, kind))
    await exporting.create()
    with pytest.raises(ExportRefused, match="another incarnation"):
        await exporting.run(await target_of(exporting, kind))


async def test_a_target_that_is_ahead_of_the_log_is_refused(exporting: Exporting, tmp_path: Path) -> None:
    await exporting.write(10)
    target = await exporting.parquet()
    await exporting.run(target)
    [name] = [m.name async for m in exporting.opened[target.paths().store_url].list("_llog/") if "commit" in m.name]
    path = tmp_path / "parquet" / name
    path.write_bytes(path.read_bytes().replace(b'"0":11', b'"0":99'))
    with pytest.raises(ExportRefused, match="offset 98"):
        await exporting.run(target)


async def test_objects_that_vanish_between_plan_and_task_are_planned_again(exporting: Exporting) -> None:
    await exporting.write(30)
    source = exporting.objects

    class Compacting(LocalTasks):
        rounds = 0

        async def run(self, *arguments: Any, **named: Any) -> Any:
            if not Compacting.rounds:
                assert await compact_once(exporting.context, ORDERS) is not None
                blobs = [m.name async for m in source.list(exporting.context.keys.blobs())]
                await source.delete_many(blobs)
            Compacting.rounds += 1
            return await super().run(*arguments, **named)

    runner = Compacting(TaskTools(exporting.context.find_object, exporting.open_store))
    report = await export(exporting.context, runner, "orders", await exporting.parquet())
    assert (Compacting.rounds, report.records) == (2, 30)
    exporting.check("parquet")


async def test_an_exporter_that_comes_late_takes_nothing_back_that_another_exported(exporting: Exporting) -> None:
    """Between the two, retention took records of the plan that both carry out: the later one can read fewer."""
    await exporting.write(30, days=1)
    source = exporting.objects

    class Late(LocalTasks):
        overtaken = False

        async def run(self, *arguments: Any, **named: Any) -> Any:
            if not Late.overtaken:
                Late.overtaken = True
                assert (await exporting.run(await exporting.parquet())).records == 30
                while await compact_once(exporting.context, ORDERS, max_offsets=10):
                    pass
                await delete_records(exporting.context, ORDERS, 21)
                await source.delete_many([m.name async for m in source.list(exporting.context.keys.blobs())])
            return await super().run(*arguments, **named)

    runner = Late(TaskTools(exporting.context.find_object, exporting.open_store))
    target = await exporting.parquet()
    report = await export(exporting.context, runner, "orders", target, allow_gaps=True)
    assert report.resumed == 0
    exporting.check("parquet")
    [commit] = await committed(await exporting.open_store(target.paths().store_url), "orders")
    [file] = commit.files
    assert (file.records, file.first_offset, file.last_offset) == (30, 1, 30)


async def test_a_file_that_is_there_is_never_written_over(exporting: Exporting) -> None:
    """A table names the file's length and its rows once it is committed; a task may come late, having read more."""
    await exporting.write(30, days=1)
    planned: list[ExportItem] = []

    class Noting(LocalTasks):
        async def run(self, task: Any, items: Any, on_done: Any = None, **parts: Any) -> Any:
            planned.extend(items)
            return await super().run(task, items, on_done, **parts)

    tools = TaskTools(exporting.context.find_object, exporting.open_store)
    target = await exporting.iceberg()
    await export(exporting.context, Noting(tools), "orders", target)
    [item] = planned
    item = replace(item, file_name="another")
    some = replace(item, split=replace(item.split, parts=item.split.parts[:1]))
    [first] = (await export_split(tools, some)).files
    store = await exporting.open_store(item.store_url)
    before = bytes(await store.get(first.name))
    assert (await export_split(tools, item)).files == (first,)
    assert bytes(await store.get(first.name)) == before
    await store.put(first.name, [b"no file of an export"])
    assert (await export_split(tools, item)).records == 30
    assert (await export_split(tools, some)).files[0].records == 30


async def test_objects_that_stay_away_end_the_export_with_words(exporting: Exporting) -> None:
    await exporting.write(10)

    async def nowhere(uri: str) -> tuple[ObjectStore, str]:
        raise ObjectNotFound("get", uri)

    runner = LocalTasks(TaskTools(nowhere, exporting.open_store))
    with pytest.raises(ExportFailed, match="missing") as failed:
        await export(exporting.context, runner, "orders", await exporting.parquet())
    assert failed.value.retriable


async def test_a_plan_that_cannot_be_finished_is_dropped_with_its_files_and_nothing_else_is(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await exporting.write(10, days=1)
    target = await exporting.parquet()
    await exporting.run(target)
    assert await target.discard() is None
    for days, count in ((1, 90), (20, 30)):
        await exporting.write(count, days=days, batch=30, value=lambda n: b"%d" % n + b"x" * 3_000)
    monkeypatch.setattr("llog.pipeline.export.task.EXPORT_FILES_PER_TASK_MAX", 3)
    sizes = Sizes(split_bytes=64 * 1_024)
    for by_date in (True, False):
        with pytest.raises(ExportFailed, match="without dates"):
            await exporting.run(target, by_date=by_date, sizes=sizes)
    assert await target.discard()
    assert len(exporting.found("parquet")) == 10
    monkeypatch.undo()
    await exporting.run(target, sizes=sizes)
    exporting.check("parquet")


async def test_a_task_writes_many_dates_and_keeps_few_of_their_rows_in_memory(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llog.pipeline.export.task.EXPORT_PENDING_BYTES_MAX", 4_096)
    await exporting.write(150, days=50, batch=10)
    report = await exporting.run(await exporting.parquet())
    assert (report.tasks, report.files) == (1, 50)
    exporting.check("parquet")
    # Years of old records in one task, or a midnight in every partition that a topic may have.
    assert EXPORT_FILES_PER_TASK_MAX > 10 * 365
    assert 2 * Settings.from_env({}).topic_partitions_max < EXPORT_FILES_PER_TASK_MAX


async def test_one_get_reads_a_blob_for_all_partitions_in_it(exporting: Exporting, tmp_path: Path) -> None:
    from llog.formats.records.encode import encode_records
    from llog.log.append.append import Appender, EncodedGroup

    await create_topic(exporting.context, "wide", partitions=16)
    appender = Appender(exporting.context)
    for n in range(3):
        body = encode_records([b"%d" % n] * 4, timestamps_ms=DAY_0_MS)
        groups = [EncodedGroup(Log("wide", p), 4, "kafka-v2", [body], DAY_0_MS) for p in range(16)]
        await appender.append(groups)
    gets: list[str] = []

    class Counted(MemoryObjectStore):
        """The source's objects, by a store that counts."""

        async def get(self, name: str) -> Any:
            gets.append(name)
            return await exporting.objects.get(name)

        async def get_ranges(self, name: str, ranges: Any) -> Any:
            gets.append(name)
            return await exporting.objects.get_ranges(name, ranges)

    counted = Counted("memory://counted")

    async def find(uri: str) -> tuple[ObjectStore, str]:
        return counted, exporting.objects.name_of(uri)

    runner = LocalTasks(TaskTools(find, exporting.open_store))
    from llog.pipeline.export.parquet import ParquetTarget

    target = ParquetTarget(await exporting.open_store(f"file://{tmp_path}/wide"), "wide")
    report = await export(exporting.context, runner, "wide", target)
    assert report.records == 16 * 3 * 4
    assert len(gets) == len(set(gets)) == 3
