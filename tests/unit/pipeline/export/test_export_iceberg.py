"""Exports into Iceberg tables: the offsets in snapshots, and which commit counts."""

from __future__ import annotations

import json
import shutil
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from llog.errors import (
    ExportFailed,
    ExportRefused,
    InvalidArgument,
)
from llog.log.topics.admin import create_topic
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.iceberg import OFFSETS, IcebergTarget, open_catalogue, progress_of, store_url_of
from llog.pipeline.export.job import export
from tests.unit.pipeline.export.exporting import Exporting


async def test_a_timestamp_that_a_table_cannot_hold_is_no_passing_trouble_and_files_hold_it(
    exporting: Exporting,
) -> None:
    await exporting.write(10, days=4_000_000)
    with pytest.raises(ExportFailed, match="years 1 to 9999") as refused:
        await exporting.run(await exporting.iceberg())
    assert not refused.value.retriable
    await exporting.run(await exporting.parquet())
    exporting.check("parquet")


async def test_a_refused_commit_is_never_put_on_top_of_another_exporters(exporting: Exporting) -> None:
    await exporting.write(20)
    slow = await exporting.iceberg()
    slow_commit = slow.commit

    async def after_another(*arguments: Any) -> bool:
        slow.commit = slow_commit  # type: ignore[method-assign]
        assert (await exporting.run(await exporting.iceberg())).records == 20
        return await slow_commit(*arguments)

    slow.commit = after_another  # type: ignore[method-assign, assignment]
    report = await exporting.run(slow)
    assert (report.conflicts, report.commits, report.records) == (1, 0, 0)
    exporting.check("iceberg")


async def test_a_commit_goes_through_when_only_others_changed_the_table(exporting: Exporting) -> None:
    await exporting.write(20)
    slow = await exporting.iceberg()
    slow_commit = slow.commit

    async def after_another(*arguments: Any) -> bool:
        with exporting.table().transaction() as changes:
            changes.set_properties({"owner": "somebody"})
        return await slow_commit(*arguments)

    slow.commit = after_another  # type: ignore[method-assign, assignment]
    report = await exporting.run(slow)
    assert (report.conflicts, report.commits, report.records) == (0, 1, 20)
    exporting.check("iceberg")
    properties = exporting.table().properties
    assert properties["owner"] == "somebody"
    assert not any(name.startswith("commit.retry") for name in properties), "the table's own settings are left alone"


