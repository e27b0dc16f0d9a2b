"""Idle logs cost nothing, however many there are; and what changes is still noticed in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llog.compactor.plan import COMPACTOR_RETENTION_INTERVAL_MS, plan_sweep_interval_ms
from llog.errors import MetadataUnavailable
from llog.log.fence import fence
from llog.log.keys import Log
from llog.log.topics.admin import alter_topic, create_topic
from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import Change, Key, Record
from llog.stores.objects.memory import MemoryObjectStore
from tests.unit.compactor.serving import Running, running
from tests.unit.compactor.stage import Cluster, Writer, lag_of, settle

HOUR_MS = 3_600_000
GRACE_MS = 60_000
EASY: dict[str, Any] = {"compactor_min_age_ms": 0, "compactor_trigger_age_ms": 5_000, "vacuum_grace_ms": GRACE_MS}


class Counts:
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.keys = 0
        self.objects: Counter[str] = Counter()

    def clear(self) -> None:
        self.calls, self.keys, self.objects = Counter(), 0, Counter()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Calls of all memory stores, by name, and the keys in them."""
    counts = Counts()

    def counting(name: str, keys_of: Callable[[Any, Any], int]) -> None:
        call = getattr(MemoryStore, name)

        async def counted(self: MemoryStore, *args: Any, **kwargs: Any) -> Any:
            counts.calls[name] += 1
            answer = await call(self, *args, **kwargs)
            counts.keys += keys_of(args, answer)
            return answer

        monkeypatch.setattr(MemoryStore, name, counted)

    counting("get_many", lambda args, _: len(args[0]))
    counting("scan", lambda _, page: len(page))
    counting("write", lambda args, _: sum(map(len, args[0])))
    counting("open_session", lambda _, __: 0)
    for name in ("put", "get", "get_ranges", "get_tail", "head", "delete_many", "list"):
        call = getattr(MemoryObjectStore, name)

        def counted(self: MemoryObjectStore, *args: Any, call: Any = call, name: str = name, **kwargs: Any) -> Any:
            counts.objects[name] += 1
            return call(self, *args, **kwargs)

        monkeypatch.setattr(MemoryObjectStore, name, counted)
    return counts


def logs_of(count: int) -> list[Log]:
    return [Log(f"idle-{number // 10}", number % 10) for number in range(count)]


async def at_rest(cluster: Cluster, count: int) -> list[Log]:
    """Logs with one append each; the service that runs has compacted, looked at and vacuumed all of them."""
    logs, writer = logs_of(count), Writer(cluster.open())
    await writer.append(*logs)
    await cluster.clock.advance(2 * COMPACTOR_RETENTION_INTERVAL_MS + 10 * GRACE_MS)
    assert [await lag_of(cluster.open(), log) for log in logs] == [0] * count
    return logs


