"""What comes after everything at once: the metadata is lost, and a backup taken in the middle of it is put back.

Recovery finds all records of the logs again in the objects, at least once: writers without an
answer uploaded some records twice, and recovery cannot tell. What key compaction took from a segment no append can
bring back: that is told, and only that. The restored log is whole, and a second recovery has nothing left to do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from llog.log.context import LogContext, LogOptions
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.read.view import view
from llog.log.recovery.backup_places import BackupObjects, list_backups
from llog.log.recovery.recover import Recovered, recover
from llog.log.recovery.restore import inspect_backup, restore_backup
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.port import ObjectStore
from llog.testing.log_scenarios import GRACE_MS, KEYS
from llog.testing.sim import World
from tests.unit.pipeline.everything import ORDERS, PRICES
from tests.unit.pipeline.everything_model import Held, row_of


def check_restored(world: World, held: Mapping[Log, Held | None]) -> None:
    """`held` is what the logs held in the end. Nothing is simulated from here on."""
    asyncio.run(_check(world.bucket().inner, world.now_ms(), world.seed, held))


async def _check(objects: ObjectStore, now_ms: int, seed: int, held: Mapping[Log, Held | None]) -> None:
    backups = [one.backup_id async for one in list_backups(objects, KEYS)]
    if not backups:
        return
    context = _context(objects, now_ms, seed)
    place = BackupObjects(objects, KEYS, random.Random(seed).choice(backups))
    await restore_backup(context, place, await inspect_backup(context, place))
    done = await recover(context)
    assert done.unreadable == []
    for log, there in held.items():
        if log.topic in (ORDERS, PRICES) and there is not None:
            await _check_log(context, log, there, done)
    again = await recover(context)
    assert {one.outcome.partition(":")[0] for one in again.slices} <= {"left", "refused"}, again.slices
    assert again.adopted == []


async def _check_log(context: LogContext, log: Log, held: Held, done: Recovered) -> None:
    checked = await check_log(context, log, deep=True)
    # What retention took since the backup is still named by what was restored.
    wrong = [one for one in checked.faults if one.kind != "missing object" or one.end_offset >= held.log_start_offset]
    by_key = log.topic == PRICES
    if by_key and any(one.log == log and one.outcome.startswith("left") for one in done.slices):
        wrong = [one for one in wrong if one.kind != "missing object"]
    assert not wrong, (log, wrong)
    if checked.faults or by_key:
        return
    start = (await view(context, log, strict=True)).control.log_start_offset
    found = {row_of(record).token async for run in iter_runs(context, log, start) for record in run.records()}
    lost = [row for row in held.rows().values() if row.token not in found]
    assert not lost, (log, lost)


def _context(objects: ObjectStore, now_ms: int, seed: int) -> LogContext:
    async def find(uri: str) -> tuple[ObjectStore, str]:
        return objects, objects.name_of(uri)

    async def sleep(_: float) -> None:
        await asyncio.sleep(0)

    clock = iter(range(now_ms, now_ms + 1_000_000))
    return LogContext(
        metadata=MemoryStore(MemoryBacking(shards=1, atomic_groups=seed % 2 == 0)),
        wal=objects,
        segments=objects,
        find_object=find,
        now_ms=lambda: next(clock),
        random_bits=random.Random(f"{seed}/restore").getrandbits,
        sleep=sleep,
        keys=KEYS,
        options=LogOptions(vacuum_grace_ms=GRACE_MS),
    )
