"""The transitions of a log's control record: pure decisions, one per event that changes a log.

Every append, fence and repair changes ONE value per log by compare-and-set. The new value is decided here from the
value just read, so a retry recomputes the whole transition (R5). FENCED refuses inside `reserve`, that is inside the
compare-and-set (R6); a blob older than the commit horizon is refused (R8); only a writer that has seen the index entry
of a `pending` written may replace it (R2); values of another incarnation are never used (R13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from llog.formats.values import ControlRecord, IndexEntry, Pending, ProducerBatch, ProducerState
from llog.log.append.pieces import AppendSlice, Landed, PlacedPiece
from llog.log.context import LogChange
from llog.log.keys import Log
from llog.log.producers import Judgement, ProducerWindow, StoredClaims, judge_claim


class Refusal(NamedTuple):
    kind: str
    """Of a log: `fenced`, `deleted`, `expired`, `stale_control`, `stale_self`. Of a piece: `out_of_order`,
    `duplicate`, `old_epoch`, `unknown_producer`"""
    reason: str


class PieceVerdict(NamedTuple):
    """The outcome of one piece of the group."""

    number: int
    outcome: Landed | Refusal


class Reserved(NamedTuple):
    """The new control record (with `pending` set), the append that it makes durable, and what that decides."""

    control: ControlRecord
    pending: Pending
    run: tuple[PlacedPiece, ...]
    """The adjacent new pieces that are appended."""
    verdicts: tuple[PieceVerdict, ...]
    """Of the run, and of the pieces judged around it. They hold once the write succeeds, which proves that this control
    record was the latest. Pieces without a verdict are judged again, against the control record read then."""


class NothingNew(NamedTuple):
    """No piece is new: all are repeats, or refused."""

    verdicts: tuple[PieceVerdict, ...]


class MustSettle(NamedTuple):
    """Another append is pending and not known to be settled; it must be settled first (R2)."""

    pending: Pending


Decision = Reserved | NothingNew | MustSettle | Refusal


def new_control(*, incarnation: int, first_offset: int, now_ms: int, vacuum_grace_ms: int) -> ControlRecord:
    """Control of a new log. Its commit horizon is a tenth of the grace before now, to accept blobs with ids drawn just
    before."""
    return ControlRecord(
        incarnation=incarnation,
        log_state="OPEN",
        sequence_counter=first_offset,
        log_start_offset=first_offset,
        commit_horizon_ms=max(0, now_ms - vacuum_grace_ms // 10),
    )


def reserve(
    control: ControlRecord,
    slice_: AppendSlice,
    *,
    producers: Mapping[int, ProducerState],
    settled_append_id: str | None,
    forgot: bool = False,
) -> Decision:
    """Assign the next offsets to the first new pieces of the group, or give the reason against it.

    `producers` is producer state complete as of this control version, except for producers that were forgotten if
    `forgot`; `settled_append_id` is the pending append with an index entry that the caller has seen written.
    """
    refusal = refusal_of(control, slice_)
    if refusal is not None:
        return refusal
    if control.pending is not None and control.pending.append_id != settled_append_id:
        return MustSettle(control.pending)
    judged = judge_pieces(
        slice_.pieces,
        producers,
        control.sequence_counter,
        forgot=forgot,
        accepts_unknown=slice_.accepts_unknown,
    )
    return _reserved(control, slice_, judged) if judged.run else NothingNew(judged.verdicts)


def refusal_of(control: ControlRecord, slice_: AppendSlice) -> Refusal | None:
    """Why nothing of this blob can be appended to the log; None when it can."""
    if control.incarnation < slice_.incarnation:
        reason = f"its control record is of incarnation {control.incarnation}, the topic of {slice_.incarnation}"
        return Refusal("stale_control", reason)
    if control.incarnation > slice_.incarnation:
        return Refusal("stale_self", f"the log was created again (incarnation {control.incarnation})")
    if control.log_state == "DELETED":
        return Refusal("deleted", "the topic was deleted")
    if control.log_state == "FENCED":
        return Refusal("fenced", control.fence_reason or "fenced by an operator")
    if slice_.blob_created_at_ms < control.commit_horizon_ms:
        return Refusal("expired", "the blob is older than the commit horizon; upload again")
    return None


class JudgedPieces(NamedTuple):
    run: tuple[PlacedPiece, ...]
    """The first adjacent new pieces."""
    verdicts: tuple[PieceVerdict, ...]
    """Every verdict that the run's commit makes true."""
    batches: tuple[ProducerBatch, ...]
    """What the run adds to producer state, in offset order: of each producer the last batches, at most WINDOW. Those
    before them would have left its window when the append is committed."""


