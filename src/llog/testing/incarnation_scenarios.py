"""Appends that mean one incarnation of their topic, while the topic is deleted and created again.

    python -m llog.testing.sim --load llog.testing.incarnation_scenarios --schedules 1000

Brokers look the topic up as the Kafka front end does, and remember it longer than it lives. Their records name the
incarnation that they mean. Other callers of the same brokers append without a meaning, as HTTP does, and share flushes
with them. Every index entry that is ever written is compared with the records in its slice: a record that means an
incarnation is in that incarnation's log and in no other. Without callers of the other kind, only the operator creates
topics.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from llog.broker.produce.pool import MemoryPool
from llog.broker.produce.producer import BatchingProducer
from llog.errors import LlogError
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.values import IndexEntry, TopicRecord, decode_value
from llog.limits import KIB
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.append.pieces import Piece
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.log.topics.create import load_topic
from llog.log.topics.delete import delete_topic
from llog.stores.metadata.port import Change, ChangeKind
from llog.testing.batching_scenarios import Metrics
from llog.testing.history.workload import TROUBLE
from llog.testing.log_scenarios import FAULTS, KEYS, context_of
from llog.testing.sim import ActorContext, World, on_both_stores
from llog.testing.sim.metadata_server import MetadataServer, SimWatcher

TOPIC: Final = "orders"
LOGS: Final = (Log(TOPIC, 0), Log(TOPIC, 1))
CALLS: Final = 12
CREATIONS: Final = 4
ANY: Final = "any"


class Meant(NamedTuple):
    """The outcome of a record that means an incarnation."""

    incarnation: int
    landed: bool


class Written(SimWatcher):
    """Notes every index entry and every topic record as it is written."""

    of_client = False

    def __init__(self, server: MetadataServer) -> None:
        super().__init__("", None, lambda: None)
        self._server, self.entries, self.topics = server, list[IndexEntry](), list[TopicRecord]()

    def offer(self, shard: int, change: Change) -> None:
        if change.kind is not ChangeKind.PUT:
            return
        value = self._server.shards[shard].cells[change.path].value
        if "/index/" in change.path:
            self.entries.append(decode_value(IndexEntry, value, change.path))
        elif change.path == KEYS.topic(TOPIC).path:
            self.topics.append(decode_value(TopicRecord, value, change.path))


async def serve(ctx: ActorContext, *, mixed: bool) -> None:
    context = context_of(ctx)
    appender = Appender(context, growth=Growth.HTTP)
    producer = BatchingProducer(
        appender,
        max_bytes=2 * KIB,
        max_delay_ms=20,
        pool=MemoryPool(64 * KIB),
        metrics=Metrics(),
        uploads_max=3,
        now_ms=ctx.now_ms,
        sleep=asyncio.sleep,
    )

    async def call(number: int, log: Log, incarnation: int | None) -> None:
        token = f"{ANY if incarnation is None else incarnation} {ctx.name} {number}"
        [outcome] = await producer.append([_group(log, token, incarnation)])
        if incarnation is not None:
            ctx.record(Meant(incarnation, isinstance(outcome, Appended)))

    calls, known = [], None
    for number in range(CALLS):
        if known is None or not ctx.random.randrange(4):  # otherwise what was read before counts
            try:
                found = await load_topic(context, TOPIC, strict=True)
            except TROUBLE:
                found = None
            known = found[0].incarnation if found is not None and found[0].state == "LIVE" else known
        log = LOGS[ctx.random.randrange(len(LOGS))]
        if mixed and ctx.random.randrange(2):
            calls.append(asyncio.create_task(call(number, log, None)))
        elif known is not None:
            calls.append(asyncio.create_task(call(number, log, known)))
        await ctx.sleep_ms(ctx.random.randrange(60))
    await asyncio.gather(*calls)
    await producer.close()
    try:
        await appender.close()
    except TROUBLE:
        pass  # the next append settles the rest


def _group(log: Log, token: str, incarnation: int | None) -> EncodedGroup:
    body = encode_records([token.encode()], timestamps_ms=7)
    return EncodedGroup(log, 1, "kafka-v2", [body], 7, pieces=(Piece(1, len(body), None, 7, incarnation),))


async def operate(ctx: ActorContext) -> None:
    context = context_of(ctx)
    for _ in range(CREATIONS):
        try:
            await create_topic(context, TOPIC, partitions=len(LOGS))
            await ctx.sleep_ms(ctx.random.randrange(200))
            await delete_topic(context, TOPIC)
        except LlogError:
            pass  # it is tried again in the next round
        await ctx.sleep_ms(ctx.random.randrange(60))


def check(world: World, written: Written, *, mixed: bool) -> None:
    store, objects = world.bucket("objects").inner, world.objects()
    blobs = {store.uri(name): content for name, content in objects.items()}
    for entry in written.entries:
        assert entry.byte_offset is not None
        assert entry.byte_length is not None
        slice_ = blobs[entry.data_key][entry.byte_offset : entry.byte_offset + entry.byte_length]
        for value in decode_records(slice_, entry.data_key).values.tolist():
            meant = (value or b"").decode().partition(" ")[0]
            assert meant in (ANY, str(entry.incarnation)), f"{value!r} is in incarnation {entry.incarnation}"
    by_writes = [topic.incarnation for topic in written.topics if topic.auto_created]
    assert mixed or not by_writes, f"appends that mean an incarnation created the incarnations {by_writes}"


@on_both_stores("incarnations", faults=FAULTS)
def incarnations(world: World) -> None:
    mixed = bool(world.seed % 2)
    written = Written(world.metadata)
    world.metadata.watchers.append(written)

    async def broker(ctx: ActorContext) -> None:
        await serve(ctx, mixed=mixed)

    for name in ("broker-1", "broker-2"):
        world.actor(name, broker, restarts=1, restart_after_ms=200)
    world.actor("operator", operate, restarts=1, restart_after_ms=200)
    world.run()
    check(world, written, mixed=mixed)
