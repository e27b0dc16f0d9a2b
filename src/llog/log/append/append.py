"""Append: upload one blob for many logs, then commit each log. The order that safety depends on is here.

    0. know every log's control record (initialize it if missing), and only then draw the blob's id  (h04)
    1. put the blob; it is complete and durable before any metadata names it                         (R1)
    2. commit: one compare-and-set per log advances the counter; this is the commit point
    3. compare-and-set stores: write the index entries, off the path of the acknowledgement          (`settle`)

The order is safe: a crash before 2 leaves an orphan that vacuum removes; an id drawn after 0 is newer than any horizon
raised before the log existed; a crash between 2 and 3 leaves `pending`, which any process settles. On an atomic store
2 and 3 are one transaction per log.

A refused log never harms the others, and neither does a refused piece of a group (`pieces`). Commits of one log follow
each other in the order in which their uploads end. A caller that needs the order of its calls waits in `before_commit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from llog.errors import AppendNotCommitted, InvalidArgument, LogDeleted, LogError, StoreError
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.records.produced import stamp
from llog.formats.shared_blob import BlobGroup, build_shared_blob
from llog.log.append.commit import Committer
from llog.log.append.known import Growth, PieceOutcomes
from llog.log.append.pieces import AppendSlice, Landed, Piece, PieceOutcome, bytes_of, check_pieces, place
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.log.metrics import AppendCounters
from llog.log.producers import ProducerClaim
from llog.log.topics.create import CREATED_AGAIN, Expected

# Uploads of one record group: again when its blob was too old to be committed, or of a deleted incarnation.
LOG_UPLOADS_MAX: Final = 3


class EncodedGroup(msgspec.Struct, frozen=True):
    """The records of one log, encoded and ready to upload. Without `pieces` it is one piece, with the claim in
    `producers` if there is one."""

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
            msgspec.structs.force_setattr(self, "pieces", (Piece(self.msg_count, total_length(self.body), claim),))
        check_pieces(self.msg_count, self.encoding, self.body, self.pieces)

    @property
    def byte_length(self) -> int:
        """Of the body, which the pieces tile."""
        pieces = self.pieces
        return pieces[0].byte_length if len(pieces) == 1 else sum(piece.byte_length for piece in pieces)

    def only(self, numbers: Sequence[int]) -> EncodedGroup:
        """A group of some of the pieces, without copying bytes."""
        if len(numbers) == len(self.pieces):
            return self
        placed = place(self.pieces, byte_offset=0, max_timestamp_ms=-1)
        pieces = tuple(self.pieces[number] for number in numbers)
        ranges = [bytes_of(self.body, placed[n].byte_offset, placed[n].byte_length) for n in numbers]
        body = [buffer for buffers in ranges for buffer in buffers]
        count = sum(piece.msg_count for piece in pieces)
        return EncodedGroup(self.log, count, self.encoding, body, self.max_timestamp_ms, pieces=pieces)

    def at_append_time(self, now_ms: int) -> EncodedGroup:
        """The group with the time of the write as timestamp of all its records (`message.timestamp.type`). Changes the
        bytes in place: each buffer is one batch. Bare payloads have no other timestamp."""
        if self.encoding == BYTES_BATCH:
            return self
        for buffer in self.body:
            stamp(buffer, now_ms, log_append_time=True)
        pieces = tuple(piece._replace(max_timestamp_ms=now_ms) for piece in self.pieces)
        return EncodedGroup(self.log, self.msg_count, self.encoding, self.body, now_ms, pieces=pieces)


class Appended(NamedTuple):
    """Where a record group is in its log, or the pieces of it that are.

    `pieces` has an outcome for each piece, in order. If all pieces are new and no other writer appended in between, the
    group has exactly the offsets from `start_offset` to `end_offset`. Otherwise these are the first offset of the first
    piece and the last offset of the last piece in the log, with records of others possibly between them.
    """

    log: Log
    start_offset: int
    end_offset: int
    index_key: str
    """Key of the entry that holds the last new piece; if all are repeats, the last repeat."""
    wal_uri: str
    """The object that holds the last new piece: the last upload."""
    pieces: tuple[PieceOutcome, ...] = ()


AppendOutcome = Appended | LogError
"""An error: no piece is in the log. Of several pieces it is the first piece's error, and `outcomes` has each one's."""

OnOutcome = Callable[[EncodedGroup, AppendOutcome], None]
BeforeCommit = Callable[[], Awaitable[None]]


def piece_outcomes(group: EncodedGroup, outcome: AppendOutcome) -> tuple[PieceOutcome, ...]:
    """One outcome per piece of the group."""
    if isinstance(outcome, Appended):
        return outcome.pieces
    refused = [error for error in outcome.outcomes if isinstance(error, LogError)]
    return tuple(refused) if len(refused) == len(group.pieces) else (outcome,) * len(group.pieces)


class _Delivery:
    """A record group during an append, with the outcomes of its pieces so far."""

    def __init__(self, group: EncodedGroup) -> None:
        self.group, self.wal_uri = group, ""
        self._outcomes: PieceOutcomes = [None] * len(group.pieces)

    @property
    def log(self) -> Log:
        return self.group.log

    def _open_numbers(self) -> list[int]:
        return [number for number, outcome in enumerate(self._outcomes) if outcome is None]

    def remaining(self) -> EncodedGroup:
        """The pieces without an outcome."""
        return self.group.only(self._open_numbers())

    def expected(self) -> Expected | None:
        """The latest incarnation that a remaining piece means; None: no piece means a certain one."""
        pieces = self.group.pieces
        if len(pieces) == 1:  # the usual case
            only = pieces[0].incarnation
            return None if only is None else Expected(only)
        meant = {pieces[number].incarnation for number in self._open_numbers()}
        known = [incarnation for incarnation in meant if incarnation is not None]
        return Expected(max(known), only=None not in meant) if known else None

    def refuse_others(self, incarnation: int) -> bool:
        """Refuse the remaining pieces that mean another incarnation than the log has; whether any piece remains."""
        others = [n for n in self._open_numbers() if self.group.pieces[n].incarnation not in (None, incarnation)]
        for number in others:
            self._outcomes[number] = LogDeleted(*self.log, CREATED_AGAIN)
        return None in self._outcomes

    def set_outcomes(self, outcomes: PieceOutcomes) -> None:
        """Of the remaining pieces, in order."""
        for number, outcome in zip(self._open_numbers(), outcomes, strict=True):
            self._outcomes[number] = outcome

    def fail(self, error: LogError) -> None:
        self.set_outcomes([error] * len(self._open_numbers()))

    def outcome(self, keys: Keys) -> AppendOutcome | None:
        """None while pieces remain."""
        only = self._outcomes[0]
        if len(self._outcomes) == 1 and isinstance(only, Landed):  # the usual case
            key = keys.index_entry(self.log, only.end_offset).path
            return Appended(self.log, only.start_offset, only.end_offset, key, self.wal_uri, (only,))
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


class _Append:
    """One call of `Appender.append`: its deliveries, its outcomes so far, and the caller's hooks."""

    def __init__(
        self,
        keys: Keys,
        groups: Sequence[EncodedGroup],
        on_outcome: OnOutcome | None,
        before_commit: BeforeCommit | None,
        logs_per_commit: int | None,
    ) -> None:
        self._keys, self._on_outcome = keys, on_outcome
        self.before_commit, self.logs_per_commit = before_commit, logs_per_commit
        self._deliveries = {group.log: _Delivery(group) for group in groups}
        self.outcomes: dict[Log, AppendOutcome] = {}

    def remaining(self) -> list[_Delivery]:
        return [delivery for log, delivery in self._deliveries.items() if log not in self.outcomes]

    def report(self, delivery: _Delivery) -> None:
        """Note the outcome of a delivery that has one for every piece."""
        outcome = delivery.outcome(self._keys)
        if outcome is not None:
            self.outcomes[delivery.log] = outcome
            if self._on_outcome is not None:
                self._on_outcome(delivery.group, outcome)

    def fail(self, delivery: _Delivery, error: LogError) -> None:
        delivery.fail(error)
        self.report(delivery)


