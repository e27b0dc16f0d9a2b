"""The checker of the log's promises: every planted fault is found and named, and what is right passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from llog.errors import InvalidArgument
from llog.formats.values import (
    CompactionRecord,
    CompactionRun,
    ControlRecord,
    IndexEntry,
    ProducerBatch,
    ProducerSnapshot,
    ProducerState,
    TopicRecord,
    Value,
    encode_value,
)
from llog.log.ids import new_object_id
from llog.testing.history import Broken, Checker, Dump, DumpedObject, Noted, Phase, decode_lines, encode_line
from llog.testing.history.events import AppendAnswered, ReadAsked
from llog.testing.history.judge_changes import ChangeJudge, JournalChange
from tests.simulation.small_store import KEYS, LOG, NOW_MS, SmallStore


def clean() -> SmallStore:
    """Offsets 1 to 3 compacted, 4 and 5 in the WAL, 6 pending; a refused and an uncertain append; a producer."""
    small = SmallStore()
    small.append("a", "b")
    small.append("c", producer=(7, 0, 0))
    small.answered(["never"], "refused")
    small.compact(1, 3, ["a", "b", "c"])
    small.snapshot(4, state_of(batch_of(0, 3)))
    small.append("d", actor="v")
    small.store(["e"])
    small.answered(["e"], None, actor="crashed")
    small.read(1, "records", (1, "a"), (2, "b"), (3, "c"))
    small.read(6, "end")
    small.observed(counter=2, cursor=1)
    small.observed(counter=6, cursor=4)
    start = small.store(["f"], pending=True)
    small.answered(["f"], "landed", start)
    return small


def batch_of(sequence: int, offset: int) -> ProducerBatch:
    return ProducerBatch(producer_id=7, epoch=0, first_sequence=sequence, last_sequence=sequence, start_offset=offset)


def state_of(*batches: ProducerBatch) -> ProducerState:
    return ProducerState(producer_id=7, epoch=0, batches=batches, updated_at_ms=NOW_MS)


def test_a_clean_store_passes_in_every_phase_it_has_reached() -> None:
    small = clean()
    assert small.violations(Phase.LEFT) == []
    assert small.violations(Phase.RECOVERED) == []


def test_a_store_that_was_compacted_and_cleaned_passes_to_the_end() -> None:
    small = SmallStore()
    small.append("a", "b")
    small.compact(1, 2, ["a", "b"])
    small.objects = {uri: stored for uri, stored in small.objects.items() if "wal-shared" not in uri}
    assert small.violations(Phase.CLEANED) == []


def lose_a_record(small: SmallStore) -> None:
    small.answered(["acknowledged"], "landed", 9)


def record_at_another_offset(small: SmallStore) -> None:
    small.answered(["x"], "landed", small.store(["y"]))


def start_moved_unasked(small: SmallStore) -> None:
    small.control = replace(small.control, log_start_offset=3)


def acknowledged_offset_out_of_range(small: SmallStore) -> None:
    small.read(4, "out_of_range", bounds=(1, 4))


def unreadable_to_a_reader(small: SmallStore) -> None:
    small.read(4, "inconsistent")


def log_not_there_to_a_reader(small: SmallStore) -> None:
    small.read(1, "not_initialized")


def read_with_a_gap(small: SmallStore) -> None:
    small.read(1, "records", (1, "a"), (3, "c"))


def gone_with_no_deletion(small: SmallStore) -> None:
    small.control = replace(small.control, log_state="DELETED", pending=None)


def one_offset_told_to_two(small: SmallStore) -> None:
    small.answered(["twin"], "landed", 4)


def read_another_record_at_an_offset(small: SmallStore) -> None:
    small.read(4, "records", (4, "e"))


def entry_beyond_the_counter(small: SmallStore) -> None:
    small.control = replace(small.control, sequence_counter=5, pending=None)


def pending_that_leaves_an_offset_out(small: SmallStore) -> None:
    small.control = replace(small.control, sequence_counter=8)


def refused_and_there(small: SmallStore) -> None:
    small.answered(["oops"], "refused")
    small.control = replace(small.control, pending=None, sequence_counter=6)
    small.store(["oops"])


def refused_and_read(small: SmallStore) -> None:
    small.read(9, "records", (9, "never"))


def uncertain_and_there_twice(small: SmallStore) -> None:
    small.control = replace(small.control, pending=None, sequence_counter=6)
    small.store(["e"])


def never_appended(small: SmallStore) -> None:
    small.control = replace(small.control, pending=None, sequence_counter=6)
    small.store(["ghost"])


def retry_stored_twice(small: SmallStore) -> None:
    producer = (8, 0, 0)
    for _ in range(2):
        small.control = replace(small.control, pending=None)
        small.answered(["again"], "landed", small.store(["again"], producer), producer=producer, actor="p")


def out_of_order(small: SmallStore) -> None:
    small.answered(["late"], None, actor="z")
    small.answered(["later"], None, actor="z")
    small.control = replace(small.control, pending=None, sequence_counter=6)
    small.store(["later"])
    small.store(["late"])


def a_torn_batch(small: SmallStore) -> None:
    small.answered(["left", "right"], None, actor="z")
    small.control = replace(small.control, pending=None, sequence_counter=6)
    small.store(["left"])


def a_good_producer_told_out_of_order(small: SmallStore) -> None:
    small.answered(["next"], "refused", producer=(7, 0, 1), reason="OutOfOrderSequence")


def hole(small: SmallStore) -> None:
    del small.records[small.entry_key(4)]


def nothing_pending_at_the_end(small: SmallStore) -> None:
    small.control = replace(small.control, pending=None)


def closed_by_itself(small: SmallStore) -> None:
    small.control = replace(small.control, log_state="FENCED", epoch=1, fence_reason="something else stands there")


def overlap(small: SmallStore) -> None:
    small.change_entry(5, msg_count=2)


def pending_over_another_append(small: SmallStore) -> None:
    small.records[small.entry_key(6)] = encode_value(replace(small.entry(5), append_id="other"))


def cursor_beyond_the_counter(small: SmallStore) -> None:
    small.compaction = replace(small.compaction, offset=9)


def cursor_seen_to_fall(small: SmallStore) -> None:
    small.observed(counter=6, cursor=2)


def no_compaction_record(small: SmallStore) -> None:
    del small.records[KEYS.compaction(LOG).path]


def landed_behind_a_fence(small: SmallStore) -> None:
    small.act("fence")
    small.control = replace(small.control, pending=None, sequence_counter=6)
    small.append("closed")


def committed_in_a_fenced_epoch(small: SmallStore) -> None:
    small.change_entry(5, epoch=1)


def epoch_that_falls(small: SmallStore) -> None:
    small.change_entry(4, epoch=2)


def blob_gone(small: SmallStore) -> None:
    del small.objects[small.entry(4).data_key]


def segment_gone(small: SmallStore) -> None:
    del small.objects[small.entry(3).data_key]


def _flip(small: SmallStore, uri: str, position: int) -> None:
    content = bytearray(small.objects[uri].content)
    content[position] ^= 1
    small.objects[uri] = DumpedObject(bytes(content))


def blob_rotten(small: SmallStore) -> None:
    _flip(small, small.entry(4).data_key, -6)


def segment_rotten(small: SmallStore) -> None:
    _flip(small, small.entry(3).data_key, 70)


def entry_with_a_wrong_range(small: SmallStore) -> None:
    small.change_entry(4, byte_length=3)


def segment_of_another_range(small: SmallStore) -> None:
    small.records[small.entry_key(3)] = encode_value(replace(small.entry(3), msg_count=2, record_count=2))


def entry_of_a_life_to_come(small: SmallStore) -> None:
    small.change_entry(5, incarnation=2)


def tombstone_with_a_pending_append(small: SmallStore) -> None:
    small.control = replace(small.control, log_state="DELETED")


def log_without_a_topic(small: SmallStore) -> None:
    del small.records[KEYS.topic(LOG.topic).path]


def snapshot_beyond_the_counter(small: SmallStore) -> None:
    small.snapshot(99)


def snapshot_behind_the_segments(small: SmallStore) -> None:
    small.snapshot(2)


def snapshot_page_missing(small: SmallStore) -> None:
    del small.records[KEYS.producer_page(LOG, 4, 0).path]


def snapshot_forgets_a_producer(small: SmallStore) -> None:
    small.snapshot(4)


def snapshot_with_another_offset(small: SmallStore) -> None:
    small.snapshot(4, state_of(batch_of(0, 2)))


def snapshot_ahead_of_itself(small: SmallStore) -> None:
    small.snapshot(4, state_of(batch_of(0, 3), batch_of(1, 4)))


def no_snapshot(small: SmallStore) -> None:
    del small.records[KEYS.producers(LOG).path]


PLANTED: list[tuple[str, Callable[[SmallStore], None]]] = [
    ("I1", lose_a_record),
    ("I1", record_at_another_offset),
    ("I1", start_moved_unasked),
    ("I1", acknowledged_offset_out_of_range),
    ("I1", unreadable_to_a_reader),
    ("I1", log_not_there_to_a_reader),
    ("I1", read_with_a_gap),
    ("I1", gone_with_no_deletion),
    ("I2", one_offset_told_to_two),
    ("I2", read_another_record_at_an_offset),
    ("I2", entry_beyond_the_counter),
    ("I2", pending_that_leaves_an_offset_out),
    ("I3", refused_and_there),
    ("I3", refused_and_read),
    ("I3", uncertain_and_there_twice),
    ("I3", never_appended),
    ("I3", retry_stored_twice),
    ("I3", out_of_order),
    ("I3", a_torn_batch),
    ("I3", a_good_producer_told_out_of_order),
    ("I4", hole),
    ("I4", nothing_pending_at_the_end),
    ("I4", closed_by_itself),
    ("I5", overlap),
    ("I5", pending_over_another_append),
    ("I6", cursor_beyond_the_counter),
    ("I6", cursor_seen_to_fall),
    ("I6", no_compaction_record),
    ("I7", landed_behind_a_fence),
    ("I7", committed_in_a_fenced_epoch),
    ("I7", epoch_that_falls),
    ("I8", blob_gone),
    ("I8", segment_gone),
    ("I8", blob_rotten),
    ("I8", segment_rotten),
    ("I8", entry_with_a_wrong_range),
    ("I8", segment_of_another_range),
    ("I11", entry_of_a_life_to_come),
    ("I11", tombstone_with_a_pending_append),
    ("I11", log_without_a_topic),
    ("I12", snapshot_beyond_the_counter),
    ("I12", snapshot_behind_the_segments),
    ("I12", snapshot_page_missing),
    ("I12", snapshot_forgets_a_producer),
    ("I12", snapshot_with_another_offset),
    ("I12", snapshot_ahead_of_itself),
    ("I12", no_snapshot),
]


@pytest.mark.parametrize(("invariant", "plant"), PLANTED, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_is_found_under_its_name(invariant: str, plant: Callable[[SmallStore], None]) -> None:
    small = clean()
    plant(small)
    found = [violation for violation in small.violations() if violation.invariant == invariant]
    assert found, small.violations()
    assert all(violation.log == LOG for violation in found)
    assert str(found[0]).startswith(f"{invariant}: orders:0")


def test_a_violation_names_the_offset_and_the_key() -> None:
    small = clean()
    blob_gone(small)
    [violation] = [v for v in small.violations() if v.invariant == "I8"]
    assert (violation.offset, violation.key) == (4, small.entry_key(4))
    with pytest.raises(Broken, match=r"\[LEFT\] I8: orders:0 at offset 4 \(llog/orders/partitions/0/index/0+4\)"):
        Checker(KEYS).check(small.history, Dump(small.records, small.objects), Phase.LEFT)


# -- what is allowed -------------------------------------------------------------------------------------------------


def test_what_retention_passed_may_be_gone() -> None:
    small = clean()
    small.act("delete_records", offset=4)
    small.control = replace(small.control, log_start_offset=4)
    del small.records[small.entry_key(3)]
    small.read(2, "out_of_range", bounds=(4, 7))
    assert small.violations() == []


def test_a_topic_that_was_deleted_may_take_its_records_along_but_not_later_ones() -> None:
    small = clean()
    small.act("delete_topic")
    small.control = replace(small.control, log_state="DELETED", pending=None)
    assert small.violations() == []
    small.answered(["in the new incarnation"], "landed", 1)
    assert [violation.invariant for violation in small.violations()] == ["I1"]


def test_what_a_fence_saw_before_or_an_unfence_let_in_may_land() -> None:
    small = clean()
    small.act("fence")
    small.act("unfence")
    small.control = replace(small.control, pending=None, epoch=2, sequence_counter=6)
    small.history = [noted for noted in small.history if getattr(noted.event, "tokens", None) != ("f",)][:-5]
    small.act("fence")
    small.act("unfence")
    small.append("g")
    assert [violation for violation in small.violations() if violation.invariant == "I7"] == []


def run_in_flight(small: SmallStore, **changes: Any) -> CompactionRun:
    entry = small.entry(3)
    fields: dict[str, Any] = {
        "compaction_id": "x",
        "kind": "COMPACT",
        "state": "WRITING_COMPACTED_INDEX",
        "start_offset": 1,
        "end_offset": 3,
        "last_start_offset": 3,
        "end_version": 1,
        "msg_count": 3,
        "data_key": entry.data_key,
        "encoding": "kafka-v2",
        "created_at_ms": NOW_MS,
        "entry": entry,
    }
    return CompactionRun(**(fields | changes))


def test_a_run_in_flight_may_lie_over_its_old_entries_until_it_is_resumed() -> None:
    small = SmallStore()
    small.append("a", "b")
    old = small.records[small.entry_key(2)]
    small.append("c")
    small.compact(1, 3, ["a", "b", "c"])
    small.records[small.entry_key(2)] = old
    small.compaction = replace(small.compaction, offset=1, in_flight=run_in_flight(small))
    assert small.violations(Phase.LEFT) == []
    assert {violation.invariant for violation in small.violations(Phase.RECOVERED)} == {"I5"}
    small.compaction = replace(small.compaction, offset=4, in_flight=None)
    assert small.violations(Phase.RECOVERED) == [], "below the cursor an old WAL entry is a phantom"


# -- later phases ----------------------------------------------------------------------------------------------------


def test_a_lone_compactor_must_reach_the_counter() -> None:
    small = clean()
    assert {violation.invariant for violation in small.violations(Phase.COMPACTED)} == {"I13"}


def test_an_unfinished_run_is_found() -> None:
    small = SmallStore()
    small.append("a", "b", "c")
    small.compact(1, 3, ["a", "b", "c"])
    small.compaction = replace(small.compaction, in_flight=run_in_flight(small))
    [violation] = small.violations(Phase.COMPACTED)
    assert (violation.invariant, violation.log) == ("I13", LOG)


def test_an_unnamed_object_must_go() -> None:
    small = SmallStore()
    small.append("a", "b")
    small.compact(1, 2, ["a", "b"])
    found = small.violations(Phase.CLEANED)
    assert [violation.invariant for violation in found] == ["I13"]
    assert "wal-shared" in found[0].key
    small.objects = {uri: stored for uri, stored in small.objects.items() if "wal-shared" not in uri}
    young = KEYS.segment_object(LOG, new_object_id(NOW_MS + 9_500, lambda bits: 1))
    small.objects[f"memory://small/{young}"] = DumpedObject(b"")
    assert small.violations(Phase.CLEANED) == [], "its grace is not over"
    old = KEYS.segment_object(LOG, new_object_id(NOW_MS, lambda bits: 1))
    small.objects[f"memory://small/{old}"] = DumpedObject(b"")
    [violation] = small.violations(Phase.CLEANED)
    assert (violation.invariant, violation.log) == ("I13", LOG)


# -- every change ----------------------------------------------------------------------------------------------------

CONTROL = KEYS.control(LOG).path
COMPACTION = KEYS.compaction(LOG).path
HEAD = KEYS.producers(LOG).path
TOPIC = KEYS.topic(LOG.topic).path
OPEN = ControlRecord(log_state="OPEN", sequence_counter=4, log_start_offset=1, commit_horizon_ms=5)
LIVE = TopicRecord(topic_id="t", incarnation=2, state="LIVE", partition_count=1)


def entry(count: int = 1, **changes: Any) -> IndexEntry:
    fields: dict[str, Any] = {"type": "WAL", "msg_count": count, "data_key": "u", "encoding": "e", "created_at_ms": 0}
    return IndexEntry(**(fields | changes))


def pending_at_3() -> ControlRecord:
    small = SmallStore()
    small.append("a", "b")
    small.store(["c"], pending=True)
    return small.control


CHANGES: list[tuple[str, str, list[tuple[str, Value | None]]]] = [
    ("I1", "start falls", [(CONTROL, OPEN), (CONTROL, replace(OPEN, log_start_offset=0))]),
    ("I1", "start beyond the counter", [(CONTROL, OPEN), (CONTROL, replace(OPEN, log_start_offset=5))]),
    (
        "I1",
        "entry removed",
        [
            (TOPIC, replace(LIVE, incarnation=1)),
            (HEAD, ProducerSnapshot(as_of=4, pages=0)),
            (CONTROL, OPEN),
            ("3", entry(3)),
            ("3", None),
        ],
    ),
    ("I1", "entry shortened", [(CONTROL, OPEN), ("3", entry(3)), ("3", entry(2, type="COMPACTED"))]),
    ("I2", "counter falls", [(CONTROL, OPEN), (CONTROL, replace(OPEN, sequence_counter=3))]),
    (
        "I2",
        "offset skipped",
        [(CONTROL, replace(OPEN, sequence_counter=2, commit_horizon_ms=0)), (CONTROL, pending_at_3())],
    ),
    ("I4", "no entry", [(CONTROL, OPEN), (CONTROL, replace(OPEN, sequence_counter=5)), (HEAD, None)]),
    ("I4", "another entry", [(CONTROL, OPEN), (CONTROL, replace(OPEN, sequence_counter=6)), ("5", entry(1))]),
    ("I4", "pending dropped", [(CONTROL, pending_at_3()), (CONTROL, replace(pending_at_3(), pending=None))]),
    ("I6", "cursor falls", [(COMPACTION, CompactionRecord(offset=3)), (COMPACTION, CompactionRecord(offset=2))]),
    ("I6", "cursor too far", [(CONTROL, OPEN), (COMPACTION, CompactionRecord(offset=5))]),
    (
        "I7",
        "committed while fenced",
        [
            (CONTROL, replace(OPEN, log_state="FENCED", epoch=1)),
            (CONTROL, replace(OPEN, log_state="FENCED", epoch=1, sequence_counter=5)),
        ],
    ),
    ("I7", "fenced in the same epoch", [(CONTROL, OPEN), (CONTROL, replace(OPEN, log_state="FENCED"))]),
    ("I10", "commit horizon falls", [(CONTROL, OPEN), (CONTROL, replace(OPEN, commit_horizon_ms=4))]),
    (
        "I10",
        "segment horizon falls",
        [(COMPACTION, CompactionRecord(offset=1, segment_horizon_ms=2)), (COMPACTION, CompactionRecord(offset=1))],
    ),
    ("I11", "control of a dead incarnation", [(CONTROL, replace(OPEN, incarnation=2)), (CONTROL, OPEN)]),
    ("I11", "control removed", [(CONTROL, OPEN), (CONTROL, None)]),
    ("I11", "tombstone changed", [(CONTROL, replace(OPEN, log_state="DELETED")), (CONTROL, OPEN)]),
    (
        "I11",
        "cursor of a dead incarnation",
        [(COMPACTION, CompactionRecord(offset=1, incarnation=2)), (COMPACTION, CompactionRecord(offset=1))],
    ),
    ("I11", "entry of a dead incarnation", [("3", entry(3, incarnation=2)), ("3", entry(3))]),
    (
        "I11",
        "snapshot of a dead incarnation",
        [(HEAD, ProducerSnapshot(as_of=1, pages=0, incarnation=2)), (HEAD, ProducerSnapshot(as_of=1, pages=0))],
    ),
    ("I11", "topic removed", [(TOPIC, LIVE), (TOPIC, None)]),
    (
        "I11",
        "incarnation skipped",
        [(TOPIC, replace(LIVE, state="DELETED")), (TOPIC, replace(LIVE, incarnation=4))],
    ),
    ("I11", "topic created over a living one", [(TOPIC, LIVE), (TOPIC, replace(LIVE, incarnation=3))]),
    ("I12", "snapshot falls", [(HEAD, ProducerSnapshot(as_of=3, pages=0)), (HEAD, ProducerSnapshot(as_of=2, pages=0))]),
    ("I12", "snapshot too far", [(CONTROL, OPEN), (HEAD, ProducerSnapshot(as_of=5, pages=0))]),
    (
        "I12",
        "entry removed before the snapshot passed it",
        [
            (TOPIC, replace(LIVE, incarnation=1)),
            (HEAD, ProducerSnapshot(as_of=1, pages=0)),
            (CONTROL, replace(OPEN, log_start_offset=4)),
            ("3", entry(3)),
            ("3", None),
        ],
    ),
]


def change_of(path: str, value: Value | None) -> JournalChange:
    path = KEYS.index_entry(LOG, int(path)).path if path.isdecimal() else path
    return JournalChange(path, None if value is None else encode_value(value))


@pytest.mark.parametrize(("invariant", "what", "steps"), CHANGES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_change_that_must_not_be_is_found_when_it_happens(
    invariant: str, what: str, steps: list[tuple[str, Value | None]]
) -> None:
    judge = ChangeJudge(KEYS)
    *before, last = [change_of(path, value) for path, value in steps]
    assert judge.feed(before) == [], "only the last step is wrong"
    found = judge.feed([last])
    assert [violation.invariant for violation in found] == [invariant]
    assert found[0].key == last.path


def test_an_append_that_lands_as_it_should_is_no_violation_at_any_step() -> None:
    small, judge = SmallStore(), ChangeJudge(KEYS)
    steps = [JournalChange(CONTROL, encode_value(small.control))]
    small.store(["a"])
    steps += [
        JournalChange(CONTROL, encode_value(small.control)),
        JournalChange(small.entry_key(1), encode_value(small.entry(1))),
    ]
    small.store(["b"], pending=True)
    pending = small.control
    steps.append(JournalChange(CONTROL, encode_value(pending)))
    assert pending.pending is not None
    steps.append(JournalChange(small.entry_key(2), encode_value(entry(1, append_id=pending.pending.append_id))))
    steps.append(JournalChange(CONTROL, encode_value(replace(pending, pending=None))))
    assert judge.feed(steps) == []


# -- histories -------------------------------------------------------------------------------------------------------


def test_events_survive_a_file_whose_last_line_is_torn() -> None:
    history = clean().history
    data = b"".join(map(encode_line, history))
    assert list(decode_lines(data)) == history
    assert list(decode_lines(data[:-1])) == history[:-1]


def test_a_history_that_cannot_be_is_refused() -> None:
    answer = Noted(0, "w", AppendAnswered(op=1, outcome="refused"))
    dump = Dump({}, {})
    with pytest.raises(InvalidArgument, match="not asked"):
        Checker(KEYS).violations([answer], dump, Phase.LEFT)
    question = Noted(0, "w", ReadAsked(op=1, log=LOG, offset=1))
    with pytest.raises(InvalidArgument, match="twice"):
        Checker(KEYS).violations([question, question], dump, Phase.LEFT)
    with pytest.raises(InvalidArgument, match="answers"):
        Checker(KEYS).violations([question, answer], dump, Phase.LEFT)
