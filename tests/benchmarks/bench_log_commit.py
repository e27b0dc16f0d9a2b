"""Committing a flush of 1,024 logs at once against the same commits one after the other, one log per append.

Bodies are small and blobs stay in memory, so what is measured is metadata: on LMDB one transaction for the whole
flush, on Oxia one compare-and-set and one index entry per log, batched. Both sides end when the index entries are
written too, though an append on Oxia is acknowledged before that. Every call checks:

    LMDB   one transaction per flush, found by LMDB's own numbers
    Oxia   no more than WRITES_PER_LOG_MAX metadata writes per log of a flush, in logs that are busy
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from llog.log.append.append import Appender
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.benchmarks.harness import Duel, benchmark
from tests.benchmarks.log_setup import (
    CountingStore,
    append_all,
    group,
    lmdb_transactions,
    record_batch,
    stores_of,
)
from tests.contexts import log_context

LOGS = 1_024
LOGS_ONE_BY_ONE = 64
WRITES_PER_LOG_MAX = 2.2


@asynccontextmanager
async def duel(metadata: MetadataStore) -> AsyncIterator[Duel]:
    """Both sides append to logs of their own, so that neither meets what the other left pending."""
    store, objects = CountingStore(metadata), MemoryObjectStore("memory://bench-log-commit")
    context = log_context(store, objects)
    appender = Appender(context)
    await create_topic(context, "together", partitions=LOGS)
    batch = record_batch(1, 100)
    together = [group(Log("together", i), batch, 1) for i in range(LOGS)]
    alone = [group(Log("alone", i), batch, 1) for i in range(LOGS_ONE_BY_ONE)]
    per_log: list[float] = []

    async def ours() -> None:
        before = store.writes
        transactions = lmdb_transactions(metadata) if atomic else 0
        await append_all(appender, together)
        await store.settled()
        per_log.append((store.writes - before) / LOGS)
        assert per_log[-1] <= WRITES_PER_LOG_MAX, f"{per_log[-1]} metadata writes per log"
        if atomic:
            committed = lmdb_transactions(metadata) - transactions
            assert committed == 1, f"{committed} transactions for one flush"

    async def baseline() -> None:
        for one in alone:
            await append_all(appender, [one])
        await store.settled()

    atomic = metadata.capabilities.atomic_groups
    await append_all(appender, together)  # this process meets the logs here
    await append_all(appender, alone)
    await store.settled()
    yield Duel(ours, baseline, LOGS, "logs", LOGS_ONE_BY_ONE)
    what = "one transaction per flush, " if atomic else ""
    print(f"    {what}{min(per_log):.2f}–{max(per_log):.2f} metadata writes per log", flush=True)
    await appender.close()


@asynccontextmanager
async def on(kind: str) -> AsyncIterator[Duel]:
    async with stores_of(kind) as open_store, duel(await open_store()) as made:
        yield made


@benchmark("log_commit_lmdb", against="the same commits one after the other", at_least=10)
def on_lmdb() -> AbstractAsyncContextManager[Duel]:
    return on("lmdb")


@benchmark("log_commit_oxia", against="the same commits one after the other", at_least=10)
def on_oxia() -> AbstractAsyncContextManager[Duel]:
    return on("oxia")