class Appender:
    """The append path of one process. One per metadata store; used on one event loop."""

    def __init__(self, context: LogContext, *, first_offset: int = 1, growth: Growth = Growth.FIRST_WRITE) -> None:
        if context.wal is None:
            raise InvalidArgument("context", "has no store for blobs")
        self.context, self._wal = context, context.wal
        self.committer = Committer(context, first_offset=first_offset, growth=growth)

    @property
    def counters(self) -> AppendCounters:
        return self.committer.counters

    async def append(
        self,
        groups: Sequence[EncodedGroup],
        on_outcome: OnOutcome | None = None,
        *,
        before_commit: BeforeCommit | None = None,
        logs_per_commit: int | None = None,
    ) -> list[AppendOutcome]:
        """One outcome per group, in order. At most one group per log.

        Calls `on_outcome` for each group as soon as it is decided. Awaits `before_commit` after each upload, when the
        blob is durable and before any metadata names it. `logs_per_commit` bounds the logs that one step commits (see
        `Committer.commit`). Raises a store's error only when nothing was committed.
        """
        if len({group.log for group in groups}) != len(groups):
            raise InvalidArgument("groups", "one log occurs twice in one append")
        call = _Append(self.context.keys, groups, on_outcome, before_commit, logs_per_commit)
        for upload in range(LOG_UPLOADS_MAX):
            try:
                await self._append_once(call, call.remaining())
            except StoreError as error:
                if upload == 0:
                    raise
                for delivery in call.remaining():
                    call.fail(delivery, AppendNotCommitted(*delivery.log, f"its second upload failed: {error}"))
            if not call.remaining():
                break
        for delivery in call.remaining():
            reason = f"{LOG_UPLOADS_MAX} blobs in a row were too old, or of a deleted topic; append again"
            call.fail(delivery, AppendNotCommitted(*delivery.log, reason))
        return [call.outcomes[group.log] for group in groups]

    async def _append_once(self, call: _Append, deliveries: Sequence[_Delivery]) -> None:
        """One blob; groups that still have no outcome then need another blob."""
        incarnations = await self._know(call, deliveries)
        by_log = {delivery.log: delivery for delivery in deliveries if delivery.log in incarnations}

        def on_done(log: Log, outcomes: PieceOutcomes) -> None:
            by_log[log].set_outcomes(outcomes)
            call.report(by_log[log])

        try:
            if by_log:
                slices = await self._upload([delivery.remaining() for delivery in by_log.values()], incarnations)
                for log, slice_ in slices.items():
                    by_log[log].wal_uri = slice_.data_key
                if call.before_commit is not None:
                    await call.before_commit()
                await self.committer.commit(slices, on_done, logs_per_call=call.logs_per_commit)
        finally:
            self.committer.known.release(incarnations)

    async def _know(self, call: _Append, deliveries: Sequence[_Delivery]) -> dict[Log, int]:
        """The incarnation of every log that takes appends; the others get their error. Raises when the store answered
        for none of them."""
        known = self.committer.known
        pinned = [known.pin(delivery.log, delivery.expected()) for delivery in deliveries]
        unknown = [delivery for delivery, answer in zip(deliveries, pinned, strict=True) if answer is None]
        looked_up = iter(await self._look_up(unknown) if unknown else ())
        answers = [next(looked_up) if answer is None else answer for answer in pinned]
        incarnations: dict[Log, int] = {}
        unanswered: list[tuple[_Delivery, StoreError]] = []
        failure: BaseException | None = None
        for delivery, answer in zip(deliveries, answers, strict=True):
            if isinstance(answer, LogError):
                call.fail(delivery, answer)
            elif isinstance(answer, StoreError):
                unanswered.append((delivery, answer))
            elif isinstance(answer, BaseException):
                failure = answer
            elif delivery.refuse_others(answer):
                incarnations[delivery.log] = answer
            else:
                self.committer.known.release([delivery.log])
                call.report(delivery)
        if failure is None and len(unanswered) == len(deliveries):
            failure = unanswered[0][1]
        if failure is not None:
            self.committer.known.release(incarnations)
            raise failure
        for delivery, error in unanswered:
            call.fail(delivery, AppendNotCommitted(*delivery.log, f"its control record could not be read: {error}"))
        return incarnations

    async def _look_up(self, deliveries: Sequence[_Delivery]) -> list[int | BaseException]:
        known = self.committer.known
        counts = known.partition_counts(delivery.log for delivery in deliveries)
        return await asyncio.gather(
            *(known.know(one.log, counts.get(one.log.topic, 0), one.expected()) for one in deliveries),
            return_exceptions=True,
        )

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
        # An append is compared with others of its log only, so the logs of one upload share an id.
        append_id = f"{context.random_bits(128):032x}"
        return {
            group.log: AppendSlice(
                append_id=append_id,
                incarnation=incarnations[group.log],
                data_key=uri,
                blob_created_at_ms=now_ms,
                encoding=group.encoding,
                pieces=place(group.pieces, byte_offset=part.byte_offset, max_timestamp_ms=group.max_timestamp_ms),
            )
            for group, part in zip(groups, blob.slices, strict=True)
        }

    async def close(self) -> None:
        """Finish settling, and clear every `pending` that is known to be settled."""
        await self.committer.close()
