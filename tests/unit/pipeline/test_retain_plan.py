"""When retention has something to do for a log that does not change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llog.formats.values import ControlRecord, IndexEntry, SegmentRecord, SegmentState
from llog.log.cleanup.retention import Limits, plan_log_start, plan_retention_ms
from llog.log.index import Entry

NOW = 1_000_000
GRACE_MS = 1_000


def entry(end: int, newest_ms: int, *, size: int = 10, records: int | None = None) -> Entry:
    value = IndexEntry(
        type="COMPACTED",
        msg_count=10,
        record_count=records,
        data_key=f"memory://x/{end}",
        encoding="kafka-v2",
        byte_length=size,
        max_timestamp_ms=newest_ms,
        created_at_ms=5,
    )
    return Entry(end, value, 1)


def segment(end: int, state: SegmentState, changed_at_ms: int = NOW) -> SegmentRecord:
    return SegmentRecord(
        segment_id="x",
        incarnation=1,
        start_offset=end - 9,
        end_offset=end,
        size_bytes=10,
        state=state,
        state_changed_at_ms=changed_at_ms,
        data_key=f"memory://x/{end}",
    )


def due_at_ms(
    entries: list[Entry],
    segments: list[SegmentRecord],
    limits: Limits,
    *,
    start: int = 1,
    in_flight: str | None = None,
) -> int | None:
    control = ControlRecord(log_state="OPEN", sequence_counter=10_001, log_start_offset=start)
    return plan_retention_ms(entries, segments, control, limits, in_flight=in_flight, now_ms=NOW, grace_ms=GRACE_MS)


newest = st.integers(-1, NOW + 100)
entries_of = st.lists(st.tuples(newest, st.sampled_from([None, 0, 3]), st.integers(0, 50)), max_size=6)
limits_of = st.builds(
    Limits,
    retention_ms=st.one_of(st.none(), st.integers(0, 2 * NOW)),
    retention_bytes=st.one_of(st.none(), st.integers(0, 120)),
)


@given(entries_of, limits_of)
def test_nothing_goes_before_the_instant_and_something_at_it(
    some: list[tuple[int, int | None, int]], limits: Limits
) -> None:
    entries = [
        entry(10 * number, newest_ms, records=records, size=size)
        for number, (newest_ms, records, size) in enumerate(some, 1)
    ]

    def start_at(now_ms: int) -> int:
        return plan_log_start(
            entries,
            log_start_offset=1,
            next_offset=10_001,
            now_ms=now_ms,
            retention_ms=limits.retention_ms,
            retention_bytes=limits.retention_bytes,
        )

    due_ms = due_at_ms(entries, [], limits)
    if due_ms is None:
        assert start_at(10**12) == 1
    elif due_ms <= NOW:
        assert start_at(NOW) > 1
    else:
        assert start_at(due_ms - 1) == 1
        assert start_at(due_ms) > 1


def test_what_an_interrupted_call_left_is_due_now() -> None:
    assert due_at_ms([entry(10, NOW), entry(20, NOW)], [], Limits(), start=15) == NOW
    assert due_at_ms([entry(20, NOW)], [], Limits(), start=15) is None
    gone = segment(10, "DELETE_SEGMENT_STARTED")
    assert due_at_ms([entry(20, NOW)], [gone], Limits(), start=15) == 0


def test_a_retired_segment_goes_a_grace_later_unless_something_names_it() -> None:
    retired = segment(10, "DELETE_SEGMENT_STARTED", NOW - 400)
    assert due_at_ms([entry(20, NOW)], [retired, segment(20, "COPY_SEGMENT_FINISHED")], Limits()) == NOW + 601
    assert due_at_ms([entry(10, NOW)], [retired], Limits()) is None
    assert due_at_ms([entry(20, NOW)], [retired], Limits(), in_flight=retired.data_key) is None
    assert due_at_ms([], [segment(10, "DELETE_SEGMENT_FINISHED")], Limits()) == 0
