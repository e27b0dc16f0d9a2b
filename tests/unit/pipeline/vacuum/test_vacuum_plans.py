"""Blobs of a commit plan stay until it is done: vacuum, and drivers of the sink that take their time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from msgspec.structs import replace as changed

from llog.errors import SinkBatchOver, SinkPlanLost, SinkUploadLost
from llog.formats.values import encode_value
from llog.log.cluster import join_cluster
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.topics.create import initialize
from llog.log.topics.delete import delete_topic
from llog.pipeline.audit.job import audit
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.sink import plan as sink_plan
from llog.pipeline.sink.commit import SINK_PLAN_CONFIRM_MS_MAX, commit_batch, forget_query
from llog.pipeline.sink.plan import CommitPlan, decode_plan, plan_key
from llog.pipeline.sink.query import SinkBatch, decode_head, head_key, query_key
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import upload
from llog.pipeline.vacuum.job import vacuum
from llog.pipeline.vacuum.references import SINK_PLAN_KEPT_MS_MAX, planned_blobs
from llog.stores.metadata.port import GroupOutcome, MetadataStore, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from llog.stores.objects.port import Buffer, ByteRange
from llog.stores.objects.wrappers import ForwardingObjectStore
from tests.unit.pipeline.audit.auditing import GRACE_MS, Stage

A, B = Log("sales", 0), Log("sales", 1)
FIRST = SinkBatch("q", 0)
ROWS = [b"a", b"b", b"c"]

Act = Callable[[], Awaitable[object]]


class Crash(BaseException):
    """The driver is gone."""


class Interrupted(ForwardingMetadataStore):
    """Does something before, or after, the n-th write to a key; by itself: the process ends there."""

    def __init__(
        self, inner: MetadataStore, path: str, number: int, *, before: Act | None = None, after: Act | None = None
    ) -> None:
        super().__init__(inner)
        self._path, self._left, self._before, self._after = path, number, before, after

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        mine = any(write.key.path == self._path for one in groups for write in one)
        self._left -= mine
        hit = mine and self._left == 0
        if hit and self._before is not None:
            await self._before()
        outcomes = await super().write(groups)
        if hit and self._after is not None:
            await self._after()
        return outcomes


async def crash() -> None:
    raise Crash


async def hurry(_: float) -> None:
    """No time passes, and every task gets a turn."""
    await asyncio.sleep(0)


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
async def stage(request: pytest.FixtureRequest) -> Stage:
    stage = Stage(atomic=request.param)
    stage.context = replace(stage.context, sleep=hurry)
    await join_cluster(stage.context)
    for log in (A, B):
        await initialize(stage.context, log)
    return stage


def with_metadata(stage: Stage, number: int, *, before: Act | None = None, after: Act | None = None) -> LogContext:
    """A driver to whom something happens at the n-th write to the plan of its batch: it creates, confirms, finishes."""
    path = plan_key(stage.context.keys, *FIRST[:2]).path
    return replace(stage.context, metadata=Interrupted(stage.metadata, path, number, before=before, after=after))


async def uploaded(context: LogContext) -> list[sink_plan.UploadedSlice]:
    """Two tasks: a blob for both logs, and one for the first of them."""
    order = await sink_order(context, topic=A.topic)
    tasks = [
        pa.table({"value": [b"a", b"b"], "partition": pa.array([0, 1], pa.int32())}),
        pa.table({"value": [b"c"], "partition": pa.array([0], pa.int32())}),
    ]
    uploads = [await upload(tools_of(context), order, rows.to_batches()) for rows in tasks]
    return [part for done in uploads for part in done.slices]


async def commit(context: LogContext, batch: SinkBatch = FIRST) -> None:
    await commit_batch(context, batch, await uploaded(context))


async def planned(stage: Stage) -> None:
    """A driver is gone right after its plan was recorded."""
    with pytest.raises(Crash):
        await commit(with_metadata(stage, 1, after=crash))


async def confirmed(stage: Stage) -> None:
    """A driver is gone right after its plan was confirmed."""
    with pytest.raises(Crash):
        await commit(with_metadata(stage, 2, after=crash))


async def half_performed(stage: Stage) -> None:
    """A driver is gone when its plan was performed, and not marked as done; or with its second log not written."""
    path = stage.context.keys.control(B).path
    metadata = Interrupted(stage.metadata, path, 1, before=crash)
    with pytest.raises(Crash):
        await commit(replace(stage.context, metadata=metadata))


async def values(stage: Stage) -> list[bytes]:
    found = [
        r.payload or b"" for log in (A, B) async for run in iter_runs(stage.context, log, 1) for r in run.records()
    ]
    return sorted(found)


async def plan_of(stage: Stage) -> CommitPlan:
    found = await stage.metadata.get(plan_key(stage.context.keys, *FIRST[:2]))
    assert found is not None
    return decode_plan(found.value, "plan")


async def vacuumed(stage: Stage) -> int:
    """With what keeps the blobs from being kept for other reasons: nothing."""
    report = await vacuum(stage.context, stage.runner)
    assert (report.kept_unchecked, report.kept_unread, report.kept_unreadable) == (0, 0, 0)
    return report.blobs_deleted


# -- a plan that stays unfinished for a while -------------------------------------------------------------------------


@pytest.mark.parametrize("left", [planned, confirmed, half_performed])
async def test_a_plan_left_for_longer_than_the_grace_is_finished_by_the_replay(
    stage: Stage, left: Callable[[Stage], Awaitable[None]]
) -> None:
    await left(stage)
    for _ in range(3):
        stage.later(1.5)
        await vacuumed(stage)
    done = await commit_batch(stage.context, FIRST, [])
    assert (done.records, done.ours) == (3, False)
    assert await values(stage) == ROWS
    stage.later(1.5)
    await vacuumed(stage)
    assert await values(stage) == ROWS


async def test_only_blobs_of_the_plan_are_kept_and_only_until_it_is_done(stage: Stage) -> None:
    await planned(stage)
    await uploaded(stage.context)
    stage.later(1.5)
    report = await vacuum(stage.context, stage.runner)
    assert (report.blobs_deleted, report.kept_planned) == (2, 2), "unplanned uploads go"
    await commit_batch(stage.context, FIRST, [])
    assert (await planned_blobs(stage.context, now_ms=stage.now_ms)).uris == frozenset()


async def test_a_dry_run_keeps_them_too(stage: Stage) -> None:
    await planned(stage)
    stage.later(1.5)
    report = await vacuum(stage.context, stage.runner, dry_run=True)
    assert (report.blobs_deleted, report.kept_planned) == (0, 2)


async def test_pages_of_a_large_plan_are_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = sink_plan.paged
    monkeypatch.setattr(sink_plan, "paged", lambda slices: cut(slices, 200))
    await planned(stage)
    assert (await plan_of(stage)).pages == 3
    stage.later(1.5)
    assert await vacuumed(stage) == 0
    await commit_batch(stage.context, FIRST, [])
    assert await values(stage) == ROWS


async def test_every_query_is_found_until_it_is_forgotten(stage: Stage) -> None:
    names = ["p", "q/r s", "ü%"]
    for name in names:
        metadata = Interrupted(stage.metadata, plan_key(stage.context.keys, name, 0).path, 1, after=crash)
        with pytest.raises(Crash):
            await commit(replace(stage.context, metadata=metadata), SinkBatch(name, 0))
    assert len((await planned_blobs(stage.context, now_ms=stage.now_ms)).uris) == 6
    for name in names:
        await forget_query(stage.context, name)
    assert [r async for r in stage.metadata.scan_tree(f"{stage.context.keys.root}/@cluster/sinks")] == []


async def test_a_query_that_is_not_listed_is_listed_before_its_next_plan(stage: Stage) -> None:
    await commit(stage.context)
    keys = stage.context.keys
    head = await stage.metadata.get(head_key(keys, "q"))
    assert head is not None
    unlisted = changed(decode_head(head.value, "head"), listed=False)
    await stage.metadata.put(head.key, encode_value(unlisted))
    await stage.metadata.delete(query_key(keys, "q"))
    metadata = Interrupted(stage.metadata, plan_key(keys, "q", 1).path, 1, after=crash)
    with pytest.raises(Crash):
        await commit(replace(stage.context, metadata=metadata), SinkBatch("q", 1))
    assert len((await planned_blobs(stage.context, now_ms=stage.now_ms)).uris) == 2


# -- which comes first -------------------------------------------------------------------------------------------------


async def test_a_driver_that_slept_between_upload_and_plan_writes_nothing_or_everything(stage: Stage) -> None:
    """It looked at the horizons, slept past the grace, and only then recorded its plan: the blobs were gone."""

    async def slept() -> None:
        stage.later(1.5)
        assert await vacuumed(stage) == 2

    with pytest.raises(SinkUploadLost, match="nothing was written"):
        await commit(with_metadata(stage, 1, before=slept))
    assert await values(stage) == []
    assert not (await plan_of(stage)).confirmed
    await commit(stage.context)
    assert await values(stage) == ROWS
    assert (await plan_of(stage)).done


async def test_a_plan_that_is_recorded_when_vacuum_is_about_to_delete_is_not_performed(stage: Stage) -> None:
    """Vacuum has raised the horizons and asked for plans; then the driver wakes and records its plan."""
    deleted, error = await _racing(stage, at="delete", writes=1)
    assert deleted == 2
    assert isinstance(error, SinkUploadLost)
    assert await values(stage) == []
    await commit(stage.context)
    assert await values(stage) == ROWS


@pytest.mark.parametrize("writes", [1, 2], ids=["recorded", "confirmed"])
async def test_a_plan_that_is_recorded_before_vacuum_asks_for_plans_keeps_its_blobs(stage: Stage, writes: int) -> None:
    """Vacuum has listed everything; then the driver wakes and records its plan; then horizons are raised."""
    deleted, error = await _racing(stage, at="headers", writes=writes)
    assert (deleted, error) == (0, None)
    assert await values(stage) == ROWS


async def _racing(stage: Stage, *, at: str, writes: int) -> tuple[int, BaseException | None]:
    """A driver that has looked at the horizons sleeps past the grace. In the middle of a vacuum it wakes, for so many
    writes to its plan, and goes on after vacuum. Returns the number of deleted blobs and the driver's error."""
    parked, go_on, written, vacuumed = (asyncio.Event() for _ in range(4))

    async def park() -> None:
        parked.set()
        await go_on.wait()

    async def wait_again() -> None:
        written.set()
        await vacuumed.wait()

    async def wake(call: str) -> None:
        if call == at and not go_on.is_set():
            go_on.set()
            await written.wait()

    class Pausing(ForwardingObjectStore):
        async def delete_many(self, names: Sequence[str]) -> None:
            if any("wal-shared" in name for name in names):
                await wake("delete")
            await self.inner.delete_many(names)

        async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
            await wake("headers")
            return await self.inner.get_ranges(name, ranges)

    path = plan_key(stage.context.keys, *FIRST[:2]).path
    metadata = Interrupted(Interrupted(stage.metadata, path, 1, before=park), path, writes, after=wait_again)
    driver = asyncio.create_task(commit(replace(stage.context, metadata=metadata)))
    await parked.wait()
    stage.later(1.5)
    context = stage.context_on(Pausing(stage.objects))
    report = await vacuum(context, LocalTasks(tools_of(context)))
    assert written.is_set(), "vacuum came to that call"
    vacuumed.set()
    [error] = await asyncio.gather(driver, return_exceptions=True)
    return report.blobs_deleted, error


