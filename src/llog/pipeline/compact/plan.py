"""Which bytes one round of compaction rewrites, and in which tasks: pure functions, and the work items they make.

    entries of each log, from its cursor on  →  blobs by age  →  windows of blobs  →  runs per window

A window is a stretch of the blobs' time line, so a blob belongs to one window and one task reads it once. A run of a
log ends where the log passes from one window to the next, or where a segment is full. Brokers commit blobs out of order
now and then: a log that returns to an earlier window has two runs there, which costs a segment but no second GET. Ids
carry the time of their writers' clocks, in milliseconds, so the order of a log's entries wins over the order of ids.

- Runs of a log are whole entries, contiguous, in offset order, from the first entry on (`select_run` checked R11).
- Every round takes something of some log, whatever the ids are; otherwise a log could wait for itself forever.
- Oldest blobs come first, and no log takes more than its share of a round while others wait: topics share a round
  equally, and the partitions of a topic share its part.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from llog.formats.segment import Segment, SegmentBuilder, SegmentExtension
from llog.formats.values import EntryType
from llog.limits import (
    COMPACT_TASKS_PER_CORE,
    COMPACT_WINDOW_BYTES_MAX,
    LOG_COMPACT_BYTES_DEFAULT,
    LOG_COMPACT_ENTRIES_MAX,
    MIB,
)
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.rewrite.publish import Run
from llog.pipeline.runtime.tasks import TaskFailed


class SourceObject(msgspec.Struct, frozen=True, array_like=True):
    """What is read of one object, in one request: from its first slice to the end of its last."""

    uri: str
    byte_offset: int | None = None
    """None: the whole object, where an entry names no range."""
    byte_length: int | None = None


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """One index entry of a run, and where its bytes are."""

    source: int
    """Position in the window's objects."""
    end_offset: int
    msg_count: int
    record_count: int | None
    byte_offset: int | None
    byte_length: int | None
    encoding: str
    epoch: int
    created_at_ms: int
    type: EntryType = "WAL"


class WindowRun(msgspec.Struct, frozen=True, array_like=True):
    """Slices that become one segment of one log, in offset order."""

    topic: str
    partition: int
    incarnation: int
    level: int
    created_at_ms: int
    name: str
    """Of the segment's object."""
    slices: tuple[Slice, ...]

    @property
    def byte_length(self) -> int:
        return sum(piece.byte_length or 0 for piece in self.slices)


class Window(msgspec.Struct, frozen=True):
    store_url: str
    """Where segments go."""
    objects: tuple[SourceObject, ...]
    runs: tuple[WindowRun, ...]

    @property
    def byte_length(self) -> int:
        return sum(source.byte_length or 0 for source in self.objects)


class WrittenSegment(msgspec.Struct, frozen=True):
    """A segment that lies in the store: all that publishing it needs."""

    extension: SegmentExtension
    byte_length: int
    footer_length: int
    record_count: int
    max_timestamp_ms: int

    def as_segment(self) -> Segment:
        """Without its bytes."""
        described = self.extension, self.byte_length, self.footer_length, self.record_count, self.max_timestamp_ms
        return Segment([], *described)


class RunOutcome(msgspec.Struct, frozen=True):
    segment: WrittenSegment | None = None
    failed: TaskFailed | None = None


class Written(msgspec.Struct, frozen=True):
    outcomes: tuple[RunOutcome, ...]
    """One per run of the window, in order."""
    objects_read: int
    bytes_read: int


def finished(builder: SegmentBuilder, window: Window, run: WindowRun, epochs: dict[int, int]) -> Segment:
    """Finish the segment of a run after its batches were added."""
    first, last = run.slices[0], run.slices[-1]
    return builder.finish(
        start_offset=first.end_offset - first.msg_count + 1,
        end_offset=last.end_offset,
        level=run.level,
        created_at_ms=run.created_at_ms,
        epochs=epochs,
        sources=sorted({window.objects[piece.source].uri for piece in run.slices}),
    )


# -- plan --------------------------------------------------------------------------------------------------------------