def judge_pieces(
    pieces: Sequence[PlacedPiece],
    producers: Mapping[int, ProducerState],
    start_offset: int,
    *,
    forgot: bool = False,
    accepts_unknown: bool = False,
) -> JudgedPieces:
    """Judge each piece against the state that includes the new pieces before it.

    Judging ends at a new piece that cannot join the run: the verdicts after it depend on its outcome.
    """
    run: list[PlacedPiece] = []
    verdicts: list[PieceVerdict] = []
    windows: dict[int, ProducerWindow] = {}
    stored, next_offset = StoredClaims(), start_offset
    for piece in pieces:
        claim, end_offset = piece.claim, next_offset + piece.msg_count
        window = None
        if claim is not None:
            window = windows.get(claim.producer_id)
            if window is None:
                state = producers.get(claim.producer_id)
                window = windows[claim.producer_id] = ProducerWindow(state, forgot=forgot)
            judgement, first_time = window.judge(claim)
            if judgement is not Judgement.NEW and not (accepts_unknown and window.is_unknown()):
                verdicts.append(PieceVerdict(piece.number, _not_new(piece, judgement, first_time)))
                continue
        # The bytes of pieces that are not appended separate those that are.
        if run and not piece.follows(run[-1]):
            break
        if claim is not None and window is not None:
            if not stored.fits((claim,)):
                break
            stored.add(claim.producer_id)
            window.add(claim.at(next_offset))
        run.append(piece)
        verdicts.append(PieceVerdict(piece.number, Landed(next_offset, end_offset - 1)))
        next_offset = end_offset
    new = [batch for window in windows.values() for batch in window.batches if batch.start_offset >= start_offset]
    return JudgedPieces(tuple(run), tuple(verdicts), tuple(sorted(new, key=lambda batch: batch.start_offset)))


def _not_new(piece: PlacedPiece, judgement: Judgement, first_time: ProducerBatch | None) -> Landed | Refusal:
    if first_time is not None:
        return Landed(first_time.start_offset, first_time.start_offset + piece.msg_count - 1, repeated=True)
    assert piece.claim is not None
    producer_id, epoch, first, last, _ = piece.claim
    who = f"producer {producer_id}"
    if judgement is Judgement.OLD_EPOCH:
        return Refusal("old_epoch", f"{who}: epoch {epoch} is over")
    if judgement is Judgement.DUPLICATE:
        reason = f"sequences {first} to {last} are in the log, and their offsets are no longer known"
        return Refusal("duplicate", f"{who}: {reason}")
    if judgement is Judgement.UNKNOWN:
        reason = f"the log has forgotten it, or never knew it: go on at sequence 0 of a new epoch, not at {first}"
        return Refusal("unknown_producer", f"{who}: {reason}")
    return Refusal("out_of_order", f"{who}: sequence {first}")


def _reserved(control: ControlRecord, slice_: AppendSlice, judged: JudgedPieces) -> Reserved:
    run = judged.run
    start, first = control.sequence_counter, run[0]
    next_offset = start + sum([piece.msg_count for piece in run])
    pending = Pending(
        # Each run has its own id, and keeps it in every attempt.
        append_id=slice_.append_id if first.number == 0 else f"{slice_.append_id}.{first.number}",
        incarnation=control.incarnation,
        epoch=control.epoch,
        start_offset=start,
        end_offset=next_offset - 1,
        msg_count=next_offset - start,
        data_key=slice_.data_key,
        encoding=slice_.encoding,
        byte_offset=first.byte_offset,
        byte_length=sum([piece.byte_length for piece in run]),
        max_timestamp_ms=max([piece.max_timestamp_ms for piece in run]),
        producers=judged.batches,
        created_at_ms=slice_.blob_created_at_ms,
    )
    advanced = replace(control, sequence_counter=next_offset, pending=pending)
    return Reserved(advanced, pending, run, judged.verdicts)