async def test_a_void_plan_gives_way_to_what_the_replay_uploaded(stage: Stage) -> None:
    """Not confirmed, its blobs gone: nothing of it was written, so the replay writes its own."""
    await planned(stage)
    await stage.objects.delete_many([meta.name async for meta in stage.objects.list(stage.context.keys.blobs())])
    stage.later(1.5)
    await raise_horizons(stage)
    done = await commit_batch(stage.context, FIRST, await uploaded(stage.context))
    assert (done.ours, done.slices.appended) == (True, 3)
    assert await values(stage) == ROWS


async def test_two_drivers_that_find_a_void_plan_write_one_batch(stage: Stage) -> None:
    await planned(stage)
    await stage.objects.delete_many([meta.name async for meta in stage.objects.list(stage.context.keys.blobs())])
    stage.later(1.5)
    await raise_horizons(stage)

    async def other() -> None:
        await commit(stage.context)

    mine = await uploaded(stage.context)
    done = await commit_batch(with_metadata(stage, 1, before=other), FIRST, mine)
    assert not done.ours
    assert await values(stage) == ROWS


async def test_a_plan_that_is_confirmed_and_lost_is_never_written_anew(stage: Stage) -> None:
    """Part of it may be in the logs, so what the replay uploaded must not be added to it."""
    await half_performed(stage)
    await stage.objects.delete_many([meta.name async for meta in stage.objects.list(stage.context.keys.blobs())])
    stage.later(1.5)
    await raise_horizons(stage)
    with pytest.raises(SinkPlanLost, match="new queryId"):
        await commit_batch(stage.context, FIRST, await uploaded(stage.context))


