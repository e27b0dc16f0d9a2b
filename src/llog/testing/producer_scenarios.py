"""Idempotent producers that keep five batches in flight to two brokers, under simulation.

    python -m llog.testing.sim --load llog.testing.producer_scenarios --schedules 1000

Each producer numbers its batches from 0 on and has at most five without an answer. It sends any of them to any broker,
in any order, as often as it likes: that covers leaders that move, time-outs and lost answers. Brokers put many batches
into one append, stall, crash and start again, while a compactor runs. The scenarios check that every batch is stored
once and in the order of its number, that all answers for a batch name the place where it is, and that every producer
can go on: its last five batches are always known, whoever stored them (h31, h32).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from llog.errors import (
    DuplicateSequence,
    LogError,
    MetadataStoreError,
    ObjectStoreError,
    ProducerEpochFenced,
    UnknownProducer,
)
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appender, EncodedGroup, piece_outcomes
from llog.log.append.known import Growth
from llog.log.append.pieces import Landed, Piece
from llog.log.keys import Log
from llog.log.producers import WINDOW, ProducerClaim
from llog.pipeline.compact.once import compact_once
from llog.testing.history.workload import read_all
from llog.testing.sim import MANY, ONE_CRASH_OR_STALL, ActorContext, World, on_both_stores
from llog.testing.sim.actor import log_context

ORDERS: Final = Log("orders", 0)
PRODUCERS: Final = 3
FATAL: Final = (DuplicateSequence, ProducerEpochFenced, UnknownProducer)
"""Errors that a producer with at most five batches in flight never gets for one of them."""
FLUSHES: Final = 8
COMPACTIONS: Final = 5


class Acknowledged(NamedTuple):
    """A producer got the answer that its batch is in the log."""

    producer_id: int
    number: int
    offset: int


class Refused(NamedTuple):
    """A producer got an answer that an obedient one never gets."""

    producer_id: int
    number: int
    error: str


class PipelinedProducer:
    """The client's side of one producer; brokers come and go, it stays."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self._sizes: list[int] = []
        """Records of each batch; once sent, a batch never changes."""
        self._answered: set[int] = set()

    def in_flight(self) -> range:
        """The batches that it may send now: the first without an answer, and four more."""
        first = next(n for n in range(len(self._answered) + 1) if n not in self._answered)
        return range(first, first + WINDOW)

    def claim(self, number: int, draw: Callable[[int], int]) -> ProducerClaim:
        while len(self._sizes) <= number:
            self._sizes.append(1 + draw(2))
        first = sum(self._sizes[:number])
        return ProducerClaim(self.producer_id, 0, first, first + self._sizes[number] - 1)

    def awaits(self, number: int) -> bool:
        return number not in self._answered

    def answered(self, number: int) -> None:
        self._answered.add(number)

    def tokens(self, number: int) -> list[bytes]:
        return [f"{self.producer_id}/{number}/{i}".encode() for i in range(self._sizes[number])]


def broker(producers: list[PipelinedProducer]) -> Callable[[ActorContext], Awaitable[None]]:
    """Appends some of the batches in flight, and answers their producers."""

    async def run(ctx: ActorContext) -> None:
        appender = Appender(log_context(ctx), growth=Growth.HTTP)
        draw = ctx.random.randrange
        for _ in range(FLUSHES):
            sent = [(one, number) for one in producers for number in one.in_flight() if draw(3)]
            if draw(4) == 0:
                ctx.random.shuffle(sent)
            if sent:
                await _flush(ctx, appender, sent)
            await ctx.sleep_ms(draw(10))
        await appender.close()

    return run


async def _flush(ctx: ActorContext, appender: Appender, sent: list[tuple[PipelinedProducer, int]]) -> None:
    claims = [producer.claim(number, ctx.random.randrange) for producer, number in sent]
    bodies = [encode_records(producer.tokens(number), timestamps_ms=5) for producer, number in sent]
    pieces = tuple(Piece(c.msg_count, len(body), c) for c, body in zip(claims, bodies, strict=True))
    count = sum(piece.msg_count for piece in pieces)
    group = EncodedGroup(ORDERS, count, "kafka-v2", bodies, 5, pieces=pieces)
    try:
        [outcome] = await appender.append([group])
    except (MetadataStoreError, ObjectStoreError):
        return  # their producers send them again
    for (producer, number), piece in zip(sent, piece_outcomes(group, outcome), strict=True):
        if isinstance(piece, Landed):
            ctx.record(Acknowledged(producer.producer_id, number, piece.start_offset))
            producer.answered(number)
        elif isinstance(piece, FATAL) and producer.awaits(number):  # else the other broker answered, and it went on
            ctx.record(Refused(producer.producer_id, number, type(piece).__name__))


def last_broker(producers: list[PipelinedProducer]) -> Callable[[ActorContext], Awaitable[None]]:
    """When nothing goes wrong any more, one flush of all batches in flight leaves none without an answer."""

    async def run(ctx: ActorContext) -> None:
        appender = Appender(log_context(ctx), growth=Growth.HTTP)
        waiting = [(one, number) for one in producers for number in one.in_flight()]
        await _flush(ctx, appender, waiting)
        left = [(one.producer_id, number) for one, number in waiting if one.awaits(number)]
        assert not left, f"batches cannot be appended any more: {left}"
        await appender.close()

    return run


async def _compact(ctx: ActorContext) -> None:
    context = log_context(ctx)
    for _ in range(COMPACTIONS):
        try:
            await compact_once(context, ORDERS, max_offsets=9)
        except (LogError, MetadataStoreError, ObjectStoreError):
            pass  # the next run continues this one
        await ctx.sleep_ms(8)


async def _contents(ctx: ActorContext) -> list[tuple[int, bytes | None]]:
    return await read_all(log_context(ctx), ORDERS)


@on_both_stores("producers", shards=1, faults=MANY, search_faults=ONE_CRASH_OR_STALL)
def pipelined_producers_on_two_brokers(world: World) -> None:
    producers = [PipelinedProducer(producer_id) for producer_id in range(1, PRODUCERS + 1)]
    for name in ("b1", "b2"):
        world.actor(name, broker(producers), may_fail=True, restarts=1, restart_after_ms=20)
    world.actor("c1", _compact, may_fail=True)
    world.run()
    world.calm()
    world.alone("last", last_broker(producers))
    events = [event.event for event in world.history]
    refused = [event for event in events if isinstance(event, Refused)]
    assert not refused, f"an obedient producer was refused: {refused}"
    acknowledged = [event for event in events if isinstance(event, Acknowledged)]
    records = world.alone("reader", _contents)
    assert [offset for offset, _ in records] == list(range(1, len(records) + 1)), "an offset was given twice or skipped"
    offset_of = {token: offset for offset, token in records}
    assert len(offset_of) == len(records), f"a record is stored twice: {[token for _, token in records]}"
    for producer in producers:
        prefix = b"%d/" % producer.producer_id
        own = [token for _, token in records if token is not None and token.startswith(prefix)]
        batches = sum(token.endswith(b"/0") for token in own)
        assert own == [token for number in range(batches) for token in producer.tokens(number)], f"not in order: {own}"
    for answer in acknowledged:
        token = f"{answer.producer_id}/{answer.number}/0".encode()
        assert offset_of.get(token) == answer.offset, f"{answer}, found at {offset_of.get(token)}"
