"""The metadata store is lost, restored from a backup, with and without recovery, by a process that is killed at any of
its writes and begun again: what comes back is what the model says, once and in order, and the log goes on from there.

LLOG_SOAK=1 …    many seeds
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from llog.log.append.append import Appended, Appender
from llog.log.context import LogContext
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.read.records import LogRecord
from llog.log.recovery.recover import Recovered, recover
from llog.log.recovery.restore import inspect_backup, release_vacuum, restore_backup
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.once import compact_once
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from tests.contract.log_suite import group
from tests.unit.log.recovery.loss import LATE, PLAIN, PRICES, Cluster, MortalStore, is_killed, records_of

SOAK = os.environ.get("LLOG_SOAK") == "1"
SEEDS = range(300) if SOAK else range(3)
FIRST, STEP = (1, 2) if SOAK else (1, 6)
"""Which writes are died at."""


async def restored(cluster: Cluster, context: LogContext, *, recovering: bool) -> Recovered:
    """What `llog meta restore` does."""
    found = await inspect_backup(context, cluster.backup)
    await restore_backup(context, cluster.backup, found, old_processes_ended=True)
    return await recover(context, dry_run=not recovering)


@pytest.mark.parametrize("recovering", [False, True], ids=["as-of-the-backup", "recovering"])
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "compare-and-set"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_restore_killed_at_any_write_and_begun_again_brings_back_what_one_does_that_lived(
    seed: int, atomic: bool, recovering: bool
) -> None:
    cluster = Cluster(seed, atomic)
    await cluster.live()
    whole = MortalStore(cluster.new_store())
    context = cluster.opened(whole)
    done = await restored(cluster, context, recovering=recovering)
    writes = whole.writes
    await judge(cluster, context, done, recovering=recovering)
    for at in range(FIRST + seed % STEP, writes + 1, STEP):
        where = ("before", "half", "after")[(at + seed) % 3]
        await cluster.begin_again()
        store = cluster.new_store()
        mortal = MortalStore(store, at, where)
        assert await is_killed(mortal, restored(cluster, cluster.opened(mortal), recovering=recovering))
        context = cluster.opened(store)
        try:
            done = await restored(cluster, context, recovering=recovering)
            await judge(cluster, context, done, recovering=recovering)
        except Exception as error:
            error.add_note(f"killed {where} write {at} of {writes}")
            raise


async def judge(cluster: Cluster, context: LogContext, done: Recovered, *, recovering: bool) -> None:
    """Right after it, after a second run, and when the log has gone on."""
    assert done.unreadable == []
    if not recovering:
        for log in [*PLAIN, PRICES]:
            await check_as_of_the_backup(context, log, cluster.at_backup[log])
        return
    await check(cluster, context, done)
    again = await restored(cluster, context, recovering=True)
    assert {one.outcome.partition(":")[0] for one in again.slices} <= {"left"}, again.slices
    await check(cluster, context, again)
    await go_on(cluster, context)
    await check(cluster, context, await restored(cluster, context, recovering=True))
    await release_vacuum(context)


async def check_as_of_the_backup(context: LogContext, log: Log, expected: list[LogRecord]) -> None:
    kinds = {fault.kind for fault in (await check_log(context, log, deep=True)).faults}
    assert kinds <= {"missing object"}, "what was taken since only recovery mends"
    if not kinds:
        assert await records_of(context, log) == expected


async def check(cluster: Cluster, context: LogContext, done: Recovered) -> None:
    for log in [*PLAIN, LATE]:
        there = await records_of(context, log)
        expected = cluster.at_loss[log]
        assert [(one.offset, one.payload) for one in there[: len(expected)]] == [
            (one.offset, one.payload) for one in expected
        ], log
        assert {one.payload for one in there[len(expected) :]} <= {b"new"}, log
    # Records that only a segment of key compaction holds are reported; entries may reference blobs that it replaced.
    is_left = any(one.log == PRICES and one.outcome.startswith("left") for one in done.slices)
    if not is_left:
        prices = await records_of(context, PRICES)
        tokens = [one.payload for one in prices if one.payload != b"new"]
        assert len(tokens) == len(set(tokens)), "nothing twice"
        assert last_of_each(prices) == last_of_each(cluster.at_loss[PRICES])
    await sound(context, [*PLAIN, LATE] if is_left else [*PLAIN, LATE, PRICES])


def last_of_each(records: Sequence[LogRecord]) -> dict[bytes | None, bytes | None]:
    return {one.key: one.payload for one in records if one.payload != b"new"}


async def sound(context: LogContext, logs: Sequence[Log]) -> None:
    for log in logs:
        if await context.metadata.get(context.keys.control(log)) is not None:
            checked = await check_log(context, log, deep=True)
            assert checked.faults == (), (log, checked.faults)
    report = await audit(context, LocalTasks(tools_of(context)))
    names = [str(log) for log in logs]
    damaged = [one for one in report.findings if one.severity == "damage" and f"{one.topic}:{one.partition}" in names]
    assert damaged == []
    assert report.complete


async def go_on(cluster: Cluster, context: LogContext) -> None:
    appender = Appender(context)
    for outcome in await appender.append([group(log, b"new") for log in [*PLAIN, PRICES, LATE]]):
        assert isinstance(outcome, Appended)
    await appender.close()
    for log in [*PLAIN, LATE]:
        while await compact_once(context, log, max_offsets=cluster.random.choice([3, 100])) is not None:
            pass
