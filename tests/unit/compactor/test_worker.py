"""One visit: what it does is decided under the claim."""

from __future__ import annotations

from llog.compactor.backlog import Backlogs
from llog.compactor.claims import Claims
from llog.compactor.plan import Kind, LogBacklog, Rules
from llog.compactor.worker import Worker
from llog.errors import MetadataStoreError
from llog.log.topics.admin import alter_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.runtime.log_choice import holder
from tests.unit.compactor.stage import ORDERS, Cluster, RememberingMetrics, ScriptedJobs, Writer, leave_pending

RULES = Rules(trigger_bytes=1 << 20, trigger_age_ms=60_000, min_age_ms=0, max_offsets_per_run=1_000)


class Stage:
    def __init__(self, *, atomic: bool = True) -> None:
        self.cluster = Cluster(atomic=atomic)
        self.context, self.metrics = self.cluster.open(), RememberingMetrics()
        self.runner = ScriptedJobs(self.context)
        self.claims = Claims(self.context, self.metrics, compactor_id="one", session_timeout_ms=10_000)
        self.start()

    def start(self) -> None:
        """A worker that knows nothing of the logs yet."""
        self.backlogs = Backlogs(self.context, RULES)
        self.worker = Worker(
            self.context,
            RULES,
            backlogs=self.backlogs,
            claims=self.claims,
            jobs=self.runner,
            metrics=self.metrics,
        )

    async def planned(self) -> LogBacklog:
        """A log with one entry, old enough to be compacted."""
        await Writer(self.context).append(ORDERS)
        self.cluster.clock.now += 60_000
        [view] = await self.backlogs.inspect([ORDERS])
        assert isinstance(view, LogBacklog)
        self.backlogs.retained(ORDERS)
        return view


async def test_a_visit_does_its_work_and_gives_the_claim_back() -> None:
    stage = Stage()
    done = await stage.worker.visit(await stage.planned(), Kind.COMPACT)
    assert (done.outcome, done.kind, done.entries) == ("compacted", Kind.COMPACT, 1)
    assert done.byte_length > 0
    assert await holder(stage.context, ORDERS) is None


async def test_what_another_did_since_the_visit_was_planned_is_not_done_again() -> None:
    stage = Stage()
    view = await stage.planned()
    other = stage.cluster.open(2)
    await compact_once(other, ORDERS)
    await Writer(other).append(ORDERS)  # fresh, and neither many nor old
    done = await stage.worker.visit(view, Kind.COMPACT)
    assert done.outcome == "idle"
    assert stage.runner.calls == []
    assert stage.metrics.outcomes["idle", "compact"] == 1


async def test_a_visit_planned_for_compaction_never_turns_into_a_merge() -> None:
    stage = Stage()
    view = await stage.planned()
    await compact_once(stage.cluster.open(2), ORDERS)
    for _ in range(RULES.merge_inputs_min):
        await Writer(stage.context).append(ORDERS)
        await compact_once(stage.context, ORDERS)
        await stage.backlogs.inspect([ORDERS])
    assert (await stage.worker.visit(view, Kind.COMPACT)).outcome == "idle"
    done = await stage.worker.visit(view, Kind.MERGE)
    assert (done.outcome, done.kind) == ("compacted", Kind.MERGE)


async def test_a_merge_that_found_nothing_is_not_asked_for_again() -> None:
    stage = Stage()
    view = await stage.planned()
    for _ in range(RULES.merge_inputs_min):
        await Writer(stage.context).append(ORDERS)
        await compact_once(stage.context, ORDERS, max_offsets=1)
        [view] = [one for one in await stage.backlogs.inspect([ORDERS]) if isinstance(one, LogBacklog)]
    assert view.segments_since_merge == RULES.merge_inputs_min
    await merge_once(stage.cluster.open(2), ORDERS, min_inputs=2)
    for _ in range(2):
        assert (await stage.worker.visit(view, Kind.MERGE)).outcome == "idle"
    assert stage.runner.calls == [("merge", ORDERS)]


async def test_a_log_deleted_meanwhile_is_no_failure() -> None:
    stage = Stage()
    view = await stage.planned()
    await delete_topic(stage.cluster.open(2), "orders")
    assert (await stage.worker.visit(view, Kind.COMPACT)).outcome == "idle"
    assert await holder(stage.context, ORDERS) is None


async def test_an_append_whose_writer_is_gone_is_settled_and_counted() -> None:
    stage = Stage(atomic=False)
    await leave_pending(stage.cluster, ORDERS)
    stage.cluster.clock.now += 60_000
    [view] = await stage.backlogs.inspect([ORDERS])
    assert isinstance(view, LogBacklog)
    stage.backlogs.retained(ORDERS)
    done = await stage.worker.visit(view, Kind.COMPACT)
    assert (done.outcome, done.entries) == ("compacted", 1)
    assert stage.metrics.recoveries["pending_settled"] == 1


async def test_damaged_records_fail_the_visit_and_the_claim_is_given_back() -> None:
    stage = Stage()
    view = await stage.planned()
    await stage.context.metadata.put(stage.context.keys.control(ORDERS), b"damaged")
    done = await stage.worker.visit(view, Kind.COMPACT)
    assert done.outcome == "failed"
    assert "control" in done.error
    assert await holder(stage.context, ORDERS) is None


async def test_a_log_whose_retention_fails_is_still_compacted() -> None:
    stage = Stage()
    view = await stage.planned()
    await alter_topic(stage.context, "orders", put={"retention.ms": "1000"})
    stage.cluster.clock.now += RULES.retention_interval_ms
    stage.runner.failing[ORDERS] = MetadataStoreError("get", "somewhere", "permission denied")
    assert (await stage.worker.visit(view, Kind.COMPACT)).outcome == "failed"
    assert stage.runner.calls == [("retain", ORDERS)]
    stage.runner.failing.clear()
    assert (await stage.worker.visit(view, Kind.COMPACT)).outcome == "compacted"
