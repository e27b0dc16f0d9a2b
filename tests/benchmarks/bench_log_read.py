"""Reading a compacted log in order, against fetching the same bytes and nothing else."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llog.formats.records.encode import encode_records
from llog.limits import LOG_READ_COALESCE_BYTES_MAX
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.context import LogContext
from llog.log.index import entry_of
from llog.log.keys import Log
from llog.log.metrics import READ_BYTES, READ_GETS
from llog.log.read.fetch import Fetcher
from llog.log.read.read import iter_runs
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects import file
from llog.stores.objects.port import ObjectStore, checked
from tests.benchmarks.harness import Duel, benchmark
from tests.contexts import log_context

LOG = Log("bench", 0)
RECORD_BYTES, BATCH_RECORDS, APPEND_BATCHES = 1_000, 250, 8
LOG_BYTES = 128 << 20


class Counts(dict[str, int]):
    def count(self, name: str, value: int = 1) -> None:
        self[name] = self.get(name, 0) + value


def context_on(objects: ObjectStore) -> LogContext:
    metadata = MemoryStore(MemoryBacking(shards=1, atomic_groups=True))
    return log_context(metadata, objects, seed=1, now_ms=lambda: 1_700_000_000_000)


async def fill(context: LogContext) -> int:
    """A log of LOG_BYTES in segments as compaction makes them; how many records."""
    values = [os.urandom(RECORD_BYTES) for _ in range(BATCH_RECORDS)]
    batch = bytes(encode_records(values, timestamps_ms=1_700_000_000_000))
    count = BATCH_RECORDS * APPEND_BATCHES
    group = EncodedGroup(LOG, count, "kafka-v2", [batch] * APPEND_BATCHES, 1_700_000_000_000)
    appender = Appender(context)
    appends = LOG_BYTES // (len(batch) * APPEND_BATCHES)
    for _ in range(appends):
        [outcome] = await appender.append([group])
        assert isinstance(outcome, Appended)
    await appender.close()
    while await compact_once(context, LOG) is not None:
        pass
    return appends * count


@benchmark("log_read", against="a plain whole get of the same segments (directory)", at_least=0.02, rounds=9)
@asynccontextmanager
async def log_read() -> AsyncIterator[Duel]:
    """The bar that counts is inside: at most one request per 8 MiB. The ratio is reported: a plain get neither
    compares checksums nor decodes a record."""
    directory = tempfile.mkdtemp(prefix="llog-bench-")
    async with await checked(await file.open_from_url(f"file://{directory}")) as objects:
        context = context_on(objects)
        records = await fill(context)
        uris = [entry_of(record).value.data_key for record in await context.metadata.scan(context.keys.index(LOG))]

        async def ours() -> None:
            counts, found = Counts(), 0
            fetcher = Fetcher(context.find_object, counts)
            async for run in iter_runs(context, LOG, 1, fetcher=fetcher):
                found += len(run.columns)
            assert found == records
            budgets = counts[READ_BYTES] / LOG_READ_COALESCE_BYTES_MAX
            assert counts[READ_GETS] <= budgets, f"{counts[READ_GETS]} requests for {budgets:.2f} × 8 MiB"

        async def baseline() -> None:
            for uri in uris:
                assert len(await objects.get(objects.name_of(uri))) > 0

        try:
            yield Duel(ours, baseline, LOG_BYTES / 1e6, "MB")
        finally:
            await asyncio.to_thread(shutil.rmtree, directory)