async def test_a_commit_whose_answer_was_lost_is_found_and_not_done_twice(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llog.pipeline.export.iceberg as iceberg

    await exporting.write(20)
    commit = iceberg._commit

    def lost(*arguments: Any) -> None:
        commit(*arguments)
        raise OSError("connection reset")

    monkeypatch.setattr(iceberg, "_commit", lost)
    report = await exporting.run(await exporting.iceberg())
    assert (report.commits, report.records) == (1, 20)
    exporting.check("iceberg")


async def test_a_commit_that_never_arrived_is_an_error_that_says_try_again(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llog.pipeline.export.iceberg as iceberg

    await exporting.write(20)

    def lost(*_: Any) -> None:
        raise OSError("connection refused")

    with monkeypatch.context() as patched:
        patched.setattr(iceberg, "_commit", lost)
        with pytest.raises(ExportFailed, match="connection refused") as failed:
            await exporting.run(await exporting.iceberg())
    assert failed.value.retriable
    await exporting.run(await exporting.iceberg())
    exporting.check("iceberg")


async def test_rolling_the_table_back_rolls_the_offsets_back(exporting: Exporting) -> None:
    await exporting.write(10)
    await exporting.run(await exporting.iceberg())
    before = exporting.table().current_snapshot().snapshot_id
    await exporting.write(10)
    await exporting.run(await exporting.iceberg())
    exporting.table().manage_snapshots().set_current_snapshot(snapshot_id=before).commit()
    assert len(exporting.found("iceberg")) == 10
    await exporting.run(await exporting.iceberg())
    exporting.check("iceberg")


async def test_a_table_rolled_back_to_before_its_first_export_is_filled_anew(exporting: Exporting) -> None:
    """Its property still says how far the topic was once."""
    await exporting.write(10)
    target = await exporting.iceberg()
    table = exporting.table()
    with table.transaction() as changes, changes.update_snapshot().fast_append():
        pass  # another writer's
    before = exporting.table().current_snapshot().snapshot_id
    await exporting.run(target)
    exporting.table().manage_snapshots().set_current_snapshot(snapshot_id=before).commit()
    assert exporting.found("iceberg") == []
    await exporting.run(await exporting.iceberg())
    exporting.check("iceberg")


async def test_offsets_outlive_the_snapshots_that_said_them(exporting: Exporting) -> None:
    await exporting.write(10)
    await exporting.run(await exporting.iceberg())
    table = exporting.table()
    first = table.current_snapshot().snapshot_id
    with table.transaction() as changes, changes.update_snapshot().fast_append():
        pass  # another writer's snapshot, which does not name the topic
    table = exporting.table()
    table.maintenance.expire_snapshots().by_id(first).commit()
    assert exporting.table().snapshot_by_id(first) is None
    report = await exporting.run(await exporting.iceberg())
    assert report.records == 0
    exporting.check("iceberg")


async def test_offsets_that_a_newer_release_wrote_are_not_gone_on_from(exporting: Exporting) -> None:
    await exporting.write(10)
    await exporting.run(await exporting.iceberg())
    table = exporting.table()
    said = progress_of(table, "orders")
    assert said is not None
    newer = {OFFSETS + "orders": msgspec.json.encode(replace(said, v=2)).decode()}
    with table.transaction() as changes, changes.update_snapshot(snapshot_properties=newer).fast_append():
        pass
    await exporting.write(10)
    with pytest.raises(ExportRefused, match="newer release"):
        await exporting.run(await exporting.iceberg())


async def test_two_topics_go_into_one_table_each_with_its_own_offsets(exporting: Exporting) -> None:
    await exporting.write(10)
    await exporting.run(await exporting.iceberg())
    await create_topic(exporting.context, "returns", partitions=1)
    report = await export(exporting.context, exporting.runner(), "returns", await exporting.iceberg())
    assert report.commits == 0
    table = exporting.table()
    assert progress_of(table, "returns") is None
    said = progress_of(table, "orders")
    assert said is not None
    assert said.next_offsets == {0: 11, 1: 1}
    assert OFFSETS + "orders" in table.current_snapshot().summary.additional_properties


async def test_a_table_whose_files_somebody_removed_is_no_passing_trouble(exporting: Exporting) -> None:
    await exporting.write(10)
    await exporting.run(await exporting.iceberg())
    shutil.rmtree(exporting.directory / "objects")
    with pytest.raises(ExportRefused, match=r"shop\.orders: .*metadata\.json.* the catalogue names this file"):
        await exporting.iceberg()


async def test_a_table_needs_a_namespace_and_a_catalogue_that_answers(exporting: Exporting) -> None:
    catalogue = open_catalogue(exporting.settings)
    with pytest.raises(InvalidArgument, match="namespace"):
        await IcebergTarget.open(catalogue, "orders", Decoder(Decoding()).schema, lambda _: 1)
    for place in ("file:///tmp/a#b", "file:///tmp/a?b"):
        with pytest.raises(InvalidArgument, match="warehouse"):
            open_catalogue(exporting.settings, warehouse=place)
    with pytest.raises(InvalidArgument, match="nonsense"):
        open_catalogue(exporting.settings, "nonsense://x")
    with pytest.raises(ExportFailed, match="Connection refused") as away:
        open_catalogue(exporting.settings, "http://127.0.0.1:1/")
    assert away.value.retriable


async def test_names_that_are_one_in_a_table_are_refused_and_not_tried_again(exporting: Exporting) -> None:
    schema = {"a.b": {"type": "integer"}, "a": {"type": "object", "properties": {"b": {"type": "integer"}}}}
    decoding = Decoding("json", json.dumps({"type": "object", "properties": schema}))
    with pytest.raises(InvalidArgument, match=r"a\.b"):
        await exporting.iceberg(decoding)


def test_a_tables_location_is_the_url_of_a_store() -> None:
    assert store_url_of("/data/wh/t") == "file:///data/wh/t"
    assert store_url_of("s3a://bucket/wh/t") == "s3://bucket/wh/t"
    assert store_url_of("s3://bucket/wh/t") == "s3://bucket/wh/t"