COMPACT_WINDOW_BYTES_MIN: Final = 128 * MIB
# Of one round, too.
COMPACT_ROUND_ENTRIES_MAX: Final = 200_000
COMPACT_LOG_ENTRIES_MIN: Final = 128
# Objects of one task: what names them travels with it.
COMPACT_WINDOW_OBJECTS_MAX: Final = 10_000


class Sizing(NamedTuple):
    """How large tasks are for a runner."""

    cores: int
    window_bytes_min: int = COMPACT_WINDOW_BYTES_MIN
    window_bytes_max: int = COMPACT_WINDOW_BYTES_MAX

    @classmethod
    def in_process(cls, window_bytes: int = COMPACT_WINDOW_BYTES_MAX) -> Sizing:
        """One window at a time is enough: a task's threads use all cores. Fewer, larger ones make fewer segments."""
        return cls(1, window_bytes, window_bytes)

    @property
    def round_bytes_max(self) -> int:
        """A few windows for every core, so that one that is slow does not keep the others waiting."""
        return self.cores * COMPACT_TASKS_PER_CORE * self.window_bytes_max

    def window_bytes(self, total_bytes: int) -> int:
        """As large as allowed. With few bytes every core gets some; with more, all windows get the same size: a last
        window left over would keep one core busy and the others waiting."""
        largest = min(max(-(-total_bytes // self.cores), self.window_bytes_min), self.window_bytes_max)
        turns = -(-total_bytes // (largest * self.cores))
        even = -(-total_bytes // max(1, turns * self.cores))
        return even if even >= self.window_bytes_min else largest


Resize = Callable[[], Awaitable[Sizing]]
"""The sizing now: executors of a cluster come and go."""


class SegmentRules(NamedTuple):
    """Where a segment is full."""

    target_bytes: int = LOG_COMPACT_BYTES_DEFAULT
    max_offsets: int = 2**62
    max_entries: int = LOG_COMPACT_ENTRIES_MAX


class PlannedRun(NamedTuple):
    log: Log
    run: Run
    window: int


class RoundPlan(NamedTuple):
    windows: int
    runs: Mapping[Log, Sequence[PlannedRun]]
    """Of each log, in offset order, without logs of which nothing is taken."""


class Share(NamedTuple):
    """What one log may bring into a round."""

    byte_length: int
    entries: int


def plan_shares(logs: Iterable[Log], sizing: Sizing, rules: SegmentRules) -> dict[Log, Share]:
    """Twice the fair share, at least one segment: in a balanced round the blobs' order decides, not the shares, so that
    all logs end at the same blob."""
    partitions = Counter(log.topic for log in logs)
    entries = max(COMPACT_LOG_ENTRIES_MIN, COMPACT_ROUND_ENTRIES_MAX // max(1, partitions.total()))
    return {
        log: Share(
            max(rules.target_bytes, 2 * sizing.round_bytes_max // len(partitions) // partitions[log.topic]), entries
        )
        for log in logs
    }


def plan_round(chosen: Mapping[Log, Run], sizing: Sizing, rules: SegmentRules) -> RoundPlan:
    """`chosen` are the contiguous entries that each log brings."""
    sizes = _bytes_by_object(chosen.values())
    window_of = _plan_windows(_oldest_first(chosen.values()), sizes, sizing)
    runs: dict[Log, list[PlannedRun]] = {}
    for log, run in chosen.items():
        if split := _split(log, run, window_of, rules):
            runs[log] = split
    return RoundPlan(max(window_of.values(), default=-1) + 1, runs)


def _bytes_by_object(runs: Iterable[Run]) -> dict[str, int]:
    """What will be read of each object: from its first slice to the end of its last."""
    return {uri: span.byte_length or 0 for uri, span in _spans(entry for run in runs for entry in run.entries).items()}


def _oldest_first(runs: Iterable[Run]) -> list[str]:
    """Each log's objects in the order of its offsets; of those that are next, the oldest. A merge of lists that are
    nearly in order: so the first object is always one that some log begins with."""
    objects = [[entry.value.data_key for entry in run.entries] for run in runs]
    # Ids begin with the instant of creation, whatever store they are in.
    return list(dict.fromkeys(heapq.merge(*objects, key=lambda uri: (uri.rpartition("/")[2], uri))))


def _plan_windows(oldest_first: Sequence[str], sizes: Mapping[str, int], sizing: Sizing) -> dict[str, int]:
    """The window of each object; those behind the end of the round have none."""
    ends = list(accumulate(sizes[uri] for uri in oldest_first))
    taken = max(1, bisect_right(ends, sizing.round_bytes_max))
    total_bytes = ends[:taken][-1] if ends else 0
    # Of one length rather than full ones and a rest: a small window makes small segments of every log in it.
    count = max(1, -(-total_bytes // sizing.window_bytes(total_bytes)))
    window_of: dict[str, int] = {}
    window = part = objects = 0
    for uri, end in zip(oldest_first[:taken], ends, strict=False):
        # Where the middle of the object lies decides, so that a window is at most half an object too long.
        place = (2 * end - sizes[uri]) * count // (2 * total_bytes) if total_bytes else 0
        if objects and (place > part or objects == COMPACT_WINDOW_OBJECTS_MAX):
            window, objects = window + 1, 0
        window_of[uri] = window
        part, objects = place, objects + 1
    return window_of


def _split(log: Log, run: Run, window_of: Mapping[str, int], rules: SegmentRules) -> list[PlannedRun]:
    planned: list[PlannedRun] = []
    part: list[Entry] = []
    window = size_bytes = 0

    def end_part() -> None:
        nonlocal part, size_bytes
        if part:
            planned.append(PlannedRun(log, Run(tuple(part)), window))
        part, size_bytes = [], 0

    for entry in run.entries:
        place = window_of.get(entry.value.data_key)
        if place is None:
            break  # for a later round
        length = entry.value.byte_length or 0
        offsets = entry.end_offset - (part[0].start_offset if part else entry.start_offset) + 1
        full = size_bytes + length > rules.target_bytes or offsets > rules.max_offsets or len(part) == rules.max_entries
        if part and (place != window or full):
            end_part()
        window = place
        part.append(entry)
        size_bytes += length
    end_part()
    return planned


# -- work items --------------------------------------------------------------------------------------------------------


class NamedRun(NamedTuple):
    """A run, and the segment it will become."""

    log: Log
    run: Run
    incarnation: int
    level: int
    created_at_ms: int
    name: str


def window_of_runs(store_url: str, runs: Sequence[NamedRun]) -> Window:
    """The work item of runs that share a task."""
    spans = _spans(entry for named in runs for entry in named.run.entries)
    numbers = {uri: number for number, uri in enumerate(spans)}
    items = tuple(_window_run(named, numbers.__getitem__) for named in runs)
    return Window(store_url=store_url, objects=tuple(spans.values()), runs=items)


def _window_run(named: NamedRun, number_of: Callable[[str], int]) -> WindowRun:
    slices = tuple(
        Slice(
            source=number_of(entry.value.data_key),
            end_offset=entry.end_offset,
            msg_count=entry.value.msg_count,
            record_count=entry.value.record_count,
            byte_offset=entry.value.byte_offset,
            byte_length=entry.value.byte_length,
            encoding=entry.value.encoding,
            epoch=entry.value.epoch,
            created_at_ms=entry.value.created_at_ms,
            type=entry.value.type,
        )
        for entry in named.run.entries
    )
    log, incarnation, level = named.log, named.incarnation, named.level
    return WindowRun(log.topic, log.partition, incarnation, level, named.created_at_ms, named.name, slices)


def _spans(entries: Iterable[Entry]) -> dict[str, SourceObject]:
    spans: dict[str, SourceObject] = {}
    for entry in entries:
        uri, begin, length = entry.value.data_key, entry.value.byte_offset, entry.value.byte_length
        known = spans.get(uri)
        if begin is None or length is None:
            spans[uri] = SourceObject(uri)
        elif known is None:
            spans[uri] = SourceObject(uri, begin, length)
        elif known.byte_offset is not None and known.byte_length is not None:
            first = min(known.byte_offset, begin)
            end = max(known.byte_offset + known.byte_length, begin + length)
            spans[uri] = SourceObject(uri, first, end - first)
    return spans
