"""Vacuum as a job: what tasks list and read, what the driver deletes, and what a dry run leaves alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from llog.errors import ClusterMismatch, MetadataUnavailable, ObjectStoreUnavailable, VacuumRefused
from llog.formats.values import SegmentRecord, encode_value
from llog.limits import VACUUM_READS_IN_FLIGHT_MAX
from llog.log.append.append import Appended, Appender
from llog.log.cleanup.retention import delete_records
from llog.log.cluster import join_cluster
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.log.topics.delete import delete_topic
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.once import compact_once
from llog.pipeline.runtime import survey
from llog.pipeline.runtime.survey import (
    LIST_OBJECTS,
    SurveyPart,
    plan_blob_count,
    plan_blob_parts,
    plan_segment_parts,
    survey_blobs,
    survey_segments,
)
from llog.pipeline.runtime.tasks import LocalTasks, TaskFailed, decoded_outcome, encoded_item, perform, tools_of
from llog.pipeline.vacuum import job as vacuum_task
from llog.pipeline.vacuum.job import READ_OWNERS, Blobs, vacuum
from llog.pipeline.vacuum.references import in_batches
from llog.stores.metadata.port import GroupOutcome, Key, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from llog.stores.objects.port import Buffer, ByteRange, ObjectStore
from llog.stores.objects.wrappers import ForwardingObjectStore
from tests.unit.pipeline.audit.auditing import CLICKS, GRACE_MS, ORDERS, START_MS, Stage, group

VISITS = Log("visits", 1)


async def contents(stage: Stage) -> set[str]:
    return {meta.name async for meta in stage.objects.list("")}


async def garbage(stage: Stage) -> list[str]:
    """Three blobs that compaction left, one of which clicks still names; older than a grace. URIs of the two."""
    gone = [await stage.append(ORDERS), await stage.append(ORDERS)]
    await stage.append(ORDERS, CLICKS)
    while await compact_once(stage.context, ORDERS):
        pass
    stage.later(1.5)
    return gone


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(atomic=request.param)


# -- what goes -------------------------------------------------------------------------------------------------------


async def test_an_object_that_came_late_under_an_old_name_stays_for_a_grace(stage: Stage) -> None:
    """A blob of a writer with a clock that is behind: its name is old, its time in the store is not."""
    copy = await stage.bytes_of(await stage.append(ORDERS))
    old_id = new_object_id(START_MS - 2 * GRACE_MS, stage.rng.getrandbits)
    await stage.objects.put(stage.context.keys.blob_object(old_id), [copy])
    assert (await vacuum(stage.context, stage.runner)).blobs_deleted == 0
    stage.later(1.5)
    assert (await vacuum(stage.context, stage.runner)).blobs_deleted == 1


async def test_a_phantom_whose_blob_has_gone_goes_too(stage: Stage) -> None:
    """A settle that slept past compaction and vacuum: no object is left that would lead to its log."""
    await stage.append(ORDERS)
    await stage.append(ORDERS)
    key = stage.context.keys.index_entry(ORDERS, 2)
    late = await stage.metadata.get(key)
    assert late is not None
    await compact_once(stage.context, ORDERS)
    stage.later(1.5)
    assert (await vacuum(stage.context, stage.runner)).blobs_deleted == 2
    await stage.metadata.put(key, late.value)
    dry = await vacuum(stage.context, stage.runner, dry_run=True)
    assert (dry.phantoms_removed, await stage.metadata.get(key) is None) == (0, False)
    assert (await vacuum(stage.context, stage.runner)).phantoms_removed == 1
    assert await stage.metadata.get(key) is None
    assert (await audit(stage.context, stage.runner)).findings == []


async def test_what_nothing_names_goes_and_the_report_says_from_where(stage: Stage) -> None:
    gone = await garbage(stage)
    report = await vacuum(stage.context, stage.runner)
    assert sorted(report.names) == sorted(gone)
    assert (report.blobs_deleted, report.segments_deleted, report.kept_unchecked) == (2, 0, 0)
    blobs = report.places[stage.objects.uri(stage.context.keys.blobs() + "x")[:-1]]
    assert (blobs.surveyed, blobs.deleted, blobs.deleted_bytes) == (3, 2, report.bytes_deleted)
    segments = report.places[stage.objects.uri("llog/orders/x")[:-1]]
    assert (segments.surveyed, segments.deleted) == (1, 0)
    assert not {stage.objects.name_of(uri) for uri in gone} & await contents(stage)
    assert (await vacuum(stage.context, stage.runner)).blobs_deleted == 0


async def test_a_dry_run_lists_the_same_and_writes_nothing(stage: Stage) -> None:
    await stage.fill()
    await garbage(stage)
    before = {r.key.path: r.version async for r in stage.metadata.scan_tree("")}
    written: list[str] = []

    class Watched(ForwardingObjectStore):
        async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
            written.append(name)

        async def delete(self, name: str) -> None:
            written.append(name)

        async def delete_many(self, names: Sequence[str]) -> None:
            written.extend(names)

    context = stage.context_on(Watched(stage.objects))
    dry = await vacuum(context, LocalTasks(tools_of(context)), dry_run=True)
    assert {r.key.path: r.version async for r in stage.metadata.scan_tree("")} == before
    assert written == []
    done = await vacuum(stage.context, stage.runner)
    assert (dry.blobs_deleted, sorted(dry.names)) == (done.blobs_deleted, sorted(done.names))
    assert (dry.dry_run, dry.segments_marked) == (True, done.segments_marked)
    assert {place: swept.deleted_bytes for place, swept in dry.places.items()} == {
        place: swept.deleted_bytes for place, swept in done.places.items()
    }


async def test_what_is_young_stays(stage: Stage) -> None:
    await garbage(stage)
    stage.now_ms = START_MS + GRACE_MS // 2
    assert (await vacuum(stage.context, stage.runner)).blobs_deleted == 0


async def test_a_segment_is_marked_and_goes_a_grace_later(stage: Stage) -> None:
    await garbage(stage)
    segment_id = new_object_id(START_MS, stage.rng.getrandbits)
    name = stage.context.keys.segment_object(ORDERS, segment_id)
    record = SegmentRecord(
        segment_id=segment_id,
        incarnation=1,
        start_offset=1,
        end_offset=1,
        size_bytes=0,
        state="COPY_SEGMENT_STARTED",
        data_key=stage.objects.uri(name),
    )
    stage.now_ms -= int(1.4 * GRACE_MS)
    await stage.objects.put(name, [b"half a segment"])
    stage.later(1.4)
    await stage.metadata.put(stage.context.keys.segment(ORDERS, segment_id), encode_value(record))
    first = await vacuum(stage.context, stage.runner)
    assert (first.segments_marked, first.segments_deleted) == (1, 0)
    stage.later(0.5)
    assert (await vacuum(stage.context, stage.runner)).segments_deleted == 0
    stage.later(0.6)
    last = await vacuum(stage.context, stage.runner)
    assert (last.segments_deleted, last.places[stage.objects.uri("llog/orders/x")[:-1]].deleted) == (1, 1)
    assert name not in await contents(stage)


async def test_only_logs_that_a_candidate_names_are_written_to(stage: Stage) -> None:
    await stage.append(VISITS)
    await garbage(stage)
    await vacuum(stage.context, stage.runner, dry_run=True)
    paths: list[str] = []

    class Watched(ForwardingMetadataStore):
        async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
            paths.extend(write.key.path for one in groups for write in one)
            return await super().write(groups)

    watched = replace(stage.context, metadata=Watched(stage.metadata))
    assert (await vacuum(watched, stage.runner)).blobs_deleted == 2
    assert any("/orders/" in path for path in paths)
    assert not any("/visits/" in path for path in paths)


# -- what stays ------------------------------------------------------------------------------------------------------


async def test_a_writer_that_slept_past_the_grace_uploads_again(stage: Stage) -> None:
    await garbage(stage)

    class SleepsAfterItsFirstPut(ForwardingObjectStore):
        slept = False

        async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
            await self.inner.put(name, buffers, if_absent=if_absent)
            if not self.slept:
                self.slept = True
                stage.later(1.5)
                assert (await vacuum(stage.context, stage.runner)).blobs_deleted == 3

    appender = Appender(stage.context_on(SleepsAfterItsFirstPut(stage.objects)))
    [outcome] = await appender.append([group(ORDERS, 1, stage.rng)])
    await appender.close()
    assert isinstance(outcome, Appended), outcome
    assert stage.objects.name_of(outcome.wal_uri) in await contents(stage)
    stage.later(1.5)
    assert (await vacuum(stage.context, stage.runner)).blobs_deleted == 0, "the second upload is named"


async def test_blobs_whose_logs_cannot_be_told_or_asked_stay(stage: Stage) -> None:
    [unreadable, unknown] = await garbage(stage)
    await stage.change_object(unreadable, lambda data: data[1:])
    await stage.append(VISITS)
    lost = await stage.append(VISITS)
    for key in (stage.context.keys.control(VISITS), *[stage.context.keys.index_entry(VISITS, n) for n in (2, 4)]):
        await stage.metadata.delete(key)
    await delete_records(stage.context, CLICKS, -1)
    stage.later(2)

    class ClicksCannotBeWritten(ForwardingMetadataStore):
        async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
            if any("/clicks/" in write.key.path for one in groups for write in one):
                raise MetadataUnavailable("write", "clicks", "away")
            return await super().write(groups)

    away = replace(stage.context, metadata=ClicksCannotBeWritten(stage.metadata))
    report = await vacuum(away, stage.runner)
    assert report.names == [unknown]
    assert (report.kept_unreadable, report.kept_unknown_log, report.kept_unchecked) == (1, 2, 1)
    assert stage.objects.name_of(lost) in await contents(stage)


async def test_a_vacuum_that_would_not_be_safe_is_refused(stage: Stage) -> None:
    await garbage(stage)
    before = await contents(stage)
    await stage.metadata.put(stage.context.keys.vacuum_hold(), b"{}")
    for dry_run in (True, False):
        with pytest.raises(VacuumRefused, match="lift the hold"):
            await vacuum(stage.context, stage.runner, dry_run=dry_run)
    await stage.metadata.delete(stage.context.keys.vacuum_hold())
    ahead = replace(stage.context, now_ms=lambda: stage.now_ms + GRACE_MS)
    with pytest.raises(VacuumRefused, match="clocks differ"):
        await vacuum(ahead, stage.runner)
    assert before <= await contents(stage)
    await vacuum(stage.context, stage.runner)
    elsewhere = Stage()
    with pytest.raises(ClusterMismatch):
        await vacuum(replace(elsewhere.context, wal=stage.objects, segments=stage.objects), stage.runner)


async def test_a_listing_that_fails_ends_the_job(stage: Stage) -> None:
    await garbage(stage)

    class Away(ForwardingObjectStore):
        async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
            raise ObjectStoreUnavailable("get_ranges", name, "away")

    context = stage.context_on(Away(stage.objects))
    before = await contents(stage)
    with pytest.raises(ObjectStoreUnavailable, match="away"):
        await vacuum(context, LocalTasks(tools_of(context)))
    assert before <= await contents(stage)


# -- what cannot be read ---------------------------------------------------------------------------------------------


async def littered(stage: Stage) -> tuple[list[str], str]:
    """Two blobs that only orders could name, one that only visits could, each with a segment without a record."""
    await join_cluster(stage.context)
    gone = await garbage(stage)
    visits = await stage.append(VISITS)
    await delete_records(stage.context, VISITS, -1)
    stage.now_ms -= int(1.4 * GRACE_MS)
    for log in (ORDERS, VISITS):
        name = stage.context.keys.segment_object(log, new_object_id(START_MS, stage.rng.getrandbits))
        await stage.objects.put(name, [b"left over"])
    stage.later(3)
    return gone, visits


Unreadable = Callable[[Keys], Key]
OF_ORDERS: dict[str, Unreadable] = {
    "topic": lambda keys: keys.topic(ORDERS.topic),
    "control": lambda keys: keys.control(ORDERS),
    "compaction record": lambda keys: keys.compaction(ORDERS),
    "entry": lambda keys: keys.index_entry(ORDERS, 6),
    "segment": lambda keys: keys.segment(ORDERS, new_object_id(START_MS, random.Random(1).getrandbits)),
}


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("key_of", OF_ORDERS.values(), ids=OF_ORDERS)
async def test_a_record_that_cannot_be_read_keeps_what_it_could_name_and_nothing_else(
    stage: Stage, key_of: Unreadable, dry_run: bool
) -> None:
    gone, visits = await littered(stage)
    key = key_of(stage.context.keys)
    await stage.metadata.put(key, b'{"v":1,"half a reco')
    report = await vacuum(stage.context, stage.runner, dry_run=dry_run)
    assert (report.blobs_deleted, report.segments_deleted) == (1, 1)
    assert visits in report.names
    assert {stage.objects.name_of(uri) for uri in gone} <= await contents(stage)
    assert (report.unreadable_count, report.kept_unknown_log) == (1, 0)
    assert key.path in report.unreadable[0]
    assert report.kept_unread == 4, "two blobs and two segments, one of which is named"


async def test_every_record_that_cannot_be_read_is_named(stage: Stage) -> None:
    await littered(stage)
    keys = stage.context.keys
    bad = [keys.index_entry(CLICKS, 2), keys.index_entry(CLICKS, 9), keys.topic(ORDERS.topic)]
    for key in bad:
        await stage.metadata.put(key, b"[]")
    await stage.metadata.put(Key(f"{keys.index(CLICKS).path}/tail", keys.index(CLICKS).route), b"{}")
    report = await vacuum(stage.context, stage.runner)
    assert report.unreadable_count == len(report.unreadable) == 4
    for path in (*(key.path for key in bad), f"{keys.index(CLICKS).path}/tail"):
        assert sum(path in reason for reason in report.unreadable) == 1, path


async def test_a_record_of_no_topic_keeps_everything(stage: Stage) -> None:
    await littered(stage)
    before = await contents(stage)
    topics = stage.context.keys.topics()
    await stage.metadata.put(Key(f"{topics.path}/not a topic", topics.route), b"{}")
    for dry_run in (True, False):
        with pytest.raises(VacuumRefused, match="not a topic"):
            await vacuum(stage.context, stage.runner, dry_run=dry_run)
    assert before <= await contents(stage)


async def test_a_record_left_of_a_deleted_topic_that_cannot_be_read_does_not_stop_the_job(stage: Stage) -> None:
    await littered(stage)
    await delete_topic(stage.context, VISITS.topic)
    key = stage.context.keys.producers(VISITS)
    await stage.metadata.put(key, b"[]")
    report = await vacuum(stage.context, stage.runner)
    assert report.blobs_deleted == 3
    assert [key.path in reason for reason in report.unreadable] == [True]


# -- the survey ------------------------------------------------------------------------------------------------------


def whole(prefix: str) -> SurveyPart:
    return SurveyPart(store_url="memory://x", root="llog", prefix=prefix, kind="blob", before_ms=1_000_000)


def test_parts_tile_the_names() -> None:
    for count in (1, 2, 7, 64):
        parts = plan_blob_parts(changed(whole("llog/wal-shared/"), last="end"), 5, count)
        assert (parts[0].after, parts[-1].last) == ("", "end")
        assert [part.last for part in parts[:-1]] == [part.after for part in parts[1:]]
        assert len(parts) == count
        weights = {f"llog/t{n}/": n % 5 for n in range(40)}
        cut = plan_segment_parts(whole("llog/"), weights, count)
        assert [part.last for part in cut[:-1]] == [part.after for part in cut[1:]]
        assert (cut[0].after, cut[-1].last) == ("", "")
        assert 1 <= len(cut) <= count
    assert len(plan_blob_parts(whole("b/"), 2_000_000, 8)) == 1, "nothing is old enough"
    assert len(plan_segment_parts(whole("llog/"), {}, 8)) == 1


def test_a_small_store_is_one_part_and_a_busy_one_many() -> None:
    assert plan_blob_count([5] * 10, 1_000_000) == 1
    assert plan_blob_count(range(0, 1_000), 11_000) == 3, "a blob each millisecond: eleven thousand, five to a part"
    assert plan_blob_count([5] * 1_000, 1_000_000) == 64
    assert plan_blob_count(range(0, 1_000_000, 1_000), 1_000_000) == 1


async def test_a_survey_meets_every_object_once_whatever_its_parts_and_pages(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"t{number}" for number in range(5)] + ["wal-shared-x", "wal-shared0", "zebra", "A"]
    names = set()
    for topic in topics:
        for _ in range(7):
            segment_id = new_object_id(START_MS, stage.rng.getrandbits)
            names.add(stage.context.keys.segment_object(Log(topic, 0), segment_id))
    blobs = {stage.context.keys.blob_object(new_object_id(START_MS + n, stage.rng.getrandbits)) for n in range(50)}
    for name in (*names, *blobs, "llog/@cluster/id", "llog/t1/partitions/0/data/compacted/not-ours"):
        await stage.objects.put(name, [b"x"])
    stage.later(2)
    monkeypatch.setattr(survey, "SurveyPart", lambda **fields: SurveyPart(**{**fields, "objects_max": 4}))
    weights = {Log(topic, 0): 7 for topic in topics[:-1]}
    found: list[str] = []
    before_ms, context = START_MS + 100, stage.context
    for pages in (
        survey_blobs(context, stage.runner, stage.objects, before_ms=before_ms, parts=6),
        survey_segments(context, stage.runner, stage.objects, before_ms=before_ms, weights=weights, parts=6),
    ):
        async for _, page in pages:
            assert len(page.old) <= 4
            found += [seen.name for seen in page.old]
    assert sorted(found) == sorted(names | blobs)


async def test_answers_come_to_the_same_through_bytes(stage: Stage) -> None:
    await garbage(stage)
    tools, store = tools_of(stage.context), stage.objects
    part = changed(whole(stage.context.keys.blobs()), store_url=store.url, before_ms=stage.now_ms)
    page = decoded_outcome(LIST_OBJECTS, await perform(LIST_OBJECTS, tools, encoded_item(part)))
    assert not isinstance(page, TaskFailed)
    assert [len(page.old), page.objects, page.go_on_after] == [3, 3, ""]
    item = Blobs(store_url=store.url, blobs=page.old)
    owners = decoded_outcome(READ_OWNERS, await perform(READ_OWNERS, tools, encoded_item(item)))
    assert not isinstance(owners, TaskFailed)
    assert owners == await vacuum_task.read_owners(tools, item)
    assert {owners.of_blob(n) for n in range(3)} == {frozenset({ORDERS}), frozenset({ORDERS, CLICKS})}


async def test_blobs_and_segments_may_lie_in_stores_of_their_own(stage: Stage) -> None:
    stores = {store.url: store for store in (stage.objects, Stage().objects)}
    [wal, segments] = stores.values()

    async def find(uri: str) -> tuple[ObjectStore, str]:
        store = next(store for url, store in stores.items() if uri.startswith(url + "/"))
        return store, store.name_of(uri)

    segments._clock_ms = stage.clock
    options = replace(stage.context.options, wal_grace_ms=GRACE_MS // 4)
    stage.context = replace(stage.context, wal=wal, segments=segments, find_object=find, options=options)
    await stage.fill()
    stage.later(0.5)
    report = await audit(stage.context, stage.runner)
    assert report.clean
    young = await vacuum(stage.context, stage.runner)
    assert young.blobs_deleted == report.count_of("leftover") == 0, "clicks names them all"
    await delete_records(stage.context, CLICKS, -1)
    report = await audit(stage.context, stage.runner)
    done = await vacuum(stage.context, stage.runner)
    assert (done.blobs_deleted, done.segments_marked) == (6, 0), "a blob's grace is over, a segment's is not"
    assert {finding.object for finding in report.findings} == set(done.names)
    assert all(uri.startswith(wal.url) for uri in done.names)
    stage.later(1)
    assert (await vacuum(stage.context, stage.runner)).segments_deleted == 2
    stage.later(1)
    assert (await audit(stage.context, stage.runner)).findings == []


async def test_names_below_another_root_of_the_store_are_not_touched(stage: Stage) -> None:
    other = Keys("elsewhere")
    name = other.blob_object(new_object_id(START_MS, stage.rng.getrandbits))
    await stage.objects.put(name, [b"another log's"])
    await garbage(stage)
    assert (await vacuum(stage.context, stage.runner)).blobs_deleted == 2
    assert name in await contents(stage)


async def test_logs_are_read_in_batches_and_an_error_leaves_no_task_behind() -> None:
    logs = [Log("orders", partition) for partition in range(VACUUM_READS_IN_FLIGHT_MAX + 5)]
    at_work, most, failing = 0, 0, logs[3]

    async def work(log: Log) -> Log:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        if log == failing:
            at_work -= 1
            raise MetadataUnavailable("get", str(log), "away")
        await asyncio.sleep(0)
        at_work -= 1
        return log

    with pytest.raises(MetadataUnavailable):
        async for _ in in_batches(logs, work):
            pass
    assert at_work == 0
    failing = Log("nobody", 0)
    assert [log async for log in in_batches(logs, work)] == logs
    assert most == VACUUM_READS_IN_FLIGHT_MAX
