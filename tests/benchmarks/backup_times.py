"""`python -m tests.benchmarks.backup_times [--logs N] [--appends N] [STORE…]`: how long backup and restore take.

STORE is `lmdb`, `postgres` or `oxia` (all without one). The logs hold real records in shared blobs, and a backup of
them is restored into a second, empty store of the same kind. Three times are reported:

    backup    all of `llog meta backup` into an object store
    restore   read and check the backup, then put every record back
    search    find records that are newer than the backup, as every `llog meta restore` does

The CPU time and the memory are those of this process, without the server. To compare two checkouts, run it in both.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, TypeVar

import uvloop

from llog.concurrency import batched
from llog.log.append.append import Appender
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.log.recovery.backup import write_backup
from llog.log.recovery.backup_places import BackupObjects
from llog.log.recovery.recover import recover
from llog.log.recovery.restore import inspect_backup, restore_backup
from llog.log.topics.admin import create_topic
from llog.stores.objects import file
from llog.stores.objects.port import checked
from llog.testing.servers import ServerUnavailable
from tests.benchmarks.log_setup import append_all, group, record_batch, stores_of
from tests.contexts import log_context

STORES: Final = ("lmdb", "postgres", "oxia")
PARTITIONS: Final = 20
"""Of each topic."""
GROUPS_PER_BLOB: Final = 500
RECORDS: Final = 10

T = TypeVar("T")


async def fill(context: LogContext, logs: int, appends: int) -> None:
    names = [f"topic-{number:05d}" for number in range(-(-logs // PARTITIONS))]
    for some in batched(names, 16):
        await asyncio.gather(*(create_topic(context, name, partitions=PARTITIONS) for name in some))
    every = [Log(name, partition) for name in names for partition in range(PARTITIONS)][:logs]
    appender, batch = Appender(context), record_batch(RECORDS, 100)
    for _ in range(appends):
        for chunk in batched(every, GROUPS_PER_BLOB):
            await append_all(appender, [group(log, batch, RECORDS) for log in chunk])
    await appender.close()


async def timed(work: Callable[[], Awaitable[T]]) -> tuple[T, str]:
    began, cpu_began = time.perf_counter(), time.process_time()
    result = await work()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return result, f"{seconds:.2f} s ({cpu_seconds:.2f} s CPU)"


async def measure(kind: str, logs: int, appends: int) -> str:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="llog-bench-"))
        objects = await stack.enter_async_context(
            await checked(await file.open_from_url(f"file://{directory}/objects"))
        )
        source, target = [
            log_context(await (await stack.enter_async_context(stores_of(kind)))(), objects) for _ in range(2)
        ]
        await fill(source, logs, appends)
        backup_id = new_object_id(source.now_ms(), source.random_bits)
        place = BackupObjects(objects, source.keys, backup_id)
        manifest, backup_time = await timed(lambda: write_backup(source, place, backup_id))

        async def restore() -> None:
            contents = await inspect_backup(target, place)
            await restore_backup(target, place, contents, old_processes_ended=True)

        _, restore_time = await timed(restore)
        found, search_time = await timed(lambda: recover(target, dry_run=True))
        assert not found.slices, "the backup was taken after the last append"
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024
    return (
        f"{kind}: {manifest.logs} logs, {manifest.records} records: backup {backup_time}, "
        f"restore {restore_time}, search {search_time}; {memory_mib} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure backup and restore.")
    parser.add_argument("stores", nargs="*", default=STORES, metavar="STORE")
    parser.add_argument("--logs", type=int, default=1_000)
    parser.add_argument("--appends", type=int, default=2, help="index entries of each log")
    arguments = parser.parse_args()
    for kind in arguments.stores:
        try:
            print(uvloop.run(measure(kind, arguments.logs, arguments.appends)), flush=True)
        except ServerUnavailable as reason:
            print(f"{kind}: skipped: {reason}", flush=True)


if __name__ == "__main__":
    main()
