"""Which requests fetch a set of byte ranges, and which bytes of an answer belong to which range.

Neighbouring ranges of one object cost less in one request than in several. The planner is pure: adapters perform its
plan and the meter counts it. (obstore's own range merging panics when a merged range reaches past the object's end.)

Every non-empty range lies inside exactly one request. A request is longer than its limit only if a single range is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.limits import KIB, MIB
from llog.stores.objects.port import Buffer, ByteRange

# Ranges closer than this share a request: reading the gap takes less time than another round trip.
OBJECT_RANGE_GAP_BYTES_MAX: Final = 128 * KIB
# Ranges are merged only while the request stays within this length.
OBJECT_FETCH_BYTES_MAX: Final = 64 * MIB

__all__ = [
    "ObjectFetch",
    "ObjectRange",
    "RangeFetch",
    "cut",
    "last_byte",
    "plan_fetches",
    "plan_object_fetches",
]


class RangeFetch(NamedTuple):
    """One request for bytes of one object."""

    byte_offset: int
    byte_length: int
    members: tuple[int, ...]
    """Positions, in the caller's sequence, of the ranges this fetch answers."""


class ObjectRange(NamedTuple):
    """Bytes of a named object; without a length, the whole object."""

    name: str
    byte_offset: int
    byte_length: int | None


class ObjectFetch(NamedTuple):
    """One request for bytes of a named object; without a length, for the whole object."""

    name: str
    byte_offset: int
    byte_length: int | None
    members: tuple[int, ...]
    """Positions, in the caller's sequence, of the ranges this fetch answers."""

    def part(self, answer: Buffer, wanted: ObjectRange) -> Buffer:
        """The bytes of one member, as a view of the answer."""
        if wanted.byte_length is None:
            return answer
        start = wanted.byte_offset - self.byte_offset
        return memoryview(answer)[start : start + wanted.byte_length]


def last_byte(ranges: Sequence[ByteRange]) -> int:
    """The length an object needs to hold all of these ranges."""
    return max((byte_offset + byte_length for byte_offset, byte_length in ranges), default=0)


def plan_fetches(
    ranges: Sequence[ByteRange],
    *,
    gap_bytes_max: int = OBJECT_RANGE_GAP_BYTES_MAX,
    fetch_bytes_max: int = OBJECT_FETCH_BYTES_MAX,
    spare_bytes: int | None = None,
) -> list[RangeFetch]:
    """Merge ranges that overlap or lie near each other. Empty ranges are in no fetch.

    `spare_bytes` limits the bytes of all gaps together that are fetched though not wanted.
    """
    wanted = sorted((r.byte_offset, r.byte_offset + r.byte_length, i) for i, r in enumerate(ranges) if r.byte_length)
    spare = sys.maxsize if spare_bytes is None else spare_bytes
    fetches: list[RangeFetch] = []
    members: list[int] = []
    start = end = 0
    for range_start, range_end, position in wanted:
        gap, grown = max(range_start - end, 0), max(end, range_end)
        too_far = gap > gap_bytes_max or gap > spare
        if members and (too_far or (range_end > end and grown - start > fetch_bytes_max)):
            fetches.append(RangeFetch(start, end - start, tuple(members)))
            members = []
        if members:
            spare -= gap
        else:
            start, grown = range_start, range_end
        end = grown
        members.append(position)
    if members:
        fetches.append(RangeFetch(start, end - start, tuple(members)))
    return fetches


def plan_object_fetches(
    wanted: Sequence[ObjectRange],
    *,
    gap_bytes_max: int = OBJECT_RANGE_GAP_BYTES_MAX,
    fetch_bytes_max: int = OBJECT_FETCH_BYTES_MAX,
    spare_bytes: int | None = None,
) -> list[ObjectFetch]:
    """`plan_fetches` for ranges of several objects. A whole object is a request of its own."""
    fetches: list[ObjectFetch] = []
    positions: dict[str, list[int]] = {}
    for position, (name, _, byte_length) in enumerate(wanted):
        if byte_length is None:
            fetches.append(ObjectFetch(name, 0, None, (position,)))
        else:
            positions.setdefault(name, []).append(position)
    for name, members in positions.items():
        ranges = [ByteRange(wanted[i].byte_offset, wanted[i].byte_length or 0) for i in members]
        planned = plan_fetches(
            ranges, gap_bytes_max=gap_bytes_max, fetch_bytes_max=fetch_bytes_max, spare_bytes=spare_bytes
        )
        if spare_bytes is not None:
            gaps = sum(fetch.byte_length for fetch in planned) - sum(r.byte_length for r in ranges)
            spare_bytes -= max(gaps, 0)
        fetches += [ObjectFetch(name, *fetch[:2], tuple(members[i] for i in fetch.members)) for fetch in planned]
    return fetches


def cut(fetch: RangeFetch, answer: Buffer, ranges: Sequence[ByteRange], into: list[Buffer]) -> None:
    """Store in `into`, for each range of the fetch, its view of `answer`."""
    view = memoryview(answer)
    for position in fetch.members:
        byte_offset, byte_length = ranges[position]
        start = byte_offset - fetch.byte_offset
        into[position] = view[start : start + byte_length]
