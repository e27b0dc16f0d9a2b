"""The plan of one round of an export, and the targets it is for.

A plan names offsets, not objects: compaction replaces objects while a plan is performed, but offsets stay, so any
driver can finish a recorded plan later. Consecutive plans of a topic into a target leave no gap and no overlap: each
begins where the target says the last one ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from llog.errors import ExportRefused, RecordsLost
from llog.limits import GIB, MIB
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.pipeline.export.decode import Decoding
from llog.pipeline.export.evolution import columns_of, evolved, packed, unpacked
from llog.pipeline.export.schema_ids import WriterSchemas
from llog.pipeline.export.task import ExportWritten
from llog.pipeline.scan.plan import gather_parts, plan_again
from llog.pipeline.scan.splits import ScanRange, Split, SplitPart, plan_splits
from llog.pipeline.scan.subscription import LogEnds

# Bytes that one task reads, which is about the size of its files, and bytes per commit.
EXPORT_SPLIT_BYTES_DEFAULT: Final = 128 * MIB
EXPORT_COMMIT_BYTES_DEFAULT: Final = 8 * GIB
_HINT: Final = "use --allow-gaps to export the records that are left"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is exported: one incarnation of a topic, as these columns."""

    topic: str
    topic_id: str
    incarnation: int
    first_offset: int
    """The first offset of its logs."""
    columns: tuple[tuple[str, str], ...]
    """Names and types of the target's columns, in order."""
    arrow: str = ""
    """The same as an Arrow schema (`evolution.packed`), if later exports may have to compare it."""


class OffsetRange(msgspec.Struct, frozen=True, array_like=True):
    partition: int
    start_offset: int
    stop_offset: int
    """Excluded."""


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    number: int
    subject: Subject
    splits: tuple[tuple[OffsetRange, ...], ...]
    next_offsets: dict[int, int]
    """Of every partition once this plan is committed."""
    decoding: Decoding
    by_date: bool
    """Part of the plan, with `decoding`, so that every driver that finishes it writes the same files."""
    created_at_ms: int
    writers: WriterSchemas = WriterSchemas()
    """The schemas of the ids that were known when the plan was made, and those that its target recorded since."""


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
    """From the target's offsets to the ends of the logs. Records that retention removed before the export are an error
    unless gaps are allowed. The first export begins at the start of each log."""
    ranges = []
    for log, at in ends.items():
        # A partition that the target does not know, although it knows others, was added later: export all of it.
        start = reached.get(log.partition, subject.first_offset if reached else at.log_start_offset)
        if start < at.log_start_offset:
            if not allow_gaps:
                reason = f"the log now begins at offset {at.log_start_offset}; {_HINT}"
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
    writers: WriterSchemas,
) -> tuple[ExportPlan, list[Split]]:
    """The next round, of about `commit_bytes`: the beginning of each range."""
    parts: list[SplitPart] = []
    # Empty partitions are part of the plan, so that later records of theirs are exported.
    next_offsets = {log.partition: at.log_start_offset for log, at in ends.items()} | dict(reached)
    for wanted, beginning in zip(ranges, await _beginnings(context, ranges, sizes), strict=True):
        parts += beginning
        next_offsets[wanted.log.partition] = beginning[-1].stop_offset
    splits = plan_splits(parts, sizes.split_bytes)
    plan = ExportPlan(
        number=number,
        subject=subject,
        splits=tuple(_ranges_of(split) for split in splits),
        next_offsets=next_offsets,
        decoding=decoding,
        by_date=by_date,
        created_at_ms=context.now_ms(),
        writers=writers,
    )
    return plan, splits


