"""Appending on the embedded stores (LMDB, a directory) against the bare durable write of the same bytes.

A flush is 8 MiB: eight logs with one encoded batch of 1 MiB each. Ours checks and sums the groups, puts one blob
(write, fsync, rename, directory fsync), and commits eight logs in one LMDB transaction (another fsync). The baseline
writes the same bytes as one file, as durably, and does nothing else.

The bar is for flushes as a broker makes them, FLUSHES_IN_FLIGHT at a time on both sides alike: the upload of one goes
on while another is committed. One at a time, every flush waits for two syncs in turn where the baseline waits for one;
that is measured too, with a bar of its own that only catches a fall.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from llog.limits import MIB
from llog.log.append.append import Appender
from llog.log.keys import Log
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.objects import file
from llog.stores.objects.port import checked
from tests.benchmarks.bench_objects import bare_durable_write
from tests.benchmarks.harness import Duel, benchmark
from tests.benchmarks.log_setup import append_all, group, record_batch
from tests.contexts import log_context

GROUPS = 8
RECORDS = 1_024
FLUSHES = 16
FLUSHES_IN_FLIGHT = 4


async def at_a_time(width: int, count: int, act: Callable[[], Awaitable[object]]) -> None:
    """`act` `count` times, never more than `width` under way."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await act()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(width):
            tasks.create_task(work())


@asynccontextmanager
async def duel(in_flight: int) -> AsyncIterator[Duel]:
    # With its head, a batch is one MiB.
    batches = [record_batch(RECORDS, MIB // RECORDS - 10) for _ in range(GROUPS)]
    groups = [group(Log("orders", i), batch, RECORDS) for i, batch in enumerate(batches)]
    content, names = b"".join(batches), itertools.count()
    with tempfile.TemporaryDirectory(prefix="llog-bench-") as directory, ThreadPoolExecutor(in_flight) as pool:
        bare, blobs = Path(directory, "bare"), Path(directory, "objects", "llog", "wal-shared")
        await asyncio.to_thread(bare.mkdir)

        def tidy() -> None:
            for place in (bare, blobs):
                for name in os.listdir(place):
                    os.unlink(place / name)

        async with (
            await LmdbStore.open(Path(directory, "metadata")) as metadata,
            await checked(await file.open_from_url(f"file://{directory}/objects")) as objects,
        ):
            appender = Appender(log_context(metadata, objects))

            def bare_write() -> Awaitable[None]:
                loop = asyncio.get_running_loop()
                return loop.run_in_executor(pool, bare_durable_write, str(bare), str(next(names)), content)

            async def ours() -> None:
                await at_a_time(in_flight, FLUSHES, lambda: append_all(appender, groups))

            async def baseline() -> None:
                await at_a_time(in_flight, FLUSHES, bare_write)

            await append_all(appender, groups)
            yield Duel(ours, baseline, FLUSHES * len(content) / 1e6, "MB", after_each=tidy)
            await appender.close()


@benchmark("log_append", against="bare durable writes of the same bytes, four at a time too", at_least=0.6, rounds=25)
def pipelined() -> AbstractAsyncContextManager[Duel]:
    return duel(FLUSHES_IN_FLIGHT)


@benchmark(
    "log_append_one_by_one", against="bare durable writes of the same bytes, one by one too", at_least=0.4, rounds=25
)
def one_by_one() -> AbstractAsyncContextManager[Duel]:
    return duel(1)
