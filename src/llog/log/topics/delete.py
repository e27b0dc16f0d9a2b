"""Delete a topic, in the order that safety depends on (R13, protocol section 9).

    1. compare-and-set the topic's record to DELETING: no log is initialized or added any more, the count is final
    2. per log, guarded by its partition-delete record (MARKED → STARTED → FINISHED)
       a. control becomes a tombstone: log_state DELETED, `pending` null; created where control is absent
       b. everything else is removed (`leftovers`)
    3. compare-and-set the topic's record to DELETED: from here on a new incarnation may begin

The order is safe: after 2a no append commits and no reader starts, because both go by control, and a writer or
compactor with old knowledge fails at a version. The tombstone exists before DELETED, so an initialization delayed since
the topic was LIVE cannot create a log of the dead incarnation (h01e, h23). Every step is idempotent and starts from the
current values, so any process resumes a deletion and two may run at once; a deleter delayed past a re-creation meets a
higher incarnation or a changed version, and stops (h01d). The tombstone and the FINISHED record stay: vacuum counts the
tombstone as the log's control, and a late deleter finds its work done.

A failure half-way (an unavailable store, an object that cannot be deleted) leaves the topic DELETING; the next call
continues from there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import LogBusy, MetadataStoreError, TopicNotFound
from llog.formats.values import (
    ControlRecord,
    PartitionDelete,
    PartitionDeleteState,
    TopicRecord,
)
from llog.limits import TOPIC_ROUNDS_MAX
from llog.log.append.settle import StaleSelf
from llog.log.change import change_value, lost_race_or_unavailable
from llog.log.cleanup.leftovers import LeftoversRemoved, remove_dead
from llog.log.context import LogChange, LogContext
from llog.log.control import new_control
from llog.log.keys import Log
from llog.log.topics.admin import change_topic
from llog.log.topics.create import for_each_partition

# Passes that remove the values of a deleted log, until one finds none; late writers may add some meanwhile.
TOPIC_DELETE_PASSES_MAX: Final = 8

ORDER: Final[tuple[PartitionDeleteState, ...]] = (
    "DELETE_PARTITION_MARKED",
    "DELETE_PARTITION_STARTED",
    "DELETE_PARTITION_FINISHED",
)


class TopicDeleted(NamedTuple):
    """What one call did; zeros if the incarnation was deleted before."""

    topic: str
    incarnation: int
    partitions: int = 0
    entries_removed: int = 0
    segments_removed: int = 0


async def delete_topic(context: LogContext, topic: str, expected_incarnation: int | None = None) -> TopicDeleted:
    """Delete the topic, or continue an unfinished deletion.

    `expected_incarnation` makes a repeated call harmless: it never deletes a later incarnation of the name. Raises
    `TopicNotFound` for an unknown topic, and without `expected_incarnation` also for a deleted one.
    """
    incarnation, dying = await _begin(context, topic, expected_incarnation)
    if dying is None:
        return TopicDeleted(topic, incarnation)
    removed = await for_each_partition(
        dying.partition_count, lambda partition: _delete_log(context, Log(topic, partition), dying)
    )
    await _end(context, topic, incarnation)
    entries, segments = sum(one.entries for one in removed), sum(one.segments for one in removed)
    return TopicDeleted(topic, incarnation, dying.partition_count, entries, segments)


# -- the topic's record ----------------------------------------------------------------------------------------------


async def _begin(context: LogContext, topic: str, expected: int | None) -> tuple[int, TopicRecord | None]:
    """The incarnation to delete, and its topic record, DELETING; None if that incarnation is deleted already."""
    incarnation = expected

    def mark(current: TopicRecord | None) -> TopicRecord | None:
        nonlocal incarnation
        if current is None or (incarnation is not None and current.incarnation < incarnation):
            raise TopicNotFound(topic, "no such topic")
        if incarnation is None and current.state == "DELETED":
            raise TopicNotFound(topic, "it is deleted")
        # The first incarnation read is the one to delete, also after a lost answer.
        incarnation = current.incarnation if incarnation is None else incarnation
        if current.incarnation > incarnation or current.state != "LIVE":
            return None
        return replace(current, state="DELETING")

    marked = await change_topic(context, topic, mark)
    assert incarnation is not None
    deleting = marked.incarnation == incarnation and marked.state == "DELETING"
    return incarnation, marked if deleting else None


async def _end(context: LogContext, topic: str, incarnation: int) -> None:
    def finish(current: TopicRecord | None) -> TopicRecord | None:
        if current is None:
            raise TopicNotFound(topic, "its record disappeared during the deletion; no llog process removes it")
        deleting = current.incarnation == incarnation and current.state == "DELETING"
        return replace(current, state="DELETED") if deleting else None

    await change_topic(context, topic, finish)


# -- one log ---------------------------------------------------------------------------------------------------------


async def _delete_log(context: LogContext, log: Log, topic: TopicRecord) -> LeftoversRemoved:
    """Step 2. A later incarnation of the log means that another process finished this deletion."""
    incarnation = topic.incarnation
    try:
        if await _advance(context, log, incarnation, "DELETE_PARTITION_MARKED") == "DELETE_PARTITION_FINISHED":
            return LeftoversRemoved()
        await _bury(context, log, topic)
        await _advance(context, log, incarnation, "DELETE_PARTITION_STARTED")
        removed = await _remove_all(context, log, incarnation)
        await _advance(context, log, incarnation, "DELETE_PARTITION_FINISHED")
        counts = {"incarnation": incarnation, "entries": removed.entries, "segments": removed.segments}
        context.on_change(LogChange("partition.delete", str(log), after=counts))
        return removed
    except StaleSelf:
        return LeftoversRemoved()


def plan_advance(
    current: PartitionDelete | None, incarnation: int, state: PartitionDeleteState
) -> PartitionDelete | None:
    """The record in `state`; None if it is in that state or a later one. `StaleSelf` for a later incarnation."""
    if current is None:
        return PartitionDelete(incarnation=incarnation, state=state)
    if current.incarnation > incarnation:
        raise StaleSelf
    if current.incarnation == incarnation and ORDER.index(current.state) >= ORDER.index(state):
        return None
    return replace(current, incarnation=incarnation, state=state)


def plan_tombstone(
    current: ControlRecord | None, topic: TopicRecord, *, now_ms: int, vacuum_grace_ms: int
) -> ControlRecord | None:
    """Control of a deleted log; None if it is a tombstone already. `StaleSelf` for a later incarnation.

    The counter stays, so that the outcome of an append without an answer can still be found (R4).
    """
    if current is not None and current.incarnation > topic.incarnation:
        raise StaleSelf
    if current is None or current.incarnation < topic.incarnation:
        tombstone = new_control(
            incarnation=topic.incarnation,
            first_offset=topic.first_offset,
            now_ms=now_ms,
            vacuum_grace_ms=vacuum_grace_ms,
        )
        v = tombstone.v if current is None else max(tombstone.v, current.v)
        return replace(tombstone, log_state="DELETED", v=v)
    if current.log_state == "DELETED" and current.pending is None:
        return None
    return replace(current, log_state="DELETED", pending=None, fence_reason="")


async def _advance(
    context: LogContext, log: Log, incarnation: int, state: PartitionDeleteState
) -> PartitionDeleteState:
    """Bring the partition-delete record to `state` at least; return its state afterwards."""
    record, _ = await change_value(
        context,
        context.keys.partition_delete(log),
        PartitionDelete,
        lambda current: plan_advance(current, incarnation, state),
        rounds_max=TOPIC_ROUNDS_MAX,
        busy=_busy(log, "its partition-delete record"),
        retry=lost_race_or_unavailable,
    )
    assert record is not None
    return record.state


async def _bury(context: LogContext, log: Log, topic: TopicRecord) -> None:
    grace_ms = context.options.vacuum_grace_ms
    await change_value(
        context,
        context.keys.control(log),
        ControlRecord,
        lambda current: plan_tombstone(current, topic, now_ms=context.now_ms(), vacuum_grace_ms=grace_ms),
        rounds_max=TOPIC_ROUNDS_MAX,
        busy=_busy(log, "its control record"),
        retry=lost_race_or_unavailable,
    )


async def _remove_all(context: LogContext, log: Log, incarnation: int) -> LeftoversRemoved:
    """Repeat passes until one finds nothing: a value that changed during a pass is removed by the next."""
    total = LeftoversRemoved()
    for round_number in range(TOPIC_DELETE_PASSES_MAX):
        try:
            removed = await remove_dead(context, log, incarnation)
            total = total.plus(removed)
            if not removed.found:
                return total
        except MetadataStoreError as error:
            if not lost_race_or_unavailable(error):
                raise
            await context.back_off(round_number)
    raise _busy(log, "the rest of it")


def _busy(log: Log, subject: str) -> LogBusy:
    reason = f"{subject} kept changing, or the metadata store did not answer; delete the topic again"
    return LogBusy(*log, reason)
