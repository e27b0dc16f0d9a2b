"""What the service does besides compacting: merges, retention, what the dead left, a full WAL store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llog.compactor.plan import Rules
from llog.errors import MetadataUnavailable
from llog.formats.values import ControlRecord, decode_value
from llog.log.keys import Log
from llog.log.topics.admin import alter_topic, change_topic
from llog.pipeline.runtime.log_choice import holder
from tests.unit.compactor.serving import entries_of, running
from tests.unit.compactor.stage import (
    ORDERS,
    Cluster,
    Writer,
    lag_of,
    leave_pending,
)


async def test_segments_are_merged_when_enough_of_them_lie_side_by_side() -> None:
    cluster = Cluster()
    context = cluster.open()
    writer = Writer(context)
    rules = replace(Rules.of(cluster.settings(compactor_min_age_ms=0, compactor_trigger_age_ms=0)), merge_inputs_min=3)
    async with running(cluster, rules=rules, compactor_discovery_interval_ms=1_000) as there:
        for _ in range(9):
            await writer.append(ORDERS)
            await cluster.clock.advance(2_500)
        await cluster.clock.advance(5_000)
        assert there.metrics.outcomes["compacted", "merge"] == 4
        [entry] = await entries_of(context, ORDERS)
        assert (entry.level, entry.msg_count) == (3, 9)


async def test_retention_follows_the_topics_config() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS, Log("visits", 0))
    await alter_topic(context, "orders", put={"retention.ms": "60000"})
    async with running(cluster, compactor_min_age_ms=0) as there:
        await cluster.clock.advance(700_000)
        controls = [await context.metadata.get(context.keys.control(log)) for log in (ORDERS, Log("visits", 0))]
        starts = [
            decode_value(ControlRecord, found.value, "control").log_start_offset
            for found in controls
            if found is not None
        ]
        assert starts == [2, 1]
        assert there.runner.calls.count(("retain", ORDERS)) == 1
        assert ("retain", Log("visits", 0)) not in there.runner.calls, "nothing is too old, so nothing was claimed"


async def test_an_append_that_a_dead_writer_left_is_shown_and_settled() -> None:
    cluster = Cluster(atomic=False)
    await leave_pending(cluster, ORDERS)
    cluster.clock.now += 60_000
    async with running(cluster, compactor_min_age_ms=1_000, compactor_trigger_age_ms=0) as there:
        await cluster.clock.advance(10_000)
        assert there.metrics.pending[0] == (0, 1)
        assert there.metrics.pending[-1] == (0, 0)
        assert there.metrics.recoveries["pending_settled"] == 1


async def test_a_run_that_a_dead_compactor_left_is_resumed() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with running(
        cluster, seed=5, compactor_id="dead", compactor_min_age_ms=0, compactor_trigger_age_ms=0, held=True
    ) as dead:
        metadata = dead.job_context.metadata
        perform = metadata.write

        async def stuck(groups):  # type: ignore[no-untyped-def]
            if any("/index/" in write.key.path for group in groups for write in group):
                await dead.context.sleep(3)  # longer than the test lets it run, and its stop
                raise MetadataUnavailable("write", "index", "the compactor is dead")
            return await perform(groups)

        metadata.write = stuck  # type: ignore[method-assign]
        dead.runner.go_on.set()
        await cluster.clock.advance(1_500)
        assert dead.runner.at_work[ORDERS] == 1
    assert await holder(context, ORDERS) is None, "the stop gave the claim back"
    async with running(cluster, compactor_min_age_ms=0) as there:
        await cluster.clock.advance(1_500)
        assert there.metrics.outcomes["resumed", "resume"] == 1
        assert there.metrics.recoveries["run_resumed"] == 1
        assert there.metrics.pending[0] == (1, 0)
        assert there.metrics.pending[-1] == (0, 0)
        assert await lag_of(context, ORDERS) == 0


async def test_a_topic_left_dying_is_deleted_to_the_end() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    from msgspec.structs import replace as changed

    await change_topic(context, "orders", lambda there: None if there is None else changed(there, state="DELETING"))
    async with running(cluster, compactor_discovery_interval_ms=5_000) as there:
        await cluster.clock.advance(4_000)
        assert there.metrics.recoveries["deletion_finished"] == 0
        await cluster.clock.advance(4_000)
        assert there.metrics.recoveries["deletion_finished"] == 1
    record = await context.metadata.get(context.keys.topic("orders"))
    assert record is not None
    assert b'"DELETED"' in record.value


async def test_a_full_wal_store_is_compacted_and_vacuumed_at_once_and_backups_are_made() -> None:
    cluster = Cluster(own_wal=True, wal_grace_ms=20_000)
    context = cluster.open()
    await Writer(context).append(ORDERS, size=900_000)
    async with running(
        cluster, wal_max_bytes=1 << 20, wal_grace_ms=20_000, compactor_min_age_ms=0, compactor_trigger_age_ms=3_600_000
    ) as there:
        await cluster.clock.advance(2_000)
        assert await lag_of(context, ORDERS) == 0
        health = there.service.health()
        assert health["status"] == "degraded"
        assert "WAL store" in health["reasons"][0]
        await cluster.clock.advance(60_000)
        assert [found async for found in cluster.wal.list(context.keys.blobs())] == []
        assert there.service.health()["status"] == "ok"
        assert [found async for found in cluster.objects.list(context.keys.backups())]
        assert there.metrics.skew_ms == 0


@pytest.mark.parametrize("interval_ms", [120_000, 0])
async def test_a_service_with_one_object_store_backs_up_unless_it_is_turned_off(interval_ms: int) -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)

    async def made() -> int:
        listed = [found.name async for found in cluster.objects.list(context.keys.backups())]
        return sum(name.endswith("/manifest") for name in listed)

    async with running(cluster, compactor_backup_interval_ms=interval_ms):
        await cluster.clock.advance(60_000)
        assert await made() == (1 if interval_ms else 0)
        await cluster.clock.advance(130_000)
        assert await made() == (2 if interval_ms else 0)
