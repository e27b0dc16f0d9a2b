"""Recover records that were appended after a backup was taken, from the objects that hold them.

The metadata was lost and restored as of the backup; newer blobs and segments still exist. Each step leaves less to the
next:

1. segments, log by log: they carry final offsets, so their records beyond the restored counter are appended at the
   offsets they had, as slices of the segment itself (`recover_segments`);
2. blobs, in order of time: slices that neither an entry nor a segment of their log references are appended in place; no
   byte is copied;
3. segments again: those that cover restored entries are published over them, because vacuum may have removed the blobs
   that those entries reference.

All appends go through the ordinary commit, so repeats of idempotent producers are recognised. Vacuum is held from
before the first step until an operator releases it; that is why slices older than the commit horizon may be committed
here. A committed slice references its object, so a second run finds nothing left to do. Only blobs from before the
restore are touched: the horizon keeps every other process from committing those.

Two things cannot be known: the order of blobs of different writers after the last segment (their times decide), and
whether a slice without an entry had been refused or never acknowledged (its records come back). Everything found and
not recovered is reported with its reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from llog.concurrency import gather_bounded
from llog.errors import (
    FormatError,
    InvalidArgument,
    LogError,
    ObjectNotFound,
    OutOfOrderSequence,
    RestoreRefused,
    UnknownProducer,
)
from llog.formats.backup import VacuumHold
from llog.formats.shared_blob import BlobSlice, parse_shared_blob
from llog.formats.values import TopicRecord
from llog.limits import RESTORE_BLOB_SLACK_MS
from llog.log.append.commit import Committer
from llog.log.append.known import Growth
from llog.log.append.pieces import AppendSlice, Landed, PieceOutcome, PlacedPiece
from llog.log.append.settle import settle_and_clear
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of
from llog.log.keys import Log, check_topic
from llog.log.recovery.recover_find import (
    DOUBTFUL,
    FoundBlob,
    FoundSegment,
    KnownBatches,
    LogSegments,
    ReferencedRanges,
    is_opaque,
    newer_blobs,
    newer_segments,
    pieces_of,
    read_ranges,
    reads_of,
)
from llog.log.recovery.recover_segments import (
    LATER_INCARNATION,
    SegmentRest,
    adopt_segments,
    first_offset_of,
    plan_segments,
)
from llog.log.recovery.restore import read_hold
from llog.log.topics.create import initialize, load_topic
from llog.stores.metadata.shared_reads import sharing_reads
from llog.stores.objects.port import ObjectStore

# Logs of one blob that are read at the same time.
RECOVER_LOGS_READ_AHEAD: Final = 256
# Slices that wait because the sequence numbers of their producer show that others come first.
RECOVER_POSTPONED_MAX: Final = 10_000

DELETED_THEN: Final = "its topic is deleted in the backup but was written to since: create it, and recover again"


class UnknownSlice(NamedTuple):
    """Records in an object that the metadata of their log does not reference."""

    log: Log
    uri: str
    msg_count: int
    created_at_ms: int
    outcome: str = "found"
    """`found` (nothing was done), `appended`, `repeated`, `refused: …` (by the log), or `left: …` (recovery cannot)."""
    start_offset: int = -1
    end_offset: int = -1
    objects: int = 1
    """The number of objects this line stands for; `uri` is the first."""


@dataclass
class Recovered:
    slices: list[UnknownSlice] = field(default_factory=list)
    adopted: list[str] = field(default_factory=list)
    """URIs of segments that were published over restored entries."""
    unreadable: list[str] = field(default_factory=list)
    """Objects that are not what their name says."""

    @property
    def appended(self) -> int:
        """The number of messages."""
        return sum(one.msg_count for one in self.slices if one.outcome == "appended")


async def recover(context: LogContext, *, dry_run: bool = False) -> Recovered:
    """Append the records that are newer than the restored backup; with `dry_run`, only list them."""
    if context.wal is None or context.segments is None:
        raise InvalidArgument("context", "has no object stores to search for blobs and segments")
    held = await read_hold(context)
    if held is None or held[0].state != "RESTORED":
        raise RestoreRefused("recovery needs a completed restore that still holds vacuum: run `llog meta restore`")
    async with sharing_reads(context.metadata) as metadata:
        reading = dataclasses.replace(context, metadata=metadata)
        work = _Recovery(context, reading, context.wal, context.segments, held[0], dry_run)
        try:
            await work.append_from_segments()
            await work.append_from_blobs()
            if not dry_run:
                await work.adopt()
        finally:
            await work.committer.close()
    return work.done


class _Slice(NamedTuple):
    """Pieces of one object, to be appended to one log."""

    log: Log
    uri: str
    created_at_ms: int
    encoding: str
    pieces: tuple[PlacedPiece, ...]


_EARLY: Final = (OutOfOrderSequence, UnknownProducer)
"""Other batches of the producer may come first."""


def _first_claim(part: _Slice) -> tuple[int, int]:
    """Epoch and sequence number of a postponed slice, which begins with a claim."""
    claim = part.pieces[0].claim
    return (0, 0) if claim is None else (claim.epoch, claim.first_sequence)


class _Recovery:
    def __init__(
        self,
        context: LogContext,
        reading: LogContext,
        wal: ObjectStore,
        segments: ObjectStore,
        hold: VacuumHold,
        dry_run: bool,
    ) -> None:
        self._context, self._wal, self._segments = context, wal, segments
        self._reading = reading
        """The same context; logs that are read side by side share their reads."""
        self._hold, self._dry_run = hold, dry_run
        self._since_ms = hold.recover_since_ms
        self.committer = Committer(context, first_offset=1, growth=Growth.ADMINISTERED)
        self._ranges: dict[Log, ReferencedRanges] = {}
        self._damaged: dict[Log, str] = {}
        self._batches: dict[Log, KnownBatches] = {}
        self._left: dict[tuple[Log, str], int] = {}
        self._topics: dict[str, TopicRecord | None] = {}
        self._postponed: list[_Slice] = []
        self.done = Recovered()

    # -- 1: segments beyond the counter -------------------------------------------------------------------------------
    async def append_from_segments(self) -> None:
        async for some in newer_segments(self._context, self._segments, self._since_ms):
            if self._dry_run:  # otherwise, `_begin` first changes what a log references
                await self._read_ahead([found.log for found in some])
            for found in some:
                await self._append_from_segments_of(found)

    async def _append_from_segments_of(self, found: LogSegments) -> None:
        self.done.unreadable += found.unreadable
        fresh = await self._current_segments(found)
        if not fresh:
            return
        try:
            if not self._dry_run:
                await self._begin(found.log, fresh)
            ranges = await self._referenced(found.log)
        except LogError as error:
            self._damaged[found.log] = f"refused: {error.reason}"
            ranges = None
        if ranges is None:
            self._leave(fresh, self._damaged[found.log])
            return
        plan = await plan_segments(self._context, fresh, ranges)
        for part in plan.appended:
            await self._append_segment(found.log, part.segment, part.start_offset, ranges)
        await self._note_contained(found, plan.contained, ranges)
        for part, reason in plan.left:
            self._leave_part(part, f"left: {reason}")

    async def _note_contained(
        self, found: LogSegments, contained: Sequence[FoundSegment], ranges: ReferencedRanges
    ) -> None:
        """Mark all sources of these segments, and their sources, as being in the log."""
        by_uri = {one.uri: one for one in found.segments}
        batches = self._batches.setdefault(found.log, KnownBatches())
        waiting, seen = list(contained), {one.uri for one in contained}
        while waiting:
            segment = waiting.pop()
            for source in segment.extension.sources:
                ranges.add_whole(source)
                if source in by_uri and source not in seen:
                    seen.add(source)
                    waiting.append(by_uri[source])
            if is_opaque(self._context, segment, found.segments, self._since_ms):
                try:
                    await batches.add(self._segments, segment)
                except (FormatError, ObjectNotFound):
                    self.done.unreadable.append(segment.uri)

    async def _current_segments(self, found: LogSegments) -> list[FoundSegment]:
        """Segments of the topic's live incarnation; for a topic that does not exist, those of the last incarnation."""
        topic = await self._topic(found.log.topic)
        last = max((one.extension.incarnation for one in found.segments), default=0)
        current = last if topic is None else topic.incarnation
        later = [one for one in found.segments if one.extension.incarnation > current]
        self._leave(later, f"left: {LATER_INCARNATION}")
        if topic is not None and topic.state != "LIVE":
            return []
        return [one for one in found.segments if one.extension.incarnation == current]

    async def _begin(self, log: Log, segments: Sequence[FoundSegment]) -> None:
        """Create the log before anything is planned, so that a run after a crash sees the same start. The log may be
        half created, or of a partition that was added since the backup."""
        await initialize(self._context, log, first_offset=first_offset_of(segments))
        await settle_and_clear(self._context, log)

    def _leave(self, segments: Sequence[FoundSegment], reason: str) -> None:
        for segment in segments:
            self._leave_part(SegmentRest(segment, segment.start_offset), reason)

    def _leave_part(self, part: SegmentRest, reason: str) -> None:
        segment, start_offset = part
        count, created_at_ms = segment.records_from(start_offset), segment.extension.created_at_ms
        log = Log(segment.extension.topic, segment.extension.partition)
        self.done.slices.append(UnknownSlice(log, segment.uri, count, created_at_ms, reason))

    async def _append_segment(self, log: Log, segment: FoundSegment, position: int, ranges: ReferencedRanges) -> None:
        """Append its batches from `position` on, in slices that fit into memory."""
        for begin, length in reads_of(segment, segment.footer.batches_from(position)):
            try:
                data = await self._segments.get_range(segment.name, begin, length)
                pieces = pieces_of(data, "kafka-v2", begin, 0, segment.uri)
            except (FormatError, ObjectNotFound):
                self.done.unreadable.append(segment.uri)
                return
            await self._append(_Slice(log, segment.uri, segment.extension.created_at_ms, "kafka-v2", pieces), ranges)

    # -- 2: blobs -----------------------------------------------------------------------------------------------------
    async def append_from_blobs(self) -> None:
        async for blob in newer_blobs(self._context, self._wal, self._since_ms):
            if created_at_ms_of(blob.blob_id) >= self._hold.held_at_ms:
                continue  # created since the restore: its writer may be about to commit it
            try:
                data = await self._wal.get(blob.name)
                _, slices = parse_shared_blob(data, blob.uri)
            except (FormatError, ObjectNotFound):
                self.done.unreadable.append(blob.uri)
                continue
            await self._read_ahead(_logs_of(slices))
            for part in slices:
                body = memoryview(data)[part.byte_offset : part.byte_offset + part.byte_length]
                await self._append_slice(blob, part, body)
        await self._append_postponed()

    async def _append_postponed(self) -> None:
        """Retry the postponed slices as long as some of them succeed."""
        left = len(self._postponed) + 1
        while 0 < len(self._postponed) < left:
            left, waiting = len(self._postponed), self._postponed
            self._postponed = []
            for part in waiting:
                await self._commit(part, last_time=False)
        for part in sorted(self._postponed, key=_first_claim):
            await self._commit(part, last_time=True)

    async def _append_slice(self, blob: FoundBlob, part: BlobSlice, body: memoryview) -> None:
        try:
            log = Log(check_topic(part.topic), part.partition)
            pieces = pieces_of(body, part.encoding, part.byte_offset, part.msg_count, blob.uri)
        except (FormatError, InvalidArgument):
            self.done.unreadable.append(blob.uri)
            return
        created_at_ms = created_at_ms_of(blob.blob_id)
        topic, hold = await self._topic(log.topic), self._hold
        if topic is not None and is_of_dead_incarnation(topic, created_at_ms, restored_at_ms=hold.held_at_ms):
            if topic.state == "DELETED" and created_at_ms >= hold.recover_since_ms + RESTORE_BLOB_SLACK_MS:
                self._leave_in_blobs(log, blob.uri, part.msg_count, created_at_ms, f"left: {DELETED_THEN}")
            return
        ranges = await self._referenced(log)
        if ranges is None:
            self._leave_in_blobs(log, blob.uri, part.msg_count, created_at_ms, self._damaged[log])
            return
        pieces = tuple(one for one in pieces if not ranges.holds(blob.uri, one.byte_offset, one.byte_length))
        known = self._batches.get(log)
        if pieces and known is not None and not known.is_empty():
            begins = {one: one.byte_offset - part.byte_offset for one in pieces}
            pieces = tuple(
                one
                for one, begin in begins.items()
                if not known.take(body[begin : begin + one.byte_length], part.encoding, created_at_ms, blob.uri)
            )
            if pieces and created_at_ms < known.doubtful_before_ms:
                count = sum(one.msg_count for one in pieces)
                self._leave_in_blobs(log, blob.uri, count, created_at_ms, f"left: {DOUBTFUL}")
                return
        await self._append(_Slice(log, blob.uri, created_at_ms, part.encoding, pieces), ranges)

    # -- 3: segments over restored entries ----------------------------------------------------------------------------
    async def adopt(self) -> None:
        async for some in newer_segments(self._context, self._segments, self._since_ms):
            for found in some:
                await self._adopt_for(found)

    async def _adopt_for(self, found: LogSegments) -> None:
        topic = await self._topic(found.log.topic)
        if topic is None or topic.state != "LIVE" or await self._referenced(found.log) is None:
            return
        fresh = [one for one in found.segments if one.extension.incarnation == topic.incarnation]
        try:
            adopted = await adopt_segments(self._context, found.log, fresh, restored_at_ms=self._hold.held_at_ms)
        except LogError as error:
            self._leave(fresh[-1:], f"refused: {error.reason}")
        else:
            self.done.adopted += [segment.uri for segment in adopted]

    # -- both ---------------------------------------------------------------------------------------------------------
    async def _read_ahead(self, logs: Sequence[Log]) -> None:
        """Read the topics of these logs and what the logs reference, many at a time. Errors come when it is used."""
        unknown = [log for log in dict.fromkeys(logs) if log not in self._ranges]
        topics = {log.topic for log in unknown} - set(self._topics)
        await gather_bounded(sorted(topics), self._topic, limit=RECOVER_LOGS_READ_AHEAD)
        await gather_bounded(unknown, self._referenced, limit=RECOVER_LOGS_READ_AHEAD)

    async def _referenced(self, log: Log) -> ReferencedRanges | None:
        """None: a record of the log is damaged, so what it references is unknown."""
        if log not in self._ranges and log not in self._damaged:
            try:
                self._ranges[log] = await read_ranges(self._reading, log, self._hold)
            except (FormatError, InvalidArgument) as error:
                self._damaged[log] = f"refused: the log is damaged ({error})"
        return self._ranges.get(log)

    async def _topic(self, topic: str) -> TopicRecord | None:
        may_appear = not self._dry_run  # recovery creates it
        if topic not in self._topics or (self._topics[topic] is None and may_appear):
            found = await load_topic(self._reading, topic, strict=True)
            self._topics[topic] = None if found is None else found[0]
        return self._topics[topic]

    async def _append(self, part: _Slice, ranges: ReferencedRanges) -> None:
        """Append the pieces that the log does not reference yet."""
        left = [piece for piece in part.pieces if not ranges.holds(part.uri, piece.byte_offset, piece.byte_length)]
        if not left:
            return
        part = part._replace(pieces=tuple(left))
        if self._dry_run:
            count = sum(piece.msg_count for piece in left)
            self.done.slices.append(UnknownSlice(part.log, part.uri, count, part.created_at_ms))
        else:
            await self._commit(part, last_time=len(self._postponed) >= RECOVER_POSTPONED_MAX)

    async def _commit(self, part: _Slice, *, last_time: bool) -> None:
        """Commit the pieces. Those out of order are postponed, unless `last_time`: the times of two blobs do not show
        which came first when they are equal or of two clocks, but the sequence numbers of a producer do. The last time,
        an unknown producer begins with the first number that is left."""
        pieces = tuple(piece._replace(number=number) for number, piece in enumerate(part.pieces))
        known = self.committer.known
        outcomes: Sequence[PieceOutcome | None]
        try:
            incarnation = await known.know(part.log)
        except LogError as error:
            outcomes = [error] * len(pieces)
        else:
            try:
                outcomes = await self._commit_known(part, incarnation, pieces, accepts_unknown=last_time)
            finally:
                known.release([part.log])
        early = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, _EARLY) and not last_time]
        if early:
            self._postponed.append(part._replace(pieces=tuple(pieces[i] for i in early)))
        settled = [(pieces[i], outcomes[i]) for i in range(len(pieces)) if i not in set(early)]
        self._note(part.log, part.uri, part.created_at_ms, settled)

    async def _commit_known(
        self, part: _Slice, incarnation: int, pieces: tuple[PlacedPiece, ...], *, accepts_unknown: bool
    ) -> Sequence[PieceOutcome | None]:
        slice_ = AppendSlice(
            append_id=f"{self._context.random_bits(128):032x}",
            incarnation=incarnation,
            data_key=part.uri,
            # Not its own time, which is below the horizon; vacuum is held.
            blob_created_at_ms=max(part.created_at_ms, self._hold.held_at_ms),
            encoding=part.encoding,
            pieces=pieces,
            accepts_unknown=accepts_unknown,
        )
        return (await self.committer.commit({part.log: slice_}))[part.log]

    def _leave_in_blobs(self, log: Log, uri: str, msg_count: int, created_at_ms: int, reason: str) -> None:
        """Report all blobs of a log with the same reason in one line: there may be thousands."""
        at = self._left.get((log, reason))
        if at is None:
            self._left[log, reason] = len(self.done.slices)
            self.done.slices.append(UnknownSlice(log, uri, msg_count, created_at_ms, reason))
        else:
            line = self.done.slices[at]
            self.done.slices[at] = line._replace(msg_count=line.msg_count + msg_count, objects=line.objects + 1)

    def _note(
        self, log: Log, uri: str, created_at_ms: int, outcomes: list[tuple[PlacedPiece, PieceOutcome | None]]
    ) -> None:
        """Report neighbours with the same outcome in one line."""
        for piece, outcome in outcomes:
            text = _outcome_text(outcome)
            start, end = (outcome.start_offset, outcome.end_offset) if isinstance(outcome, Landed) else (-1, -1)
            last = self.done.slices[-1] if self.done.slices else None
            if (
                last is not None
                and (last.log, last.uri, last.outcome) == (log, uri, text)
                and last.end_offset + 1 == start
            ):
                count = last.msg_count + piece.msg_count
                self.done.slices[-1] = last._replace(msg_count=count, end_offset=end)
            else:
                self.done.slices.append(UnknownSlice(log, uri, piece.msg_count, created_at_ms, text, start, end))


def _logs_of(slices: Sequence[BlobSlice]) -> list[Log]:
    """The logs of these slices, without invalid names."""
    logs: list[Log] = []
    for part in slices:
        with contextlib.suppress(InvalidArgument):
            logs.append(Log(check_topic(part.topic), part.partition))
    return logs


def is_of_dead_incarnation(topic: TopicRecord, created_at_ms: int, *, restored_at_ms: int) -> bool:
    """The slice was written for a deleted incarnation of the topic. (A topic that recovery itself created is younger
    than all its records.)"""
    if topic.state != "LIVE":
        return True
    # A first incarnation has no predecessor, whatever the clocks of its writers say.
    return topic.incarnation > 1 and created_at_ms < topic.created_at_ms < restored_at_ms


def _outcome_text(outcome: PieceOutcome | None) -> str:
    if isinstance(outcome, Landed):
        return "repeated" if outcome.repeated else "appended"
    return "refused: the topic was deleted or created again" if outcome is None else f"refused: {outcome.reason}"
