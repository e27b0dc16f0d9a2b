"""The service as a whole, on a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from llog.compactor.plan import Rules
from llog.compactor.service import CompactorService
from llog.errors import LogBusy, ObjectStoreUnavailable
from llog.formats.values import ControlRecord, IndexEntry, decode_value
from llog.log.claim import holder
from llog.log.context import LogContext
from llog.log.delete_topic import delete_topic
from llog.log.keys import Log
from llog.log.topic_admin import alter_topic, change_topic
from llog.settings import Settings
from tests.unit.compactor.stage import (
    ORDERS,
    Cluster,
    RememberingMetrics,
    ScriptedRunner,
    Writer,
    lag_of,
    leave_pending,
    settle,
)


class Running:
    def __init__(self, cluster: Cluster, seed: int, settings: Settings, rules: Rules | None) -> None:
        self.context = cluster.open(seed, patient=True)
        self.metrics = RememberingMetrics()
        self.runner = ScriptedRunner(cluster.open(seed + 100))
        self.service = CompactorService(self.context, settings, self.metrics, runner=self.runner, rules=rules)


@asynccontextmanager
async def running(
    cluster: Cluster,
    *,
    seed: int = 1,
    rules: Rules | None = None,
    held: bool = False,
    failing: Mapping[Log, Exception] | None = None,
    **overrides: object,
) -> AsyncIterator[Running]:
    """A service at work: its jobs wait until `go_on` is set when it is `held`."""
    there = Running(cluster, seed, cluster.settings(**overrides), rules)
    there.runner.failing |= failing or {}
    if held:
        there.runner.go_on.clear()
    await there.service.start()
    await settle()
    try:
        yield there
    finally:
        there.runner.go_on.set()
        stopping = asyncio.create_task(there.service.stop(timeout_ms=1_000))
        await cluster.clock.advance(2_000)
        await stopping


async def entries_of(context: LogContext, log: Log) -> list[IndexEntry]:
    return [
        decode_value(IndexEntry, record.value, str(log))
        async for record in context.metadata.scan_all(context.keys.index(log))
    ]


async def test_everything_old_enough_is_compacted_and_the_young_left_alone() -> None:
    cluster = Cluster()
    context = cluster.open()
    writer = Writer(context)
    logs = [Log("orders", 0), Log("orders", 1), Log("visits", 0)]
    async with running(cluster, compactor_min_age_ms=20_000, flush_max_age_ms=60_000) as there:
        await writer.append(*logs)
        await cluster.clock.advance(58_000)
        await writer.append(*logs)
        assert [await lag_of(context, log) for log in logs] == [2, 2, 2]
        await cluster.clock.advance(4_000)
        assert [await lag_of(context, log) for log in logs] == [1, 1, 1], "the second is younger than the minimum"
        await cluster.clock.advance(60_000)
        assert [await lag_of(context, log) for log in logs] == [0, 0, 0]
        await cluster.clock.advance(2_000)
        assert there.metrics.outcomes["compacted", "compact"] == 6
        assert there.metrics.lag[ORDERS] == (0, 0)
        assert there.metrics.stages >= {"claim", "look", "run", "release"}
        assert await holder(context, ORDERS) is None
        health = there.service.health()
        assert (health["status"], health["reasons"], health["discovery"]["targets"]) == ("ok", [], 3)


async def test_many_bytes_are_compacted_before_they_are_old() -> None:
    cluster = Cluster()
    context = cluster.open()
    async with running(cluster, compactor_min_age_ms=0, flush_max_bytes=64 * 1024, flush_max_age_ms=3_600_000):
        writer = Writer(context)
        await writer.append(ORDERS, size=60_000)
        await cluster.clock.advance(32_000)
        assert await lag_of(context, ORDERS) == 1
        await writer.append(ORDERS, size=60_000)
        await cluster.clock.advance(2_000)
        assert await lag_of(context, ORDERS) == 1, "a run ends before it grows beyond the size asked for"


async def test_a_run_takes_no_more_offsets_than_allowed_and_the_rest_follows_at_once() -> None:
    cluster = Cluster()
    context = cluster.open()
    writer = Writer(context)
    for _ in range(7):
        await writer.append(ORDERS)
    async with running(cluster, compactor_min_age_ms=0, flush_max_age_ms=0, compactor_max_offsets_per_run=2) as there:
        await cluster.clock.advance(500)
        assert await lag_of(context, ORDERS) == 0
        assert [entry.msg_count for entry in await entries_of(context, ORDERS)] == [2, 2, 2, 1]
        assert there.metrics.outcomes["compacted", "compact"] == 4


async def test_new_topics_are_found_and_deleted_ones_dropped_by_the_discovery_interval() -> None:
    cluster = Cluster()
    context = cluster.open()
    async with running(
        cluster, compactor_min_age_ms=0, flush_max_age_ms=0, compactor_discovery_interval_ms=10_000
    ) as there:
        await cluster.clock.advance(1_000)
        await Writer(context).append(ORDERS)
        await cluster.clock.advance(8_000)
        assert await lag_of(context, ORDERS) == 1
        await cluster.clock.advance(2_000)
        assert await lag_of(context, ORDERS) == 0
        assert there.service.health()["discovery"]["targets"] == 1
        await delete_topic(context, "orders")
        await cluster.clock.advance(11_000)
        assert there.service.health()["discovery"]["targets"] == 0
        assert there.metrics.discovery[-1][0] == 0


async def test_configured_targets_do_not_wait_for_discovery() -> None:
    cluster = Cluster()
    context = cluster.open()
    async with running(
        cluster,
        compactor_targets="orders:0",
        compactor_min_age_ms=0,
        flush_max_age_ms=0,
        compactor_discovery_interval_ms=3_600_000,
    ):
        await cluster.clock.advance(1_000)
        await Writer(context).append(ORDERS, Log("visits", 0))
        await cluster.clock.advance(3_000)
        assert await lag_of(context, ORDERS) == 0
        assert await lag_of(context, Log("visits", 0)) == 1


async def test_no_more_workers_than_configured_are_at_work_and_never_two_on_one_log() -> None:
    cluster = Cluster()
    logs = [Log("orders", partition) for partition in range(8)]
    await Writer(cluster.open()).append(*logs)
    async with running(cluster, compactor_min_age_ms=0, flush_max_age_ms=0, compactor_workers=3, held=True) as there:
        await cluster.clock.advance(5_000)
        assert there.runner.together_max == 3
        assert there.metrics.workers[-1] == (3, 3)
        there.runner.go_on.set()
        await cluster.clock.advance(5_000)
        assert there.runner.same_log_max == 1
        assert there.runner.together_max == 3
        assert [await lag_of(there.context, log) for log in logs] == [0] * 8


async def test_a_slow_log_does_not_hold_up_the_others() -> None:
    cluster = Cluster()
    context = cluster.open()
    writer = Writer(context)
    await writer.append(ORDERS)
    async with running(
        cluster, compactor_min_age_ms=0, flush_max_age_ms=0, compactor_discovery_interval_ms=1_000, held=True
    ) as it:
        await cluster.clock.advance(3_000)
        slow = it.runner.at_work[ORDERS]
        it.runner.go_on = asyncio.Event()
        it.runner.go_on.set()
        await writer.append(Log("visits", 0))
        await cluster.clock.advance(3_000)
        assert slow == it.runner.at_work[ORDERS] == 1
        assert await lag_of(context, Log("visits", 0)) == 0


async def test_a_failing_log_is_left_alone_for_the_error_pause_and_named_in_health() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS, Log("visits", 0))
    down = {ORDERS: ObjectStoreUnavailable("get", "memory://x", "down")}
    async with running(
        cluster, compactor_min_age_ms=0, flush_max_age_ms=0, compactor_error_sleep_ms=7_000, failing=down
    ) as there:
        await cluster.clock.advance(6_500)
        assert there.runner.calls.count(("compact", ORDERS)) == 1
        assert await lag_of(context, Log("visits", 0)) == 0
        health = there.service.health()
        assert health["status"] == "degraded"
        assert "orders:0: ObjectStoreUnavailable" in health["reasons"][0]
        assert there.metrics.outcomes["failed", "compact"] == 1
        there.runner.failing.clear()
        await cluster.clock.advance(3_000)
        assert await lag_of(context, ORDERS) == 0
        assert there.service.health()["status"] == "ok"


async def test_a_mistake_in_the_code_of_one_log_harms_no_other() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS, Log("visits", 0))
    oops = {ORDERS: ZeroDivisionError("oops")}
    async with running(cluster, compactor_min_age_ms=0, flush_max_age_ms=0, failing=oops) as there:
        await cluster.clock.advance(3_000)
        assert await lag_of(context, Log("visits", 0)) == 0
        assert "ZeroDivisionError" in there.service.health()["reasons"][0]
        assert await holder(context, ORDERS) is None


async def test_a_busy_log_is_no_failure() -> None:
    cluster = Cluster()
    await Writer(cluster.open()).append(ORDERS)
    busy = {ORDERS: LogBusy("orders", 0, "others were faster")}
    async with running(cluster, compactor_min_age_ms=0, flush_max_age_ms=0, failing=busy) as there:
        await cluster.clock.advance(4_500)
        assert 3 <= there.metrics.outcomes["busy", "compact"] <= 5
        assert there.service.health()["status"] == "ok"


async def test_a_metadata_store_that_is_away_is_told_of_and_waited_for() -> None:
    cluster = Cluster()
    context = cluster.open()
    writer = Writer(context)
    await writer.append(ORDERS)
    async with running(cluster, compactor_min_age_ms=0, flush_max_age_ms=0) as there:
        await cluster.clock.advance(2_000)
        store = there.context.metadata
        get_many = store.get_many

        async def away(*args: object, **kwargs: object) -> object:
            raise ObjectStoreUnavailable("get", "metadata", "away")

        store.get_many = away  # type: ignore[method-assign,assignment]
        await cluster.clock.advance(40_000)
        assert there.service.health()["status"] == "degraded"
        store.get_many = get_many  # type: ignore[method-assign]
        await writer.append(ORDERS)
        await cluster.clock.advance(40_000)
        assert await lag_of(context, ORDERS) == 0
        assert there.service.health()["status"] == "ok"


@pytest.mark.parametrize("names", [("one", "two"), ("one", "one")], ids=["names", "one-name"])
async def test_two_services_share_the_work_and_never_one_log(names: tuple[str, str]) -> None:
    cluster = Cluster()
    context = cluster.open()
    logs = [Log("orders", partition) for partition in range(6)]
    writer = Writer(context)
    await writer.append(*logs)
    easy: dict[str, Any] = {"compactor_min_age_ms": 0, "flush_max_age_ms": 0}
    async with (
        running(cluster, seed=1, compactor_id=names[0], **easy) as one,
        running(cluster, seed=2, compactor_id=names[1], **easy) as two,
    ):
        two.runner.at_work = one.runner.at_work
        for _ in range(4):
            await writer.append(*logs)
            for there in (one, two):
                there.runner.go_on.clear()
            await cluster.clock.advance(3_000)
            for there in (one, two):
                there.runner.go_on.set()
            await cluster.clock.advance(3_000)
        assert [await lag_of(context, log) for log in logs] == [0] * 6
        assert max(one.runner.same_log_max, two.runner.same_log_max) == 1
        assert (
            one.metrics.outcomes["claimed_elsewhere", "compact"] + two.metrics.outcomes["claimed_elsewhere", "compact"]
        )
        runs = one.metrics.outcomes["compacted", "compact"] + two.metrics.outcomes["compacted", "compact"]
        assert runs == 30, "looking again under the claim, nobody compacts what another just did"


async def test_a_lost_session_stops_the_work_which_is_taken_up_again_in_a_new_one() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with running(cluster, compactor_min_age_ms=0, flush_max_age_ms=0, held=True) as there:
        await cluster.clock.advance(1_500)
        assert there.runner.at_work[ORDERS] == 1
        [session] = list(cluster.backing.sessions.values())
        cluster.backing.expire(session)
        await settle()
        assert there.runner.at_work[ORDERS] == 0
        assert await holder(context, ORDERS) is None
        there.runner.go_on.set()
        await cluster.clock.advance(10_000)
        assert await lag_of(context, ORDERS) == 0
        assert there.metrics.claims["session_lost"] == 1
        assert there.metrics.claims["session_opened"] == 2


async def test_segments_are_merged_when_enough_of_them_lie_side_by_side() -> None:
    cluster = Cluster()
    context = cluster.open()
    writer = Writer(context)
    rules = replace(Rules.of(cluster.settings(compactor_min_age_ms=0, flush_max_age_ms=0)), merge_inputs_min=3)
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
        assert there.runner.calls.count(("retain", ORDERS)) in (2, 3)


async def test_an_append_that_a_dead_writer_left_is_shown_and_settled() -> None:
    cluster = Cluster(atomic=False)
    await leave_pending(cluster, ORDERS)
    cluster.clock.now += 60_000
    async with running(cluster, compactor_min_age_ms=1_000, flush_max_age_ms=0) as there:
        await cluster.clock.advance(10_000)
        assert there.metrics.pending[0] == (0, 1)
        assert there.metrics.pending[-1] == (0, 0)
        assert there.metrics.recoveries["pending_settled"] == 1


async def test_a_run_that_a_dead_compactor_left_is_resumed() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with running(
        cluster, seed=5, compactor_id="dead", compactor_min_age_ms=0, flush_max_age_ms=0, held=True
    ) as dead:
        metadata = dead.runner._context.metadata
        put = metadata.put

        async def stuck(key, value, **conditions):  # type: ignore[no-untyped-def]
            if "/index/" in key.path:
                await asyncio.Event().wait()
            return await put(key, value, **conditions)

        metadata.put = stuck  # type: ignore[method-assign]
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
        cluster, wal_max_bytes=1 << 20, wal_grace_ms=20_000, compactor_min_age_ms=0, flush_max_age_ms=3_600_000
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


async def test_a_stop_lets_work_end_and_gives_claims_back() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with running(cluster, compactor_min_age_ms=0, flush_max_age_ms=0, held=True) as there:
        await cluster.clock.advance(1_500)
        stopping = asyncio.create_task(there.service.stop(timeout_ms=10_000))
        await cluster.clock.advance(5_000)
        assert not stopping.done()
        assert there.service.health()["status"] == "stopping"
        there.runner.go_on.set()
        await settle()
        await stopping
        assert await lag_of(context, ORDERS) == 0
        assert cluster.backing.sessions == {}


async def test_a_stop_cuts_off_what_does_not_end_in_time() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with running(cluster, compactor_min_age_ms=0, flush_max_age_ms=0, held=True) as there:
        await cluster.clock.advance(1_500)
        stopping = asyncio.create_task(there.service.stop(timeout_ms=10_000))
        await cluster.clock.advance(9_999)
        assert not stopping.done()
        await cluster.clock.advance(2)
        await stopping
        assert there.runner.at_work[ORDERS] == 0
        assert await lag_of(context, ORDERS) == 1
        assert await holder(context, ORDERS) is None
        assert cluster.backing.sessions == {}


async def test_a_stop_that_is_in_a_hurry_waits_for_nothing() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with running(cluster, compactor_min_age_ms=0, flush_max_age_ms=0, held=True) as there:
        await cluster.clock.advance(1_500)
        at_once = asyncio.Event()
        stopping = asyncio.create_task(there.service.stop(timeout_ms=10_000, at_once=at_once))
        await settle()
        assert not stopping.done()
        at_once.set()
        await stopping
        assert there.runner.at_work[ORDERS] == 0
        assert await holder(context, ORDERS) is None
        assert cluster.backing.sessions == {}


async def test_an_idle_service_passes_once_per_idle_pause() -> None:
    cluster = Cluster()
    await Writer(cluster.open()).append(ORDERS)
    async with running(cluster, compactor_idle_sleep_ms=2_000, compactor_min_age_ms=0) as there:
        await cluster.clock.advance(500)
        before = there.service.health()["passes"]
        await cluster.clock.advance(20_000)
        assert there.service.health()["passes"] - before == 10
