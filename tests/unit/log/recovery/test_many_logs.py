"""Backup and restore of many logs: side by side, in few calls, in bounded memory, and in an order that is safe."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from llog.errors import LogBusy
from llog.formats.backup import BackedUp, Begin, Commit, Discard, Line
from llog.log.append.append import Appender
from llog.log.cluster import join_cluster
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.recovery import backup_logs, restore_records
from llog.log.recovery.backup_logs import BACKUP_LOGS_FIRST, LogGroups
from llog.log.recovery.recover import recover
from llog.stores.metadata.port import GroupOutcome, Key, MetadataStore, Record, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.contract.backup_suite import backed_up, check_all, memory_context, restored
from tests.contract.log_suite import contents, group

LOGS = [Log(f"topic-{number // 8}", number % 8) for number in range(120)]


class Counted(ForwardingMetadataStore):
    """A store whose reads take a few turns of the event loop, and that remembers its calls."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.gets = self.scans = self.scanning = self.scanning_max = 0
        self.written: list[list[str]] = []

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        self.gets += 1
        await turns(20)
        return await self.inner.get_many(keys, strict=strict)

    async def scan(self, parent: Key, **named: object) -> list[Record]:
        self.scans += 1
        self.scanning += 1
        self.scanning_max = max(self.scanning_max, self.scanning)
        await turns(20)
        self.scanning -= 1
        return await self.inner.scan(parent, **named)  # type: ignore[arg-type]

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        self.written.append([write.key.path for some in groups for write in some])
        return await self.inner.write(groups)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def counted(context: LogContext) -> tuple[LogContext, Counted]:
    store = Counted(context.metadata)
    return replace(context, metadata=store), store


@pytest.fixture
def objects() -> ObjectStore:
    return MemoryObjectStore(f"memory://many-{time.time_ns()}")


@pytest.fixture
async def source(objects: ObjectStore) -> LogContext:
    context = memory_context(objects, atomic=False)
    await join_cluster(context)
    appender = Appender(context)
    for number in range(3):
        await appender.append([group(log, b"%d" % number) for log in LOGS])
    await appender.close()
    return context


async def test_a_backup_reads_many_logs_side_by_side_and_shares_their_gets(
    source: LogContext, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_logs, "BACKUP_LOGS_AT_ONCE", 40)
    context, store = counted(source)
    place = await backed_up(context, objects)
    assert store.scanning_max == 40, "bounded"
    assert store.gets < len(LOGS), "five gets of a log, shared by forty logs"
    assert (await place.manifest()).logs == len(LOGS)
    target = memory_context(objects, atomic=False)
    await restored(target, place)
    await check_all(target, LOGS)
    assert await contents(target, LOGS[-1]) == await contents(source, LOGS[-1])


@pytest.mark.parametrize("held_bytes_max", [0, 5_000, 1 << 20])
async def test_a_backup_is_whole_however_little_it_may_hold(
    source: LogContext, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch, held_bytes_max: int
) -> None:
    monkeypatch.setattr(backup_logs, "BACKUP_HELD_BYTES_MAX", held_bytes_max)
    place = await backed_up(counted(source)[0], objects)
    target = memory_context(objects)
    await restored(target, place)
    await check_all(target, LOGS)
    for log in LOGS[::17]:
        assert await contents(target, log) == await contents(source, log)


