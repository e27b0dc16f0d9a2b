"""Judges every change of the metadata as it happens: some states must not occur even for a moment.

A final store can look right after a violation was covered up. The simulator sees every change, so each is judged
against the state just before it: I1 (entries), I2, I4 (pending), I6, I7, I10 (horizons), I11, I12.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from llog.formats.values import (
    CompactionRecord,
    ControlRecord,
    IndexEntry,
    Pending,
    ProducerSnapshot,
    TopicRecord,
    decode_value,
)
from llog.log.keys import Keys, Log, ParsedKey
from llog.testing.history.verdict import Violation

_OfLog = ControlRecord | CompactionRecord | ProducerSnapshot | IndexEntry


class JournalChange(NamedTuple):
    path: str
    value: bytes | None
    """None: it was removed."""


@dataclass(slots=True)
class _State:
    log: Log
    control: ControlRecord | None = None
    compaction: CompactionRecord | None = None
    head: ProducerSnapshot | None = None
    entries: dict[int, IndexEntry] = field(default_factory=dict)
    """By end offset."""
    entry_due: tuple[int, int] | None = None
    """An append without a pending: the first and last offset of the entry that must be the next change."""

    def covered(self, start: int, end: int) -> bool:
        """Is every offset covered by an entry of the current incarnation?"""
        assert self.control is not None
        reached = start
        for last in sorted(self.entries):
            entry = self.entries[last]
            if entry.incarnation == self.control.incarnation and last >= reached >= last - entry.msg_count + 1:
                reached = last + 1
        return reached > end


class ChangeJudge:
    """Feed it every change, in order."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._parsed: dict[str, ParsedKey | None] = {}
        self._logs: dict[Log, _State] = {}
        self._topics: dict[str, TopicRecord] = {}
        self.violations: list[Violation] = []

    def feed(self, changes: Iterable[JournalChange]) -> list[Violation]:
        """All violations so far."""
        for change in changes:
            self._judge(change)
        return self.violations

    def _say(self, invariant: str, state: _State, offset: int, key: str, text: str) -> None:
        self.violations.append(Violation(invariant, state.log, offset, key, text))

    def _judge(self, change: JournalChange) -> None:
        path = change.path
        if path not in self._parsed:
            self._parsed[path] = self._keys.parse(path)
        parsed = self._parsed[path]
        if parsed is None:
            return
        if parsed.kind == "topic":
            self._topic(parsed.topic, path, change.value)
        if parsed.log is None:
            return
        state = self._logs.setdefault(parsed.log, _State(parsed.log))
        due, state.entry_due = state.entry_due, None
        if parsed.kind == "index_entry":
            self._entry(state, parsed.offset, path, change.value, due)
            return
        if due is not None:
            self._say("I4", state, due[0], path, f"the counter moved past {due[0]} … {due[1]} without an entry")
        if parsed.kind == "control":
            self._control(state, path, change.value)
        elif parsed.kind == "compaction":
            self._compaction(state, path, change.value)
        elif parsed.kind == "producers":
            self._head(state, path, change.value)

    def _check_incarnation(self, state: _State, offset: int, path: str, before: _OfLog | None, new: _OfLog) -> None:
        if before is not None and new.incarnation < before.incarnation:
            self._say("I11", state, offset, path, f"incarnation {before.incarnation} was replaced by {new.incarnation}")

    # -- topics -------------------------------------------------------------------------------------------------------
    def _topic(self, topic: str, path: str, value: bytes | None) -> None:
        state = _State(Log(topic, 0))
        before = self._topics.get(topic)
        if value is None:
            self._say("I11", state, -1, path, "the topic's record was removed")
            return
        new = self._topics[topic] = decode_value(TopicRecord, value, path)
        if before is None or (new.state, new.incarnation) == (before.state, before.incarnation):
            return
        step = (before.state, new.state, new.incarnation - before.incarnation)
        if step not in (("LIVE", "DELETING", 0), ("DELETING", "DELETED", 0), ("DELETED", "LIVE", 1)):
            text = f"incarnation {before.incarnation} {before.state} became {new.incarnation} {new.state}"
            self._say("I11", state, -1, path, text)

    def _going(self, state: _State) -> bool:
        """Is the log being deleted, or gone?"""
        topic, control = self._topics.get(state.log.topic), state.control
        dead = control is None or control.log_state == "DELETED"
        return dead or topic is None or topic.state != "LIVE" or topic.incarnation > _incarnation_of(control)

    # -- control ------------------------------------------------------------------------------------------------------
    def _control(self, state: _State, path: str, value: bytes | None) -> None:
        before = state.control
        if value is None:
            self._say("I11", state, -1, path, "the control record was removed")
            return
        new = state.control = decode_value(ControlRecord, value, path)
        if before is None:
            return
        self._check_incarnation(state, -1, path, before, new)
        if new.incarnation != before.incarnation:
            return
        if before.log_state == "DELETED":
            # Vacuum asks a tombstone as it asks any control: by raising its horizon.
            if replace(new, commit_horizon_ms=0) != replace(before, commit_horizon_ms=0):
                self._say("I11", state, -1, path, "a tombstone was changed")
            return
        self._moved(state, path, before, new)
        if new.log_start_offset < before.log_start_offset or new.log_start_offset > new.sequence_counter:
            text = f"from {before.log_start_offset} to {new.log_start_offset}, the counter is {new.sequence_counter}"
            self._say("I1", state, new.log_start_offset, path, f"the start was moved {text}")
        if new.commit_horizon_ms < before.commit_horizon_ms:
            self._say("I10", state, -1, path, "the commit horizon was lowered")
        gone = before.pending
        if gone is not None and (new.pending is None or new.pending.append_id != gone.append_id):
            self._pending_gone(state, path, gone, new)

    def _moved(self, state: _State, path: str, before: ControlRecord, new: ControlRecord) -> None:
        """I2 and I7 of one step."""
        opened = before.log_state == new.log_state == "OPEN" and before.epoch == new.epoch
        if new.sequence_counter < before.sequence_counter:
            text = f"from {before.sequence_counter} to {new.sequence_counter}"
            self._say("I2", state, new.sequence_counter, path, f"the counter fell {text}")
        elif new.sequence_counter > before.sequence_counter:
            first, last = before.sequence_counter, new.sequence_counter - 1
            if not opened:
                text = f"{before.log_state} in epoch {before.epoch}, then {new.log_state} in epoch {new.epoch}"
                self._say("I7", state, first, path, f"an append was committed to a log that was {text}")
            if new.pending is None:
                state.entry_due = (first, last)
            elif (new.pending.start_offset, new.pending.end_offset) != (first, last):
                text = f"{new.pending.start_offset} … {new.pending.end_offset}"
                self._say("I2", state, first, path, f"{first} … {last} were given, the pending append has {text}")
        changed = before.log_state != new.log_state and new.log_state != "DELETED"
        if new.epoch - before.epoch != changed:
            text = f"{before.log_state} in {before.epoch}, then {new.log_state} in {new.epoch}"
            self._say("I7", state, -1, path, f"epochs count fences: {text}")

    def _pending_gone(self, state: _State, path: str, gone: Pending, new: ControlRecord) -> None:
        """I4: a pending append stays until its entry is written (R2)."""
        if new.log_state == "DELETED" or new.log_start_offset > gone.end_offset:
            return
        entry = state.entries.get(gone.end_offset)
        written = entry is not None and entry.append_id == gone.append_id and entry.incarnation == gone.incarnation
        if not (written or state.covered(max(gone.start_offset, new.log_start_offset), gone.end_offset)):
            text = f"the pending append {gone.append_id} was taken away before its entry was written"
            self._say("I4", state, gone.start_offset, path, text)

    # -- compaction and producers -------------------------------------------------------------------------------------
    def _compaction(self, state: _State, path: str, value: bytes | None) -> None:
        before, control = state.compaction, state.control
        if value is None:
            state.compaction = None
            if not self._going(state):
                self._say("I6", state, -1, path, "the compaction record was removed")
            return
        new = state.compaction = decode_value(CompactionRecord, value, path)
        self._check_incarnation(state, -1, path, before, new)
        if before is not None and new.incarnation == before.incarnation:
            if new.offset < before.offset:
                self._say("I6", state, new.offset, path, f"the cursor fell from {before.offset} to {new.offset}")
            if new.segment_horizon_ms < before.segment_horizon_ms:
                self._say("I10", state, -1, path, "the segment horizon was lowered")
        if control is not None and control.incarnation == new.incarnation and new.offset > control.sequence_counter:
            text = f"the cursor {new.offset} is beyond the counter {control.sequence_counter}"
            self._say("I6", state, new.offset, path, text)

    def _head(self, state: _State, path: str, value: bytes | None) -> None:
        before, control = state.head, state.control
        if value is None:
            state.head = None
            if not self._going(state):
                self._say("I12", state, -1, path, "the producer snapshot was removed")
            return
        new = state.head = decode_value(ProducerSnapshot, value, path)
        self._check_incarnation(state, -1, path, before, new)
        if before is not None and new.incarnation == before.incarnation and new.as_of < before.as_of:
            self._say("I12", state, new.as_of, path, f"the snapshot went back from {before.as_of} to {new.as_of}")
        if control is not None and control.incarnation == new.incarnation and new.as_of > control.sequence_counter:
            text = f"as of {new.as_of}, the counter is {control.sequence_counter}"
            self._say("I12", state, new.as_of, path, text)

    # -- entries ------------------------------------------------------------------------------------------------------
    def _entry(self, state: _State, end: int, path: str, value: bytes | None, due: tuple[int, int] | None) -> None:
        before = state.entries.pop(end, None)
        if value is None:
            if before is not None and before.incarnation == _incarnation_of(state.control) and not self._going(state):
                self._removed(state, end, path, before)
            return
        new = state.entries[end] = decode_value(IndexEntry, value, path)
        if due is not None and due != (end - new.msg_count + 1, end):
            self._say("I4", state, due[0], path, f"the counter moved past {due[0]} … {due[1]}, and this was written")
        if before is None:
            return
        self._check_incarnation(state, end, path, before, new)
        if new.incarnation == before.incarnation and new.msg_count < before.msg_count:
            self._say("I1", state, end, path, f"{before.msg_count} offsets were covered, now {new.msg_count} are")

    def _removed(self, state: _State, end: int, path: str, gone: IndexEntry) -> None:
        """I1: an entry goes only when its offsets lie below the start, or others cover them."""
        assert state.control is not None
        first = max(end - gone.msg_count + 1, state.control.log_start_offset)
        if first <= end and not state.covered(first, end):
            self._say("I1", state, first, path, f"the entry of {first} … {end} was removed, and nothing covers them")
        if gone.type == "WAL" and (state.head is None or state.head.as_of <= end):
            self._say("I12", state, end, path, "an entry was removed before the producer snapshot had passed it")


def _incarnation_of(control: ControlRecord | None) -> int:
    return -1 if control is None else control.incarnation