async def _beginnings(context: LogContext, ranges: Sequence[ScanRange], sizes: Sizes) -> list[list[SplitPart]]:
    """Each range's equal share of a commit."""
    share = max(1, sizes.commit_bytes // len(ranges))
    return [_up_to(share, parts) for parts in await gather_parts(context, ranges, bytes_max=share)]


def _up_to(share: int, parts: list[SplitPart]) -> list[SplitPart]:
    """The parts up to `share` bytes, at least one. The index is read in pages, so `parts` may be more."""
    sizes_up_to = list(accumulate(part.wanted_bytes() for part in parts))
    return parts[: bisect_left(sizes_up_to, share) + 1]


async def splits_again(
    context: LogContext, plan: ExportPlan, numbers: Sequence[int], *, allow_gaps: bool
) -> list[Split]:
    """These splits of a plan, planned from the current metadata: each has the same offsets as before, in one split."""
    splits = []
    for number in numbers:
        ranges = [
            ScanRange(
                Log(plan.subject.topic, one.partition), one.start_offset, one.stop_offset, plan.subject.incarnation
            )
            for one in plan.splits[number]
        ]
        try:
            replanned = await plan_again(context, ranges, fail_on_data_loss=not allow_gaps)
        except RecordsLost as error:
            error.args = (f"{error}; {_HINT}",)
            raise
        ordered = sorted(
            (part for split in replanned for part in split.parts),
            key=lambda part: (part.partition, part.start_offset),
        )
        splits.append(Split(tuple(ordered), sum(split.byte_length for split in replanned)))
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


# -- targets -----------------------------------------------------------------------------------------------------------


class ExportPaths(NamedTuple):
    """Where tasks put files."""

    store_url: str
    data_prefix: str
    quarantine_prefix: str
    path_columns: tuple[str, ...] = ()
    """Columns that readers take from directory names (`partition=0`); some readers refuse files that hold them too."""


class Progress(NamedTuple):
    number: int
    """Of the next plan."""
    subject: Subject
    """With the columns that the target has after the next plan."""
    reached: dict[int, int]
    """The first offset of each partition that the target does not hold. Partitions that it never had are missing."""
    unfinished: ExportPlan | None = None
    """A recorded plan that is not committed: it must be finished first."""
    schema_ids: tuple[int, ...] = ()
    """The ids that the values of the last commit named: those of the next are likely the same."""


class ExportTarget(Protocol):
    """Where an export goes. The target keeps its offsets together with its files: both become visible by one act, so a
    driver that crashes anywhere, or runs twice, adds nothing twice and omits nothing."""

    title: str

    async def progress(self, subject: Subject) -> Progress:
        """The current offsets. Raises `ExportRefused` if the target holds another topic, or columns that those of the
        subject cannot join."""

    def paths(self) -> ExportPaths: ...

    async def begin(self, plan: ExportPlan) -> ExportPlan:
        """Record the plan. Returns the plan to perform: this one, or another that was recorded first."""

    async def record_writers(self, plan: ExportPlan, writers: WriterSchemas) -> WriterSchemas:
        """Record what was learnt of schema ids since the plan was recorded, before tasks write by it. Returns what to
        write by: an answer that another driver recorded first counts."""

    def file_name(self, plan: ExportPlan, split: int) -> str: ...

    async def commit(self, plan: ExportPlan, written: Sequence[ExportWritten]) -> bool:
        """Make files and offsets visible. False: another exporter committed first, and nothing of this plan counts."""

    async def close(self) -> None: ...


def check_topic_id(target: str, wanted: Subject, held: Subject) -> None:
    if held.topic_id != wanted.topic_id:
        reason = f"holds another incarnation of topic {wanted.topic} (topic id {held.topic_id}, now {wanted.topic_id})"
        raise ExportRefused(target, f"{reason}, and their offsets would overlap; export to another target")


def evolved_subject(target: str, wanted: Subject, held: Subject) -> Subject:
    """The subject with the columns of the target and its own. Raises `ExportRefused`."""
    check_topic_id(target, wanted, held)
    if not held.arrow and held.columns != wanted.columns:
        before, now = dict(held.columns), dict(wanted.columns)
        changed = min(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        kinds = f"{before.get(changed, 'missing')} there and {now.get(changed, 'missing')} in the schema"
        reason = (
            f"its column {changed} is {kinds}, and the older release that wrote it recorded too little to change it"
        )
        raise ExportRefused(target, f"{reason}; export to another target")
    schema = evolved(target, unpacked(held.arrow or wanted.arrow), unpacked(wanted.arrow))
    return replace(wanted, columns=columns_of(schema), arrow=packed(schema))
