"""Decisions about the control record: each claim is a rule of the protocol."""

from __future__ import annotations

from msgspec.structs import replace

from llog.formats.values import ControlRecord
from llog.log.append.pieces import AppendSlice, PlacedPiece
from llog.log.control import (
    Evidence,
    MustSettle,
    Refusal,
    Reserved,
    fenced,
    new_control,
    reserve,
    settled,
    unfenced,
    weigh,
)

OPEN = new_control(incarnation=2, first_offset=1, now_ms=10_000, vacuum_grace_ms=10_000)
PART = AppendSlice("mine", 2, "s3://b/blob", 10_000, "kafka-v2", (PlacedPiece(0, 100, 50, 3, None, 9_999),))


def decide(control: ControlRecord, part: AppendSlice = PART, settled_append_id: str | None = None) -> object:
    return reserve(control, part, producers={}, settled_append_id=settled_append_id)


def reserved(control: ControlRecord = OPEN, part: AppendSlice = PART) -> Reserved:
    decision = decide(control, part)
    assert isinstance(decision, Reserved)
    return decision


def kind_of(decision: object) -> str:
    assert isinstance(decision, Refusal)
    return decision.kind


def test_a_group_gets_the_next_offsets_and_becomes_pending() -> None:
    made = reserved()
    assert (made.pending.start_offset, made.pending.end_offset, made.control.sequence_counter) == (1, 3, 4)
    assert made.control.pending == made.pending
    assert (made.pending.append_id, made.pending.byte_offset, made.pending.byte_length) == ("mine", 100, 50)


def test_a_fenced_log_refuses_inside_the_transition() -> None:
    closed = fenced(OPEN, expected_epoch=None, reason="why")
    assert closed is not None
    assert decide(closed) == Refusal("fenced", "why")


def test_a_deleted_log_and_another_incarnation_refuse() -> None:
    assert kind_of(decide(replace(OPEN, log_state="DELETED"))) == "deleted"
    assert kind_of(decide(replace(OPEN, incarnation=3))) == "stale_self"
    assert kind_of(decide(replace(OPEN, incarnation=1))) == "stale_control"


def test_a_blob_strictly_older_than_the_horizon_is_refused() -> None:
    assert OPEN.commit_horizon_ms == 9_000
    assert kind_of(decide(OPEN, PART._replace(blob_created_at_ms=8_999))) == "expired"
    assert isinstance(decide(OPEN, PART._replace(blob_created_at_ms=9_000)), Reserved)


def test_only_a_writer_that_saw_it_settled_replaces_a_pending_append() -> None:
    first = reserved()
    other = PART._replace(append_id="other")
    assert decide(first.control, other) == MustSettle(first.pending)
    assert decide(first.control, other, settled_append_id="something else") == MustSettle(first.pending)
    second = decide(first.control, other, settled_append_id="mine")
    assert isinstance(second, Reserved)
    assert (second.pending.start_offset, second.pending.end_offset) == (4, 6)


def test_settling_clears_only_its_own_append() -> None:
    made = reserved()
    assert settled(made.control, "other") is None
    cleared = settled(made.control, "mine")
    assert cleared is not None
    assert cleared.pending is None
    assert settled(cleared, "mine") is None


def test_every_fence_and_unfence_is_an_epoch_and_a_retry_does_not_fence_twice() -> None:
    closed = fenced(OPEN, expected_epoch=0, reason="")
    assert closed is not None
    opened = unfenced(closed, expected_epoch=1)
    assert opened is not None
    assert (closed.epoch, opened.epoch) == (1, 2)
    assert fenced(opened, expected_epoch=0, reason="") is None, "another process opened it meanwhile"
    assert fenced(closed, expected_epoch=None, reason="") is None
    assert unfenced(opened, expected_epoch=None) is None


def evidence(control: ControlRecord, version: int) -> Evidence:
    """Of the attempt to append PART at counter 1, expecting version 5."""
    return weigh(control, version, attempt_version=5, attempt=reserved().pending)


def test_an_uncertain_append_is_decided_by_positive_evidence_only() -> None:
    own, others = reserved().control, reserved(part=PART._replace(append_id="other")).control
    assert evidence(OPEN, 4).verdict == "stale"
    assert evidence(OPEN, 5).verdict == "undecided"
    assert evidence(OPEN, 6).verdict == "not_committed"
    assert evidence(own, 6).verdict == "committed"
    assert evidence(others, 6).verdict == "not_committed"
    moved_on = replace(own, sequence_counter=9, pending=None)
    assert evidence(moved_on, 7).verdict == "look_up"
    assert evidence(replace(moved_on, log_start_offset=5), 7).verdict == "cannot_tell"
    assert evidence(replace(moved_on, incarnation=3), 7).verdict == "cannot_tell"
