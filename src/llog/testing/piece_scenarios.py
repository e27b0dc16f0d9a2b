"""Record groups of several pieces, under simulation: producers send repeats through several brokers at once.

    python -m llog.testing.sim --load llog.testing.piece_scenarios --schedules 1000

Every broker receives the same batches of the same producers, several to a group, with repeats and gaps among them,
while compactors run and faults are injected. The scenarios check that a batch is stored once, that a producer's batches
are in order and without a gap, and that all brokers report the same offset for a batch, where its record is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from llog.errors import DuplicateSequence, LogError, MetadataStoreError, ObjectStoreError
from llog.formats.records.encode import encode_records
from llog.limits import LOG_IDLE_CLEAR_MS
from llog.log.append.append import Appender, EncodedGroup, piece_outcomes
from llog.log.append.known import Growth
from llog.log.append.pieces import Landed, Piece
from llog.log.keys import Log
from llog.log.producers import ProducerClaim
from llog.pipeline.compact.once import compact_once
from llog.testing.history.workload import read_all
from llog.testing.sim import MANY, ONE_CRASH_OR_STALL, ActorContext, World, on_both_stores, scenario
from llog.testing.sim.actor import log_context

ORDERS = Log("orders", 0)
PRODUCERS = (1, 2, 3)


class Stored(NamedTuple):
    """A broker got the answer that a batch is in the log."""

    token: bytes
    offset: int


def token(producer_id: int, sequence: int) -> bytes:
    return f"{producer_id}/{sequence}".encode()


def group_of(batches: list[tuple[int, int]]) -> EncodedGroup:
    """One record per batch; (producer id, sequence)."""
    bodies = [encode_records([token(*batch)], timestamps_ms=5) for batch in batches]
    pieces = tuple(
        Piece(1, len(body), ProducerClaim(producer_id, 0, sequence, sequence))
        for (producer_id, sequence), body in zip(batches, bodies, strict=True)
    )
    return EncodedGroup(ORDERS, len(pieces), "kafka-v2", bodies, 5, pieces=pieces)


def broker(flushes: int, *, idle_ms: int) -> Callable[[ActorContext], Awaitable[None]]:
    """Sends each producer's next batches, and some twice, until they are in the log."""

    async def run(ctx: ActorContext) -> None:
        appender = Appender(log_context(ctx), growth=Growth.HTTP)
        following = dict.fromkeys(PRODUCERS, 0)
        for flush in range(flushes):
            batches = []
            for producer_id in PRODUCERS:
                ahead = 1 + ctx.random_bits(1)
                batches += [(producer_id, following[producer_id] + step) for step in range(ahead)]
                odd = ctx.random_bits(3)
                if odd == 0:  # a gap
                    batches.append((producer_id, following[producer_id] + ahead + 3))
                elif odd == 1:  # twice in one group
                    batches.append((producer_id, following[producer_id]))
            try:
                group = group_of(batches)
                [outcome] = await appender.append([group])
            except (MetadataStoreError, ObjectStoreError):
                continue  # the next flush sends them again
            for (producer_id, sequence), piece in zip(batches, piece_outcomes(group, outcome), strict=True):
                if isinstance(piece, Landed):
                    ctx.record(Stored(token(producer_id, sequence), piece.start_offset))
                if isinstance(piece, Landed | DuplicateSequence):
                    following[producer_id] = max(following[producer_id], sequence + 1)
            if flush == flushes // 2:
                await ctx.sleep_ms(idle_ms)
        await appender.close()

    return run


def compactor(runs: int) -> Callable[[ActorContext], Awaitable[None]]:
    async def compact(ctx: ActorContext) -> None:
        context = log_context(ctx)
        for _ in range(runs):
            try:
                await compact_once(context, ORDERS, max_offsets=4)
            except (LogError, MetadataStoreError, ObjectStoreError):
                pass  # the next run continues this one
            await ctx.sleep_ms(5)

    return compact


async def _contents(ctx: ActorContext) -> list[tuple[int, bytes | None]]:
    return await read_all(log_context(ctx), ORDERS)


def _check(world: World) -> None:
    world.calm()
    answers = [event.event for event in world.history]
    if not answers:
        return
    records = world.alone("reader", _contents)
    offsets, tokens = [offset for offset, _ in records], [stored for _, stored in records]
    assert offsets == list(range(1, len(records) + 1)), f"an offset was given twice or skipped: {offsets}"
    assert len(set(tokens)) == len(tokens), f"a batch is stored twice: {tokens}"
    offset_of = {stored: offset for offset, stored in records}
    for answer in answers:
        assert offset_of.get(answer.token) == answer.offset, f"{answer}, found at {offset_of.get(answer.token)}"
    for producer_id in PRODUCERS:
        own = [stored for stored in tokens if stored is not None and stored.startswith(b"%d/" % producer_id)]
        assert own == [token(producer_id, i) for i in range(len(own))], f"not in order, or not from the first on: {own}"


def _brokers(world: World, *, flushes: int, idle_ms: int) -> None:
    for name in ("b1", "b2"):
        world.actor(name, broker(flushes, idle_ms=idle_ms), may_fail=True)
    world.actor("c1", compactor(5), may_fail=True)
    world.run()
    _check(world)


@on_both_stores("pieces", shards=1, faults=MANY, search_faults=ONE_CRASH_OR_STALL)
def pieces(world: World) -> None:
    _brokers(world, flushes=6, idle_ms=5)


@scenario("pieces-idle-cas", faults=MANY, search_faults=ONE_CRASH_OR_STALL, atomic_groups=False)
def logs_that_fall_silent_are_cleared_by_a_timer(world: World) -> None:
    _brokers(world, flushes=4, idle_ms=5 * LOG_IDLE_CLEAR_MS)
