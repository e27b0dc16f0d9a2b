"""The batching producer under simulation: many callers, the real appender, injected faults, the log's checker.

    python -m llog.testing.sim --load llog.testing.batching_scenarios --schedules 1000

A broker serves callers with many calls in flight, some of which go away before their answer, and idempotent producers
that retry until they have an answer. The scenarios check every promise of the log (`llog.testing.history`); that every
accepted call is answered truly when the producer is closed; that calls made in order are in order in every log; that
the tail cache receives what the log holds; and that the pool is empty in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from llog.broker.produce.pool import MemoryPool
from llog.broker.produce.producer import BatchingProducer, CommittedBatch, TimedOutcomes
from llog.formats.records.decode import decode_records
from llog.limits import KIB
from llog.log.append.append import Appended, Appender
from llog.log.append.known import Growth
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.metrics import NoMetrics
from llog.log.producers import ProducerClaim
from llog.testing.history import Client, Noted, operations_of
from llog.testing.history.events import AnyEvent, AppendAsked
from llog.testing.history.operations import Operations
from llog.testing.history.operators import compact_chore, fence_now_and_then, vacuum_chore
from llog.testing.history.workload import ATTEMPTS_MAX, TROUBLE, append_answered, read_all, tend
from llog.testing.log_scenarios import (
    CLICKS,
    FAULTS,
    LOGS,
    ORDERS,
    VISITS,
    alone,
    client,
    context_of,
    judge,
    producer_id_of,
    watch_changes,
)
from llog.testing.sim import ActorContext, World, on_both_stores

PIPELINED: Final = "pipelined"
CALLS: Final = 10
SMALL_POOL_BYTES: Final = 24 * KIB


class CallerEvent(NamedTuple):
    """An event of one caller, recorded by its broker."""

    caller: str
    event: AnyEvent


class CacheFill(NamedTuple):
    """A batch that the tail cache received."""

    log: Log
    start_offset: int
    tokens: tuple[str, ...]


class Metrics(NoMetrics):
    def observe_flush(
        self,
        reason: str,
        groups: int,
        records: int,
        byte_length: int,
        queue_wait_ms: float,
        upload_ms: float,
        commit_ms: float,
    ) -> None:
        assert min(queue_wait_ms, upload_ms, commit_ms) >= 0, "time went back"

    def observe_appends(
        self, groups: int, records: int, byte_length: int, failures: Mapping[str, int], payload_bytes: int = 0
    ) -> None:
        assert (records == 0) == (byte_length == 0)

    def set_buffered(self, byte_length: int, requests: int) -> None:
        assert (byte_length == 0) == (requests == 0)


class SimulatedBroker:
    """A batching producer in a simulated process, and its callers."""

    def __init__(self, ctx: ActorContext) -> None:
        self._ctx, context = ctx, context_of(ctx)
        self._client = Client(ctx.name, context, lambda event: None, encoding="kafka-v2", pause_ms=30)
        self._appender, self._pool = Appender(context, growth=Growth.HTTP), MemoryPool(SMALL_POOL_BYTES)
        self._waiting: list[asyncio.Task[None]] = []
        self.producer = BatchingProducer(
            self._appender,
            max_bytes=2 * KIB,
            max_delay_ms=20,
            pool=self._pool,
            metrics=Metrics(),
            uploads_max=3,
            now_ms=ctx.now_ms,
            sleep=asyncio.sleep,
            on_committed=self._cache,
        )

    def _cache(self, batch: CommittedBatch) -> None:
        values = decode_records(b"".join(batch.body), "cache").values.tolist()
        tokens = tuple((value or b"").decode() for value in values)
        self._ctx.record(CacheFill(batch.log, batch.start_offset, tokens))

    def _record(self, caller: str, event: AnyEvent) -> None:
        self._ctx.record(CallerEvent(caller, event))

    # -- callers ------------------------------------------------------------------------------------------------------
    async def pipelined(self) -> None:
        """Calls one after the other without waiting for answers; some callers go away."""
        client = self._client
        for number in range(CALLS):
            chosen = [log for log in LOGS if client.draw(2)] or [client.one_of(LOGS)]
            asked = [self._ask(PIPELINED, log, number, 1 + client.draw(2)) for log in chosen]
            groups = list(map(client.group, asked))
            answer = self.producer.submit(groups)
            task = asyncio.create_task(self._record_answer(answer, asked))
            if client.draw(8):
                self._waiting.append(task)
            else:
                asyncio.get_running_loop().call_later(client.draw(40) / 1_000, task.cancel)
            if client.draw(2):
                await client.pause()
        await asyncio.gather(*self._waiting)

    async def _record_answer(self, answer: asyncio.Future[TimedOutcomes], asked: Sequence[AppendAsked]) -> None:
        outcomes = (await answer).outcomes
        for request, outcome in zip(asked, outcomes, strict=True):
            self._record(PIPELINED, append_answered(request, outcome))

    async def idempotent(self, log: Log) -> None:
        """Numbers its records and retries until it has an answer; an uncertain outcome ends its epoch."""
        client, caller = self._client, f"idempotent-{log}"
        producer_id = producer_id_of(f"{client.name}/{caller}")
        epoch = sequence = 0
        for number in range(CALLS // 2):
            count, doubtful = 1 + client.draw(2), False
            for _ in range(ATTEMPTS_MAX):
                claim = ProducerClaim(producer_id, epoch, sequence, sequence + count - 1)
                request = self._ask(caller, log, number, count, claim)
                [outcome] = await self.producer.append([client.group(request)])
                answer = append_answered(request, outcome)
                self._record(caller, answer)
                if answer.outcome == "landed":
                    sequence, doubtful = sequence + count, False
                    break
                doubtful = doubtful or answer.outcome == "uncertain"
                await client.pause()
            if doubtful:
                epoch, sequence = epoch + 1, 0
            await client.pause()

    def _ask(self, caller: str, log: Log, number: int, count: int, claim: ProducerClaim | None = None) -> AppendAsked:
        tokens = tuple(f"{self._client.name}/{caller}/{number}/{log}/{i}" for i in range(count))
        request = self._client.append_asked(log, tokens, claim)
        self._record(caller, request)
        return request

    # -- the end ------------------------------------------------------------------------------------------------------
    async def close(self) -> None:
        await self.producer.close()
        assert self._pool.used == 0, f"{self._pool.used} bytes were not given back"
        [refused] = await self.producer.append([self._client.group(self._client.append_asked(ORDERS, ("too late",)))])
        assert not isinstance(refused, Appended)
        try:
            await self._appender.close()
        except TROUBLE:
            pass  # the next append settles the rest


async def serve(ctx: ActorContext) -> None:
    """Run one broker. One in three closes while its callers are still active."""
    broker = SimulatedBroker(ctx)
    callers = [broker.pipelined(), *(broker.idempotent(log) for log in (ORDERS, VISITS))]
    tasks = [asyncio.create_task(caller) for caller in callers]
    if ctx.random.randrange(3):
        await asyncio.gather(*tasks)
        await broker.close()
    else:
        await ctx.sleep_ms(ctx.random.randrange(150))
        await broker.close()
        await asyncio.wait_for(asyncio.gather(*tasks), 3_600)


# -- checks ----------------------------------------------------------------------------------------------------------


def _operations_in(world: World) -> Operations:
    noted = []
    for at, (_, actor, event) in enumerate(world.history):
        if isinstance(event, CallerEvent):
            noted.append(Noted(at, f"{actor}/{event.caller}", event.event))
        elif not isinstance(event, CacheFill):
            noted.append(Noted(at, actor, event))
    return operations_of(noted)


def _check_cache(world: World) -> None:
    fills = [e.event for e in world.history if isinstance(e.event, CacheFill)]
    for log in LOGS:
        contents = alone(world, f"read-{log}", partial(_contents, log=log))
        for batch in (batch for batch in fills if batch.log == log):
            stored = [contents.get(batch.start_offset + i) for i in range(len(batch.tokens))]
            assert stored == list(batch.tokens), f"the cache received {batch}, the log holds {stored}"


async def _contents(context: LogContext, log: Log) -> dict[int, str]:
    try:
        return {offset: (payload or b"").decode() for offset, payload in await read_all(context, log)}
    except TROUBLE:
        return {}  # it was never initialized


@on_both_stores("batching", faults=FAULTS)
def brokers(world: World) -> None:
    watch_changes(world)
    for name in ("broker-1", "broker-2"):
        world.actor(name, serve, restarts=1, restart_after_ms=200)
    world.actor("compactor", client(lambda c: tend(c, LOGS, 3, [compact_chore]), pause_ms=60))
    world.actor("vacuum", client(lambda c: tend(c, LOGS, 1, [vacuum_chore]), pause_ms=900))
    if world.seed % 2:
        world.actor("fencer", client(lambda c: fence_now_and_then(c, (CLICKS,), 1), pause_ms=40))
    world.run()
    judge(world, operations_in=_operations_in, on_recovered=_check_cache)
