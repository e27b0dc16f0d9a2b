"""Every corruption that is planted is found, with its log, offsets and object; a sound log is clean."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from llog.errors import MetadataUnavailable, ObjectStoreUnavailable
from llog.formats.shared_blob import parse_shared_blob
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.pieces import Piece
from llog.log.keys import Log
from llog.log.producers import ProducerClaim
from llog.pipeline.audit.job import Grouped, audit, plan_items
from llog.pipeline.audit.log_metadata import inspect_metadata
from llog.pipeline.audit.task import COMPARE_OBJECTS, Objects, compare_objects
from llog.pipeline.runtime.tasks import LocalTasks, decoded_outcome, encoded_item, perform, tools_of
from llog.stores.metadata.faulty import FaultyMetadataStore
from llog.stores.metadata.port import Key, Record
from llog.stores.objects.port import Buffer
from llog.stores.objects.wrappers import ForwardingObjectStore, MeteredObjectStore
from tests.unit.pipeline.audit.auditing import CLICKS, ORDERS, Stage, audited, filled, found, group

SOAK = os.environ.get("LLOG_SOAK") == "1"


@pytest.fixture
async def stage() -> Stage:
    return await filled()


# -- sound logs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("atomic", [False, True], ids=["compare-and-set", "atomic"])
async def test_a_sound_log_is_clean_and_tidy(atomic: bool, fast: bool) -> None:
    stage = Stage(atomic=atomic)
    await stage.fill()
    report = await audited(stage, fast=fast)
    assert report.findings == []
    assert (report.clean, report.tidy, report.complete) == (True, True, True)
    assert (report.entries, report.objects) == (12, 10), "two segments; two blobs of orders, shared with clicks' eight"


async def test_each_object_is_read_once_however_many_logs_share_it(stage: Stage) -> None:
    metered = MeteredObjectStore(stage.objects)
    context = stage.context_on(metered)
    logs = [Log("wide", partition) for partition in range(64)]
    await stage.append(*logs, records=1)
    report = await audit(context, LocalTasks(tools_of(context)), logs=logs)
    assert (report.entries, report.objects, report.requests) == (64, 1, 1)
    operations = metered.stats.operations
    assert operations["get"].request_count == 1
    assert operations["range_get"].request_count == operations["head"].request_count == 0


async def test_a_fast_audit_reads_no_object(stage: Stage) -> None:
    metered = MeteredObjectStore(stage.objects)
    context = stage.context_on(metered)
    report = await audit(context, LocalTasks(tools_of(context)), fast=True)
    assert (report.clean, report.bytes_read) == (True, 0)
    operations = metered.stats.operations
    assert operations["get"].request_count == 1, "the cluster's marker"
    assert operations["range_get"].request_count == 0
    assert operations["head"].request_count == report.objects == 10


async def test_nothing_is_written(stage: Stage) -> None:
    before = {r.key.path: r.version async for r in stage.metadata.scan_tree("")}
    objects = [meta async for meta in stage.objects.list("")]
    stage.later(3)
    await audited(stage)
    assert {r.key.path: r.version async for r in stage.metadata.scan_tree("")} == before
    assert [meta async for meta in stage.objects.list("")] == objects


async def test_an_entry_that_names_a_part_of_a_body_is_sound(stage: Stage) -> None:
    """Of two producers' batches one is a repeat: the other one is committed as a part of the slice."""
    appender = Appender(stage.context)

    def batch(producer: int, first: int) -> tuple[Piece, Any]:
        body = group(ORDERS, 1, stage.rng).body[0]
        return Piece(1, len(body), ProducerClaim(producer, 0, first, first)), body

    first, again, new = batch(1, 0), batch(1, 0), batch(2, 0)
    await appender.append([EncodedGroup(ORDERS, 1, "kafka-v2", [first[1]], 5, pieces=(first[0],))])
    both = EncodedGroup(ORDERS, 2, "kafka-v2", [again[1], new[1]], 5, pieces=(again[0], new[0]))
    [outcome] = await appender.append([both])
    await appender.close()
    assert isinstance(outcome, Appended)
    entry = await stage.entry(ORDERS, 18)
    assert (entry.msg_count, entry.byte_length) == (1, len(new[1])), "not the whole body"
    assert (await audited(stage)).findings == []
    await stage.change_object(entry.data_key, flipped(-1))
    assert found(await audited(stage)) == [("checksum", "orders:0", 18, 18)]


async def test_other_logs_are_not_looked_at_when_some_are_named(stage: Stage) -> None:
    await stage.metadata.delete(stage.context.keys.index_entry(CLICKS, 4))
    assert (await audited(stage, logs=[ORDERS])).findings == []
    assert not (await audited(stage, logs=[CLICKS])).clean


# -- objects -----------------------------------------------------------------------------------------------------------


def flipped(at: int, bit: int = 3) -> Callable[[bytearray], bytearray]:
    def change(data: bytearray) -> bytearray:
        data[at] ^= 1 << bit
        return data

    return change


