"""A query's own record: which batch it is at, which producer its slices speak as, and who may still act.

Why it exists: plans are removed as a query goes on, so "there is no plan" alone proves nothing to a driver that slept.
Its order of batches is kept by ONE record, the head, moved by compare-and-set.

What must stay true
- A plan is created only by a driver that was admitted to its batch, and acted on only by one that has, with the plan in
  hand, seen by a strict read that the head still stands at that batch. A head that went on never comes back; so a late
  plan of a driver that slept is void, whether or not the real one was removed.
- Before a batch is planned, the plan of the batch before it is looked for (after the head has moved, strictly) and
  finished. So within a log everything of an earlier batch stands before anything of a later one, which is why "an old
  epoch" means "there already".
- Epochs are given once, by the move of the head. A crash wastes some; none is given twice.
- The query's own record is there before its head: by it vacuum finds the plans (`vacuum_plans`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from llog.errors import MetadataStoreError, SinkBatchOver, SinkBusy, SinkQueryTaken, ValueTooLarge, VersionConflict
from llog.formats.values import ProducerIdBlock, decode_value, encode_value
from llog.limits import SINK_ROUNDS_MAX
from llog.log.context import LogContext
from llog.pipeline.sink.plan import NO_BATCH, SinkHead, SinkQuery, decode_head, head_key, query_key
from llog.stores.metadata.port import ABSENT

# Epochs of one producer id: Kafka counts them in 15 bits.
SINK_EPOCHS_MAX: Final = 2**15 - 1
# The first producer id that a cluster gives: far from those that clients make up for themselves.
PRODUCER_ID_FIRST: Final = 2**32


T = TypeVar("T")


class Batch(NamedTuple):
    """One batch of one query, and whose it is."""

    query: str
    number: int
    checkpoint: str = ""
    """Tells one run of batches from another under the same query id: the id of a stream's checkpoint, or of writes
    where they go; empty: not told."""

    def may_be_of(self, checkpoint: str) -> bool:
        return not self.checkpoint or not checkpoint or self.checkpoint == checkpoint


class Admitted(NamedTuple):
    before: int
    producer_id: int
    first_epoch: int


async def persist(context: LogContext, batch: Batch, attempt: Callable[[bool], Awaitable[T | None]]) -> T:
    """Try until it comes to something: it gets True when it must read strictly, and answers None to be asked again."""
    reason = "its records kept changing"
    for round_number in range(SINK_ROUNDS_MAX):
        try:
            found = await attempt(round_number > 0)
            if found is not None:
                return found
        except VersionConflict:
            pass
        except MetadataStoreError as error:
            if not error.retriable:
                raise
            reason = str(error)
        await context.back_off(round_number)
    raise SinkBusy(batch.query, batch.number, f"given up after {SINK_ROUNDS_MAX} rounds: {reason}")


async def admit(context: LogContext, batch: Batch, *, epochs: int) -> Admitted:
    """Move the head to this batch and take `epochs` epochs. Raises `SinkBatchOver` when it has gone on."""
    if epochs > SINK_EPOCHS_MAX:
        raise ValueTooLarge("slices of one log in one batch, in epochs", epochs, SINK_EPOCHS_MAX)
    key = head_key(context.keys, batch.query)

    async def move(strict: bool) -> Admitted | None:
        record = await context.metadata.get(key, strict=strict)
        head = None if record is None else decode_head(record.value, key.path)
        if head is not None and _refused(head, batch, strict):
            return None
        if head is None or not head.listed:
            await _list(context, batch.query)
        if head is not None and head.next_epoch + epochs <= SINK_EPOCHS_MAX:
            producer_id, first_epoch = head.producer_id, head.next_epoch
        else:
            producer_id, first_epoch = await allot_producer_id(context, batch), 0
        moved = _moved(head, batch, producer_id, first_epoch + epochs)
        version = ABSENT if record is None else record.version
        await context.metadata.put(key, encode_value(moved, key.path), expected=version)
        return Admitted(moved.before, producer_id, first_epoch)

    return await persist(context, batch, move)


async def _list(context: LogContext, query: str) -> None:
    """The query's own record, if it is not there: before the head, and so before any plan."""
    key = query_key(context.keys, query)
    value = encode_value(SinkQuery(query=query, created_at_ms=context.now_ms()), key.path)
    with suppress(VersionConflict):
        await context.metadata.put(key, value, expected=ABSENT)


def _refused(head: SinkHead, batch: Batch, strict: bool) -> bool:
    """No write would prove a refusal, so it takes a strict read (R7)."""
    if strict:
        check_owner(batch, head.checkpoint)
    if head.batch > batch.number and strict:
        raise SinkBatchOver(batch.query, batch.number, head.batch)
    return head.batch > batch.number or not batch.may_be_of(head.checkpoint)


def check_owner(batch: Batch, checkpoint: str) -> None:
    if not batch.may_be_of(checkpoint):
        raise SinkQueryTaken(batch.query, batch.number, batch.checkpoint, checkpoint)


def _moved(head: SinkHead | None, batch: Batch, producer_id: int, next_epoch: int) -> SinkHead:
    before = NO_BATCH
    if head is not None:
        before = head.before if head.batch == batch.number else head.batch
    return SinkHead(
        v=SinkHead.known_version if head is None else max(SinkHead.known_version, head.v),
        query=batch.query,
        batch=batch.number,
        before=before,
        producer_id=producer_id,
        next_epoch=next_epoch,
        checkpoint=batch.checkpoint or ("" if head is None else head.checkpoint),
        listed=True,
    )


async def check_current(context: LogContext, batch: Batch) -> SinkHead:
    """The head, which stands at this batch now. For whoever holds a plan, before it acts on it: see the rules above."""
    key = head_key(context.keys, batch.query)

    async def look(_: bool) -> SinkHead:
        record = await context.metadata.get(key, strict=True)
        if record is None:
            raise SinkBatchOver(batch.query, batch.number, batch.number)
        head = decode_head(record.value, key.path)
        if head.batch != batch.number:
            raise SinkBatchOver(batch.query, batch.number, head.batch)
        return head

    return await persist(context, batch, look)


async def allot_producer_id(context: LogContext, batch: Batch) -> int:
    """A number that no other query, and no producer of this cluster that asks for one, gets."""
    key = context.keys.producer_ids()

    async def take(strict: bool) -> tuple[int] | None:
        record = await context.metadata.get(key, strict=strict)
        block = ProducerIdBlock(next_producer_id=PRODUCER_ID_FIRST)
        if record is not None:
            block = decode_value(ProducerIdBlock, record.value, key.path)
        taken = ProducerIdBlock(v=block.v, next_producer_id=block.next_producer_id + 1)
        version = ABSENT if record is None else record.version
        await context.metadata.put(key, encode_value(taken, key.path), expected=version)
        return (block.next_producer_id,)

    return (await persist(context, batch, take))[0]
