"""Which requests fetch a window of entries."""

from __future__ import annotations

from msgspec.structs import replace

from llog.formats.values import IndexEntry
from llog.log.index import Entry
from llog.log.read.fetch import LOG_READ_WHOLE_BYTES_MAX, plan_window


def entry(
    end: int,
    uri: str = "memory://m/a",
    begin: int | None = 0,
    length: int | None = 10,
    footer_length: int | None = None,
) -> Entry:
    value = IndexEntry(
        type="WAL" if footer_length is None else "COMPACTED",
        msg_count=1,
        data_key=uri,
        encoding="kafka-v2",
        byte_offset=begin,
        byte_length=length,
        footer_length=footer_length,
        created_at_ms=0,
    )
    return Entry(end, value, 1)


def lengths(entries: list[Entry], bytes_max: int, offset: int = 0, end_offset: int | None = None) -> list[int | None]:
    return [part.byte_length for part in plan_window(entries, bytes_max, offset, end_offset)]


def test_a_window_is_as_many_entries_as_the_budget_holds_and_at_least_one() -> None:
    row = [entry(i, begin=10 * i) for i in range(5)]
    assert lengths(row, 30) == [10, 10, 10]
    assert lengths(row, 1) == [10]
    assert lengths([], 30) == []


def test_an_object_of_unknown_length_takes_the_budget_for_itself() -> None:
    whole = entry(1, begin=None, length=None)
    assert lengths([whole, entry(2)], 30) == [None]
    assert lengths([entry(0), whole], 30) == [10]


def test_segments_that_fit_are_fetched_without_their_footer_and_longer_ones_are_streamed() -> None:
    small, large = entry(9, length=25, footer_length=5), entry(20, length=60, footer_length=5)
    assert lengths([small, small, large], 40) == [20, 20]
    assert lengths([large, small], 40) == []
    assert lengths([entry(9, length=None, footer_length=5)], 40) == []
    assert lengths([entry(9, length=4, footer_length=5)], 40) == [], "implausible lengths are not used"


def test_for_a_few_records_only_a_small_segment_is_fetched_whole() -> None:
    size = LOG_READ_WHOLE_BYTES_MAX
    assert lengths([entry(9, length=size + 5, footer_length=5)], 2 * size, end_offset=3) == [size]
    assert lengths([entry(9, length=size + 6, footer_length=5)], 2 * size, end_offset=3) == []
    assert lengths([entry(9, length=size + 6, footer_length=5)], 2 * size, end_offset=9) == [size + 1]
    last_record = {"offset": 10, "end_offset": 10}
    assert lengths([entry(10, length=size + 6, footer_length=5)], 2 * size, **last_record) == [size + 1]
    wide = entry(10, length=size + 6, footer_length=5)
    wide = wide._replace(value=replace(wide.value, msg_count=10))
    assert lengths([wide], 2 * size, **last_record) == []
    assert lengths([wide], 2 * size, offset=10) == [size + 1], "one request less for a reader that reads on"
