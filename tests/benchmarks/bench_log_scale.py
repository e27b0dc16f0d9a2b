"""A log with a million index entries against one with a thousand: appending, finding and reading must cost the same.

Both logs live in the same store, and the two sides take turns. Filling by appends would take hours, so the index is
filled by batched metadata writes: entries as appends make them, all of which name one real slice, and a control record
to match. A store is filled once per run of the benchmarks and opened anew for each of them.

    append    one record, acknowledged
    ceiling   the index entry of a random offset: what every read begins with
    read      the record at a random offset by a reader that knows nothing: control, ceiling, GET, decode
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import Final

from msgspec.structs import replace

from llog.formats.values import ControlRecord, decode_value, encode_value
from llog.limits import METADATA_WRITE_GROUPS_MAX
from llog.log.append.append import Appender
from llog.log.context import LogContext
from llog.log.index import entry_of
from llog.log.keys import Log, offset_name
from llog.log.read.read import read_offset
from llog.stores.metadata.port import ABSENT, Put
from llog.stores.objects import file
from llog.stores.objects.port import checked
from llog.testing.servers import OxiaServer
from tests.benchmarks.harness import Duel, benchmark
from tests.benchmarks.log_setup import append_all, group, is_trial, open_store, record_batch
from tests.contexts import log_context

SMALL, LARGE = Log("small", 0), Log("large", 0)
SMALL_ENTRIES: Final = 1_000
RECORDS_PER_ENTRY: Final = 10
FILLS_IN_FLIGHT: Final = 2
# Of each, in one call of a side.
APPENDS, CEILINGS, READS = 50, 1_000, 200

Act = Callable[[LogContext, Log, int], Awaitable[None]]


def large_entries() -> int:
    return 20_000 if is_trial() else 1_000_000


_places = ExitStack()
atexit.register(_places.close)


class Place:
    """A metadata store, a directory for blobs, and how many entries each log was filled with."""

    def __init__(self, kind: str) -> None:
        self.directory = tempfile.mkdtemp(prefix="llog-bench-")
        _places.callback(shutil.rmtree, self.directory)
        self.url = f"lmdb://{self.directory}/metadata"
        if kind == "oxia":
            self.url = f"oxia://{_places.enter_context(OxiaServer()).address}"
        self.entries: dict[Log, int] = {}

    async def fill(self, context: LogContext) -> None:
        for log, entries in ((SMALL, SMALL_ENTRIES), (LARGE, large_entries())):
            if log not in self.entries:
                await fill(context, log, entries)
                self.entries[log] = entries


@functools.cache
def place_of(kind: str) -> Place:
    return Place(kind)


def close_places() -> None:
    """For a process that does not end in good order, as a worker of pytest does not: its servers would stay."""
    place_of.cache_clear()
    _places.close()


async def fill(context: LogContext, log: Log, entries: int) -> None:
    """Append once, then write that entry again and again, each time further up."""
    appender = Appender(context)
    batch = record_batch(RECORDS_PER_ENTRY, 100)
    [first] = await append_all(appender, [group(log, batch, RECORDS_PER_ENTRY)])
    await appender.close()
    keys, metadata = context.keys, context.metadata
    record = await metadata.get(keys.index_entry(log, first.end_offset), strict=True)
    assert record is not None
    model = entry_of(record).value
    counter = first.start_offset + entries * RECORDS_PER_ENTRY
    ends = iter(range(first.end_offset + RECORDS_PER_ENTRY, counter, RECORDS_PER_ENTRY))

    async def work() -> None:
        while some := list(itertools.islice(ends, METADATA_WRITE_GROUPS_MAX)):
            puts = [
                (Put(keys.index_entry(log, end), encode_value(replace(model, append_id=f"{end:032x}")), ABSENT),)
                for end in some
            ]
            assert all(isinstance(outcome, tuple) for outcome in await metadata.write(puts))

    await asyncio.gather(*(work() for _ in range(FILLS_IN_FLIGHT)))
    await _move_counter(context, log, counter)


async def _move_counter(context: LogContext, log: Log, counter: int) -> None:
    key, metadata = context.keys.control(log), context.metadata
    record = await metadata.get(key, strict=True)
    assert record is not None
    control = decode_value(ControlRecord, record.value, key.path)
    assert control.pending is None
    moved = replace(control, sequence_counter=counter)
    await metadata.put(key, encode_value(moved, key.path), expected=record.version)


@asynccontextmanager
async def filled(kind: str) -> AsyncIterator[tuple[LogContext, Place]]:
    place = place_of(kind)
    async with (
        await open_store(place.url) as metadata,
        await checked(await file.open_from_url(f"file://{place.directory}/objects")) as objects,
    ):
        context = log_context(metadata, objects)
        await place.fill(context)
        yield context, place


@asynccontextmanager
async def lookups(kind: str, count: int, act: Act) -> AsyncIterator[Duel]:
    async with filled(kind) as (context, place):

        def side(log: Log) -> Callable[[], Awaitable[None]]:
            offsets, last = random.Random(7), place.entries[log] * RECORDS_PER_ENTRY

            async def run() -> None:
                for _ in range(count):
                    await act(context, log, offsets.randint(1, last))

            return run

        yield Duel(side(LARGE), side(SMALL), count, "lookups")


async def ceiling(context: LogContext, log: Log, offset: int) -> None:
    record = await context.metadata.ceiling(context.keys.index(log), offset_name(offset))
    assert record is not None
    assert entry_of(record).covers(offset)


async def cold_read(context: LogContext, log: Log, offset: int) -> None:
    assert (await read_offset(context, log, offset)).offset == offset


@asynccontextmanager
async def appends(kind: str) -> AsyncIterator[Duel]:
    async with filled(kind) as (context, _):
        appender, batch = Appender(context), record_batch(1, 100)

        async def append(log: Log) -> None:
            for _ in range(APPENDS):
                await append_all(appender, [group(log, batch, 1)])

        yield Duel(lambda: append(LARGE), lambda: append(SMALL), APPENDS, "appends")
        await appender.close()


def _register(kind: str) -> None:
    against = "the same with a thousand index entries"

    @benchmark(f"log_scale_{kind}_append", against=against, at_most=1.5, rounds=15)
    def append() -> AbstractAsyncContextManager[Duel]:
        return appends(kind)

    @benchmark(f"log_scale_{kind}_ceiling", against=against, at_most=1.5, rounds=15)
    def find() -> AbstractAsyncContextManager[Duel]:
        return lookups(kind, CEILINGS, ceiling)

    @benchmark(f"log_scale_{kind}_read", against=against, at_most=1.5, rounds=15)
    def read() -> AbstractAsyncContextManager[Duel]:
        return lookups(kind, READS, cold_read)


for each_kind in ("lmdb", "oxia"):
    _register(each_kind)
