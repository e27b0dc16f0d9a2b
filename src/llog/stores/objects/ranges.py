"""Which requests fetch a set of byte ranges, and how their answers are cut.

Why it exists: neighbouring ranges of one object are cheaper in one request than in many. The planning is pure, so
that the S3 adapter performs it and the meter counts it the same way. (obstore's own range merging is not used: it
panics when a merged range reaches beyond the object.)

What must stay true: every non-empty range lies inside exactly one fetch; no fetch is longer than the limit unless a
single range is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import InvalidArgument
from llog.limits import MIB, OBJECT_RANGE_GAP_BYTES_MAX, OBJECT_RANGES_MAX
from llog.stores.objects.port import Buffer, ByteRange, check_name, check_range

# … unless the one request grew beyond this.
OBJECT_FETCH_BYTES_MAX: Final = 64 * MIB


__all__ = ["Fetch", "check_ranges", "cut", "last_byte", "plan_fetches"]


class Fetch(NamedTuple):
    byte_offset: int
    byte_length: int
    members: tuple[int, ...]
    """Positions, in the caller's sequence, of the ranges this fetch answers."""


def check_ranges(name: str, ranges: Sequence[ByteRange]) -> None:
    check_name(name)
    if len(ranges) > OBJECT_RANGES_MAX:
        raise InvalidArgument("ranges", f"{len(ranges)} ranges of {name!r}; at most {OBJECT_RANGES_MAX} are accepted")
    for byte_offset, byte_length in ranges:
        check_range(byte_offset, byte_length)


def last_byte(ranges: Sequence[ByteRange]) -> int:
    """How long an object must be to hold all of them."""
    return max((byte_offset + byte_length for byte_offset, byte_length in ranges), default=0)


def plan_fetches(
    ranges: Sequence[ByteRange],
    *,
    gap_bytes_max: int = OBJECT_RANGE_GAP_BYTES_MAX,
    fetch_bytes_max: int = OBJECT_FETCH_BYTES_MAX,
) -> list[Fetch]:
    """Merge ranges that overlap or lie near each other. Empty ranges need no bytes and are in no fetch."""
    wanted = sorted((r.byte_offset, r.byte_offset + r.byte_length, i) for i, r in enumerate(ranges) if r.byte_length)
    fetches: list[Fetch] = []
    members: list[int] = []
    start = end = 0
    for range_start, range_end, position in wanted:
        grown = max(end, range_end)
        if members and (range_start - end > gap_bytes_max or (range_end > end and grown - start > fetch_bytes_max)):
            fetches.append(Fetch(start, end - start, tuple(members)))
            members = []
        if not members:
            start, grown = range_start, range_end
        end = grown
        members.append(position)
    if members:
        fetches.append(Fetch(start, end - start, tuple(members)))
    return fetches


def cut(fetch: Fetch, answer: Buffer, ranges: Sequence[ByteRange], into: list[Buffer]) -> None:
    """Put the views of `answer` that belong to each range of the fetch at their places in `into`."""
    view = memoryview(answer)
    for position in fetch.members:
        byte_offset, byte_length = ranges[position]
        start = byte_offset - fetch.byte_offset
        into[position] = view[start : start + byte_length]
