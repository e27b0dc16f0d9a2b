"""Append: upload one blob for many logs, then commit each log. The order that safety hangs on is here.

    0. know every log's control record (initialize what is missing), and only then draw the blob's id  (h04)
    1. put the blob; it is complete and durable before anything names it                               (R1)
    2. commit: one compare-and-set per log moves the counter; this is the commit point
    3. compare-and-set stores: write the index entries, off the path of the acknowledgement            (settle)

Why the order is safe: a crash before 2 leaves an orphan that vacuum removes; the id drawn after 0 makes its instant
newer than any horizon that was raised for a log that did not exist yet; a crash between 2 and 3 leaves `pending`,
which anyone settles. On an atomic store 2 and 3 are one transaction for all logs of the flush.

A refused log is a result of its own and never harms the others, and so is a refused piece of a group (`pieces`).
Commits of one log come one after the other, in the order in which their uploads end: who needs the order of calls
waits with the next (`llog.broker.produce.order`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from llog.errors import AppendNotCommitted, InvalidArgument, LogError, StoreError
from llog.formats.buffers import Buffer, total_length
from llog.formats.shared_blob import BlobGroup, build_shared_blob
from llog.log.append.attempt import PieceOutcomes
from llog.log.append.commit import Committer
from llog.log.append.pieces import AppendSlice, Landed, Piece, PieceOutcome, bytes_of, checked_pieces, place
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.log.metrics import AppendCounters
from llog.log.producers.idempotence import ProducerClaim

# Uploads of one record group: again when the first blob turned out too old, or of another life of the topic.
LOG_UPLOADS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """The records of one log, encoded and ready to upload. Without `pieces` it is one piece; its claim, if it has one,
    stands in `producers`."""

    log: Log
    msg_count: int
    encoding: str
    body: Sequence[Buffer]
    max_timestamp_ms: int = -1
    producers: tuple[ProducerClaim, ...] = ()
    pieces: tuple[Piece, ...] = ()

    def __post_init__(self) -> None:
        if self.producers and (self.pieces or len(self.producers) > 1):
            raise InvalidArgument("producers", "the claims of a group of several pieces belong to its pieces")
        if not self.pieces:
            claim = self.producers[0] if self.producers else None
            object.__setattr__(self, "pieces", (Piece(self.msg_count, total_length(self.body), claim),))
        checked_pieces(self.msg_count, self.encoding, self.body, self.pieces)

    def only(self, numbers: Sequence[int]) -> EncodedGroup:
        """A group of some of the pieces; their bytes are not copied."""
        if len(numbers) == len(self.pieces):
            return self
        placed = place(self.pieces, byte_offset=0, max_timestamp_ms=-1)
        pieces = tuple(self.pieces[number] for number in numbers)
        ranges = [bytes_of(self.body, placed[n].byte_offset, placed[n].byte_length) for n in numbers]
        body = [buffer for buffers in ranges for buffer in buffers]
        count = sum(piece.msg_count for piece in pieces)
        return EncodedGroup(self.log, count, self.encoding, body, self.max_timestamp_ms, pieces=pieces)


class Appended(NamedTuple):
    """Where a group landed, or the part of it that is in the log.

    `pieces` has an outcome for each piece, in order. When all of them are new (a group of one piece always is, or is a
    repeat) and nobody else appended in between, the group has exactly the offsets from `start_offset` to `end_offset`.
    Otherwise these are the first offset of the first piece that is in the log, and the last of the last: what lies
    between may be others', and repeats may lie anywhere, so only `pieces` tells.
    """

    log: Log
    start_offset: int
    end_offset: int
    index_key: str
    """Of the entry that holds the last new piece; when all are repeats, where the last one was stored."""
    wal_uri: str
    """The object that holds the last new piece: the one uploaded last."""
    pieces: tuple[PieceOutcome, ...] = ()


AppendOutcome = Appended | LogError
"""An error: no piece is in the log. Of several pieces it is the first one's, and `outcomes` has each one's."""

OnOutcome = Callable[[EncodedGroup, AppendOutcome], None]


def piece_outcomes(group: EncodedGroup, outcome: AppendOutcome) -> tuple[PieceOutcome, ...]:
    """One per piece of the group, whatever became of it."""
    if isinstance(outcome, Appended):
        return outcome.pieces
    refused = [error for error in outcome.outcomes if isinstance(error, LogError)]
    return tuple(refused) if len(refused) == len(group.pieces) else (outcome,) * len(group.pieces)


class _Delivery:
    """A group on its way: what became of each piece so far."""

    def __init__(self, group: EncodedGroup) -> None:
        self.group, self.wal_uri = group, ""
        self._outcomes: PieceOutcomes = [None] * len(group.pieces)

    @property
    def log(self) -> Log:
        return self.group.log

    def open_numbers(self) -> list[int]:
        return [number for number, outcome in enumerate(self._outcomes) if outcome is None]

    def left(self) -> EncodedGroup:
        """What has no outcome yet."""
        return self.group.only(self.open_numbers())

    def take(self, outcomes: PieceOutcomes) -> None:
        """Of the pieces that were left."""
        for number, outcome in zip(self.open_numbers(), outcomes, strict=True):
            self._outcomes[number] = outcome

    def fail(self, error: LogError) -> None:
        self.take([error] * len(self.open_numbers()))

    def outcome(self, keys: Keys) -> AppendOutcome | None:
        """None: pieces are left."""
        pieces = tuple(outcome for outcome in self._outcomes if outcome is not None)
        if len(pieces) < len(self._outcomes):
            return None
        landed = [piece for piece in pieces if isinstance(piece, Landed)]
        if not landed:
            [error, *others] = [piece for piece in pieces if isinstance(piece, LogError)]
            error.outcomes = [error, *others] if others else []
            return error
        last = next((piece for piece in reversed(landed) if not piece.repeated), landed[-1])
        key = keys.index_entry(self.log, last.end_offset).path
        return Appended(self.log, landed[0].start_offset, landed[-1].end_offset, key, self.wal_uri, pieces)


class Appender:
    """The append path of one process. One per metadata store; used on one event loop."""

    def __init__(self, context: LogContext, *, first_offset: int = 1) -> None:
        if context.wal is None:
            raise InvalidArgument("context", "has no store to put blobs into")
        self.context, self._wal = context, context.wal
        self.committer = Committer(context, first_offset=first_offset)

    @property
    def counters(self) -> AppendCounters:
        return self.committer.counters

    async def append(self, groups: Sequence[EncodedGroup], on_outcome: OnOutcome | None = None) -> list[AppendOutcome]:
        """One outcome per group, in order. At most one group per log.

        `on_outcome` is told of each group as soon as it is decided, for those who need not wait for all of them. Raises
        a store's error only when nothing was committed.
        """
        if len({group.log for group in groups}) != len(groups):
            raise InvalidArgument("groups", "one log occurs twice in one append")
        deliveries = {group.log: _Delivery(group) for group in groups}
        outcomes: dict[Log, AppendOutcome] = {}

        def tell(delivery: _Delivery) -> None:
            outcome = delivery.outcome(self.context.keys)
            if outcome is not None:
                outcomes[delivery.log] = outcome
                if on_outcome is not None:
                    on_outcome(delivery.group, outcome)

        def left() -> list[_Delivery]:
            return [delivery for log, delivery in deliveries.items() if log not in outcomes]

        for upload in range(LOG_UPLOADS_MAX):
            try:
                await self._append_once(left(), tell)
            except StoreError as error:
                if upload == 0:
                    raise
                for delivery in left():
                    delivery.fail(AppendNotCommitted(*delivery.log, f"its second upload failed: {error}"))
                    tell(delivery)
            if not left():
                break
        for delivery in left():
            reason = f"{LOG_UPLOADS_MAX} blobs in turn were too old when they were to be committed"
            delivery.fail(AppendNotCommitted(*delivery.log, reason))
            tell(delivery)
        return [outcomes[group.log] for group in groups]

    async def _append_once(self, deliveries: Sequence[_Delivery], tell: Callable[[_Delivery], None]) -> None:
        """One blob's worth; what then has no outcome needs another blob."""
        incarnations = await self._know(deliveries, tell)
        by_log = {delivery.log: delivery for delivery in deliveries if delivery.log in incarnations}

        def done(log: Log, outcomes: PieceOutcomes) -> None:
            by_log[log].take(outcomes)
            tell(by_log[log])

        try:
            if by_log:
                parts = await self._upload([delivery.left() for delivery in by_log.values()], incarnations)
                for log, part in parts.items():
                    by_log[log].wal_uri = part.data_key
                await self.committer.commit(parts, done)
        finally:
            self.committer.known.release(incarnations)

    async def _know(self, deliveries: Sequence[_Delivery], tell: Callable[[_Delivery], None]) -> dict[Log, int]:
        """The incarnation of every log that can be appended to; the others get their error. Raises when the store
        answered for none of them."""
        know = self.committer.known.know
        found = await asyncio.gather(*(know(delivery.log) for delivery in deliveries), return_exceptions=True)
        incarnations: dict[Log, int] = {}
        unanswered: list[tuple[_Delivery, StoreError]] = []
        trouble: BaseException | None = None
        for delivery, answer in zip(deliveries, found, strict=True):
            if isinstance(answer, LogError):
                delivery.fail(answer)
                tell(delivery)
            elif isinstance(answer, StoreError):
                unanswered.append((delivery, answer))
            elif isinstance(answer, BaseException):
                trouble = answer
            else:
                incarnations[delivery.log] = answer
        if trouble is None and len(unanswered) == len(deliveries):
            trouble = unanswered[0][1]
        if trouble is not None:
            self.committer.known.release(incarnations)
            raise trouble
        for delivery, error in unanswered:
            delivery.fail(AppendNotCommitted(*delivery.log, f"its control record could not be read: {error}"))
            tell(delivery)
        return incarnations

    async def _upload(self, groups: Sequence[EncodedGroup], incarnations: dict[Log, int]) -> dict[Log, AppendSlice]:
        context = self.context
        now_ms = context.now_ms()
        name = context.keys.blob_object(new_object_id(now_ms, context.random_bits))
        blob = build_shared_blob(
            [BlobGroup(g.log.topic, g.log.partition, g.msg_count, g.encoding, g.body) for g in groups],
            created_at_ms=now_ms,
            writer_id=context.options.writer_id,
        )
        await self._wal.put(name, blob.buffers)
        uri = self._wal.uri(name)
        return {
            group.log: AppendSlice(
                append_id=f"{context.random_bits(128):032x}",
                incarnation=incarnations[group.log],
                data_key=uri,
                blob_created_at_ms=now_ms,
                encoding=group.encoding,
                pieces=place(group.pieces, byte_offset=part.byte_offset, max_timestamp_ms=group.max_timestamp_ms),
            )
            for group, part in zip(groups, blob.slices, strict=True)
        }

    async def close(self) -> None:
        """Finish what is being settled, and leave no `pending` behind that is known to be settled."""
        await self.committer.close()
