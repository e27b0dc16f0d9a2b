"""Which entries a reader takes from a page of the index."""

from __future__ import annotations

from llog.formats.values import ControlRecord, IndexEntry, Pending
from llog.log.index import Entry
from llog.log.read.view import LogView, plan_tiles


def entry(start: int, end: int, kind: str = "WAL", incarnation: int = 1) -> Entry:
    value = IndexEntry(
        type="WAL" if kind == "WAL" else "COMPACTED",
        msg_count=end - start + 1,
        data_key=f"memory://m/{start}-{end}",
        encoding="kafka-v2",
        incarnation=incarnation,
        created_at_ms=0,
    )
    return Entry(end, value, 1)


def seen(*, counter: int = 100, cursor: int = 0, start: int = 1, pending: tuple[int, int] | None = None) -> LogView:
    waiting = None
    if pending is not None:
        first, last = pending
        waiting = Pending(
            append_id="p",
            start_offset=first,
            end_offset=last,
            msg_count=last - first + 1,
            data_key="memory://m/pending",
            encoding="kafka-v2",
            created_at_ms=0,
        )
    control = ControlRecord(log_state="OPEN", sequence_counter=counter, log_start_offset=start, pending=waiting)
    return LogView(control, 1, cursor)


def ends(entries: list[Entry], view: LogView, offset: int, end_offset: int | None = None) -> list[int]:
    return [tile.end_offset for tile in plan_tiles(entries, view, offset, end_offset).entries]


def test_adjacent_entries_are_taken_up_to_the_first_gap() -> None:
    row = [entry(1, 3), entry(4, 6), entry(8, 9)]
    assert ends(row, seen(), 1) == [3, 6]
    assert ends(row, seen(), 5) == [], "the first valid entry decides, and it does not cover offset 5"
    assert ends(row[1:], seen(), 5) == [6]


def test_phantoms_and_what_lies_below_the_start_are_passed_over() -> None:
    row = [entry(1, 3), entry(4, 6, incarnation=0), entry(1, 7, "COMPACTED"), entry(8, 9)]
    assert ends(row, seen(cursor=8), 2) == [7, 9]
    assert ends([entry(1, 3), entry(2, 4)], seen(start=4), 4) == [4]


def test_an_entry_of_a_later_incarnation_ends_the_row() -> None:
    assert ends([entry(1, 3), entry(4, 6, incarnation=2), entry(4, 7)], seen(), 1) == [3]


def test_an_entry_may_begin_below_the_offset() -> None:
    assert ends([entry(1, 3), entry(1, 6, "COMPACTED")], seen(), 1) == [3, 6]


def test_the_pending_append_covers_the_tail_and_nothing_else() -> None:
    assert ends([entry(1, 3)], seen(pending=(4, 5)), 1) == [3, 5]
    assert ends([], seen(pending=(4, 5)), 5) == [5]
    assert ends([entry(1, 3)], seen(pending=(5, 6)), 1) == [3]


def test_nothing_behind_the_wanted_end_is_taken() -> None:
    row = [entry(1, 3), entry(4, 6), entry(7, 9)]
    assert ends(row, seen(), 1, 4) == [3, 6]
    assert ends(row, seen(pending=(10, 11)), 1, 9) == [3, 6, 9]


def test_a_page_of_phantoms_decides_nothing() -> None:
    phantoms = [entry(1, 3), entry(4, 6)]
    assert plan_tiles(phantoms, seen(cursor=20), 1).go_on
    assert not plan_tiles(phantoms, seen(), 1).go_on
    assert not plan_tiles(phantoms, seen(), 2).go_on
    assert not plan_tiles([entry(5, 6)], seen(), 2).go_on, "a gap is an answer"
