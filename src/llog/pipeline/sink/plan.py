"""The commit plan of a batch: its values, its records in the metadata store, and the claims its slices make.

    @cluster/sinks/{query}/{batch}               the commit plan: created once, confirmed, then marked as done
    @cluster/sinks/{query}/{batch}/{plan}/{n}    pages with its slices, if they do not fit into one value

A plan holds everything a driver needs to finish it, so any driver can (protocol section 11). Each slice speaks as a
batch of an idempotent producer, so that `reserve` recognises a slice that is already in the log: the slices of one log
are numbered, as many share an epoch as a log remembers (`WINDOW`), and later slices have later epochs. The same plan
always gives the same claims, and no two plans of a query share an epoch of a producer.

Pages are put before the plan that names them, under an id of their own, and removed once no plan names them. A stored
plan is replaced only at the version at which it was read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from llog.errors import InvalidArgument, MetadataStoreError, ValueTooLarge, VersionConflict
from llog.formats.buffers import Buffer, json_decoder, json_value
from llog.formats.values import Count, SinkPlan, SinkSlice, Value, encode_value
from llog.limits import KIB
from llog.log.append.pieces import AppendSlice, PlacedPiece
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of
from llog.log.keys import Keys, Log, last_segment_id, offset_name
from llog.log.producers import SEQUENCE_MODULUS, WINDOW, ProducerClaim
from llog.log.topics.record_limits import AT_THE_CLOCK, TimestampSpan
from llog.pipeline.sink.query import SinkBatch, check_current, persist
from llog.stores.metadata.port import ABSENT, Key, Record

# Bytes of slices in one metadata value, and the number of such values one plan may have.
SINK_PLAN_PAGE_BYTES: Final = 512 * KIB
SINK_PLAN_PAGES_MAX: Final = 1_000
UNKNOWN_INCARNATION: Final = -1


class UploadedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """What a task uploaded for one log. It stays invisible until a plan that names it is performed."""

    topic: str
    partition: Count
    incarnation: int
    """Of the log, as the driver knew it before the blob's id was drawn; or `UNKNOWN_INCARNATION`."""
    data_key: str
    encoding: str
    byte_offset: Count
    byte_length: Count
    msg_count: Count
    max_timestamp_ms: int = -1
    largest_record_bytes: Count = 0
    """As a batch of its own; 0 when the task knew the topic's `max.message.bytes` and compared it."""
    span: TimestampSpan = AT_THE_CLOCK
    """Of its timestamps around the task's clock. The driver compares it with the topic's window, and only for a batch
    without a plan: a replay finds its timestamps older than the first time."""
    clock_ms: Count = 0
    """The task's clock when it encoded the rows."""

    @property
    def log(self) -> Log:
        return Log(self.topic, self.partition)

    @property
    def created_at_ms(self) -> int:
        """From the blob's id, not from a clock: compared with the log's commit horizon."""
        return created_at_ms_of(last_segment_id(self.data_key))


class PlanSlice(SinkSlice, frozen=True, kw_only=True):
    incarnation: Count

    @property
    def log(self) -> Log:
        return Log(self.topic, self.partition)

    @property
    def created_at_ms(self) -> int:
        return created_at_ms_of(last_segment_id(self.data_key))


class CommitPlan(SinkPlan, frozen=True, kw_only=True):
    """`slices` holds all slices, or none when they are on `pages` of their own."""

    plan_id: str
    producer_id: Count
    first_epoch: Count
    slices: tuple[PlanSlice, ...]
    pages: Count = 0
    records: Count = 0
    checkpoint: str = ""
    """As in the head."""
    confirmed: bool = False
    """Its blobs existed after the plan did, so vacuum keeps them and the plan may be performed
    (`llog.pipeline.sink.commit.confirm`). Nothing of an unconfirmed plan is in any log."""
    done: bool = False
    """Every slice is in its log; the slices are then dropped from the plan."""

    @property
    def origin(self) -> str:
        """The id the plan was created under; a plan with copied slices has a suffix."""
        return self.plan_id.partition("-")[0]


class PlanPage(Value, frozen=True, kw_only=True):
    slices: tuple[PlanSlice, ...]


_PLANS: Final = json_decoder(CommitPlan)
_PAGES: Final = json_decoder(PlanPage)


def decode_plan(data: Buffer, source: str) -> CommitPlan:
    return json_value(_PLANS, data, source, "CommitPlan")


def decode_page(data: Buffer, source: str) -> PlanPage:
    return json_value(_PAGES, data, source, "PlanPage")


