"""The control record's transitions: pure decisions, one per thing that can happen to a log. Nothing here waits.

Why it exists: every append, fence and repair moves ONE value per log by compare-and-set. What the new value must be is
decided here from the value just read, so a retry recomputes the whole transition (R5), the simulation runs the same
code as production, and both commit strategies share it.

What must stay true: FENCED refuses inside `reserve`, that is inside the compare-and-set (R6); a blob older than the
commit horizon is refused (R8); a `pending` is replaced only by someone who has seen its index entry written (R2);
values of another incarnation are never acted on (R13).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from llog.formats.values import ControlRecord, Pending, ProducerBatch, ProducerState
from llog.log.producers import Judgement, ProducerClaim, judge_claim, with_batch


class AppendSlice(NamedTuple):
    """One record group, uploaded: where its bytes lie and what `reserve` must know of them."""

    append_id: str
    incarnation: int
    data_key: str
    blob_created_at_ms: int
    """From the blob's id, not from a clock: what the horizon is compared with."""
    encoding: str
    byte_offset: int
    byte_length: int
    msg_count: int
    max_timestamp_ms: int = -1
    producers: tuple[ProducerClaim, ...] = ()


class Reserved(NamedTuple):
    """The new control record (with `pending` set) and the append that it makes durable."""

    control: ControlRecord
    pending: Pending


class AlreadyThere(NamedTuple):
    """Every batch of the group is a repeat; these are the offsets of the first time."""

    start_offset: int
    end_offset: int


class MustSettle(NamedTuple):
    """Another append is pending and not known to be settled: settle it first (R2)."""

    pending: Pending


class Refusal(NamedTuple):
    kind: str
    """`fenced`, `deleted`, `expired`, `stale_control`, `stale_self`, `out_of_order`, `old_epoch`, `mixed`"""
    reason: str


Decision = Reserved | AlreadyThere | MustSettle | Refusal


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
    """Give the group the next offsets, or say why not.

    `producers` is the state complete as of this very control version; `settled_append_id` the pending append whose
    index entry the caller has itself seen written.
    """
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
    if control.pending is not None and control.pending.append_id != settled_append_id:
        return MustSettle(control.pending)
    judged = _judge_producers(part, producers, control.sequence_counter)
    if judged is not None:
        return judged
    return _reserved(control, part)


def _reserved(control: ControlRecord, part: AppendSlice) -> Reserved:
    start = control.sequence_counter
    pending = Pending(
        append_id=part.append_id,
        incarnation=control.incarnation,
        epoch=control.epoch,
        start_offset=start,
        end_offset=start + part.msg_count - 1,
        msg_count=part.msg_count,
        data_key=part.data_key,
        encoding=part.encoding,
        byte_offset=part.byte_offset,
        byte_length=part.byte_length,
        max_timestamp_ms=part.max_timestamp_ms,
        producers=tuple(claim.at(start) for claim in part.producers),
        created_at_ms=part.blob_created_at_ms,
    )
    return Reserved(replace(control, sequence_counter=start + part.msg_count, pending=pending), pending)


def _judge_producers(
    part: AppendSlice, producers: Mapping[int, ProducerState], start: int
) -> AlreadyThere | Refusal | None:
    """None: all of it is new."""
    states = dict(producers)
    repeats: list[ProducerBatch] = []
    for claim in part.producers:
        judged = judge_claim(states.get(claim.producer_id), claim)
        if judged.judgement is Judgement.OLD_EPOCH:
            return Refusal("old_epoch", f"producer {claim.producer_id}: epoch {claim.epoch} is over")
        if judged.judgement is Judgement.OUT_OF_ORDER:
            return Refusal("out_of_order", f"producer {claim.producer_id}: sequence {claim.first_sequence}")
        if judged.first_time is not None:
            repeats.append(judged.first_time)
        else:
            states[claim.producer_id] = with_batch(states.get(claim.producer_id), claim.at(start), 0)
    if not repeats:
        return None
    if len(repeats) < len(part.producers):
        return Refusal("mixed", "new and repeated batches in one group: append them one by one")
    first, last = repeats[0], repeats[-1]
    return AlreadyThere(first.start_offset, last.start_offset + _sequences(last) - 1)


def _sequences(batch: ProducerBatch) -> int:
    return (batch.last_sequence - batch.first_sequence) % 2**31 + 1


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


def weigh(control: ControlRecord, version: int, *, attempt_version: int, counter: int, part: AppendSlice) -> Evidence:
    """R4: an attempt is (append_id, the version it expected, the counter it read). By positive evidence only."""
    if version < attempt_version:
        return Evidence("stale")
    if version == attempt_version:
        return Evidence("undecided")
    if control.incarnation != part.incarnation:
        return Evidence("cannot_tell")
    if control.sequence_counter == counter:
        return Evidence("not_committed")
    pending = control.pending
    if pending is not None and pending.start_offset <= counter <= pending.end_offset:
        return Evidence("committed" if pending.append_id == part.append_id else "not_committed", pending)
    if control.log_start_offset > counter:
        return Evidence("cannot_tell")
    return Evidence("look_up")