@pytest.mark.parametrize("section", ["magic", "header length", "header", "first body", "last body"])
async def test_a_flipped_bit_in_any_section_of_a_blob_is_found(stage: Stage, section: str) -> None:
    uri = (await stage.entry(ORDERS, 14)).data_key
    at = {"magic": 0, "header length": 7, "header": 12, "first body": -200, "last body": -1}[section]
    await stage.change_object(uri, flipped(at))
    report = await audited(stage)
    assert not report.clean
    assert {finding.object for finding in report.findings} == {uri}
    assert {finding.rule for finding in report.findings} == {"I8"}
    logs = {finding.log for finding in report.findings}
    assert logs <= {"orders:0", "clicks:3"}
    assert section not in ("magic", "header length", "header") or len(logs) == 2, "a header is every log's"


@pytest.mark.parametrize("section", ["first batch", "last batch", "extension", "index", "count", "magic"])
async def test_a_flipped_bit_in_any_section_of_a_segment_is_found(stage: Stage, section: str) -> None:
    entry = await stage.entry(ORDERS, 8)
    data_length = (entry.byte_length or 0) - (entry.footer_length or 0)
    places = {"first batch": 0, "last batch": data_length - 1, "extension": data_length + 20, "index": -12}
    await stage.change_object(entry.data_key, flipped({**places, "count": -5, "magic": -1}[section]))
    report = await audited(stage)
    [finding] = report.findings
    assert (finding.log, finding.start_offset, finding.end_offset) == ("orders:0", 1, 8)
    assert finding.object == entry.data_key
    assert finding.kind in ("checksum", "malformed object")


@pytest.mark.parametrize("end", [14, 8], ids=["blob", "segment"])
async def test_no_bit_of_an_object_changes_unseen(end: int) -> None:
    stage = Stage()
    await stage.fill()
    grouped = Grouped()
    for log in (ORDERS, CLICKS):
        grouped.add((await inspect_metadata(stage.context, log, strict=True)).claims)
    uri = (await stage.entry(ORDERS, end)).data_key
    grouped.objects = {uri: grouped.objects[uri]}
    [item] = plan_items(grouped, root=stage.context.keys.root, fast=False)
    tools, data = tools_of(stage.context), await stage.bytes_of(uri)
    name = stage.objects.name_of(uri)
    for at in range(len(data)):
        for bit in range(8) if SOAK else [(5 * at) % 8]:
            changed = flipped(at, bit)(bytearray(data))
            await stage.objects.put(name, [bytes(changed)])
            suspects = (await compare_objects(tools, item)).suspects
            assert suspects, f"byte {at}, bit {bit}: {data[max(0, at - 20) : at + 5]!r}"


