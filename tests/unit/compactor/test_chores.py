"""Chores of the whole cluster are done once, by the service that holds their claim."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from llog.compactor.chores import Chores, Marks
from llog.compactor.claims import Claims
from llog.compactor.discovery import DyingTopic
from llog.compactor.plan import COMPACTOR_BACKUP_TORN_MS, COMPACTOR_BACKUPS_KEPT
from llog.errors import ObjectStoreUnavailable, TopicNotFound, VacuumRefused
from llog.limits import COMPACTOR_BACKUP_INTERVAL_MS_MIN
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.log.recovery.backup import write_backup
from llog.log.recovery.backup_places import BackupObjects, list_backups
from llog.pipeline.compact.once import compact_once
from tests.unit.compactor.stage import ORDERS, Cluster, RememberingMetrics, ScriptedJobs, Writer


def chores_of(
    cluster: Cluster, name: str, marks: Marks | None = None, **overrides: object
) -> tuple[Chores, ScriptedJobs, RememberingMetrics]:
    context, metrics = cluster.open(sum(name.encode())), RememberingMetrics()
    runner = ScriptedJobs(context)
    claims = Claims(context, metrics, compactor_id=name, session_timeout_ms=10_000)
    settings = cluster.settings(**overrides)
    return Chores(context, settings, claims=claims, jobs=runner, metrics=metrics, marks=marks), runner, metrics


async def blobs_left(cluster: Cluster, context: LogContext) -> int:
    return len([found async for found in cluster.wal.list(context.keys.blobs())])


# -- vacuum ----------------------------------------------------------------------------------------------------------


async def test_one_of_two_services_vacuums_and_another_takes_over_when_it_fails() -> None:
    cluster = Cluster()
    (one, first, counted), (two, second, _) = chores_of(cluster, "one"), chores_of(cluster, "two")
    await one.vacuum()
    await two.vacuum()
    await one.vacuum()
    assert (first.vacuums, second.vacuums) == (2, 0)
    assert counted.vacuums["run"] == 2
    first.refusal = VacuumRefused("clocks differ")
    with pytest.raises(VacuumRefused):
        await one.vacuum()
    assert counted.vacuums["refused"] == 1
    await two.vacuum()
    assert second.vacuums == 1


async def test_vacuum_is_due_once_per_interval() -> None:
    cluster = Cluster()
    chores, _, _ = chores_of(cluster, "one", vacuum_grace_ms=60_000)
    assert 0 <= chores.vacuum_in_ms() <= 60_000
    await chores.vacuum()
    assert chores.vacuum_in_ms() == 60_000
    cluster.clock.now += 60_000
    assert chores.vacuum_in_ms() == 0


async def test_vacuum_removes_blobs_that_compaction_left_and_counts_them() -> None:
    cluster = Cluster(vacuum_grace_ms=60_000)
    chores, _, counted = chores_of(cluster, "one", vacuum_grace_ms=60_000)
    context = cluster.open()
    await Writer(context).append(ORDERS)
    await compact_once(context, ORDERS)
    cluster.clock.now += 70_000
    await chores.vacuum()
    assert await blobs_left(cluster, context) == 0
    assert counted.vacuums["blobs_deleted"] == 1
    assert counted.vacuums["bytes_deleted"] > 0


async def test_clocks_are_compared() -> None:
    cluster = Cluster()
    chores, _, counted = chores_of(cluster, "one")
    cluster.backing.clock_ms = lambda: cluster.clock.now + 1_234
    await chores.compare_clocks()
    assert counted.skew_ms == 1_234


# -- a WAL store of its own ------------------------------------------------------------------------------------------


async def test_a_wal_store_above_three_quarters_presses_and_makes_vacuum_due_at_once() -> None:
    cluster = Cluster(own_wal=True)
    chores, _, _ = chores_of(cluster, "one", wal_max_bytes=1 << 20, wal_grace_ms=300_000)
    writer = Writer(cluster.open())
    await chores.vacuum()
    await writer.append(ORDERS, size=700_000)
    await chores.measure_wal()
    assert not chores.under_pressure
    assert not chores.pressed.is_set()
    assert chores.vacuum_in_ms() == 300_000
    await writer.append(ORDERS, size=100_000)
    await chores.measure_wal()
    assert chores.wal_bytes is not None
    assert chores.wal_bytes > 800_000
    assert chores.under_pressure
    assert chores.pressed.is_set()
    assert chores.vacuum_in_ms() == 30_000
    cluster.clock.now += 30_000
    assert chores.vacuum_in_ms() == 0


class OneMark:
    """Nothing changes."""

    def log_mark(self) -> int:
        return 7

    def full_mark(self) -> int:
        return 7


async def test_what_was_too_young_is_judged_when_the_grace_of_its_store_is_over_though_nothing_changes() -> None:
    cluster = Cluster(own_wal=True)
    chores, _, _ = chores_of(cluster, "one", OneMark(), wal_grace_ms=300_000, vacuum_grace_ms=3_600_000)
    await Writer(cluster.open()).append(ORDERS)
    waited_ms = []
    for _ in range(3):
        await chores.vacuum()
        began_ms = cluster.clock.now
        while wait_ms := chores.vacuum_in_ms():
            cluster.clock.now += wait_ms
        waited_ms.append(cluster.clock.now - began_ms)
    assert waited_ms[:2] == [310_000, 3_610_000], "blobs, then segments"
    assert waited_ms[2] >= 3_610_000


async def test_a_wal_store_that_is_the_object_store_is_not_measured() -> None:
    cluster = Cluster()
    chores, _, _ = chores_of(cluster, "one", wal_max_bytes=1 << 20)
    await Writer(cluster.open()).append(ORDERS, size=1_000_000)
    await chores.measure_wal()
    assert (chores.wal_bytes, chores.under_pressure) == (None, False)


# -- deletions -------------------------------------------------------------------------------------------------------


async def test_deletions_left_behind_are_finished_and_one_that_fails_does_not_stop_the_others() -> None:
    cluster = Cluster()
    chores, runner, counted = chores_of(cluster, "one")
    context = cluster.open()
    await Writer(context).append(ORDERS, Log("visits", 0))
    with pytest.raises(TopicNotFound):
        await chores.finish_deletions([DyingTopic("none", 1), DyingTopic("visits", 1)])
    assert counted.recoveries["deletion_finished"] == 1
    assert await context.metadata.get(context.keys.chore_claim("topic-deletions")) is None
    await chores.finish_deletions([])
    assert [log.topic for _, log in runner.calls] == ["none", "visits"]


async def test_a_topic_created_again_is_not_deleted_for_its_former_life() -> None:
    cluster = Cluster()
    chores, _, _ = chores_of(cluster, "one")
    context = cluster.open()
    writer = Writer(context)
    await writer.append(ORDERS)
    await chores.finish_deletions([DyingTopic("orders", 1)])
    await Writer(context).append(ORDERS)
    await chores.finish_deletions([DyingTopic("orders", 1)])
    control = await context.metadata.get(context.keys.control(ORDERS))
    assert control is not None
    assert b'"OPEN"' in control.value


# -- backups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_wal", [True, False], ids=["a WAL store of its own", "one object store"])
async def test_backups_are_made_on_schedule_and_the_last_ones_kept_with_those_made_by_hand(own_wal: bool) -> None:
    cluster = Cluster(own_wal=own_wal)
    chores, _, _ = chores_of(cluster, "one")
    context = cluster.open()
    await Writer(context).append(ORDERS)
    by_hand = new_object_id(cluster.clock.now, random.Random(9).getrandbits)
    await write_backup(context, BackupObjects(cluster.objects, context.keys, by_hand), by_hand)
    await chores.backup()
    assert len(await chores.backups()) == 1, "the newest backup is young enough, by any service"
    for _ in range(COMPACTOR_BACKUPS_KEPT + 3):
        cluster.clock.now += chores.backup_interval_ms
        await chores.backup()
        await chores.backup()
    found = await chores.backups()
    assert len(found) == COMPACTOR_BACKUPS_KEPT + 1
    assert found[0].backup_id == by_hand
    assert all(one.whole for one in found)
    manifests = [manifest async for manifest in list_backups(cluster.objects, context.keys)]
    assert manifests[-1].logs == 1


async def test_an_interval_of_zero_turns_scheduled_backups_off() -> None:
    cluster = Cluster(own_wal=True)
    chores, _, _ = chores_of(cluster, "one", compactor_backup_interval_ms=0)
    await Writer(cluster.open()).append(ORDERS)
    await chores.backup()
    assert await chores.backups() == []


async def test_the_service_that_backs_up_looks_again_when_the_next_backup_is_due() -> None:
    cluster = Cluster()
    (one, _, _), (two, _, _) = chores_of(cluster, "one"), chores_of(cluster, "two")
    await Writer(cluster.open()).append(ORDERS)
    assert await one.backup() == one.backup_interval_ms == 900_000
    cluster.clock.now += 600_000
    assert await one.backup() == 300_000
    cluster.clock.now += 290_000
    assert await one.backup() == COMPACTOR_BACKUP_INTERVAL_MS_MIN, "not more often than that"
    assert await two.backup() == COMPACTOR_BACKUP_INTERVAL_MS_MIN, "the claim may become free"
    assert len(await one.backups()) == 1


async def test_a_backup_that_is_removed_is_none_from_the_first_moment_and_is_found_again_until_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(own_wal=True)
    chores, _, _ = chores_of(cluster, "one")
    await Writer(cluster.open()).append(ORDERS)
    for _ in range(COMPACTOR_BACKUPS_KEPT):
        await chores.backup()
        cluster.clock.now += chores.backup_interval_ms
    oldest = (await chores.backups())[0]

    delete_many = cluster.objects.delete_many

    async def goes_away(names: Sequence[str]) -> None:
        """When the first object has gone."""
        if len((await chores.backups())[0].names) < len(oldest.names):
            raise ObjectStoreUnavailable("delete", "memory://", "away")
        await delete_many(names)

    with monkeypatch.context() as dying:
        dying.setattr(cluster.objects, "delete_many", goes_away)
        with pytest.raises(ObjectStoreUnavailable):
            await chores.backup()
    left = (await chores.backups())[0]
    assert (left.backup_id, left.whole, left.scheduled) == (oldest.backup_id, False, True)
    cluster.clock.now += COMPACTOR_BACKUP_TORN_MS
    await chores.backup()
    assert oldest.backup_id not in [one.backup_id for one in await chores.backups()]


async def test_what_is_left_of_an_interrupted_backup_is_removed() -> None:
    cluster = Cluster(own_wal=True)
    chores, _, _ = chores_of(cluster, "one")
    keys = cluster.open().keys
    torn = new_object_id(cluster.clock.now, random.Random(9).getrandbits)
    for name in (keys.backup_schedule_object(torn), keys.backup_part_object(torn, 0)):
        await cluster.objects.put(name, [b"x"])
    await chores.backup()
    assert torn in [one.backup_id for one in await chores.backups()], "it may be under way"
    cluster.clock.now += 3_600_000
    await chores.backup()
    assert torn not in [one.backup_id for one in await chores.backups()]
    assert [found async for found in cluster.objects.list(f"{keys.backups()}{torn}")] == []


async def test_one_of_two_services_backs_up() -> None:
    cluster = Cluster(own_wal=True)
    (one, _, _), (two, _, elsewhere) = chores_of(cluster, "one"), chores_of(cluster, "two")
    await Writer(cluster.open()).append(ORDERS)
    await one.backup()
    cluster.clock.now += 3_600_000
    await two.backup()
    assert len(await one.backups()) == 1
    assert elsewhere.claims["claimed_elsewhere"] == 1
