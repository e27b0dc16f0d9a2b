"""The commit plan of a batch, and the record of its query: values, keys, and what follows. Nothing here waits.

    @cluster/sinks/{query}                       that there is such a query: what vacuum finds its plans by
    @cluster/sinks/{query}/head                  which batch the query is at, and its producer
    @cluster/sinks/{query}/{batch}               the commit plan: created once, confirmed, then marked as done
    @cluster/sinks/{query}/{batch}/{plan}/{n}    its slices, where they are too many for one value

Why it exists: a plan says everything that finishing it takes, so whoever finds it can. Each slice speaks as a batch of
an idempotent producer, so that `reserve` recognises what is in the log already (PROTOCOL section 11): the slices of one
log are numbered, as many of them share an epoch as a log remembers (`WINDOW`), and later ones have later epochs.

What must stay true: no two plans of a query share an epoch of a producer; epochs rise with the slices of a log, and
with the batches; the same plan always gives the same claims.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.buffers import json_decoder, json_value
from llog.formats.records.crc import Buffer
from llog.formats.values import Count, SinkPlan, SinkSlice, Value
from llog.limits import KIB
from llog.log.append.pieces import AppendSlice, PlacedPiece
from llog.log.ids import created_at_ms_of
from llog.log.keys import CLUSTER_ROUTE, Keys, Log, last_segment_id, offset_name
from llog.log.producers.idempotence import SEQUENCE_MODULUS, WINDOW, ProducerClaim
from llog.stores.metadata.port import Key

# Slices of a commit plan in one metadata value, and how many such values one plan may have.
SINK_PLAN_PAGE_BYTES: Final = 512 * KIB
SINK_PLAN_PAGES_MAX: Final = 1_000


UNKNOWN_LIFE: Final = -1
NO_BATCH: Final = -1


class UploadedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """What a task uploaded for one log. Nothing of it is visible until a plan names it and is performed."""

    topic: str
    partition: Count
    incarnation: int
    """Of the log, as the driver knew it before the blob's id was drawn; `UNKNOWN_LIFE` where it knew none."""
    data_key: str
    encoding: str
    byte_offset: Count
    byte_length: Count
    msg_count: Count
    max_timestamp_ms: int = -1
    largest_record_bytes: Count = 0
    """As a batch of its own; told only where the task did not know its topic's `max.message.bytes`."""

    @property
    def log(self) -> Log:
        return Log(self.topic, self.partition)

    @property
    def created_at_ms(self) -> int:
        """From the blob's id, not from a clock: what a log's horizon is compared with."""
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
    """`slices` are all of them, or none where they stand on `pages` of their own."""

    plan_id: str
    producer_id: Count
    first_epoch: Count
    slices: tuple[PlanSlice, ...]
    pages: Count = 0
    records: Count = 0
    checkpoint: str = ""
    """As in the head."""
    confirmed: bool = False
    """Its blobs were there when the plan was, so that vacuum keeps them: it may be performed (`sink_confirm`). Of a
    plan that is not confirmed, nothing is in any log."""
    done: bool = False
    """Every slice is in its log. Then the slices are dropped: nobody needs them any more."""

    @property
    def origin(self) -> str:
        """The id that its maker gave it; one whose slices were moved has another behind it."""
        return self.plan_id.partition("-")[0]


class PlanPage(Value, frozen=True, kw_only=True):
    slices: tuple[PlanSlice, ...]


class SinkHead(Value, frozen=True, kw_only=True):
    """Moved by compare-and-set when a batch is admitted: a query's batches come one after the other."""

    query: str
    batch: Count
    """The latest that was admitted. Only plans of this one are acted on."""
    before: int = NO_BATCH
    """The one admitted before it, whose plan must be done before anything of this one is appended."""
    producer_id: Count
    next_epoch: Count
    checkpoint: str = ""
    """Whose batches these are; empty: nobody told."""
    listed: bool = False
    """The query's own record is there."""


class SinkQuery(Value, frozen=True, kw_only=True):
    """That there is such a query. Written before its head, and removed after everything else of it."""

    query: str
    created_at_ms: Count


