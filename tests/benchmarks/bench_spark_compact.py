"""Compaction of many partitions against a plain copy of the same slices: `llog pipeline compact`, here and on Spark.

Ours claims, settles, plans, reads each blob once, compares checksums, writes segments, registers and publishes them in
LMDB. The baseline is one process that knows where everything is: it reads each slice, compares its checksums and puts
one object per partition. Both use the same file store, which syncs what it writes. Every round begins with the same
metadata (a copy of the directory, outside the clock), so the same bytes are compacted again and again.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from llog.formats.records.record_batch import verify_crcs, walk
from llog.log.append.append import Appender
from llog.log.context import LogContext
from llog.log.index import Entry, entry_of
from llog.log.keys import Log
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.plan import Sizing
from llog.pipeline.runtime.tasks import LocalTasks, TaskRunner, tools_of
from llog.settings import Settings
from llog.stores.objects import file
from llog.stores.objects.port import ObjectStore, checked
from llog.testing.servers import ServerUnavailable
from tests.benchmarks.harness import Cost, Duel, benchmark
from tests.benchmarks.log_setup import append_all, group, is_trial, open_store, record_batch
from tests.contexts import log_context

PARTITIONS: Final = 64
RECORDS: Final = 128
VALUE_BYTES: Final = 1_000
LOGS: Final = [Log("wide", partition) for partition in range(PARTITIONS)]

MakeRunner = Callable[[LogContext, Settings], Awaitable[tuple[TaskRunner, Sizing]]]


def blobs() -> int:
    """Of about 8 MB each."""
    return 2 if is_trial() else 64


class Ground:
    """A directory with blobs, and the metadata as it was before anything was compacted."""

    def __init__(self, directory: Path, objects: ObjectStore) -> None:
        self.directory, self.objects = directory, objects
        self.slices: dict[Log, list[Entry]] = {}
        self.byte_length = 0
        self._names = itertools.count()

    async def fill(self) -> None:
        async with await open_store(f"lmdb://{self.directory}/before") as metadata:
            context = log_context(metadata, self.objects)
            appender = Appender(context)
            for _ in range(blobs()):
                batch = record_batch(RECORDS, VALUE_BYTES)
                await append_all(appender, [group(log, batch, RECORDS) for log in LOGS])
            await appender.close()
            for log in LOGS:
                found = [entry_of(record) async for record in metadata.scan_all(context.keys.index(log))]
                self.slices[log] = found
                self.byte_length += sum(entry.value.byte_length or 0 for entry in found)

    async def compact(self, make_runner: MakeRunner, settings: Settings) -> Cost:
        metadata_at = self.directory / f"metadata-{next(self._names)}"
        await asyncio.to_thread(shutil.copytree, self.directory / "before", metadata_at)
        async with await open_store(f"lmdb://{metadata_at}") as metadata:
            context = log_context(metadata, self.objects)
            runner, sizing = await make_runner(context, settings)
            began = time.perf_counter()
            report = await compact(context, runner, options=CompactOptions(sizing=sizing))
            seconds = time.perf_counter() - began
            others = [log for log in report.logs if log.outcome != "compacted"]
            assert not others, others[:2]
            assert report.objects_read == blobs()
            await runner.close()
        await asyncio.to_thread(shutil.rmtree, metadata_at)
        return Cost(seconds)

    async def copy(self) -> None:
        for log, entries in self.slices.items():
            copied = []
            for entry in entries:
                name, value = self.objects.name_of(entry.value.data_key), entry.value
                assert value.byte_offset is not None
                assert value.byte_length is not None
                data = await self.objects.get_range(name, value.byte_offset, value.byte_length)
                verify_crcs(data, walk(data, name), name)
                copied.append(data)
            await self.objects.put(f"copied/{log.partition}-{next(self._names)}", copied)

    def tidy(self) -> None:
        """Files only: stores remember the directories they made."""
        for made in ("llog/wide", "copied"):
            for path in (self.directory / "objects" / made).rglob("*"):
                if path.is_file():
                    path.unlink()


@asynccontextmanager
async def duel(make_runner: MakeRunner) -> AsyncIterator[Duel]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llog-bench-")))
        objects_url = f"file://{directory}/objects"
        objects = await stack.enter_async_context(await checked(await file.open_from_url(objects_url)))
        ground = Ground(directory, objects)
        await ground.fill()
        settings = Settings.from_env({}, objects_url=objects_url, wal_url=objects_url)
        megabytes = ground.byte_length / 1e6
        yield Duel(lambda: ground.compact(make_runner, settings), ground.copy, megabytes, "MB", after_each=ground.tidy)


async def in_process(context: LogContext, settings: Settings) -> tuple[TaskRunner, Sizing]:
    return LocalTasks(tools_of(context)), Sizing.in_process()


async def on_spark(context: LogContext, settings: Settings) -> tuple[TaskRunner, Sizing]:
    from llog.errors import SparkError
    from llog.spark.runner.compaction import join_session

    try:
        joined = await join_session(settings)
    except SparkError as error:
        raise ServerUnavailable(str(error)) from error
    return joined.runner, joined.sizing


AGAINST: Final = "a plain copy of the same slices by one process, checksums compared, same store"


@benchmark("spark_compact_in_process", against=AGAINST, at_least=0.8, goal="300 MB/s on 2 cores")
@asynccontextmanager
async def compact_in_process() -> AsyncIterator[Duel]:
    async with duel(in_process) as prepared:
        yield prepared


@benchmark("spark_compact", against=AGAINST, at_least=0.8, goal="300 MB/s on 2 cores")
@asynccontextmanager
async def compact_on_spark() -> AsyncIterator[Duel]:
    async with duel(on_spark) as prepared:
        yield prepared
