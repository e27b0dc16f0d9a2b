"""Which requests fetch a window of entries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llog.formats.values import IndexEntry
from llog.limits import OBJECT_RANGE_GAP_BYTES_MAX
from llog.log.index import Entry
from llog.log.read.fetch import LOG_READ_WHOLE_BYTES_MAX, Part, plan_fetches, plan_window


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
    assert lengths([entry(9, length=4, footer_length=5)], 40) == [], "an entry that makes no sense is not believed"


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
    assert lengths([wide], 2 * size, offset=10) == [size + 1], "one request less for who goes on reading"


def test_neighbours_are_one_request_and_far_ones_are_not() -> None:
    near, far = 10 + OBJECT_RANGE_GAP_BYTES_MAX, 1 << 40
    parts = [Part(entry(1), 0, 10), Part(entry(2), near, 10), Part(entry(3), far, 10), Part(entry(4, "b"), 20, 10)]
    plan = plan_fetches(parts, 1 << 30)
    assert [(f.byte_offset, f.byte_length, f.members) for f in plan] == [
        (20, 10, (3,)),
        (0, near + 10, (0, 1)),
        (far, 10, (2,)),
    ]
    assert len(plan_fetches(parts[:2], 30)) == 2, "the gap does not fit the budget"


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300_000), st.integers(0, 1_000)), min_size=1, max_size=30),
    st.integers(1, 400_000),
)
def test_every_part_lies_in_one_request_and_gaps_never_pass_the_budget(
    ranges: list[tuple[str, int, int]], bytes_max: int
) -> None:
    parts = [Part(entry(i, uri), begin, length) for i, (uri, begin, length) in enumerate(ranges)]
    fetches = plan_fetches(parts, bytes_max)
    assert sorted(i for fetch in fetches for i in fetch.members) == list(range(len(parts)))
    for fetch in fetches:
        assert fetch.byte_length is not None
        for i in fetch.members:
            _, begin, length = parts[i]
            assert parts[i].entry.value.data_key == fetch.data_key
            assert length is not None
            assert fetch.byte_offset <= begin <= begin + length <= fetch.byte_offset + fetch.byte_length
    asked = sum(part.byte_length or 0 for part in parts)
    assert sum(fetch.byte_length or 0 for fetch in fetches) <= max(asked, bytes_max)