async def test_a_void_plan_of_the_batch_before_does_not_hold_up_the_query(stage: Stage) -> None:
    await planned(stage)
    await stage.objects.delete_many([meta.name async for meta in stage.objects.list(stage.context.keys.blobs())])
    stage.later(1.5)
    await raise_horizons(stage)
    await commit(stage.context, SinkBatch("q", 1))
    assert await values(stage) == ROWS
    with pytest.raises(SinkBatchOver):
        await commit(stage.context, FIRST)


async def raise_horizons(stage: Stage) -> None:
    """As any vacuum does that meets an old blob of these logs."""
    from llog.log.cleanup.vacuum_check import named_blobs

    for log in (A, B):
        assert await named_blobs(stage.context, log, stage.now_ms - GRACE_MS) is not None


# -- not for ever -----------------------------------------------------------------------------------------------------


async def test_an_abandoned_plan_keeps_its_blobs_no_longer_than_the_limit(stage: Stage) -> None:
    await confirmed(stage)
    stage.now_ms += SINK_PLAN_KEPT_MS_MAX - 1
    assert await vacuumed(stage) == 0
    stage.now_ms += 2
    report = await vacuum(stage.context, stage.runner)
    assert report.blobs_deleted == 2
    assert report.plans_expired == [plan_key(stage.context.keys, *FIRST[:2]).path]
    with pytest.raises(SinkPlanLost):
        await commit(stage.context)
    assert await values(stage) == []