def index_entry_of(pending: Pending) -> IndexEntry:
    """The entry that settling writes: a copy of the pending append, the same bytes from every settler."""
    return IndexEntry(
        type=pending.entry_type,
        msg_count=pending.msg_count,
        record_count=pending.msg_count,
        data_key=pending.data_key,
        encoding=pending.encoding,
        byte_offset=pending.byte_offset,
        byte_length=pending.byte_length,
        append_id=pending.append_id,
        incarnation=pending.incarnation,
        epoch=pending.epoch,
        max_timestamp_ms=pending.max_timestamp_ms,
        producers=pending.producers,
        created_at_ms=pending.created_at_ms,
    )


# -- other transitions -----------------------------------------------------------------------------------------------


def cleared(control: ControlRecord) -> ControlRecord:
    """Without a pending append: its index entry is written, or is written in the same transaction (R2)."""
    return replace(control, pending=None)


def settled(control: ControlRecord, append_id: str) -> ControlRecord | None:
    """`cleared`, if that append is still the pending one; otherwise None."""
    return cleared(control) if control.pending is not None and control.pending.append_id == append_id else None


def fenced(control: ControlRecord, *, expected_epoch: int | None, reason: str) -> ControlRecord | None:
    """Closed to appends; None when it is closed already, or was opened again since the caller read it (h16)."""
    if control.log_state != "OPEN" or (expected_epoch is not None and control.epoch != expected_epoch):
        return None
    return replace(control, log_state="FENCED", epoch=control.epoch + 1, fence_reason=reason)


def unfenced(control: ControlRecord, *, expected_epoch: int | None) -> ControlRecord | None:
    """Open again; None when it is open, or was fenced again since the caller read it."""
    if control.log_state != "FENCED" or (expected_epoch is not None and control.epoch != expected_epoch):
        return None
    return replace(control, log_state="OPEN", epoch=control.epoch + 1, fence_reason="")


def fence_change(log: Log, before: ControlRecord | None, after: ControlRecord) -> LogChange:
    states = [
        {"log_state": control.log_state, "epoch": control.epoch, "reason": control.fence_reason}
        for control in (before, after)
        if control is not None
    ]
    return LogChange("log.fence" if after.log_state == "FENCED" else "log.unfence", str(log), states[0], states[-1])


# -- an append without an answer (R4) --------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """What a control record that was read after an uncertain attempt proves."""

    verdict: str
    """`committed`, `not_committed`, `undecided` (same version: try the same again), `stale` (read again),
    `look_up` (the index entry that covers the offset decides), `cannot_tell`"""
    pending: Pending | None = None


def weigh(control: ControlRecord, version: int, *, attempt_version: int, attempt: Pending) -> Evidence:
    """R4: the attempt is identified by its append id, the version it expected and the counter it read."""
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
    run: Sequence[PlacedPiece], producers: Mapping[int, ProducerState], *, forgot: bool = False
) -> tuple[tuple[int, Landed | Refusal | None], ...]:
    """What producer state, complete as of a later control version, proves of an attempt.

    Empty: not committed. A run is committed as a whole, so one piece that is still new proves that none was. Otherwise
    each piece by its number: with its offsets; as a duplicate if its producer has appended so much since that they are
    forgotten; or None if nothing is known, because the producer is forgotten or in a later epoch.
    """
    outcomes: list[tuple[int, Landed | Refusal | None]] = []
    for piece in run:
        assert piece.claim is not None
        state = producers.get(piece.claim.producer_id)
        judgement, first_time = judge_claim(state, piece.claim, forgot=forgot)
        if state is None and forgot:
            outcomes.append((piece.number, None))
        elif judgement is Judgement.NEW:
            return ()
        elif judgement in (Judgement.REPEAT, Judgement.DUPLICATE):
            outcomes.append((piece.number, _not_new(piece, judgement, first_time)))
        else:
            outcomes.append((piece.number, None))
    return tuple(outcomes)
