"""Four writers that append to one log at the same time, against one writer that has a log to itself.

There is no leader, so writers of one log meet at its control record: one wins each round of compare-and-set and the
others decide anew. Every call checks that every append lands, offsets are given once and
without a hole, and no append takes more rounds than the log allows before it answers "try again". How many rounds and
milliseconds appends took is printed: the slowest append shows how long a writer waits behind one that stays ahead.

The bar only says that four writers do not bring a log to a halt: each conflict costs a read, a pause and another
write, and a broker batches what its own clients send before it gets here.

Run as a module of its own this file is one writer process: `bench_log_contention URL` appends as many records as each
line of its input says, and answers each with a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from llog.log.append.append import Appender
from llog.log.append.commit import LOG_APPEND_ROUNDS_MAX
from llog.log.keys import Log
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.benchmarks.harness import Duel, benchmark
from tests.benchmarks.log_setup import (
    CountingStore,
    append_all,
    group,
    is_trial,
    open_store,
    record_batch,
    stores_of,
)
from tests.contexts import log_context

WRITERS = 4
BUSY, QUIET = Log("busy", 0), Log("quiet", 0)


def appends_each() -> int:
    return 20 if is_trial() else 200


class Written(NamedTuple):
    """The answers to one writer: the offsets of each append, its rounds and its duration."""

    offsets: list[int]
    rounds: list[int]
    times_ms: list[float]


class Writer:
    """One process's way to the log: a connection, an appender, one append at a time."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.store = CountingStore(metadata)
        self.appender = Appender(log_context(self.store, MemoryObjectStore("memory://bench-log-contention")))
        self._batch = record_batch(1, 100)

    async def write(self, log: Log, count: int) -> Written:
        written = Written([], [], [])
        for _ in range(count):
            before, begun = self.store.control_writes, time.perf_counter()
            [landed] = await append_all(self.appender, [group(log, self._batch, 1)])
            written.offsets.append(landed.start_offset)
            written.rounds.append(self.store.control_writes - before)
            written.times_ms.append((time.perf_counter() - begun) * 1_000)
        return written


class WriterProcess:
    """A writer in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    async def write(self, log: Log, count: int) -> Written:
        assert log == BUSY
        self._stdin.write(b"%d\n" % count)
        line = await self._stdout.readline()
        assert line, f"the writer process ended with {await self._process.wait()}"
        return Written(*json.loads(line))

    async def close(self) -> None:
        self._stdin.close()
        await self._process.wait()


class Referee:
    """Watches over all calls of a benchmark."""

    def __init__(self) -> None:
        self.next_offset: int | None = None
        self.rounds: list[float] = []
        self.times_ms: list[float] = []

    def check(self, written: Sequence[Written]) -> None:
        offsets = sorted(offset for each in written for offset in each.offsets)
        first = offsets[0] if self.next_offset is None else self.next_offset
        assert offsets == list(range(first, first + len(offsets))), "an offset was given twice or skipped"
        self.next_offset = offsets[-1] + 1
        self.rounds += [rounds for each in written for rounds in each.rounds]
        self.times_ms += [taken for each in written for taken in each.times_ms]
        assert max(self.rounds) <= LOG_APPEND_ROUNDS_MAX

    def summary(self) -> str:
        return (
            f"    {len(self.rounds):,} appends landed; each took {_spread(self.rounds)} rounds of compare-and-set,"
            f" {_spread(self.times_ms)} ms"
        )


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.fmean(ordered):.2f} (p99 {ordered[len(ordered) * 99 // 100]:.0f}, at most {ordered[-1]:.0f})"


@asynccontextmanager
async def duel(contenders: Sequence[Writer | WriterProcess], lone: Writer) -> AsyncIterator[Duel]:
    referee, each = Referee(), appends_each()

    async def ours() -> None:
        referee.check(await asyncio.gather(*(writer.write(BUSY, each) for writer in contenders)))

    async def baseline() -> None:
        await lone.write(QUIET, each)

    yield Duel(ours, baseline, WRITERS * each, "appends", each)
    print(referee.summary(), flush=True)


@asynccontextmanager
async def writers_on(kind: str) -> AsyncIterator[Duel]:
    async with stores_of(kind) as open_one:
        writers = [Writer(await open_one()) for _ in range(WRITERS + 1)]
        async with duel(writers[1:], writers[0]) as made:
            yield made
        for writer in writers:
            await writer.appender.close()


@benchmark("log_contention_lmdb", against="one writer with a log to itself", at_least=0.2)
def on_lmdb() -> AbstractAsyncContextManager[Duel]:
    return writers_on("lmdb")


@benchmark("log_contention_postgres", against="one writer with a log to itself", at_least=0.2)
def on_postgres() -> AbstractAsyncContextManager[Duel]:
    return writers_on("postgres")


@benchmark("log_contention_oxia", against="one writer with a log to itself", at_least=0.2)
def on_oxia() -> AbstractAsyncContextManager[Duel]:
    return writers_on("oxia")


@benchmark("log_contention_processes", against="one writer with a log to itself (LMDB)", at_least=0.2)
@asynccontextmanager
async def four_processes() -> AsyncIterator[Duel]:
    async with AsyncExitStack() as stack:
        url = "lmdb://" + stack.enter_context(tempfile.TemporaryDirectory(prefix="llog-bench-")) + "/metadata"
        lone = Writer(await stack.enter_async_context(await open_store(url)))
        processes = []
        for _ in range(WRITERS):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.benchmarks.bench_log_contention", url),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            processes.append(WriterProcess(process))
            stack.push_async_callback(processes[-1].close)
        async with duel(processes, lone) as made:
            yield made
        await lone.appender.close()


async def be_a_writer(url: str) -> None:
    async with await open_store(url) as metadata:
        writer = Writer(metadata)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await writer.write(BUSY, int(line))), flush=True)
        await writer.appender.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(be_a_writer(sys.argv[1]))
