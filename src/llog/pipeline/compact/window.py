"""The work item of compaction and merge, and its result: which bytes of which objects become which segments.

    Window: objects (which bytes of which blob) · runs (which slices of these objects become which segment)

Values only: the driver makes and reads them, a task in another process gets and returns them.
"""

from __future__ import annotations

import msgspec

from llog.formats.segment import Segment, SegmentBuilder, SegmentExtension
from llog.formats.values import EntryType
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
    """The segment of a run whose batches the builder has."""
    first, last = run.slices[0], run.slices[-1]
    return builder.finish(
        start_offset=first.end_offset - first.msg_count + 1,
        end_offset=last.end_offset,
        level=run.level,
        created_at_ms=run.created_at_ms,
        epochs=epochs,
        sources=sorted({window.objects[piece.source].uri for piece in run.slices}),
    )
