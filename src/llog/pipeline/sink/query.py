"""The head of a query: which batch the query is at, and which producer its slices speak as (protocol section 11).

    @cluster/sinks/{query}         the query exists; vacuum finds the query's plans by this record
    @cluster/sinks/{query}/head    the latest admitted batch and the producer id, moved by compare-and-set

Plans are removed as a query advances, so the absence of a plan proves nothing to a driver that was suspended for a
while. The head decides instead. These rules hold:

- A driver creates a plan only after it was admitted to the batch. It acts on a plan only after, with the plan in hand,
  a strict read shows the head at that batch. The head never moves back, so a late plan of a suspended driver is void,
  whether or not the real plan was removed.
- After it moved the head and before it plans a batch, a driver finishes the plan of the previous batch. So in each log
  every slice of an earlier batch precedes every slice of a later one, and "old epoch" means "already in the log".
- Moving the head allots epochs. A crash may waste epochs, but none is allotted twice.
- The query's record exists before its head, so vacuum finds every plan (`llog.pipeline.vacuum.references`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from llog.errors import MetadataStoreError, SinkBatchOver, SinkBusy, SinkQueryTaken, ValueTooLarge, VersionConflict
from llog.formats.buffers import Buffer, json_decoder, json_value
from llog.formats.values import Count, Value, encode_value
from llog.limits import SINK_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.keys import CLUSTER_ROUTE, Keys
from llog.log.producer_ids import take_ids
from llog.stores.metadata.port import ABSENT, Key

# Epochs of one producer id: Kafka counts them in 15 bits.
SINK_EPOCHS_MAX: Final = 2**15 - 1
NO_BATCH: Final = -1

T = TypeVar("T")


class SinkBatch(NamedTuple):
    """One batch of one query."""

    query: str
    number: int
    checkpoint: str = ""
    """Distinguishes runs under the same query id: the id of a stream's checkpoint, or the target of batch writes.
    Empty: unknown."""

    def may_be_of(self, checkpoint: str) -> bool:
        return not self.checkpoint or not checkpoint or self.checkpoint == checkpoint


class SinkHead(Value, frozen=True, kw_only=True):
    query: str
    batch: Count
    """The latest admitted batch. Drivers act on plans of this batch only."""
    before: int = NO_BATCH
    """The batch admitted before it, which must be done before anything of `batch` is appended."""
    producer_id: Count
    next_epoch: Count
    checkpoint: str = ""
    """The checkpoint these batches belong to; empty: unknown."""
    listed: bool = False
    """The query's own record exists."""


class SinkQuery(Value, frozen=True, kw_only=True):
    """Says that the query exists. Written before its head, and removed after everything else of the query."""

    query: str
    created_at_ms: Count


class Admission(NamedTuple):
    before: int
    """The previous batch, or `NO_BATCH`."""
    producer_id: int
    first_epoch: int


_HEADS: Final = json_decoder(SinkHead)


def decode_head(data: Buffer, source: str) -> SinkHead:
    return json_value(_HEADS, data, source, "SinkHead")


def queries_key(keys: Keys) -> Key:
    """The parent of the records of all queries. One shard holds them, so a strict scan finds them all."""
    return Key(f"{keys.root}/@cluster/sinks", CLUSTER_ROUTE)


def query_key(keys: Keys, query: str) -> Key:
    return Key(keys.sinks(query).path, CLUSTER_ROUTE)


def head_key(keys: Keys, query: str) -> Key:
    parent = keys.sinks(query)
    return Key(f"{parent.path}/head", parent.route)


async def persist(context: LogContext, batch: SinkBatch, attempt: Callable[[bool], Awaitable[T | None]]) -> T:
    """Repeat `attempt(strict)` until it returns a value. None, a version conflict and a retriable error mean another
    round, with strict reads. Raises `SinkBusy` after the last round."""
    reason = "its records kept changing"
    async for round_number in context.rounds(SINK_ROUNDS_MAX):
        try:
            result = await attempt(round_number > 0)
            if result is not None:
                return result
        except VersionConflict:
            pass
        except MetadataStoreError as error:
            if not error.retriable:
                raise
            reason = str(error)
    raise SinkBusy(batch.query, batch.number, f"gave up after {SINK_ROUNDS_MAX} rounds: {reason}")


async def admit(context: LogContext, batch: SinkBatch, *, epochs: int) -> Admission:
    """Move the head to this batch and allot `epochs` epochs. Raises `SinkBatchOver` if the head is past the batch."""
    if epochs > SINK_EPOCHS_MAX:
        raise ValueTooLarge("slices of one log in one batch, in epochs", epochs, SINK_EPOCHS_MAX)
    key = head_key(context.keys, batch.query)

    async def move(strict: bool) -> Admission | None:
        record = await context.metadata.get(key, strict=strict)
        head = None if record is None else decode_head(record.value, key.path)
        if head is not None and _is_refused(head, batch, strict):
            return None
        if head is None or not head.listed:
            await _list_query(context, batch.query)
        if head is not None and head.next_epoch + epochs <= SINK_EPOCHS_MAX:
            producer_id, first_epoch = head.producer_id, head.next_epoch
        else:
            producer_id, first_epoch = await allot_producer_id(context, batch), 0
        moved = _moved(head, batch, producer_id, first_epoch + epochs)
        version = ABSENT if record is None else record.version
        await context.metadata.put(key, encode_value(moved, key.path), expected=version)
        return Admission(moved.before, producer_id, first_epoch)

    return await persist(context, batch, move)


async def _list_query(context: LogContext, query: str) -> None:
    """Create the query's own record: before the head, and so before any plan."""
    key = query_key(context.keys, query)
    value = encode_value(SinkQuery(query=query, created_at_ms=context.now_ms()), key.path)
    with suppress(VersionConflict):
        await context.metadata.put(key, value, expected=ABSENT)


def _is_refused(head: SinkHead, batch: SinkBatch, strict: bool) -> bool:
    """True: read again strictly. A refusal writes nothing that would prove it, so it needs a strict read (R7)."""
    if strict:
        check_owner(batch, head.checkpoint)
    if head.batch > batch.number and strict:
        raise SinkBatchOver(batch.query, batch.number, head.batch)
    return head.batch > batch.number or not batch.may_be_of(head.checkpoint)


def check_owner(batch: SinkBatch, checkpoint: str) -> None:
    if not batch.may_be_of(checkpoint):
        raise SinkQueryTaken(batch.query, batch.number, batch.checkpoint, checkpoint)


def _moved(head: SinkHead | None, batch: SinkBatch, producer_id: int, next_epoch: int) -> SinkHead:
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


async def check_current(context: LogContext, batch: SinkBatch) -> SinkHead:
    """The head, if it is at this batch, else `SinkBatchOver`. Called with a plan in hand, before acting on it."""
    key = head_key(context.keys, batch.query)

    async def read(_: bool) -> SinkHead:
        record = await context.metadata.get(key, strict=True)
        if record is None:
            raise SinkBatchOver(batch.query, batch.number, batch.number)
        head = decode_head(record.value, key.path)
        if head.batch != batch.number:
            raise SinkBatchOver(batch.query, batch.number, head.batch)
        return head

    return await persist(context, batch, read)


async def allot_producer_id(context: LogContext, batch: SinkBatch) -> int:
    """A producer id that the cluster gives to no other query and no other producer."""

    async def take(strict: bool) -> range:
        return await take_ids(context, 1, strict=strict)

    return (await persist(context, batch, take))[0]
