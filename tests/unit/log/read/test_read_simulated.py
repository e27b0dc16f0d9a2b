"""Readers while everything changes under them: appends, compaction, deletion of records and of objects, all faults.

What a reader hands out is contiguous and true, it never stops before what was there when it began, and nothing that
happens to the log looks like an inconsistency to it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple

import pytest

from llog.errors import LlogError, LogError, MetadataStoreError, ObjectStoreError, OffsetOutOfRange
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.values import SegmentRecord, decode_value
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.cleanup.retention import delete_records
from llog.log.keys import Log
from llog.log.metrics import READ_RECORDS, READ_RESTARTS
from llog.log.read.fetch import Fetcher
from llog.log.read.read import iter_runs, view
from llog.log.read.timestamps import max_timestamp, offset_for_timestamp
from llog.pipeline.compact.once import compact_once
from llog.testing.sim import MANY, ActorContext, SimScenario, World, run_seed
from llog.testing.sim.actor import log_context

SCHEDULES = 2_000 if os.environ.get("LLOG_SOAK") == "1" else 60

ORDERS = Log("orders", 0)


class Wrote(NamedTuple):
    """`offset` is None unless the writer got one."""

    token: bytes
    offset: int | None = None


class Saw(NamedTuple):
    offset: int
    token: bytes | None


async def write(ctx: ActorContext) -> None:
    appender = Appender(log_context(ctx))
    for i in range(6):
        token = f"{ctx.name}/{i}".encode()
        ctx.record(Wrote(token))
        try:
            [outcome] = await appender.append([EncodedGroup(ORDERS, 1, "bytes-batch-v1", encode_bytes_batch([token]))])
        except (MetadataStoreError, ObjectStoreError):
            continue
        if isinstance(outcome, Appended):
            ctx.record(Wrote(token, outcome.start_offset))
        await ctx.sleep_ms(2)
    await appender.close()


async def compact(ctx: ActorContext) -> None:
    context = log_context(ctx)
    for _ in range(8):
        try:
            await compact_once(context, ORDERS, max_offsets=3)
        except (LogError, MetadataStoreError, ObjectStoreError):
            pass  # the next run resumes what this one left
        await ctx.sleep_ms(5)


class Tally(dict[str, int]):
    """What readers did over all runs: a test in which nothing happens proves nothing."""

    def count(self, name: str, value: int = 1) -> None:
        self[name] = self.get(name, 0) + value


async def read_again_and_again(ctx: ActorContext, tally: Tally) -> None:
    context = log_context(ctx)
    fetcher = Fetcher(context.find_object, tally)
    for i in range(6):
        try:
            seen = await view(context, ORDERS, strict=True)
            offset = seen.log_start_offset
            end_offset = None if i % 2 else seen.next_offset - 1
            bytes_max = (1, 8, 1 << 20)[i % 3]
            async for run in iter_runs(
                context, ORDERS, offset, end_offset=end_offset, fetcher=fetcher, bytes_max=bytes_max
            ):
                for record in run.records():
                    assert record.offset == offset, f"{record.offset} comes where {offset} is due"
                    offset += 1
                    ctx.record(Saw(record.offset, record.payload))
                assert run.next_offset == offset
                await ctx.sleep_ms(3)
            # Without an end asked for, a stale answer may pass for the end until the next look.
            assert i % 2 or offset >= seen.next_offset, f"stopped at {offset}, {seen.next_offset} was there before"
            newest = await max_timestamp(context, ORDERS)
            if newest is not None:
                found = await offset_for_timestamp(context, ORDERS, newest.timestamp_ms)
                assert found is None or found.timestamp_ms >= newest.timestamp_ms
        except OffsetOutOfRange as error:
            if error.offset >= error.log_start_offset:
                raise  # nothing but deletion puts an offset out of range
            tally.count("passed by deletion")
        except (MetadataStoreError, ObjectStoreError):
            pass  # a store that did not answer; the next round reads again
        await ctx.sleep_ms(4)


async def delete_what_is_old(ctx: ActorContext) -> None:
    """Records below a rising start, and the blobs of compacted records."""
    context = log_context(ctx)
    for _ in range(12):
        await ctx.sleep_ms(3)
        try:
            seen = await view(context, ORDERS, strict=True)
            await delete_records(context, ORDERS, min(seen.log_start_offset + 1, seen.next_offset))
            async for record in context.metadata.scan_all(context.keys.segments(ORDERS), strict=True):
                segment = decode_value(SegmentRecord, record.value, record.key.path)
                if segment.state == "COPY_SEGMENT_FINISHED":
                    sources = [uri for uri in segment.sources if "/wal-shared/" in uri]
                    await ctx.objects.delete_many([ctx.objects.name_of(uri) for uri in sources])
        except (LogError, MetadataStoreError, ObjectStoreError):
            pass


def play(world: World, tally: Tally) -> None:
    world.actor("w1", write, may_fail=(LlogError,))
    world.actor("w2", write, may_fail=(LlogError,))
    world.actor("c1", compact, may_fail=(LlogError,))
    world.actor("d1", delete_what_is_old, may_fail=(LlogError,))
    for name in ("r1", "r2"):
        world.actor(name, partial(read_when_there, tally=tally))
    world.run()
    events = [event.event for event in world.history]
    truth = {event.offset: event.token for event in events if isinstance(event, Wrote) and event.offset is not None}
    tried = {event.token for event in events if isinstance(event, Wrote)}
    first_seen: dict[int, bytes | None] = {}
    for event in events:
        if isinstance(event, Saw):
            assert event.token in tried
            assert truth.get(event.offset, event.token) == event.token, f"offset {event.offset} is another's"
            assert first_seen.setdefault(event.offset, event.token) == event.token, "one offset, two records"


async def read_when_there(ctx: ActorContext, tally: Tally) -> None:
    context = log_context(ctx)
    for _ in range(50):
        try:
            await view(context, ORDERS, strict=True)
            break
        except (LogError, MetadataStoreError):
            await ctx.sleep_ms(2)
    else:
        return
    await read_again_and_again(ctx, tally)


@pytest.mark.parametrize("atomic", [True, False])
def test_readers_see_the_model_while_everything_changes(atomic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Segments of a few hundred bytes come in many pieces, and may be gone before the last of them.
    monkeypatch.setattr("llog.log.read.read.LOG_READ_RANGE_BYTES_MIN", 8)
    tally = Tally()
    scenario = SimScenario("readers", partial(play, tally=tally), faults=MANY, options={"atomic_groups": atomic})
    for seed in range(SCHEDULES):
        run = run_seed(scenario, seed)
        assert run.ok, f"seed {seed}: {run.error}\n{run.printed}"
    assert tally[READ_RECORDS] > 20 * SCHEDULES
    assert tally[READ_RESTARTS] > SCHEDULES // 20
    assert tally["passed by deletion"] > SCHEDULES // 10
