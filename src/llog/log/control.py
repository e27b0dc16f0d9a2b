"""The control record's transitions: pure decisions, one per thing that can happen to a log. Nothing here waits.

Why it exists: every append, fence and repair moves ONE value per log by compare-and-set. What the new value must be is
decided here from the value just read, so a retry recomputes the whole transition (R5), the simulation runs the same
code as production, and both commit strategies share it.

What must stay true: FENCED refuses inside `reserve`, that is inside the compare-and-set (R6); a blob older than the
commit horizon is refused (R8); a `pending` is replaced only by someone who has seen its index entry written (R2);
values of another incarnation are never acted on (R13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from llog.formats.values import ControlRecord, Pending, ProducerState
from llog.limits import LOG_CLAIMS_PER_APPEND_MAX
from llog.log.append.pieces import AppendSlice, Landed, PlacedPiece
from llog.log.producers.idempotence import Judgement, judge_claim, with_batch


class Refusal(NamedTuple):
    kind: str
    """Of a log: `fenced`, `deleted`, `expired`, `stale_control`, `stale_self`. Of a piece: `out_of_order`,
    `old_epoch`"""
    reason: str


class PieceVerdict(NamedTuple):
    """What becomes of one piece of the group."""

    number: int
    outcome: Landed | Refusal


class Reserved(NamedTuple):
    """The new control record (with `pending` set), the append that it makes durable, and what that decides."""

    control: ControlRecord
    pending: Pending
    run: tuple[PlacedPiece, ...]
    """The neighbouring new pieces that are appended."""
    verdicts: tuple[PieceVerdict, ...]
    """Of the run, and of what was judged around it: true once the write has landed, for it proves that this control
    record was the latest. Pieces without one are judged again, against what is there then."""


class NothingNew(NamedTuple):
    """No piece is left to append: all are repeats, or refused."""

    verdicts: tuple[PieceVerdict, ...]


class MustSettle(NamedTuple):
    """Another append is pending and not known to be settled: settle it first (R2)."""

    pending: Pending


Decision = Reserved | NothingNew | MustSettle | Refusal


def new_control(*, incarnation: int, first_offset: int, now_ms: int, vacuum_grace_ms: int) -> ControlRecord:
    """A log that begins. Its horizon starts a tenth of the grace before now: blobs drawn just before are welcome."""
    return ControlRecord(
        incarnation=incarnation,
        log_state="OPEN",
        sequence_counter=first_offset,
        log_start_offset=first_offset,
        commit_horizon_ms=max(0, now_ms - vacuum_grace_ms // 10),
    )


def reserve(
    control: ControlRecord,
    part: AppendSlice,
    *,
    producers: Mapping[int, ProducerState],
    settled_append_id: str | None,
) -> Decision:
    """Give the next offsets to the first pieces of the group that are new, or say why not.

    `producers` is the state complete as of this very control version; `settled_append_id` the pending append whose
    index entry the caller has itself seen written.
    """
    refusal = refusal_of(control, part)
    if refusal is not None:
        return refusal
    if control.pending is not None and control.pending.append_id != settled_append_id:
        return MustSettle(control.pending)
    run, verdicts = judge_pieces(part.pieces, producers, control.sequence_counter)
    return _reserved(control, part, run, verdicts) if run else NothingNew(verdicts)


def refusal_of(control: ControlRecord, part: AppendSlice) -> Refusal | None:
    """Why nothing of this blob can be appended to the log, whoever wrote it."""
    if control.incarnation < part.incarnation:
        return Refusal("stale_control", f"control of incarnation {control.incarnation}, topic is at {part.incarnation}")
    if control.incarnation > part.incarnation:
        return Refusal("stale_self", f"the log was created again (incarnation {control.incarnation})")
    if control.log_state == "DELETED":
        return Refusal("deleted", "the topic was deleted")
    if control.log_state == "FENCED":
        return Refusal("fenced", control.fence_reason or "fenced by an operator")
    if part.blob_created_at_ms < control.commit_horizon_ms:
        return Refusal("expired", "the blob is older than the commit horizon; upload again")
    return None


def judge_pieces(
    pieces: Sequence[PlacedPiece], producers: Mapping[int, ProducerState], start_offset: int
) -> tuple[tuple[PlacedPiece, ...], tuple[PieceVerdict, ...]]:
    """The first run of new neighbours, and every verdict that its commit makes true.

    In order, each piece against the state that includes the new ones before it. Judging ends at a new piece that cannot
    go with the run: what comes after it depends on what becomes of it.
    """
    run: list[PlacedPiece] = []
    verdicts: list[PieceVerdict] = []
    claimed: dict[int, ProducerState] = {}
    claims, next_offset = 0, start_offset
    for piece in pieces:
        claim = piece.claim
        if claim is not None:
            state = claimed.get(claim.producer_id) or producers.get(claim.producer_id)
            judged = judge_claim(state, claim)
            if judged.judgement is not Judgement.NEW:
                first_offset = -1 if judged.first_time is None else judged.first_time.start_offset
                verdicts.append(PieceVerdict(piece.number, _not_new(piece, judged.judgement, first_offset)))
                continue
            claims += 1
            claimed[claim.producer_id] = with_batch(state, claim.at(next_offset), 0)
        # Bytes of pieces that are not appended part those that are.
        if claims > LOG_CLAIMS_PER_APPEND_MAX or (run and not piece.follows(run[-1])):
            break
        run.append(piece)
        verdicts.append(PieceVerdict(piece.number, Landed(next_offset, next_offset + piece.msg_count - 1)))
        next_offset += piece.msg_count
    return tuple(run), tuple(verdicts)


def _not_new(piece: PlacedPiece, judgement: Judgement, first_offset: int) -> Landed | Refusal:
    assert piece.claim is not None
    who = f"producer {piece.claim.producer_id}"
    if judgement is Judgement.OLD_EPOCH:
        return Refusal("old_epoch", f"{who}: epoch {piece.claim.epoch} is over")
    if judgement is Judgement.OUT_OF_ORDER:
        return Refusal("out_of_order", f"{who}: sequence {piece.claim.first_sequence}")
    return Landed(first_offset, first_offset + piece.msg_count - 1, repeated=True)


def _reserved(
    control: ControlRecord, part: AppendSlice, run: tuple[PlacedPiece, ...], verdicts: tuple[PieceVerdict, ...]
) -> Reserved:
    start, first = control.sequence_counter, run[0]
    producers, next_offset = [], start
    for piece in run:
        if piece.claim is not None:
            producers.append(piece.claim.at(next_offset))
        next_offset += piece.msg_count
    pending = Pending(
        # Each run has a name of its own, and keeps it however often it is tried.
        append_id=part.append_id if first.number == 0 else f"{part.append_id}.{first.number}",
        incarnation=control.incarnation,
        epoch=control.epoch,
        start_offset=start,
        end_offset=next_offset - 1,
        msg_count=next_offset - start,
        data_key=part.data_key,
        encoding=part.encoding,
        byte_offset=first.byte_offset,
        byte_length=sum(piece.byte_length for piece in run),
        max_timestamp_ms=max(piece.max_timestamp_ms for piece in run),
        producers=tuple(producers),
        created_at_ms=part.blob_created_at_ms,
    )
    moved = replace(control, sequence_counter=next_offset, pending=pending)
    return Reserved(moved, pending, run, verdicts)


# -- what else happens to a control record -------------------------------------------------------------------------


def settled(control: ControlRecord, append_id: str) -> ControlRecord | None:
    """Without that pending append, whose index entry is written; None when it is not there (any more)."""
    if control.pending is None or control.pending.append_id != append_id:
        return None
    return replace(control, pending=None)


def fenced(control: ControlRecord, *, expected_epoch: int | None, reason: str) -> ControlRecord | None:
    """Closed to appends; None when it is closed already, or was opened again since the caller looked (h16)."""
    if control.log_state != "OPEN" or (expected_epoch is not None and control.epoch != expected_epoch):
        return None
    return replace(control, log_state="FENCED", epoch=control.epoch + 1, fence_reason=reason)


def unfenced(control: ControlRecord, *, expected_epoch: int | None) -> ControlRecord | None:
    """Open again; None when it is open, or was fenced again since the caller looked."""
    if control.log_state != "FENCED" or (expected_epoch is not None and control.epoch != expected_epoch):
        return None
    return replace(control, log_state="OPEN", epoch=control.epoch + 1, fence_reason="")


# -- an append whose answer never came (R4) ------------------------------------------------------------------------


class Evidence(NamedTuple):
    """What a control record read after an uncertain attempt proves."""

    verdict: str
    """`committed`, `not_committed`, `undecided` (same version: try the same again), `stale` (read again),
    `look_up` (whoever covers the offset decides), `cannot_tell`"""
    pending: Pending | None = None


def weigh(control: ControlRecord, version: int, *, attempt_version: int, attempt: Pending) -> Evidence:
    """R4: an attempt is (append_id, the version it expected, the counter it read). By positive evidence only."""
    counter = attempt.start_offset
    if version < attempt_version:
        return Evidence("stale")
    if version == attempt_version:
        return Evidence("undecided")
    if control.incarnation != attempt.incarnation:
        return Evidence("cannot_tell")
    if control.sequence_counter == counter:
        return Evidence("not_committed")
    pending = control.pending
    if pending is not None and pending.start_offset <= counter <= pending.end_offset:
        return Evidence("committed" if pending.append_id == attempt.append_id else "not_committed", pending)
    if control.log_start_offset > counter:
        return Evidence("cannot_tell")
    return Evidence("look_up")


def weigh_claims(
    run: Sequence[PlacedPiece], producers: Mapping[int, ProducerState]
) -> tuple[tuple[int, Landed | None], ...]:
    """What producer state, complete as of a later control version, says of an attempt that nothing else tells of.

    Empty: not committed. A run is committed whole, so one piece that is still new proves that none was. Otherwise each
    piece by its number: where it is, or None where the producer went on so far that this too is forgotten.
    """
    found: list[tuple[int, Landed | None]] = []
    for piece in run:
        assert piece.claim is not None
        judged = judge_claim(producers.get(piece.claim.producer_id), piece.claim)
        if judged.judgement is Judgement.NEW:
            return ()
        first = None if judged.first_time is None else judged.first_time.start_offset
        landed = None if first is None else Landed(first, first + piece.msg_count - 1, repeated=True)
        found.append((piece.number, landed))
    return tuple(found)
