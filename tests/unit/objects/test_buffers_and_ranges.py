"""The pure helpers of the object stores: flat views, merged ranges, where an S3 listing starts."""

from __future__ import annotations

import array

from hypothesis import given
from hypothesis import strategies as st

from llog.stores.objects.port import (
    OBJECT_RANGE_GAP_BYTES_MAX,
    Buffer,
    ByteRange,
    ObjectRange,
    cut,
    equals_buffers,
    flat_views,
    plan_fetches,
    plan_object_fetches,
)
from llog.stores.objects.s3_client import list_offset, list_prefix, page_end

RANGES = st.lists(st.builds(ByteRange, st.integers(0, 1_000), st.integers(0, 200)), max_size=30)
NAMES = st.text(alphabet="ab/~0-.ä\U0001f600", max_size=8)


def test_flat_views_share_memory_with_the_buffers() -> None:
    source = bytearray(b"0123")
    integers = array.array("i", [1, 2])
    views = flat_views([source, b"", memoryview(integers)])
    source[0] = ord("X")
    integers[0] = 7
    assert [bytes(v) for v in views] == [b"X123", integers.tobytes()]


def test_only_what_cannot_be_reinterpreted_is_copied() -> None:
    assert [bytes(v) for v in flat_views([memoryview(b"0123456789")[::3]])] == [b"0369"]


@given(st.lists(st.binary(max_size=5)), st.binary(max_size=12))
def test_equals_buffers_is_equality_of_the_concatenation(parts: list[bytes], other: bytes) -> None:
    assert equals_buffers(b"".join(parts), parts)
    assert equals_buffers(other, parts) == (other == b"".join(parts))


@given(RANGES, st.integers(0, 100), st.integers(1, 500))
def test_every_range_lies_in_exactly_one_fetch(ranges: list[ByteRange], gap: int, longest: int) -> None:
    fetches = plan_fetches(ranges, gap_bytes_max=gap, fetch_bytes_max=longest)
    members = sorted(position for fetch in fetches for position in fetch.members)
    assert members == [i for i, r in enumerate(ranges) if r.byte_length]
    for fetch in fetches:
        for position in fetch.members:
            r = ranges[position]
            assert fetch.byte_offset <= r.byte_offset
            assert r.byte_offset + r.byte_length <= fetch.byte_offset + fetch.byte_length
        longest_member = max(ranges[position].byte_length for position in fetch.members)
        assert fetch.byte_length <= max(longest, longest_member)


@given(RANGES)
def test_fetches_are_cut_into_the_ranges(ranges: list[ByteRange]) -> None:
    content = bytes(i % 251 for i in range(1_200))
    parts: list[Buffer] = [b""] * len(ranges)
    for fetch in plan_fetches(ranges, gap_bytes_max=20):
        cut(fetch, content[fetch.byte_offset : fetch.byte_offset + fetch.byte_length], ranges, parts)
    assert [bytes(p) for p in parts] == [content[o : o + n] for o, n in ranges]


def test_near_ranges_are_one_fetch_and_far_ones_are_not() -> None:
    near_and_far = [ByteRange(0, 10), ByteRange(30, 10), ByteRange(61, 1)]
    assert [f[:2] for f in plan_fetches(near_and_far, gap_bytes_max=20)] == [(0, 40), (61, 1)]


@given(NAMES, NAMES, NAMES)
def test_a_listing_never_starts_behind_a_wanted_name(prefix: str, start_after: str, rest: str) -> None:
    name = prefix + rest
    if name > start_after:
        assert (list_offset(prefix, start_after) or "") < name or not rest
        assert (list_offset(prefix, start_after) or "") <= name
    assert name <= page_end(prefix)
    assert name.startswith(list_prefix(prefix) or "")


def test_a_listing_of_part_of_a_segment_starts_near_it() -> None:
    assert list_prefix("root/wal/0192") == "root/wal"
    assert list_offset("root/wal/0192", "") == "root/wal/0191~"
    assert list_offset("root/wal/", "root/wal/7") == "root/wal/7"
    assert list_offset("root/wal/", "") is None


def test_neighbours_in_one_object_are_one_request_and_far_ranges_are_not() -> None:
    near, far = 10 + OBJECT_RANGE_GAP_BYTES_MAX, 1 << 40
    wanted = [ObjectRange("a", 0, 10), ObjectRange("a", near, 10), ObjectRange("a", far, 10), ObjectRange("b", 20, 10)]
    assert plan_object_fetches(wanted) == [
        ("a", 0, near + 10, (0, 1)),
        ("a", far, 10, (2,)),
        ("b", 20, 10, (3,)),
    ]
    assert len(plan_object_fetches(wanted[:2], spare_bytes=OBJECT_RANGE_GAP_BYTES_MAX - 1)) == 2
    assert len(plan_object_fetches(wanted[:2], fetch_bytes_max=near)) == 2


def test_a_whole_object_is_a_request_of_its_own() -> None:
    wanted = [ObjectRange("a", 0, 10), ObjectRange("a", 0, None)]
    whole, ranged = plan_object_fetches(wanted)
    assert (whole, ranged) == (("a", 0, None, (1,)), ("a", 0, 10, (0,)))
    assert whole.part(b"0123456789ab", wanted[1]) == b"0123456789ab"


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300_000), st.integers(0, 1_000)), min_size=1, max_size=30),
    st.integers(0, 400_000),
)
def test_every_range_lies_in_one_request_and_gaps_never_exceed_the_spare_bytes(
    ranges: list[tuple[str, int, int]], spare_bytes: int
) -> None:
    wanted = [ObjectRange(*one) for one in ranges]
    fetches = plan_object_fetches(wanted, spare_bytes=spare_bytes)
    assert sorted(i for fetch in fetches for i in fetch.members) == [i for i, r in enumerate(wanted) if r.byte_length]
    for fetch in fetches:
        assert fetch.byte_length is not None
        for i in fetch.members:
            name, begin, length = wanted[i]
            assert name == fetch.name
            assert length is not None
            assert fetch.byte_offset <= begin <= begin + length <= fetch.byte_offset + fetch.byte_length
    asked = sum(r.byte_length or 0 for r in wanted)
    assert sum(fetch.byte_length or 0 for fetch in fetches) <= asked + spare_bytes