@pytest.mark.parametrize("count", [10, 100])
@pytest.mark.parametrize("own_wal", [False, True], ids=["one-store", "own-wal"])
async def test_an_hour_of_idle_logs_costs_no_object_request_and_no_more_metadata_for_more_logs(
    counts: Counts, count: int, own_wal: bool
) -> None:
    cluster = Cluster(own_wal=own_wal, vacuum_grace_ms=GRACE_MS, wal_grace_ms=GRACE_MS)
    async with running(cluster, **EASY, wal_grace_ms=GRACE_MS) as there:
        await at_rest(cluster, count)
        passes = there.service.health()["passes"]
        counts.clear()
        await cluster.clock.advance(HOUR_MS - 1_000)
        sweeps = there.service.health()["passes"] - passes
        assert counts.objects == {}
        assert counts.calls["write"] == counts.calls["open_session"] == 0
        # Of everything the service reads, only the sweep remains.
        assert sum(counts.calls.values()) <= 5 * sweeps
        assert counts.keys <= sweeps * (3 * count + count // 10)
        assert sweeps <= 1
        health = there.service.health()
        assert (health["status"], health["discovery"]["targets"]) == ("ok", count)
        assert health["in_session"] is False, "the heartbeats of a session are writes"
        assert there.metrics.discovery[-1][1] > cluster.clock.now - 60_000, "the targets are known to be current"


async def test_a_log_with_nothing_to_retain_is_never_visited() -> None:
    cluster = Cluster(vacuum_grace_ms=GRACE_MS)
    async with running(cluster, **EASY) as there:
        [kept, cut] = await at_rest(cluster, 2)
        await alter_topic(cluster.open(), kept.topic, put={"retention.ms": str(2 * HOUR_MS)})
        await cluster.clock.advance(HOUR_MS)
        assert [job for job, _ in there.runner.calls if job == "retain"] == []
        await cluster.clock.advance(HOUR_MS + COMPACTOR_RETENTION_INTERVAL_MS)
        assert Counter(there.runner.calls)["retain", kept] == Counter(there.runner.calls)["retain", cut] == 1


async def test_an_append_to_one_of_many_idle_logs_is_compacted_in_time_and_the_others_are_not_read(
    counts: Counts,
) -> None:
    cluster = Cluster(vacuum_grace_ms=GRACE_MS)
    async with running(cluster, **EASY) as there:
        logs = await at_rest(cluster, 100)
        context = cluster.open()
        counts.clear()
        await Writer(context).append(logs[42])
        written = counts.keys
        await cluster.clock.advance(2_000)
        assert there.metrics.lag[logs[42]][0] == 1
        assert await lag_of(context, logs[42]) == 1, "it is not old enough"
        await cluster.clock.advance(5_500)
        assert await lag_of(context, logs[42]) == 0
        assert counts.keys - written < 100


async def test_a_new_log_and_a_fenced_one_are_noticed_without_reading_the_others(counts: Counts) -> None:
    cluster = Cluster(vacuum_grace_ms=GRACE_MS)
    async with running(cluster, **EASY) as there:
        logs = await at_rest(cluster, 100)
        context = cluster.open()
        counts.clear()
        await create_topic(context, "new", partitions=3)
        await fence(context, logs[0], reason="its readers move")
        await cluster.clock.advance(5_000)
        health = there.service.health()
        assert (health["discovery"]["targets"], health["fenced"]) == (103, ["idle-0:0: its readers move"])
        assert counts.keys < 100


async def test_changes_that_a_broken_watch_missed_are_seen_when_it_is_established_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(vacuum_grace_ms=GRACE_MS)
    watch, broken = MemoryStore.watch, asyncio.Event()

    @asynccontextmanager
    async def breaking(self: MemoryStore, prefix: str, *, route: str = "") -> AsyncIterator[AsyncIterator[Change]]:
        if broken.is_set():
            raise MetadataUnavailable("watch", prefix, "away")
        async with watch(self, prefix, route=route) as changes:

            async def until_broken() -> AsyncIterator[Change]:
                while True:
                    following = asyncio.ensure_future(anext(changes))
                    ending = asyncio.ensure_future(broken.wait())
                    await asyncio.wait([following, ending], return_when=asyncio.FIRST_COMPLETED)
                    if broken.is_set():
                        following.cancel()
                        raise MetadataUnavailable("watch", prefix, "the connection is lost")
                    ending.cancel()
                    yield await following

            yield until_broken()

    monkeypatch.setattr(MemoryStore, "watch", breaking)
    async with running(cluster, **EASY) as there:
        logs = await at_rest(cluster, 20)
        context = cluster.open()
        broken.set()
        await cluster.clock.advance(1_000)
        assert "changes: MetadataUnavailable" in there.service.health()["reasons"][0]
        await Writer(context).append(logs[3])
        await cluster.clock.advance(12_000)
        assert await lag_of(context, logs[3]) == 0, "without a watch the service polls"
        await Writer(context).append(logs[4])
        broken.clear()
        await cluster.clock.advance(15_000)
        assert await lag_of(context, logs[4]) == 0
        assert there.service.health()["status"] == "ok"


async def lose_changes(cluster: Cluster, change: Callable[[], Any]) -> None:
    """A change that no watch reports."""
    watchers, cluster.backing.watchers = cluster.backing.watchers, {}
    await change()
    await settle()
    cluster.backing.watchers = watchers


async def test_a_change_that_was_never_reported_is_found_by_the_sweep() -> None:
    cluster = Cluster(vacuum_grace_ms=GRACE_MS)
    async with running(cluster, **EASY):
        logs = await at_rest(cluster, 20)
        context = cluster.open()
        await lose_changes(cluster, lambda: Writer(context).append(logs[3]))
        await cluster.clock.advance(plan_sweep_interval_ms(2, 20) + 10_000)
        assert await lag_of(context, logs[3]) == 0


async def test_a_gap_in_the_changes_makes_everything_due_once() -> None:
    cluster = Cluster(vacuum_grace_ms=GRACE_MS)
    async with running(cluster, **EASY) as there:
        logs = await at_rest(cluster, 20)
        context = cluster.open()
        await lose_changes(cluster, lambda: Writer(context).append(logs[3], Log("unseen", 0)))
        passes = there.service.health()["passes"]
        for watcher in cluster.backing.watchers:
            watcher.resync()
        await cluster.clock.advance(10_000)
        assert [await lag_of(context, log) for log in (logs[3], Log("unseen", 0))] == [0, 0]
        assert there.service.health()["passes"] - passes < 10


async def test_without_a_watch_idle_logs_are_inspected_ever_more_seldom() -> None:
    cluster = Cluster(watch=False, vacuum_grace_ms=GRACE_MS)
    settings = EASY | {"compactor_trigger_age_ms": 60_000}
    async with running(cluster, **settings) as there:
        logs = await at_rest(cluster, 30)
        await cluster.clock.advance(HOUR_MS // 2)
        before = there.metrics.outcomes["idle", "compact"]
        await cluster.clock.advance(60_000)
        assert there.metrics.outcomes["idle", "compact"] - before <= len(logs) + 10
        await Writer(cluster.open()).append(logs[5])
        await cluster.clock.advance(63_000)
        assert await lag_of(cluster.open(), logs[5]) == 0


async def test_an_entry_that_a_stale_read_missed_is_compacted_although_the_log_does_not_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(vacuum_grace_ms=GRACE_MS)
    async with running(cluster, **EASY) as there:
        [log] = await at_rest(cluster, 1)
        scan, stale = MemoryStore.scan, 1

        async def scanned(self: MemoryStore, parent: Key, **bounds: Any) -> list[Record]:
            nonlocal stale
            if parent.path.endswith("/index") and stale:
                stale -= 1
                return []
            return await scan(self, parent, **bounds)

        monkeypatch.setattr(MemoryStore, "scan", scanned)
        await Writer(cluster.open()).append(log)
        await cluster.clock.advance(2_000)
        assert (stale, there.metrics.lag[log]) == (0, (1, 0))
        await cluster.clock.advance(10_000)
        assert await lag_of(cluster.open(), log) == 0


async def test_two_idle_services_let_each_other_rest(counts: Counts) -> None:
    cluster = Cluster(vacuum_grace_ms=GRACE_MS)
    async with running(cluster, **EASY) as one, running(cluster, seed=2, **EASY, compactor_id="two") as two:
        services: list[Running] = [one, two]
        await at_rest(cluster, 20)
        await cluster.clock.advance(HOUR_MS)
        counts.clear()
        await cluster.clock.advance(HOUR_MS // 2)
        assert (counts.objects, counts.calls["write"]) == ({}, 0)
        assert [there.service.health()["in_session"] for there in services] == [False, False]
