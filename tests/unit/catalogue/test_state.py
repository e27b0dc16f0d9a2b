"""The catalogue in memory: the same answer whatever came first, and the answer a plain search gives."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llog.formats.values import SegmentRecord, SegmentState
from llog.log.catalogue.state import CatalogueState, epoch_ranges, has_transactions
from llog.log.rewrite.segments import NEXT_STATES, KnownSegment

FINISHED: SegmentState = "COPY_SEGMENT_FINISHED"


def segment(
    number: int,
    start: int,
    end: int,
    *,
    epochs: dict[int, int] | None = None,
    state: SegmentState = FINISHED,
    **more: int,
) -> SegmentRecord:
    return SegmentRecord(
        segment_id=f"{number:032x}",
        incarnation=1,
        start_offset=start,
        end_offset=end,
        size_bytes=more.get("size_bytes", 10),
        epochs={0: start} if epochs is None else epochs,
        state=state,
    )


def state_of(*records: SegmentRecord) -> CatalogueState:
    return CatalogueState(KnownSegment(record, version) for version, record in enumerate(records))


def answers(state: CatalogueState) -> object:
    """Everything that it says."""
    epochs = {
        epoch: (one.offset_to_id, one.unreferenced_segment_ids, one.highest_log_offset)
        for epoch, one in state.epochs.items()
    }
    listed = {epoch: state.segments(epoch) for epoch in epochs}
    return epochs, listed, state.segments(), state.log_size_bytes()


@st.composite
def histories(draw: st.DrawFn) -> list[SegmentRecord]:
    """Segments that overlap as they like, each moving through legal states, all of it interleaved."""
    count = draw(st.integers(1, 8))
    histories = []
    for number in range(count):
        start = draw(st.integers(0, 30))
        end = start + draw(st.integers(0, 20))
        cuts = sorted(draw(st.sets(st.integers(start + 1, end), max_size=2))) if end > start else []
        first_epoch = draw(st.integers(0, 2))
        epochs = {first_epoch + i: at for i, at in enumerate([start, *cuts])}
        state: SegmentState = "COPY_SEGMENT_STARTED"
        record = segment(number, start, end, epochs={}, state=state, size_bytes=0)
        history = [record]
        for _ in range(draw(st.integers(0, 3))):
            following = sorted(NEXT_STATES[state])
            if not following:
                break
            state = draw(st.sampled_from(following))
            record = replace(record, state=state, size_bytes=7 * (number + 1))
            if state == FINISHED:
                record = replace(record, epochs=epochs)
            history.append(record)
        histories.append(history)
    changes = []
    while any(histories):
        history = draw(st.sampled_from([history for history in histories if history]))
        changes.append(history.pop(0))
    return changes


@settings(max_examples=50, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_a_catalogue_rebuilt_in_any_order_says_what_the_live_one_says(
    changes: list[SegmentRecord], chance: random.Random
) -> None:
    live = CatalogueState()
    newest: dict[str, KnownSegment] = {}
    for version, record in enumerate(changes):
        newest[record.segment_id] = KnownSegment(record, version)
        live.apply(newest[record.segment_id])
        left = list(newest.values())
        chance.shuffle(left)
        assert answers(CatalogueState(left)) == answers(live)


@settings(max_examples=50, deadline=None)
@given(histories())
def test_an_offset_is_found_exactly_where_some_finished_segment_holds_it(changes: list[SegmentRecord]) -> None:
    state = CatalogueState(KnownSegment(record, version) for version, record in enumerate(changes))
    finished = [record for record in state.segments() if record.state == FINISHED]
    for epoch in range(5):
        holders = [(epoch_ranges(r)[epoch], r.segment_id) for r in finished if epoch in epoch_ranges(r)]
        assert state.highest_offset(epoch) == max((held.end_offset for held, _ in holders), default=None)
        for offset in range(-1, 53):
            able = {one for held, one in holders if held.start_offset <= offset <= held.end_offset}
            found = state.find(epoch, offset)
            assert (found is None) == (not able)
            assert found is None or found.segment_id in able


@settings(max_examples=50, deadline=None)
@given(histories())
def test_every_segment_of_an_epoch_is_referenced_or_unreferenced_and_referenced_ones_rise(
    changes: list[SegmentRecord],
) -> None:
    state = CatalogueState(KnownSegment(record, version) for version, record in enumerate(changes))
    for epoch, one in state.epochs.items():
        referenced = list(one.offset_to_id.values())
        assert not set(referenced) & one.unreferenced_segment_ids
        assert set(referenced) | one.unreferenced_segment_ids == {r.segment_id for r in state.segments(epoch)}
        ranges = [epoch_ranges(state.get(segment_id))[epoch] for segment_id in referenced]  # type: ignore[arg-type]
        assert all(a.start_offset < b.start_offset and a.end_offset < b.end_offset for a, b in pairwise(ranges))
        starts = [record.start_offset for record in state.segments(epoch)]
        assert starts == sorted(starts)


def test_a_merged_segment_replaces_its_sources_and_they_answer_again_when_it_goes() -> None:
    low, high, merged = segment(1, 0, 9), segment(2, 10, 19), segment(3, 0, 19)
    state = state_of(low, high, merged)
    assert state.epochs[0].offset_to_id == {0: merged.segment_id}
    assert state.epochs[0].unreferenced_segment_ids == {low.segment_id, high.segment_id}
    state.apply(KnownSegment(replace(merged, state="DELETE_SEGMENT_STARTED"), 9))
    assert state.epochs[0].offset_to_id == {0: low.segment_id, 10: high.segment_id}
    assert state.epochs[0].unreferenced_segment_ids == {merged.segment_id}


def test_of_two_segments_with_the_same_offsets_the_younger_answers() -> None:
    older, younger = segment(1, 5, 9), segment(2, 5, 9)
    for order in ((older, younger), (younger, older)):
        assert state_of(*order).find(0, 7) == younger


def test_an_epoch_ends_where_the_next_begins() -> None:
    state = state_of(segment(1, 0, 19, epochs={3: 0, 4: 12}))
    assert state.find(3, 11) is not None
    assert state.find(3, 12) is None
    assert state.find(4, 12) is not None
    assert state.find(4, 11) is None
    assert (state.highest_offset(3), state.highest_offset(4), state.highest_offset(5)) == (11, 19, None)


def test_segments_are_listed_by_their_start_also_those_of_one_epoch() -> None:
    state = state_of(segment(1, 9, 14, epochs={4: 9}), segment(2, 0, 14, epochs={3: 0, 4: 9}), segment(3, 15, 20))
    assert [record.start_offset for record in state.segments()] == [0, 9, 15]
    assert [record.start_offset for record in state.segments(4)] == [0, 9]
    assert state.segments(7) == []


def test_a_late_record_does_not_undo_a_newer_one() -> None:
    state = CatalogueState()
    state.apply(KnownSegment(segment(1, 0, 9), 5))
    state.apply(KnownSegment(segment(1, 0, 9, epochs={}, state="COPY_SEGMENT_STARTED"), 4))
    assert state.find(0, 3) is not None


def test_a_finished_deletion_is_gone_and_takes_up_nothing() -> None:
    state = state_of(segment(1, 0, 9), segment(2, 10, 19, size_bytes=7))
    assert (state.log_size_bytes(), state.log_size_bytes(0), state.log_size_bytes(1)) == (17, 17, 0)
    state.apply(KnownSegment(segment(1, 0, 9, state="DELETE_SEGMENT_FINISHED"), 9))
    assert [record.segment_id for record in state.segments()] == [f"{2:032x}"]
    assert state.log_size_bytes() == 7


def marked(record: SegmentRecord) -> SegmentRecord:
    return replace(record, custom_metadata='{"transactions": true, "by": "a test"}')


def test_the_next_segment_with_transactions_is_the_first_marked_one_before_a_gap_or_the_end_of_the_epoch() -> None:
    records = [segment(1, 0, 9), segment(2, 10, 19), marked(segment(3, 20, 29)), marked(segment(4, 40, 49))]
    state = state_of(*records, segment(5, 50, 59, epochs={1: 50}))
    assert state.next_segment_with_transactions(0, 3) == records[2]
    assert state.next_segment_with_transactions(0, 25) == records[2]
    assert state.next_segment_with_transactions(0, 30) is None, "no segment holds the offset"
    assert state.next_segment_with_transactions(0, 45) == records[3]
    assert state.next_segment_with_transactions(1, 50) is None
    assert state.next_segment_with_transactions(7, 0) is None
    assert state_of(segment(1, 0, 9), marked(segment(2, 11, 19))).next_segment_with_transactions(0, 3) is None


@pytest.mark.parametrize("custom", ["", "note", "{", "[1]", '{"transactions": false}', '{"transactions": 1}', "{}"])
def test_custom_metadata_that_does_not_say_so_means_no_transactions(custom: str) -> None:
    assert not has_transactions(replace(segment(1, 0, 9), custom_metadata=custom))
