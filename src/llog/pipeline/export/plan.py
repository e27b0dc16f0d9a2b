"""What one round of an export takes: which offsets of which partitions, divided into splits.

A plan says offsets, never objects: objects change while it is carried out (compaction), offsets do not, so a plan that
somebody recorded and did not finish can be finished by anybody later. What must stay true: plans of one topic into one
target follow each other without a hole and without an overlap; each begins where the target says the last one ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec
from msgspec.structs import replace

from llog.errors import ExportRefused, RecordsLost
from llog.limits import GIB, MIB
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.pipeline.export.decode import Decoding
from llog.pipeline.scan.plan import gather_parts, plan_again
from llog.pipeline.scan.splits import ScanRange, Split, SplitPart, plan_splits
from llog.pipeline.scan.subscription import LogEnds

# What one task reads, and with it about how large the files become; what one commit holds.
EXPORT_SPLIT_BYTES_DEFAULT: Final = 128 * MIB
EXPORT_COMMIT_BYTES_DEFAULT: Final = 8 * GIB


_HINT: Final = "--allow-gaps goes on with what is left"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is exported: one life of one topic, as these columns."""

    topic: str
    topic_id: str
    incarnation: int
    first_offset: int
    """Where its logs began."""
    columns: tuple[tuple[str, str], ...]
    """Names and types, in order: the same for every round into one target."""


class OffsetRange(msgspec.Struct, frozen=True, array_like=True):
    partition: int
    start_offset: int
    stop_offset: int
    """The first that is not part of it."""


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    number: int
    subject: Subject
    splits: tuple[tuple[OffsetRange, ...], ...]
    next_offsets: dict[int, int]
    """Of every partition, once this plan is committed."""
    decoding: Decoding
    by_date: bool
    """How files are made is part of the plan: whoever finishes it makes the same ones."""
    created_at_ms: int


class Sizes(msgspec.Struct, frozen=True):
    split_bytes: int = EXPORT_SPLIT_BYTES_DEFAULT
    commit_bytes: int = EXPORT_COMMIT_BYTES_DEFAULT


def wanted_ranges(
    subject: Subject,
    ends: Mapping[Log, LogEnds],
    reached: Mapping[int, int],
    *,
    allow_gaps: bool,
) -> list[ScanRange]:
    """From where the target stands to the ends. Records that retention took before they were exported are an error
    unless gaps are allowed; the first export of all begins with what there is."""
    ranges = []
    for log, at in ends.items():
        # A partition that the target does not know, though it knows others, came later: all its records are wanted.
        start = reached.get(log.partition, subject.first_offset if reached else at.log_start_offset)
        if start < at.log_start_offset:
            if not allow_gaps:
                reason = f"the log begins at {at.log_start_offset} now; {_HINT}"
                raise RecordsLost(*log, start, reason)
            start = at.log_start_offset
        if start < at.next_offset:
            ranges.append(ScanRange(log, start, at.next_offset, subject.incarnation))
    return ranges


def check_not_ahead(target: str, ends: Mapping[Log, LogEnds], reached: Mapping[int, int]) -> None:
    for log, at in ends.items():
        if reached.get(log.partition, 0) > at.next_offset:
            reason = f"holds {log} up to offset {reached[log.partition] - 1}, but that log ends at {at.next_offset - 1}"
            raise ExportRefused(target, f"{reason}: was the metadata restored from a backup?")


async def plan_round(
    context: LogContext,
    subject: Subject,
    number: int,
    ranges: Sequence[ScanRange],
    ends: Mapping[Log, LogEnds],
    reached: Mapping[int, int],
    sizes: Sizes,
    *,
    decoding: Decoding,
    by_date: bool,
) -> tuple[ExportPlan, list[Split]]:
    """The next round, of about `commit_bytes`: the beginnings of all ranges."""
    parts: list[SplitPart] = []
    # Partitions without a record now are part of it: what they get from here on is wanted.
    next_offsets = {log.partition: at.log_start_offset for log, at in ends.items()} | dict(reached)
    for wanted, found in zip(ranges, await _beginnings(context, ranges, sizes), strict=True):
        parts += found
        next_offsets[wanted.log.partition] = found[-1].stop_offset
    splits = plan_splits(parts, sizes.split_bytes)
    plan = ExportPlan(
        number=number,
        subject=subject,
        splits=tuple(_ranges_of(split) for split in splits),
        next_offsets=next_offsets,
        decoding=decoding,
        by_date=by_date,
        created_at_ms=context.now_ms(),
    )
    return plan, splits


async def _beginnings(context: LogContext, ranges: Sequence[ScanRange], sizes: Sizes) -> list[list[SplitPart]]:
    """Of each range its share of a commit."""
    share = max(1, sizes.commit_bytes // len(ranges))
    return [_up_to(share, parts) for parts in await gather_parts(context, ranges, bytes_max=share)]


def _up_to(share: int, parts: list[SplitPart]) -> list[SplitPart]:
    """The index is walked by pages, so that more may have come; at least one part is taken."""
    sizes_up_to = list(accumulate(part.wanted_bytes() for part in parts))
    return parts[: bisect_left(sizes_up_to, share) + 1]


async def splits_again(
    context: LogContext, plan: ExportPlan, numbers: Sequence[int], *, allow_gaps: bool
) -> list[Split]:
    """These splits of a plan, as the metadata has them now: each the same offsets as before, in one split."""
    splits = []
    for number in numbers:
        ranges = [
            ScanRange(
                Log(plan.subject.topic, one.partition), one.start_offset, one.stop_offset, plan.subject.incarnation
            )
            for one in plan.splits[number]
        ]
        try:
            found = await plan_again(context, ranges, fail_on_data_loss=not allow_gaps)
        except RecordsLost as error:
            error.args = (f"{error}; {_HINT}",)
            raise
        ordered = sorted(
            (part for split in found for part in split.parts),
            key=lambda part: (part.partition, part.start_offset),
        )
        splits.append(Split(tuple(ordered), sum(split.byte_length for split in found)))
    return splits


def _ranges_of(split: Split) -> tuple[OffsetRange, ...]:
    ranges: list[OffsetRange] = []
    for part in split.parts:
        last = ranges[-1] if ranges else None
        if last is not None and (last.partition, last.stop_offset) == (part.partition, part.start_offset):
            ranges[-1] = replace(last, stop_offset=part.stop_offset)
        else:
            ranges.append(OffsetRange(part.partition, part.start_offset, part.stop_offset))
    return tuple(ranges)