def plan_key(keys: Keys, query: str, batch: int) -> Key:
    return keys.sink(query, batch)


def page_keys(keys: Keys, plan: CommitPlan) -> list[Key]:
    parent = keys.sink(plan.query, plan.batch)
    return [Key(f"{parent.path}/{plan.plan_id}/{offset_name(page)}", parent.route) for page in range(plan.pages)]


# -- slices and their claims -------------------------------------------------------------------------------------------


def plan_slices(query: str, batch: int, uploads: Iterable[UploadedSlice]) -> tuple[PlanSlice, ...]:
    """The uploads as slices of a plan, numbered per log in the order of upload."""
    counts: dict[Log, int] = {}
    slices = []
    for upload in uploads:
        if upload.incarnation == UNKNOWN_INCARNATION:
            raise InvalidArgument("uploads", f"{upload.log}: unknown when the id of {upload.data_key} was drawn")
        n = counts.get(upload.log, 0)
        counts[upload.log] = n + 1
        slices.append(
            PlanSlice(
                topic=upload.topic,
                partition=upload.partition,
                incarnation=upload.incarnation,
                n=n,
                append_id=append_id(query, batch, upload.log, n, upload.data_key),
                data_key=upload.data_key,
                encoding=upload.encoding,
                byte_offset=upload.byte_offset,
                byte_length=upload.byte_length,
                msg_count=upload.msg_count,
                max_timestamp_ms=upload.max_timestamp_ms,
            )
        )
    return tuple(slices)