async def test_a_longer_grace_keeps_them_longer(stage: Stage) -> None:
    await confirmed(stage)
    stage.context = replace(
        stage.context, options=replace(stage.context.options, vacuum_grace_ms=3 * SINK_PLAN_KEPT_MS_MAX)
    )
    stage.now_ms += 2 * SINK_PLAN_KEPT_MS_MAX
    assert (await planned_blobs(stage.context, now_ms=stage.now_ms)).expired == ()


async def test_an_old_plan_is_made_young_before_it_is_confirmed(stage: Stage) -> None:
    await planned(stage)
    stage.now_ms += SINK_PLAN_CONFIRM_MS_MAX + 1
    with pytest.raises(Crash):
        # It is put in its own place once, and confirmed then.
        await commit_batch(with_metadata(stage, 2, after=crash), FIRST, [])
    plan = await plan_of(stage)
    assert (plan.confirmed, plan.created_at_ms) == (True, stage.now_ms)
    await commit_batch(stage.context, FIRST, [])
    assert await values(stage) == ROWS


# -- what cannot be read, and what audit says -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"{}", b"\xff", b'{"v":1}'])
async def test_a_plan_that_cannot_be_read_keeps_all_blobs(stage: Stage, value: bytes) -> None:
    await planned(stage)
    await uploaded(stage.context)
    path = plan_key(stage.context.keys, *FIRST[:2])
    await stage.metadata.put(path, value)
    stage.later(1.5)
    for dry_run in (True, False):
        report = await vacuum(stage.context, stage.runner, dry_run=dry_run)
        assert (report.blobs_deleted, report.kept_unread, report.unreadable_count) == (0, 4, 1)
        assert path.path in report.unreadable[0]
    audited = await audit(stage.context, stage.runner)
    assert [finding.kind for finding in audited.findings] == ["unreadable value"]


async def test_a_plan_whose_pages_are_missing_keeps_all_blobs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = sink_plan.paged
    monkeypatch.setattr(sink_plan, "paged", lambda slices: cut(slices, 200))
    await confirmed(stage)
    await stage.metadata.delete(sink_plan.page_keys(stage.context.keys, await plan_of(stage))[1])
    stage.later(1.5)
    report = await vacuum(stage.context, stage.runner)
    assert (report.blobs_deleted, report.kept_unread, report.unreadable_count) == (0, 2, 1)


async def test_audit_calls_no_blob_of_a_plan_an_orphan(stage: Stage) -> None:
    await planned(stage)
    stage.later(1.5)
    assert (await audit(stage.context, stage.runner)).findings == []
    await uploaded(stage.context)
    stage.later(1.5)
    assert [finding.kind for finding in (await audit(stage.context, stage.runner)).findings] == ["orphan"] * 2
    stage.now_ms += SINK_PLAN_KEPT_MS_MAX
    kinds = [finding.kind for finding in (await audit(stage.context, stage.runner)).findings]
    assert sorted(kinds) == ["expired plan", *["orphan"] * 4]


async def test_audit_finds_a_blob_that_a_plan_waits_for_in_vain(stage: Stage) -> None:
    await confirmed(stage)
    [first, _] = sorted((await planned_blobs(stage.context, now_ms=stage.now_ms)).confirmed)
    assert (await audit(stage.context, stage.runner)).findings == []
    await stage.objects.delete(stage.objects.name_of(first))
    [finding] = (await audit(stage.context, stage.runner)).findings
    assert (finding.severity, finding.kind, finding.object) == ("damage", "missing object", first)
    await delete_topic(stage.context, A.topic)
    assert (await audit(stage.context, stage.runner)).findings == [], "no driver is to write it any more"
