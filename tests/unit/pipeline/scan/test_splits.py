"""Splits tile what is wanted, keep their size, and keep a blob together."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llog.errors import InvalidArgument
from llog.formats.values import IndexEntry
from llog.limits import SPLIT_BYTES_MIN
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.read.fetch import is_segment
from llog.pipeline.scan.splits import ScanRange, SplitPart, parts_of, plan_splits

SMALL = SPLIT_BYTES_MIN


def entry(end: int, count: int, *, segment: bool, key: str = "b", at: int = 0, length: int = 1_000) -> Entry:
    value = IndexEntry(
        type="COMPACTED" if segment else "WAL",
        msg_count=count,
        data_key=f"file:///x/{key}",
        encoding="kafka-v2",
        byte_offset=at,
        byte_length=length + (100 if segment else 0),
        footer_length=100 if segment else None,
        created_at_ms=0,
    )
    return Entry(end, value, 1)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[ScanRange], list[SplitPart]]:
    """Logs of segments, then slices of shared blobs, and what is wanted of them."""
    ranges, parts = list[ScanRange](), list[SplitPart]()
    for partition in range(draw(st.integers(1, 4))):
        log, end, entries = Log("t", partition), 0, []
        for number in range(draw(st.integers(0, 3))):
            count = draw(st.integers(1, 5_000))
            end += count
            length = draw(st.integers(1, 5 * SMALL))
            entries.append(entry(end, count, segment=True, key=f"s{partition}-{number}", length=length))
        for number in range(draw(st.integers(0, 12))):
            count, length = draw(st.integers(1, 50)), draw(st.integers(1, SMALL))
            end += count
            entries.append(entry(end, count, segment=False, key=f"b{number}", at=partition * SMALL, length=length))
        if end:
            start = draw(st.integers(1, end))
            wanted = ScanRange(log, start, draw(st.integers(start, end)) + 1)
            ranges.append(wanted)
            parts += parts_of(wanted, entries)
    return ranges, parts


@given(plans(), st.integers(1, 40))
@hypothesis_settings(max_examples=80, deadline=None)
def test_splits_tile_the_wanted_offsets_and_keep_their_size(
    plan: tuple[list[ScanRange], list[SplitPart]], splits_min: int
) -> None:
    ranges, parts = plan
    splits = plan_splits(parts, SMALL, splits_min=splits_min)
    found: dict[Log, list[tuple[int, int]]] = defaultdict(list)
    for split in splits:
        assert len(split.parts) == 1 or split.byte_length <= SMALL
        order = [(part.log, part.start_offset) for part in split.parts]
        assert order == sorted(order), "a log's parts come in offset order"
        for part in split.parts:
            found[part.log].append((part.start_offset, part.stop_offset))
    for log, start, stop, _ in ranges:
        offset = start
        for begin, end in sorted(found.pop(log)):
            assert begin == offset < end
            offset = end
        assert offset == stop
    assert not found


def test_a_long_segment_makes_more_splits_than_there_are_partitions() -> None:
    parts = list(parts_of(ScanRange(Log("t", 0), 1, 10_001), [entry(10_000, 10_000, segment=True, length=10 * SMALL)]))
    splits = plan_splits(parts, SMALL)
    assert [len(split.parts) for split in splits] == [1] * 10
    assert {split.byte_length for split in splits} == {SMALL}


def test_as_many_splits_are_made_as_are_asked_for() -> None:
    parts = list(parts_of(ScanRange(Log("t", 0), 1, 1_001), [entry(1_000, 1_000, segment=True)]))
    assert len(plan_splits(parts, SMALL, splits_min=7)) == 7


def test_a_slice_is_cut_only_where_more_splits_are_asked_for() -> None:
    parts = list(parts_of(ScanRange(Log("t", 0), 3, 13), [entry(20, 20, segment=False, length=2 * SMALL)]))
    assert plan_splits(parts, SMALL)[0].parts == tuple(parts)
    cut = [part for split in plan_splits(parts, SMALL, splits_min=4) for part in split.parts]
    assert [(part.start_offset, part.stop_offset) for part in cut] == [(3, 5), (5, 8), (8, 10), (10, 13)]
    assert len(plan_splits(parts, SMALL, splits_min=40)) == 10, "one record each"


def test_the_slices_of_a_blob_stay_in_one_split_whichever_logs_they_are_of() -> None:
    parts = list[SplitPart]()
    for partition in range(16):
        wanted = ScanRange(Log("t", partition), 1, 81)
        at = partition * 1_000
        parts += parts_of(
            wanted, [entry(10 * (n + 1), 10, segment=False, key=f"b{n}", at=at, length=1_000) for n in range(8)]
        )
    splits = plan_splits(parts, SMALL)
    homes: dict[str, set[int]] = defaultdict(set)
    for number, split in enumerate(splits):
        for part in split.parts:
            homes[part.data_key].add(number)
    assert len(splits) > 1
    assert all(len(numbers) == 1 for numbers in homes.values())


def test_an_entry_that_begins_below_the_one_before_it_yields() -> None:
    """Between the swap and the deletes of a compaction (I5)."""
    entries = [entry(10, 10, segment=False), entry(30, 30, segment=True)]
    parts = list(parts_of(ScanRange(Log("t", 0), 3, 26), entries))
    assert [(part.start_offset, part.stop_offset) for part in parts] == [(3, 11), (11, 26)]
    assert not parts[1].wants_all


@pytest.mark.parametrize("segment", [True, False])
@pytest.mark.parametrize("encoding", ["kafka-v2", "bytes-batch-v1"])
def test_a_piece_knows_a_segment_as_readers_do(segment: bool, encoding: str) -> None:
    indexed = entry(10, 10, segment=segment)
    indexed = indexed._replace(value=replace(indexed.value, encoding=encoding))
    [part] = parts_of(ScanRange(Log("t", 0), 1, 11), [indexed])
    assert part.in_segment == is_segment(indexed) == is_segment(part.entry)
    assert part.wanted_bytes() == (1_000 if not segment or part.in_segment else 1_100)


def test_a_split_size_out_of_bounds_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="split_bytes: 1 must be from"):
        plan_splits([], 1)