def append_id(query: str, batch: int, log: Log, n: int, data_key: str) -> str:
    """The same for every driver that performs the plan, and different for other bytes."""
    text = "\0".join((query, str(batch), str(log), str(n), data_key))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def epochs_needed(slices: Iterable[PlanSlice]) -> int:
    return max((part.n // WINDOW + 1 for part in slices), default=1)


def paged(slices: Sequence[PlanSlice], bytes_max: int = SINK_PLAN_PAGE_BYTES) -> list[tuple[PlanSlice, ...]]:
    """The slices in pages that fit into one metadata value each. A single page goes into the plan itself."""
    pages: list[list[PlanSlice]] = [[]]
    filled = 0
    for part in slices:
        length = len(msgspec.json.encode(part)) + 1
        if pages[-1] and filled + length > bytes_max:
            pages.append([])
            filled = 0
        pages[-1].append(part)
        filled += length
    if len(pages) > SINK_PLAN_PAGES_MAX:
        raise ValueTooLarge("commit plan", len(pages) * bytes_max, SINK_PLAN_PAGES_MAX * bytes_max)
    return [tuple(page) for page in pages]


class ClaimedSlice(NamedTuple):
    """A slice and the producer claim under which its log accepts it."""

    slice: PlanSlice
    claim: ProducerClaim

    def to_append(self) -> AppendSlice:
        it = self.slice
        piece = PlacedPiece(0, it.byte_offset, it.byte_length, it.msg_count, self.claim, it.max_timestamp_ms)
        return AppendSlice(it.append_id, it.incarnation, it.data_key, it.created_at_ms, it.encoding, (piece,))


def claimed_slices(plan: CommitPlan, slices: Iterable[PlanSlice]) -> dict[Log, list[ClaimedSlice]]:
    """The slices of each log in order. Sequences start at 0 in each epoch and continue from slice to slice."""
    by_log: dict[Log, list[ClaimedSlice]] = {}
    for part in slices:
        others = by_log.setdefault(part.log, [])
        if part.n != len(others):
            raise InvalidArgument("commit plan", f"{part.log}: slice {part.n} where {len(others)} should be")
        first = 0 if part.n % WINDOW == 0 else (others[-1].claim.last_sequence + 1) % SEQUENCE_MODULUS
        last = (first + part.msg_count - 1) % SEQUENCE_MODULUS
        claim = ProducerClaim(plan.producer_id, plan.first_epoch + part.n // WINDOW, first, last)
        others.append(ClaimedSlice(part, claim))
    return by_log


# -- records -----------------------------------------------------------------------------------------------------------


class StoredPlan(NamedTuple):
    plan: CommitPlan
    version: int

    @property
    def batch(self) -> SinkBatch:
        return SinkBatch(self.plan.query, self.plan.batch)


async def find_plan(context: LogContext, batch: SinkBatch, *, strict: bool = False) -> StoredPlan | None:
    """The stored plan. Without `strict`, None may be a stale answer: creating the plan decides."""
    key = plan_key(context.keys, batch.query, batch.number)

    async def read(again: bool) -> tuple[Record | None]:
        return (await context.metadata.get(key, strict=strict or again),)

    [record] = await persist(context, batch, read)
    return None if record is None else StoredPlan(decode_plan(record.value, key.path), record.version)


async def put_plan(
    context: LogContext, plan: CommitPlan, slices: Sequence[PlanSlice], replacing: StoredPlan | None = None
) -> StoredPlan:
    """Create the plan, or put it in place of `replacing`. Returns another driver's plan if that was put first."""
    batch = SinkBatch(plan.query, plan.batch)
    key, plan = plan_key(context.keys, batch.query, batch.number), await _put_pages(context, plan, slices)
    version = ABSENT if replacing is None else replacing.version

    async def create(strict: bool) -> StoredPlan | None:
        if strict:  # the outcome of an earlier attempt is unknown: the stored plan decides
            current = await find_plan(context, batch, strict=True)
            if current is not None and current.version != version:
                return current
            if current is None and replacing is not None:
                await check_current(context, batch)  # removed because the query advanced
        return StoredPlan(plan, await context.metadata.put(key, encode_value(plan, key.path), expected=version))

    stored = await persist(context, batch, create)
    if stored.plan.plan_id != plan.plan_id:
        await remove_pages(context, plan)
    elif replacing is not None:
        await remove_pages(context, replacing.plan)
    return stored


async def _put_pages(context: LogContext, plan: CommitPlan, slices: Sequence[PlanSlice]) -> CommitPlan:
    """The plan with its slices inside, or on pages that are stored now. No other driver writes under this plan's id, so
    a repeated put is harmless."""
    pages = paged(slices)
    if len(pages) == 1:
        return replace(plan, slices=pages[0], pages=0)
    plan = replace(plan, slices=(), pages=len(pages))
    for key, page in zip(page_keys(context.keys, plan), pages, strict=True):
        value = encode_value(PlanPage(slices=page), key.path)

        async def put(_: bool, key: Key = key, value: bytes = value) -> int | None:
            return await context.metadata.put(key, value)

        await persist(context, SinkBatch(plan.query, plan.batch), put)
    return plan


async def slices_of(context: LogContext, plan: CommitPlan) -> Sequence[PlanSlice] | None:
    """The plan's slices. None: pages are missing, so the stored plan has changed since `plan` was read."""
    if not plan.pages:
        return plan.slices
    keys = page_keys(context.keys, plan)

    async def read(_: bool) -> list[Record | None]:
        return await context.metadata.get_many(keys, strict=True)

    slices: list[PlanSlice] = []
    for record in await persist(context, SinkBatch(plan.query, plan.batch), read):
        if record is None:
            return None
        slices += decode_page(record.value, record.key.path).slices
    return slices


async def mark_done(context: LogContext, stored: StoredPlan) -> None:
    """Mark the plan as done, then remove its pages."""
    plan, version = stored.plan, stored.version
    key = plan_key(context.keys, plan.query, plan.batch)
    done = encode_value(replace(plan, slices=(), pages=0, done=True), key.path)

    async def mark(strict: bool) -> bool:
        nonlocal version
        if strict:
            record = await context.metadata.get(key, strict=True)
            if record is None or decode_plan(record.value, key.path).done:
                return True
            version = record.version
        await context.metadata.put(key, done, expected=version)
        return True

    await persist(context, stored.batch, mark)
    await remove_pages(context, plan)


async def remove_older_plans(context: LogContext, batch: SinkBatch, before: int) -> None:
    """Remove the plans of batches older than `before`, which no replay asks for. What cannot be removed now, or stays
    after a crash, is removed with a later batch."""
    try:
        for record in await context.metadata.scan(context.keys.sinks(batch.query)):
            parsed = context.keys.parse(record.key.path)
            if parsed is None or parsed.kind != "sink" or parsed.offset >= before:
                continue
            await remove_pages(context, decode_plan(record.value, record.key.path))
            await context.metadata.delete(record.key, expected=record.version)
    except MetadataStoreError as error:
        if not (error.retriable or isinstance(error, VersionConflict)):
            raise


async def remove_pages(context: LogContext, plan: CommitPlan) -> None:
    """Remove pages that no stored plan names. Pages that stay because the store did not answer take little space."""
    if not plan.pages:
        return
    try:
        for record in await context.metadata.get_many(page_keys(context.keys, plan), strict=True):
            if record is not None:
                await context.metadata.delete(record.key, expected=record.version)
    except MetadataStoreError as error:
        if not (error.retriable or isinstance(error, VersionConflict)):
            raise
