"""The service as a whole, on a clock that tests move."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from llog.errors import LogBusy, MetadataDenied, ObjectStoreUnavailable
from llog.log.fence import fence
from llog.log.keys import Log
from llog.log.topics.admin import alter_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.pipeline.runtime.log_choice import holder
from tests.unit.compactor.serving import entries_of, running
from tests.unit.compactor.stage import (
    ORDERS,
    START_MS,
    Cluster,
    Writer,
    die_at,
    lag_of,
    settle,
)


async def test_everything_old_enough_is_compacted_and_the_young_left_alone() -> None:
    cluster = Cluster()
    context = cluster.open()
    writer = Writer(context)
    logs = [Log("orders", 0), Log("orders", 1), Log("visits", 0)]
    async with running(cluster, compactor_min_age_ms=20_000, compactor_trigger_age_ms=60_000) as there:
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
        assert (health["compactor_id"], health["host"], health["port"]) == ("one", "127.0.0.1", 8090)
        assert health["started_at_ms"] == START_MS


async def test_work_that_was_done_has_a_line_with_what_how_much_and_how_long_and_idle_visits_have_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "llog.compactor")
    cluster = Cluster()
    context = cluster.open()
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, compactor_backup_interval_ms=0):
        await Writer(context).append(ORDERS)
        await cluster.clock.advance(60_000)
        assert await lag_of(context, ORDERS) == 0
    [line] = [record for record in caplog.records if record.name == "llog.compactor"]
    fields = line.__dict__["llog"]
    assert (line.message, fields["log"], fields["entries"]) == ("compacted a log", "orders:0", 1)
    assert fields["bytes"] > 100
    assert fields["duration_ms"] >= 0


async def test_many_bytes_are_compacted_before_they_are_old() -> None:
    cluster = Cluster()
    context = cluster.open()
    async with running(
        cluster, compactor_min_age_ms=0, compactor_trigger_bytes=64 * 1024, compactor_trigger_age_ms=3_600_000
    ):
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
    async with running(
        cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, compactor_max_offsets_per_run=2
    ) as there:
        await cluster.clock.advance(500)
        assert await lag_of(context, ORDERS) == 0
        assert [entry.msg_count for entry in await entries_of(context, ORDERS)] == [2, 2, 2, 1]
        assert there.metrics.outcomes["compacted", "compact"] == 4


async def test_new_topics_are_found_and_deleted_ones_dropped_as_soon_as_the_store_reports_them() -> None:
    cluster = Cluster()
    context = cluster.open()
    async with running(
        cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, compactor_discovery_interval_ms=3_600_000
    ) as there:
        await cluster.clock.advance(1_000)
        await Writer(context).append(ORDERS)
        await cluster.clock.advance(4_000)
        assert await lag_of(context, ORDERS) == 0
        assert there.service.health()["discovery"]["targets"] == 1
        await delete_topic(context, "orders")
        await cluster.clock.advance(4_000)
        assert there.service.health()["discovery"]["targets"] == 0
        assert there.metrics.discovery[-1][0] == 0


async def test_without_a_watch_new_topics_are_found_and_deleted_ones_dropped_by_the_discovery_interval() -> None:
    cluster = Cluster(watch=False)
    context = cluster.open()
    async with running(
        cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, compactor_discovery_interval_ms=10_000
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
    cluster = Cluster(watch=False)
    context = cluster.open()
    async with running(
        cluster,
        compactor_targets="orders:0",
        compactor_min_age_ms=0,
        compactor_trigger_age_ms=0,
        compactor_discovery_interval_ms=3_600_000,
    ):
        await cluster.clock.advance(1_000)
        await Writer(context).append(ORDERS, Log("visits", 0))
        await cluster.clock.advance(3_000)
        assert await lag_of(context, ORDERS) == 0
        assert await lag_of(context, Log("visits", 0)) == 1


async def test_a_configured_target_that_is_deleted_has_nothing_left_to_compact() -> None:
    """It stays a target, for it may be created again; its lag would grow older for ever."""
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with running(cluster, compactor_targets="orders:0", compactor_trigger_age_ms=3_600_000) as there:
        await cluster.clock.advance(30_000)
        assert there.metrics.lag[ORDERS][0] == 1
        await delete_topic(context, "orders")
        await cluster.clock.advance(3_000)
        assert there.metrics.lag[ORDERS] == (0, 0)


async def test_no_more_workers_than_configured_are_at_work_and_never_two_on_one_log() -> None:
    cluster = Cluster()
    logs = [Log("orders", partition) for partition in range(8)]
    await Writer(cluster.open()).append(*logs)
    async with running(
        cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, compactor_workers=3, held=True
    ) as there:
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
        cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, compactor_discovery_interval_ms=1_000, held=True
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
        cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, compactor_error_sleep_ms=7_000, failing=down
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
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, failing=oops) as there:
        await cluster.clock.advance(3_000)
        assert await lag_of(context, Log("visits", 0)) == 0
        assert "ZeroDivisionError" in there.service.health()["reasons"][0]
        assert await holder(context, ORDERS) is None


async def test_a_busy_log_is_no_failure() -> None:
    cluster = Cluster()
    await Writer(cluster.open()).append(ORDERS)
    busy = {ORDERS: LogBusy("orders", 0, "others were faster")}
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, failing=busy) as there:
        await cluster.clock.advance(4_500)
        assert 3 <= there.metrics.outcomes["busy", "compact"] <= 5
        assert there.service.health()["status"] == "ok"


async def test_an_unavailable_metadata_store_has_one_line_per_part_and_another_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    context = cluster.open()
    writer = Writer(context)
    await writer.append(ORDERS)
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0) as there:
        await cluster.clock.advance(2_000)
        store = there.context.metadata
        get_many = store.get_many

        async def away(*args: object, **kwargs: object) -> object:
            raise ObjectStoreUnavailable("get", "metadata", "away")

        store.get_many = away  # type: ignore[method-assign,assignment]
        await writer.append(ORDERS)
        await cluster.clock.advance(40_000)
        assert there.service.health()["status"] == "degraded"
        warnings = [record for record in caplog.records if "away" in record.__dict__.get("llog", {}).get("error", "")]
        failing = [record.__dict__["llog"]["what"] for record in warnings]
        assert "passes" in failing
        assert len(failing) == len(set(failing)), "it failed many times, and has one line"
        assert not any(record.exc_info for record in warnings), "an expected error has no traceback"
        caplog.set_level(logging.INFO, "llog.compactor")
        store.get_many = get_many  # type: ignore[method-assign]
        await writer.append(ORDERS)
        await cluster.clock.advance(40_000)
        assert await lag_of(context, ORDERS) == 0
        assert there.service.health()["status"] == "ok"
        back = [record.__dict__["llog"] for record in caplog.records if record.message == "work succeeds again"]
        assert sorted(one["what"] for one in back) == sorted(failing)
        assert max(one["failed_ms"] for one in back) > 30_000


@pytest.mark.parametrize("names", [("one", "two"), ("one", "one")], ids=["names", "one-name"])
async def test_two_services_share_the_work_and_never_one_log(names: tuple[str, str]) -> None:
    cluster = Cluster()
    context = cluster.open()
    logs = [Log("orders", partition) for partition in range(6)]
    writer = Writer(context)
    await writer.append(*logs)
    easy: dict[str, Any] = {"compactor_min_age_ms": 0, "compactor_trigger_age_ms": 0}
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
        assert runs == 30, "the inspection under the claim shows the work of the other service"


async def test_a_lost_session_stops_the_work_which_is_taken_up_again_in_a_new_one() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, held=True) as there:
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


async def test_logs_that_change_all_the_time_are_inspected_once_per_idle_pause() -> None:
    cluster = Cluster()
    writer = Writer(cluster.open())
    await writer.append(ORDERS)
    async with running(
        cluster, compactor_idle_sleep_ms=2_000, compactor_min_age_ms=0, compactor_trigger_age_ms=3_600_000
    ) as there:
        await cluster.clock.advance(10_000)
        before = there.service.health()["passes"]
        for _ in range(200):
            await writer.append(ORDERS)
            await cluster.clock.advance(100)
        assert there.service.health()["passes"] - before in (10, 11)
        assert there.metrics.lag[ORDERS][0] >= 180


async def test_health_tells_which_logs_are_fenced_and_why() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    await fence(context, ORDERS, reason="its readers move")
    async with running(cluster) as there:
        await cluster.clock.advance(1_000)
        health = there.service.health()
        assert (health["fenced_logs"], health["fenced"]) == (1, ["orders:0: its readers move"])
        assert health["status"] == "ok", "an operator may have wanted it"


@pytest.mark.parametrize("record", ["control", "compaction", "topic"])
async def test_a_record_that_cannot_be_read_keeps_no_other_log_from_being_compacted(record: str) -> None:
    cluster = Cluster()
    context = cluster.open()
    visits = Log("visits", 0)
    await Writer(context).append(ORDERS, visits)
    keys = {"control": context.keys.control(visits), "compaction": context.keys.compaction(visits)}
    await context.metadata.put(keys.get(record, context.keys.topic("visits")), b"damaged")
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0) as there:
        await cluster.clock.advance(3_000)
        assert await lag_of(context, ORDERS) == 0
        health = there.service.health()
        assert health["status"] == "degraded"
        assert "visits" in health["reasons"][0]


async def test_an_unreadable_entry_under_a_run_in_flight_keeps_no_other_log_from_being_compacted() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS, Log("visits", 0))
    die_at(context, "DELETING_OLD", after=True)
    with pytest.raises(MetadataDenied):
        await compact_once(context, ORDERS)
    await cluster.open().metadata.put(context.keys.index_entry(ORDERS, 1), b"damaged")
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0) as there:
        await cluster.clock.advance(3_000)
        assert await lag_of(context, Log("visits", 0)) == 0
        assert "orders:0: " in there.service.health()["reasons"][0]


async def test_what_was_wrong_with_a_log_is_over_when_another_process_did_the_work() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    away = {ORDERS: ObjectStoreUnavailable("get", "blob", "away")}
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, failing=away) as there:
        await cluster.clock.advance(2_000)
        assert there.service.health()["status"] == "degraded"
        await compact_once(context, ORDERS)
        await cluster.clock.advance(10_000)
        assert there.service.health()["reasons"] == []


async def test_what_was_wrong_with_a_log_is_forgotten_with_the_log() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    good = await context.metadata.get(context.keys.compaction(ORDERS))
    assert good is not None
    await context.metadata.put(good.key, b"damaged")
    async with running(cluster, compactor_discovery_interval_ms=10_000) as there:
        await cluster.clock.advance(2_000)
        assert there.service.health()["failing_logs"] == 1
        await context.metadata.put(good.key, good.value)
        await delete_topic(context, "orders")
        await cluster.clock.advance(11_000)
        assert there.service.health()["failing_logs"] == 0


@pytest.mark.parametrize("watch", [True, False])
async def test_a_clock_that_is_set_back_a_year_stops_nothing(watch: bool) -> None:
    cluster = Cluster(watch=watch)
    context = cluster.open()
    year_ms = 365 * 24 * 3_600_000
    await Writer(context).append(ORDERS)
    cluster.clock.ahead_ms = year_ms
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, vacuum_grace_ms=60_000) as there:
        await cluster.clock.advance(400_000)
        cluster.clock.ahead_ms = 0
        await cluster.clock.advance(120_000)
        vacuums, passes = there.runner.vacuums, there.service.health()["passes"]
        await alter_topic(context, "orders", put={"retention.ms": "60000"})
        await Writer(context).append(ORDERS)
        await cluster.clock.advance(400_000)
        assert await lag_of(context, ORDERS) == 0
        assert there.service.health()["passes"] > passes
        assert there.runner.vacuums >= vacuums + 2
        assert ("retain", ORDERS) in there.runner.calls