async def test_one_log_that_never_rests_fails_the_backup_and_leaves_nothing_running(
    source: LogContext, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_log = backup_logs.copy_log

    async def busy(context: LogContext, log: Log, emit: backup_logs.Emit) -> None:
        await copy_log(context, log, emit)
        if log == LOGS[60]:
            raise LogBusy(*log, "always")

    monkeypatch.setattr(backup_logs, "copy_log", busy)
    tasks = asyncio.all_tasks()
    with pytest.raises(LogBusy, match="always"):
        await backed_up(counted(source)[0], objects)
    assert asyncio.all_tasks() == tasks
    assert [found.name async for found in objects.list(source.keys.backups())] == []


# -- groups --------------------------------------------------------------------------------------------------------


class Groups:
    def __init__(self, held_bytes_max: int) -> None:
        self.lines: list[Line] = []
        self.all = LogGroups(self._write, held_bytes_max)

    async def _write(self, line: Line) -> None:
        await asyncio.sleep(0)
        self.lines.append(line)

    def kinds(self) -> list[str]:
        return [type(line).__name__ for line in self.lines]


def a_record(size: int) -> BackedUp:
    return BackedUp.of("path", 1, b"v" * size)


async def test_a_held_group_is_written_whole_and_a_discarded_one_leaves_no_line() -> None:
    groups = Groups(1 << 20)
    async with groups.all.of_one_log() as emit:
        for line in (Begin(kind="log"), a_record(10), Discard(reason="changed")):
            await emit(line)
        assert (groups.lines, groups.all.held_bytes) == ([], 0)
        await emit(Begin(kind="log"))
        assert groups.lines == []
        await emit(Commit(records=0))
    assert groups.kinds() == ["Begin", "Commit"]
    assert groups.all.held_bytes == 0


async def test_a_group_that_is_too_large_to_hold_is_written_alone_with_its_failed_copies() -> None:
    groups = Groups(2_000)
    async with groups.all.of_one_log() as large, groups.all.of_one_log() as small:
        await small(Begin(kind="log", topic="small"))
        await large(Begin(kind="log", topic="large"))
        for _ in range(3):
            await large(a_record(1_000))
        assert len(groups.lines) == 4, "written while it is read"
        waiting = asyncio.ensure_future(small(Commit(records=0)))
        await turns(20)
        assert not waiting.done()
        await large(Discard(reason="changed"))
        await waiting
        await large(Begin(kind="log", topic="large"))
        await large(Commit(records=0))
    assert groups.kinds() == ["Begin", "BackedUp", "BackedUp", "BackedUp", "Discard", *["Begin", "Commit"] * 2]
    assert groups.all.held_bytes == 0


async def test_as_many_logs_are_copied_at_a_time_as_fit_after_the_first_few() -> None:
    """So no large log has to be written alone, which is slow."""
    groups, under_way, most = Groups(10_000), 0, []

    async def copy() -> None:
        nonlocal under_way
        async with groups.all.of_one_log() as emit:
            under_way += 1
            most.append(under_way)
            await emit(Begin(kind="log"))
            for _ in range(2):
                await turns(5)
                await emit(a_record(700))
            await emit(Commit(records=2))
            under_way -= 1

    await asyncio.gather(*(copy() for _ in range(100)))
    assert max(most) == BACKUP_LOGS_FIRST
    assert max(most[40:]) == 4, "each holds about 2,400 bytes"
    assert groups.kinds() == ["Begin", "BackedUp", "BackedUp", "Commit"] * 100


async def test_a_log_that_fails_gives_back_its_memory_and_its_turn() -> None:
    groups = Groups(800)
    for size in (10, 1_000):  # held, and being written
        with contextlib.suppress(LogBusy):
            async with groups.all.of_one_log() as emit:
                await emit(Begin(kind="log"))
                await emit(a_record(size))
                assert groups.all.turn.locked() == (size == 1_000)
                raise LogBusy("orders", 0, "gone")
        assert groups.all.held_bytes == 0
        assert not groups.all.turn.locked()


# -- restore -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_records", [7, 100, 4_096])
async def test_a_restore_writes_many_logs_together_and_each_in_its_order(
    source: LogContext, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch, batch_records: int
) -> None:
    monkeypatch.setattr(restore_records, "RESTORE_BATCH_RECORDS", batch_records)
    place = await backed_up(source, objects)
    target, store = counted(memory_context(objects, atomic=False))
    await restored(target, place)
    keys = target.keys
    call_of = {path: number for number, paths in enumerate(store.written) for path in paths}
    hold, identity = keys.vacuum_hold().path, keys.cluster_id().path
    topics = [call for path, call in call_of.items() if path.startswith(keys.topics().path + "/")]
    controls = [call_of[keys.control(log).path] for log in LOGS]
    assert store.written[0] == [hold], "vacuum is held before anything exists"
    assert store.written[-1] == [hold], "and the restore is complete after all"
    for log in LOGS:
        control, compaction = call_of[keys.control(log).path], call_of[keys.compaction(log).path]
        own = [call for path, call in call_of.items() if path.startswith(keys.index(log).path + "/")]
        assert len(own) == 3
        assert max([*own, call_of[keys.producers(log).path]]) < compaction < control
    assert max(controls) < min(topics)
    assert max(topics) < call_of[identity]
    if batch_records == 4_096:
        assert len(store.written) == 7, "hold, records, compaction records, control records, topics, identity, hold"
    await check_all(target, LOGS)


async def test_a_search_for_newer_records_reads_the_logs_of_a_blob_together(
    source: LogContext, objects: ObjectStore
) -> None:
    place = await backed_up(source, objects)
    appender = Appender(source)
    await appender.append([group(log, b"newer") for log in LOGS])
    await appender.close()
    target, store = counted(memory_context(objects, atomic=False))
    await restored(target, place)
    store.gets = store.scans = store.scanning_max = 0
    found = await recover(target, dry_run=True)
    assert [one.outcome for one in found.slices] == ["found"] * len(LOGS)
    assert store.gets < 30
    assert store.scanning_max > len(LOGS) // 2
    assert (await recover(target)).appended == len(LOGS)
    for log in LOGS[::17]:
        assert await contents(target, log) == await contents(source, log)