_HEADS: Final = json_decoder(SinkHead)
_PLANS: Final = json_decoder(CommitPlan)
_PAGES: Final = json_decoder(PlanPage)


def decode_head(data: Buffer, source: str) -> SinkHead:
    return json_value(_HEADS, data, source, "SinkHead")


def decode_plan(data: Buffer, source: str) -> CommitPlan:
    return json_value(_PLANS, data, source, "CommitPlan")


def decode_page(data: Buffer, source: str) -> PlanPage:
    return json_value(_PAGES, data, source, "PlanPage")


# -- keys: below those of `llog.log.keys`, with their route -----------------------------------------------------------


def queries_key(keys: Keys) -> Key:
    """The parent of all queries' own records, which one shard holds: so all of them are found by a strict scan."""
    return Key(f"{keys.root}/@cluster/sinks", CLUSTER_ROUTE)


def query_key(keys: Keys, query: str) -> Key:
    return Key(keys.sinks(query).path, CLUSTER_ROUTE)


def head_key(keys: Keys, query: str) -> Key:
    parent = keys.sinks(query)
    return Key(f"{parent.path}/head", parent.route)


def plan_key(keys: Keys, query: str, batch: int) -> Key:
    return keys.sink(query, batch)


def page_keys(keys: Keys, plan: CommitPlan) -> list[Key]:
    parent = keys.sink(plan.query, plan.batch)
    return [Key(f"{parent.path}/{plan.plan_id}/{offset_name(page)}", parent.route) for page in range(plan.pages)]


# -- making a plan ----------------------------------------------------------------------------------------------------


def plan_slices(query: str, batch: int, uploads: Iterable[UploadedSlice]) -> tuple[PlanSlice, ...]:
    """The slices of each log in the order in which they were uploaded, numbered per log."""
    counts: dict[Log, int] = {}
    slices = []
    for upload in uploads:
        if upload.incarnation == UNKNOWN_LIFE:
            raise InvalidArgument("uploads", f"{upload.log}: the log was not known when {upload.data_key} was drawn")
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
    """The same for whoever performs the plan, and never the same for other bytes."""
    text = "\0".join((query, str(batch), str(log), str(n), data_key))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def epochs_needed(slices: Iterable[PlanSlice]) -> int:
    return max((part.n // WINDOW + 1 for part in slices), default=1)


def paged(slices: Sequence[PlanSlice], bytes_max: int = SINK_PLAN_PAGE_BYTES) -> list[tuple[PlanSlice, ...]]:
    """Cut to what one metadata value may hold; one page: they go into the plan itself."""
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


# -- performing it ----------------------------------------------------------------------------------------------------


class Claimed(NamedTuple):
    """A slice and what it says of itself to its log."""

    slice: PlanSlice
    claim: ProducerClaim

    def part(self) -> AppendSlice:
        it = self.slice
        piece = PlacedPiece(0, it.byte_offset, it.byte_length, it.msg_count, self.claim, it.max_timestamp_ms)
        return AppendSlice(it.append_id, it.incarnation, it.data_key, it.created_at_ms, it.encoding, (piece,))


def claimed_slices(plan: CommitPlan, slices: Iterable[PlanSlice]) -> dict[Log, list[Claimed]]:
    """Each log's slices in order. An epoch begins at sequence 0; the slices in it go on from one another."""
    by_log: dict[Log, list[Claimed]] = {}
    for part in slices:
        others = by_log.setdefault(part.log, [])
        if part.n != len(others):
            raise InvalidArgument("commit plan", f"{part.log}: slice {part.n} where {len(others)} should be")
        first = 0 if part.n % WINDOW == 0 else (others[-1].claim.last_sequence + 1) % SEQUENCE_MODULUS
        last = (first + part.msg_count - 1) % SEQUENCE_MODULUS
        claim = ProducerClaim(plan.producer_id, plan.first_epoch + part.n // WINDOW, first, last)
        others.append(Claimed(part, claim))
    return by_log