async def test_a_flipped_bit_in_a_body_that_no_log_names_any_more_is_found(stage: Stage) -> None:
    """Orders' part of a blob was compacted; clicks still names its own."""
    uri = (await stage.entry(CLICKS, 2)).data_key
    header, parts = parse_shared_blob(await stage.bytes_of(uri), uri)
    [dead] = [part for part in parts if part.topic == ORDERS.topic]
    assert len(header.partitions) == 2
    await stage.change_object(uri, flipped(dead.byte_offset + dead.byte_length // 2))
    [finding] = (await audited(stage)).findings
    assert (finding.kind, finding.object, finding.log) == ("checksum", uri, str(CLICKS))
    assert f"body of {ORDERS}" in finding.reason


@pytest.mark.parametrize("at", [0, 6, 30, 70, -220, -100, -40, -1])
@pytest.mark.parametrize("end", [8, 14])
async def test_an_object_that_is_too_large_to_hold_is_compared_in_pieces(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, end: int, at: int
) -> None:
    monkeypatch.setattr("llog.pipeline.audit.task.AUDIT_OBJECT_HELD_BYTES_MAX", 100)
    sound = await audited(stage)
    assert sound.findings == []
    assert sound.requests > sound.objects
    uri = (await stage.entry(ORDERS, end)).data_key
    await stage.change_object(uri, flipped(at, 1))
    assert {finding.object for finding in (await audited(stage)).findings} == {uri}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("end", "start"), [(8, 1), (14, 13)], ids=["segment", "blob"])
async def test_a_missing_object_is_found(stage: Stage, end: int, start: int, fast: bool) -> None:
    uri = (await stage.entry(ORDERS, end)).data_key
    await stage.objects.delete(stage.objects.name_of(uri))
    report = await audited(stage, fast=fast)
    assert ("missing object", "orders:0", start, end) in found(report)
    assert {finding.object for finding in report.findings} == {uri}


@pytest.mark.parametrize("lost_bytes", [1, 8, 40, 200, 500])
@pytest.mark.parametrize("fast", [False, True])
async def test_a_truncated_footer_is_found(stage: Stage, lost_bytes: int, fast: bool) -> None:
    uri = (await stage.entry(ORDERS, 8)).data_key
    await stage.change_object(uri, lambda data: data[:-lost_bytes])
    [finding] = (await audited(stage, fast=fast)).findings
    assert (finding.log, finding.object, finding.start_offset) == ("orders:0", uri, 1)


async def test_a_segment_of_another_log_is_found(stage: Stage) -> None:
    other = (await stage.entry(ORDERS, 12)).data_key
    await stage.change_entry(ORDERS, 8, lambda entry: replace(entry, data_key=other))
    kinds = {finding.kind for finding in (await audited(stage)).findings}
    assert "malformed object" in kinds


async def test_an_address_that_leads_nowhere_is_found(stage: Stage) -> None:
    await stage.change_entry(ORDERS, 14, lambda entry: replace(entry, data_key="nowhere://at/all"))
    assert ("bad address", "orders:0", 13, 14) in found(await audited(stage))


@pytest.mark.parametrize(
    ("end", "change"),
    [
        (8, {"record_count": 7}),
        (8, {"level": 1}),
        (8, {"footer_length": 300}),
        (8, {"max_timestamp_ms": 9}),
        (8, {"byte_offset": 1}),
        (14, {"max_timestamp_ms": 4}),
        (14, {"byte_length": 90}),
        (14, {"encoding": "bytes-batch-v1"}),
    ],
)
async def test_an_entry_that_tells_something_else_than_its_object_is_found(
    stage: Stage, end: int, change: dict[str, Any]
) -> None:
    await stage.change_entry(ORDERS, end, lambda entry: replace(entry, **change))
    report = await audited(stage)
    assert [(f.log, f.end_offset) for f in report.findings if f.severity == "damage"] != []
    assert {f.end_offset for f in report.findings} == {end}


# -- what cannot be looked at ------------------------------------------------------------------------------------------


class Away(ForwardingObjectStore):
    """Answers for some objects only."""

    def __init__(self, inner: Any, away: Sequence[str]) -> None:
        super().__init__(inner)
        self._away = away

    async def get(self, name: str) -> Buffer:
        if self.inner.uri(name) in self._away:
            raise ObjectStoreUnavailable("get", name, "away")
        return await self.inner.get(name)


async def test_what_no_answer_came_for_is_neither_sound_nor_damaged(stage: Stage) -> None:
    uri = (await stage.entry(ORDERS, 8)).data_key
    context = stage.context_on(Away(stage.objects, [uri]))
    report = await audit(context, LocalTasks(tools_of(context)))
    assert (report.findings, report.complete, report.clean) == ([], False, False)
    [unchecked] = report.unchecked
    assert uri in unchecked


class NoListing(ForwardingObjectStore):
    def list(self, prefix: str = "", *, start_after: str = "") -> Any:
        raise ObjectStoreUnavailable("list", prefix, "away")


async def test_what_was_found_is_told_though_the_stores_can_not_be_listed(stage: Stage) -> None:
    await stage.objects.delete(stage.objects.name_of((await stage.entry(ORDERS, 8)).data_key))
    context = stage.context_on(NoListing(stage.objects))
    report = await audit(context, LocalTasks(tools_of(context)))
    assert found(report) == [("missing object", "orders:0", 1, 8)]
    assert [what.partition(":")[0] for what in report.unchecked] == ["old blobs", "old segments"]


class AwayAfter(FaultyMetadataStore):
    """Is away for good, from some read on."""

    reads_left = 2**62

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise MetadataUnavailable("get", keys[0].path, "away")
        return await super().get_many(keys, strict=strict)


async def test_a_metadata_store_that_goes_away_hides_nothing_that_was_found(stage: Stage) -> None:
    """A suspicion that cannot be confirmed is reported as unchecked, and the audit is never clean."""
    await stage.objects.delete(stage.objects.name_of((await stage.entry(ORDERS, 8)).data_key))
    await stage.append(ORDERS)
    await stage.change_entry(CLICKS, 2, lambda entry: replace(entry, level=1))
    metadata = AwayAfter(stage.metadata, random_source=stage.rng)
    context = dataclasses.replace(stage.context, metadata=metadata)
    reads = 0
    while True:
        metadata.reads_left = reads
        report = await audit(context, stage.runner)
        kinds = {kind for kind, *_ in found(report)}
        if metadata.reads_left >= 0:
            break
        assert not report.complete
        assert not report.clean
        assert kinds <= {"missing object", "level"}
        reads += 1
    assert kinds == {"missing object", "level"}
    assert reads > 5


async def test_an_answer_comes_to_the_same_through_bytes(stage: Stage) -> None:
    await stage.change_object((await stage.entry(ORDERS, 8)).data_key, flipped(30))
    grouped = Grouped()
    grouped.add((await inspect_metadata(stage.context, ORDERS, strict=True)).claims)
    [item] = plan_items(grouped, root=stage.context.keys.root, fast=False)
    assert isinstance(item, Objects)
    tools = tools_of(stage.context)
    there = decoded_outcome(COMPARE_OBJECTS, await perform(COMPARE_OBJECTS, tools, encoded_item(item)))
    assert there == await compare_objects(tools, item)
