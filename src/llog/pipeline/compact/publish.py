"""Segments on their way into a log: registered before a task writes them, published in offset order afterwards.

Several runs of one log are written together and published one after the other: run k + 1 at the version that run k's
last step returned, and only if it starts at that cursor and nobody has begun a run of their own (PROTOCOL 7). What is
not published stays an object that nothing names; vacuum takes it a grace later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from llog.errors import InvalidArgument
from llog.formats.values import SegmentRecord
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.rewrite import segments
from llog.log.rewrite.publish import Compacted, KnownCompaction, finish, planned_run, publish
from llog.log.rewrite.select import Choice
from llog.pipeline.compact.look import LogHead
from llog.pipeline.compact.plan import NamedRun
from llog.pipeline.compact.window import RunOutcome
from llog.pipeline.runtime.tasks import TaskFailed
from llog.stores.objects.port import ObjectStore

ENTRY_CHANGED = "ObjectNotFound"
"""What an entry named is gone, so the entry is too, or says something else by now (R10): plan again."""


class NewSegment(NamedTuple):
    """A run that a task rewrites, and what will be known of it."""

    choice: Choice
    segment_id: str
    uri: str
    named: NamedRun
    outcome: asyncio.Future[RunOutcome]


class LogPublished(NamedTuple):
    """How far one log came in a round."""

    ended: Literal["all", "lost", "changed", "failed"]
    """all: every run; lost: another process was faster; changed: an object was gone; failed: a run cannot be done."""
    runs: tuple[Compacted, ...] = ()
    failed: TaskFailed | None = None


def segment_store(context: LogContext) -> ObjectStore:
    if context.segments is None:
        raise InvalidArgument("context", "has no store to put segments into")
    return context.segments


async def register(context: LogContext, head: LogHead, choice: Choice) -> NewSegment:
    """The record comes before the object: a crash anywhere leaves something to find."""
    log, taken, now_ms, incarnation = head.log, choice.run, context.now_ms(), head.control.incarnation
    segment_id = new_object_id(now_ms, context.random_bits)
    name = context.keys.segment_object(log, segment_id)
    uri = segment_store(context).uri(name)
    record = SegmentRecord(
        segment_id=segment_id,
        incarnation=incarnation,
        start_offset=taken.start_offset,
        end_offset=taken.end_offset,
        size_bytes=0,
        sources=taken.sources,
        state="COPY_SEGMENT_STARTED",
        state_changed_at_ms=now_ms,
        data_key=uri,
    )
    await segments.register(context, log, record)
    named = NamedRun(log, taken, incarnation, choice.level, now_ms, name)
    return NewSegment(choice, segment_id, uri, named, asyncio.get_running_loop().create_future())


async def publish_in_order(
    context: LogContext,
    head: LogHead,
    written: Sequence[NewSegment],
    slots: asyncio.Semaphore,
    on_run: Callable[[Compacted], None] = lambda _: None,
) -> LogPublished:
    """Each as soon as its task is done. Slots bound the publishing, not the waiting for tasks."""
    done: list[Compacted] = []
    record = head.record
    for number, new in enumerate(written):
        outcome = await new.outcome
        if outcome.segment is None:
            failed = outcome.failed
            changed = failed is not None and failed.error_type == ENTRY_CHANGED
            return LogPublished("changed" if changed else "failed", tuple(done), failed)
        if number and not _follows(record, new):
            return LogPublished("lost", tuple(done))
        async with slots:
            moved = await _publish_one(context, head, record, new, outcome)
        if moved is None:
            return LogPublished("lost", tuple(done))
        record = moved
        taken, size = new.choice.run, outcome.segment.byte_length
        run = Compacted(
            head.log, taken.start_offset, taken.end_offset, len(taken.entries), size, new.uri, False, *new.choice[:2]
        )
        done.append(run)
        on_run(run)
    return LogPublished("all", tuple(done))


def _follows(record: KnownCompaction, new: NewSegment) -> bool:
    if record.value.in_flight is not None:
        return False
    return new.choice.kind != "COMPACT" or record.value.offset == new.choice.run.start_offset


async def _publish_one(
    context: LogContext, head: LogHead, record: KnownCompaction, new: NewSegment, outcome: RunOutcome
) -> KnownCompaction | None:
    """The compaction record after it; None: another run came first, or the run had to be abandoned."""
    assert outcome.segment is not None
    segment, incarnation = outcome.segment.as_segment(), head.control.incarnation
    run = planned_run(incarnation, new.choice, new.segment_id, segment, new.uri, new.named.created_at_ms)
    if not await publish(context, head.log, record, run):
        return None
    published = await finish(context, head.log, head.control, run)
    return published.record if published.done else None
