"""What backup and restore promise on every metadata store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from llog.errors import LogError, MetadataStoreError, RestoreRefused
from llog.log.append.append import Appended, Appender
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.recovery.backup import write_backup
from llog.log.recovery.backup_places import BackupFile, BackupObjects
from llog.log.recovery.restore import Restored, inspect_backup, read_hold, restore_backup
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.contract.log_suite import ORDERS, History, contents, context_on, group, write_tokens
from tests.contract.on_stores import OpenStore
from tests.patience import until

LOGS = [ORDERS, Log("orders", 1)]


async def backed_up(context: LogContext, objects: ObjectStore) -> BackupObjects:
    backup_id = new_object_id(context.now_ms(), context.random_bits)
    place = BackupObjects(objects, context.keys, backup_id)
    await write_backup(context, place, backup_id)
    return place


async def restored(
    context: LogContext, place: BackupObjects | BackupFile, *, old_processes_ended: bool = True
) -> Restored:
    found = await inspect_backup(context, place)
    return await restore_backup(context, place, found, old_processes_ended=old_processes_ended)


async def check_all(context: LogContext, logs: list[Log] = LOGS) -> None:
    for log in logs:
        checked = await check_log(context, log, deep=True)
        assert checked.settled
        assert checked.faults == ()


def memory_context(objects: ObjectStore, *, atomic: bool = True, seed: int = 50) -> LogContext:
    return context_on(MemoryStore(MemoryBacking(shards=1 if atomic else 4, atomic_groups=atomic)), objects, seed)


class BackupContract:
    """Inherited beside a mixin of `on_stores`, which provides `open_store`."""

    @pytest.fixture
    def objects(self, request: pytest.FixtureRequest) -> ObjectStore:
        return MemoryObjectStore(f"memory://backup-{request.node.name}-{time.time_ns()}")

    @pytest.fixture
    async def context(self, open_store: OpenStore, objects: ObjectStore) -> LogContext:
        return context_on(await open_store(), objects, 1)

    async def test_a_backup_taken_while_everybody_works_restores_a_whole_log(
        self, context: LogContext, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        others = [context_on(await open_store(), objects, seed) for seed in (2, 3)]
        appenders, before, during = [Appender(context), Appender(others[0])], History(), History()
        await write_tokens(appenders[0], before, "before", LOGS, 10)
        working = True

        async def write(appender: Appender, name: str) -> None:
            number = 0
            while working:
                await write_tokens(appender, during, f"{name}-{number}", LOGS, 1)
                number += 1
                await asyncio.sleep(0)  # a store in memory never makes a writer wait

        async def compact() -> None:
            while working:
                for log in LOGS:
                    await compact_once(others[1], log, max_offsets=5)
                await asyncio.sleep(0.001)

        tasks = [asyncio.create_task(write(appender, f"w{i}")) for i, appender in enumerate(appenders)]
        tasks.append(asyncio.create_task(compact()))
        try:
            await until(lambda: {log for log, _ in during.landed.values()} >= set(LOGS), "appends under way")
            place = await backed_up(context, objects)
        finally:
            working = False
            await asyncio.gather(*tasks)
        for appender in appenders:
            await appender.close()
        for atomic in (True, False):
            target = memory_context(objects, atomic=atomic)
            await restored(target, place)
            await check_all(target)
            for log in LOGS:
                found = await contents(target, log)
                original = await contents(context, log)
                assert found == original[: len(found)], "what is restored is a beginning of what was written"
                tokens = dict(found)
                for token, (its_log, offset) in before.landed.items():
                    assert its_log != log or tokens[offset] == token, "acknowledged before the backup began"
                while await compact_once(target, log, max_offsets=5) is not None:
                    pass
                assert await contents(target, log) == found
            await check_all(target)

    async def test_what_is_restored_here_is_read_and_appended_to(
        self, context: LogContext, objects: ObjectStore, tmp_path: Path
    ) -> None:
        source = memory_context(objects, atomic=False)
        appender = Appender(source)
        for number in range(6):
            await appender.append([group(log, b"%d" % number, b"x") for log in LOGS])
        await compact_once(source, ORDERS, max_offsets=5)
        place = BackupFile(tmp_path / "metadata.backup")
        await write_backup(source, place, new_object_id(source.now_ms(), source.random_bits))
        before = [record async for record in source.metadata.scan_tree(source.keys.root)]
        await restored(context, place)
        await appender.close()
        for log in LOGS:
            assert await contents(context, log) == await contents(source, log)
        there = {r.key.path: r async for r in context.metadata.scan_tree(context.keys.root)}
        assert {record.key.path for record in before} <= set(there) | {source.keys.control(log).path for log in LOGS}
        again = Appender(context)
        [landed] = await again.append([group(ORDERS, b"new")])
        assert isinstance(landed, Appended)
        assert landed.start_offset == 13
        await again.close()
        await check_all(context)
        with pytest.raises(RestoreRefused, match=r"not empty|already held"):
            await restored(context, await backed_up(context, objects))

    async def test_an_interrupted_restore_goes_on(self, context: LogContext, objects: ObjectStore) -> None:
        source = memory_context(objects)
        appender = Appender(source)
        for number in range(20):
            await appender.append([group(log, b"%d" % number) for log in LOGS])
        await appender.close()
        place = await backed_up(source, objects)
        found = await inspect_backup(context, place)
        inner, writes = context.metadata.write, 0

        async def failing(groups):  # type: ignore[no-untyped-def]
            nonlocal writes
            writes += 1
            if writes == 4:
                raise MetadataStoreError("write", "test", "interrupted")
            return await inner(groups)

        context.metadata.write = failing  # type: ignore[method-assign]
        with pytest.raises(MetadataStoreError, match="interrupted"):
            await restore_backup(context, place, found, old_processes_ended=True)
        hold = await read_hold(context)
        assert hold is not None
        assert hold[0].state == "RESTORING", "vacuum is held from before the first entry"
        done = await restore_backup(context, place, found, old_processes_ended=True)
        assert done.resumed
        assert done.hold.held_at_ms == hold[0].held_at_ms
        await check_all(context)
        for log in LOGS:
            assert await contents(context, log) == await contents(source, log)

    async def test_versions_given_after_a_restore_are_higher_than_any_before(
        self, context: LogContext, objects: ObjectStore
    ) -> None:
        source = memory_context(objects)
        for _ in range(3):
            await Appender(source).append([group(log, b"a") for log in LOGS])
        place = await backed_up(source, objects)
        highest = (await place.manifest()).highest_version
        if not await context.metadata.raise_versions(0):
            with pytest.raises(RestoreRefused, match="--old-processes-ended"):
                await restored(context, place, old_processes_ended=False)
            assert [r async for r in context.metadata.scan_tree(context.keys.root)] == [], "nothing was written"
            return
        done = await restored(context, place, old_processes_ended=False)
        assert done.hold.versions_raised
        versions = [record.version async for record in context.metadata.scan_tree(context.keys.root)]
        assert min(versions) > highest + 2**43
        await context.metadata.raise_versions(1)
        key = context.keys.producer_ids()
        assert await context.metadata.put(key, b"{}") > max(versions), "raising never lowers"

    async def test_somebody_elses_write_during_a_restore_is_noticed(
        self, context: LogContext, objects: ObjectStore
    ) -> None:
        source = memory_context(objects)
        await Appender(source).append([group(log, b"a") for log in LOGS])
        place = await backed_up(source, objects)
        found = await inspect_backup(context, place)
        inner, meddled = context.metadata.write, False

        async def meddling(groups):  # type: ignore[no-untyped-def]
            nonlocal meddled
            if not meddled and any("@topics" in group[0].key.path for group in groups):
                meddled = True
                await context.metadata.put(context.keys.topic("orders"), b'{"other": 1}')
            return await inner(groups)

        context.metadata.write = meddling  # type: ignore[method-assign]
        with pytest.raises(RestoreRefused, match="another process"):
            await restore_backup(context, place, found, old_processes_ended=True)
        with pytest.raises((LogError, RestoreRefused)):
            await restore_backup(context, place, found, old_processes_ended=True)
