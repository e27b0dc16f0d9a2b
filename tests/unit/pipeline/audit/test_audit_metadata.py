"""Damage of metadata, contradictions to the catalogue and leftovers are reported with log and offsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from llog.formats.values import (
    CompactionRecord,
    ControlRecord,
    IndexEntry,
    Pending,
    SegmentRecord,
    TopicRecord,
    decode_value,
    encode_value,
)
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.log.rewrite.segments import list_segments
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from tests.unit.pipeline.audit.auditing import CLICKS, ORDERS, Stage, audited, change_value, filled, found


@pytest.fixture
async def stage() -> Stage:
    return await filled()


Plant = Callable[[Stage], Awaitable[None]]


async def _gap(stage: Stage) -> None:
    await stage.metadata.delete(stage.context.keys.index_entry(ORDERS, 14))


async def _overlap(stage: Stage) -> None:
    await stage.change_entry(ORDERS, 16, lambda entry: replace(entry, msg_count=3))


async def _wrong_count(stage: Stage) -> None:
    await stage.change_entry(ORDERS, 14, lambda entry: replace(entry, record_count=3))


async def _wrong_level(stage: Stage) -> None:
    await stage.change_entry(ORDERS, 14, lambda entry: replace(entry, level=2))


async def _wrong_epoch(stage: Stage) -> None:
    await stage.change_entry(ORDERS, 14, lambda entry: replace(entry, epoch=7))


async def _beyond_counter(stage: Stage) -> None:
    entry = await stage.entry(ORDERS, 16)
    await stage.metadata.put(stage.context.keys.index_entry(ORDERS, 18), encode_value(entry))


async def _later_life(stage: Stage) -> None:
    await stage.change_entry(ORDERS, 16, lambda entry: replace(entry, incarnation=2))


async def _cursor(stage: Stage) -> None:
    await change_value(stage, stage.context.keys.compaction(ORDERS), CompactionRecord, offset=99)


async def _cursor_inside_a_segment(stage: Stage) -> None:
    await change_value(stage, stage.context.keys.compaction(ORDERS), CompactionRecord, offset=12)


async def _compaction_of_a_later_life(stage: Stage) -> None:
    await change_value(stage, stage.context.keys.compaction(ORDERS), CompactionRecord, incarnation=2)


async def _counter(stage: Stage) -> None:
    await change_value(stage, stage.context.keys.control(ORDERS), ControlRecord, sequence_counter=20)


async def _no_control(stage: Stage) -> None:
    await stage.metadata.delete(stage.context.keys.control(ORDERS))


async def _no_compaction_record(stage: Stage) -> None:
    await stage.metadata.delete(stage.context.keys.compaction(ORDERS))


async def _no_snapshot(stage: Stage) -> None:
    await stage.metadata.delete(stage.context.keys.producers(ORDERS))


async def _no_entry(stage: Stage) -> None:
    await stage.metadata.put(stage.context.keys.index_entry(ORDERS, 14), b"{}")


async def _no_value(stage: Stage) -> None:
    await stage.metadata.put(stage.context.keys.control(ORDERS), b"\xff")


async def _no_topic(stage: Stage) -> None:
    await stage.metadata.put(stage.context.keys.topic(ORDERS.topic), b"[]")


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (_gap, "gap"),
        (_overlap, "overlap"),
        (_wrong_count, "count"),
        (_wrong_level, "level"),
        (_wrong_epoch, "epoch"),
        (_beyond_counter, "beyond counter"),
        (_later_life, "later incarnation"),
        (_cursor, "cursor"),
        (_cursor_inside_a_segment, "cursor"),
        (_compaction_of_a_later_life, "later incarnation"),
        (_counter, "gap"),
        (_no_control, "no control record"),
        (_no_compaction_record, "no compaction record"),
        (_no_snapshot, "no snapshot"),
        (_no_entry, "unreadable"),
        (_no_value, "unreadable value"),
        (_no_topic, "unreadable value"),
    ],
)
async def test_every_fault_of_the_metadata_is_found(stage: Stage, plant: Plant, kind: str, fast: bool) -> None:
    await plant(stage)
    report = await audited(stage, fast=fast)
    assert not report.clean
    assert kind in {finding.kind for finding in report.findings if finding.severity == "damage"}
    assert {finding.topic for finding in report.findings} == {"orders"}
    assert report.complete


async def test_a_pending_append_that_is_not_sound_is_found(stage: Stage) -> None:
    key = stage.context.keys.control(ORDERS)
    record = await stage.metadata.get(key)
    assert record is not None
    control = decode_value(ControlRecord, record.value, key.path)
    entry = await stage.entry(ORDERS, 16)
    sound = pending_of(entry, 15, 16)
    await stage.metadata.put(key, encode_value(replace(control, pending=sound)))
    assert (await audited(stage)).findings == []
    for fields in ({"msg_count": 1}, {"incarnation": 2}, {"epoch": 4}, {"start_offset": 14}):
        await stage.metadata.put(key, encode_value(replace(control, pending=replace(sound, **fields))))
        assert not (await audited(stage)).clean, fields
    gone = replace(sound, data_key=sound.data_key[:-1] + "x")
    await stage.metadata.delete(stage.context.keys.index_entry(ORDERS, 16))
    await stage.metadata.put(key, encode_value(replace(control, pending=gone)))
    assert ("missing object", "orders:0", 15, 16) in found(await audited(stage))


def pending_of(entry: IndexEntry, start: int, end: int) -> Pending:
    return Pending(
        append_id=entry.append_id,
        start_offset=start,
        end_offset=end,
        msg_count=entry.msg_count,
        data_key=entry.data_key,
        encoding=entry.encoding,
        byte_offset=entry.byte_offset,
        byte_length=entry.byte_length,
        max_timestamp_ms=entry.max_timestamp_ms,
        created_at_ms=entry.created_at_ms,
    )


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"state": "DELETE_SEGMENT_STARTED"}, "wrong record"),
        ({"state": "COPY_SEGMENT_STARTED"}, "wrong record"),
        ({"end_offset": 9}, "wrong record"),
        ({"size_bytes": 1}, "wrong record"),
        ({"incarnation": 2}, "later incarnation"),
        ({"epochs": {4: 1}}, "malformed object"),
        ({"sources": ("memory://elsewhere",)}, "malformed object"),
        (None, "no record"),
    ],
)
async def test_a_catalogue_that_contradicts_the_index_is_found(
    stage: Stage, fields: dict[str, Any] | None, kind: str
) -> None:
    uri = (await stage.entry(ORDERS, 8)).data_key
    key = stage.context.keys.segment(ORDERS, uri.rpartition("/")[2])
    if fields is None:
        await stage.metadata.delete(key)
    else:
        await change_value(stage, key, SegmentRecord, **fields)
    [finding] = [f for f in (await audited(stage)).findings if f.severity == "damage"]
    assert (finding.kind, finding.object) == (kind, uri)


async def test_a_segment_written_before_there_was_a_catalogue_needs_no_record(stage: Stage) -> None:
    """Its object lies where ours do, and its id is a plain UUID."""
    entry = await stage.entry(ORDERS, 8)
    old = entry.data_key.rpartition("/")[2]
    name = stage.context.keys.segment_object(ORDERS, old).replace(old, "8b8e9c9df7d94d5f8f2b7b6d3e6a1234")
    await stage.objects.put(name, [await stage.objects.get(stage.context.keys.segment_object(ORDERS, old))])
    await stage.metadata.delete(stage.context.keys.segment(ORDERS, old))
    await change_value(stage, stage.context.keys.index_entry(ORDERS, 8), IndexEntry, data_key=stage.objects.uri(name))
    report = await audited(stage)
    assert [finding for finding in report.findings if finding.severity == "damage"] == []


async def test_a_record_of_a_dead_life_is_a_leftover(stage: Stage) -> None:
    [known, *_] = await list_segments(stage.context, ORDERS)
    key = stage.context.keys.segment(ORDERS, known.record.segment_id)
    await change_value(stage, key, SegmentRecord, incarnation=0)
    report = await audited(stage)
    assert (report.clean, report.tidy) == (True, False)
    assert {finding.kind for finding in report.findings} == {"phantom record"}


async def test_orphans_are_listed_with_their_age_once_they_are_old(stage: Stage) -> None:
    keys, objects = stage.context.keys, stage.objects
    blob, segment = (new_object_id(stage.now_ms, stage.rng.getrandbits) for _ in range(2))
    names = [keys.blob_object(blob), keys.segment_object(ORDERS, segment), keys.segment_object(Log("gone", 0), segment)]
    for name in names:
        await objects.put(name, [b"unnamed"])
    assert (await audited(stage)).tidy, "young objects may be named soon"
    stage.later(1.5)
    report = await audited(stage)
    assert report.clean
    orphans = {f.object: f for f in report.findings if f.kind == "orphan"}
    assert {objects.uri(name) for name in names} <= orphans.keys()
    assert {orphans[objects.uri(name)].age_ms for name in names} == {int(1.5 * 3_600_000)}
    assert "not known here" in orphans[objects.uri(names[2])].reason
    assert "header cannot be read" in orphans[objects.uri(names[0])].reason


async def test_blobs_that_compaction_left_are_orphans_only_when_no_log_names_them(stage: Stage) -> None:
    only, shared = await stage.append(ORDERS), await stage.append(ORDERS, CLICKS)
    while await compact_once(stage.context, ORDERS):
        pass
    stage.later(2)
    orphans = {f.object for f in (await audited(stage)).findings if f.kind == "orphan"}
    assert only in orphans
    assert shared not in orphans


async def test_an_orphan_of_a_log_that_cannot_be_read_is_not_called_one(stage: Stage) -> None:
    await _no_value(stage)
    stage.later(3)
    report = await audited(stage)
    assert [finding.kind for finding in report.findings] == ["unreadable value"]


async def test_phantoms_are_listed(stage: Stage) -> None:
    """A WAL entry below the cursor, and one of a dead incarnation."""
    entry = await stage.entry(ORDERS, 16)
    keys = stage.context.keys
    await stage.metadata.put(keys.index_entry(ORDERS, 6), encode_value(entry))
    await stage.metadata.put(keys.index_entry(ORDERS, 7), encode_value(replace(entry, incarnation=0)))
    report = await audited(stage)
    assert (report.clean, report.tidy) == (True, False)
    assert found(report) == [("phantom", "orders:0", 5, 6), ("phantom", "orders:0", 6, 7)]


async def test_entries_below_the_start_are_listed(stage: Stage) -> None:
    await change_value(stage, stage.context.keys.control(ORDERS), ControlRecord, log_start_offset=13)
    report = await audited(stage)
    assert report.clean
    assert [row[0] for row in found(report)] == ["below start", "below start"]


async def test_what_came_late_to_a_deleted_topic_is_listed(stage: Stage) -> None:
    entry = await stage.entry(ORDERS, 16)
    await delete_topic(stage.context, ORDERS.topic)
    assert (await audited(stage)).findings == []
    await stage.metadata.put(stage.context.keys.index_entry(ORDERS, 16), encode_value(entry))
    record = SegmentRecord(
        segment_id=new_object_id(stage.now_ms, stage.rng.getrandbits),
        incarnation=1,
        start_offset=1,
        end_offset=2,
        size_bytes=0,
        state="COPY_SEGMENT_STARTED",
    )
    await stage.metadata.put(stage.context.keys.segment(ORDERS, record.segment_id), encode_value(record))
    assert found(await audited(stage)) == [("phantom", "orders:0", 15, 16), ("phantom record", "orders:0", 1, 2)]
    await change_value(stage, stage.context.keys.topic(ORDERS.topic), TopicRecord, state="DELETING")
    assert (await audited(stage)).findings == [], "its deletion is not finished"
