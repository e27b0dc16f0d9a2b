"""Deleting a topic: the order that safety hangs on (R13, section 9 of the protocol).

    1. compare-and-set the topic's record to DELETING: nothing is initialized or grown any more, the count is final
    2. per log, all below guarded by its partition-delete record (MARKED → STARTED → FINISHED)
       a. control becomes a tombstone: log_state DELETED, `pending` null; made where control is absent
       b. the rest goes (`leftovers`)
    3. compare-and-set the topic's record to DELETED: from here on a new life may begin

Why it is safe: after 2a no append commits and no reader begins, because both go by control; a writer or compactor with
old knowledge fails at a version. The tombstone stands before DELETED, so an initialization that slept since the topic
was LIVE cannot make a log of the dead life (h01e, h23). Every step is idempotent and starts from what is there, so any
process resumes a deletion, two may run at once, and one that slept through a re-creation meets a higher incarnation, or
a version that is gone, and stops (h01d). The tombstone and the FINISHED record stay: vacuum counts the tombstone as the
log's control, and a late deleter finds its work done.

What fails half-way (a store that is away, an object that cannot be deleted) leaves the topic DELETING and its record in
place; the next call goes on from there.
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
from llog.log.context import LogContext
from llog.log.control import new_control
from llog.log.keys import Log
from llog.log.topics.admin import change_topic
from llog.log.topics.create import for_each_partition

# Passes over what is left of a deleted log, until one finds nothing; late writers may add a little meanwhile.
TOPIC_DELETE_PASSES_MAX: Final = 8


ORDER: Final[tuple[PartitionDeleteState, ...]] = (
    "DELETE_PARTITION_MARKED",
    "DELETE_PARTITION_STARTED",
    "DELETE_PARTITION_FINISHED",
)


class TopicDeleted(NamedTuple):
    """What one call did; a life that was over before it shows zeros."""

    topic: str
    incarnation: int
    partitions: int = 0
    entries_removed: int = 0
    segments_removed: int = 0


async def delete_topic(context: LogContext, topic: str, expected_incarnation: int | None = None) -> TopicDeleted:
    """Delete the topic, or go on with a deletion that was begun.

    `expected_incarnation` makes a repeated call harmless: that life is deleted, and never a later one of the same name.
    `TopicNotFound` when there is no such topic (without `expected_incarnation` also when it is deleted already).
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
    """Which life is deleted, and the topic's record in it, DELETING; None when that life is over."""
    life = expected

    def mark(there: TopicRecord | None) -> TopicRecord | None:
        nonlocal life
        if there is None or (life is not None and there.incarnation < life):
            raise TopicNotFound(topic, "no such topic")
        if life is None and there.state == "DELETED":
            raise TopicNotFound(topic, "it is deleted")
        # The life first seen is the one that is meant, also after a lost answer.
        life = there.incarnation if life is None else life
        if there.incarnation > life or there.state != "LIVE":
            return None
        return replace(there, state="DELETING")

    marked = await change_topic(context, topic, mark)
    assert life is not None
    under_way = marked.incarnation == life and marked.state == "DELETING"
    return life, marked if under_way else None


async def _end(context: LogContext, topic: str, incarnation: int) -> None:
    def finish(there: TopicRecord | None) -> TopicRecord | None:
        if there is None:
            raise TopicNotFound(topic, "its record vanished, which no process of ours does")
        dying = there.incarnation == incarnation and there.state == "DELETING"
        return replace(there, state="DELETED") if dying else None

    await change_topic(context, topic, finish)


# -- one log ---------------------------------------------------------------------------------------------------------


async def _delete_log(context: LogContext, log: Log, topic: TopicRecord) -> LeftoversRemoved:
    """Step 2. A later life of the log means that somebody finished this deletion: nothing is left to do."""
    incarnation = topic.incarnation
    try:
        if await _advance(context, log, incarnation, "DELETE_PARTITION_MARKED") == "DELETE_PARTITION_FINISHED":
            return LeftoversRemoved()
        await _bury(context, log, topic)
        await _advance(context, log, incarnation, "DELETE_PARTITION_STARTED")
        removed = await _remove_all(context, log, incarnation)
        await _advance(context, log, incarnation, "DELETE_PARTITION_FINISHED")
        return removed
    except StaleSelf:
        return LeftoversRemoved()


def plan_advance(
    there: PartitionDelete | None, incarnation: int, state: PartitionDeleteState
) -> PartitionDelete | None:
    """The record that says `state`; None when it says so, or more, already. `StaleSelf` for one of a later life."""
    if there is None:
        return PartitionDelete(incarnation=incarnation, state=state)
    if there.incarnation > incarnation:
        raise StaleSelf
    if there.incarnation == incarnation and ORDER.index(there.state) >= ORDER.index(state):
        return None
    return replace(there, incarnation=incarnation, state=state)


def plan_tombstone(
    there: ControlRecord | None, topic: TopicRecord, *, now_ms: int, vacuum_grace_ms: int
) -> ControlRecord | None:
    """Control of a deleted log; None when it stands already. `StaleSelf` for one of a later life.

    The counter stays, so that an append whose answer was lost can still be told from one that never happened (R4).
    """
    if there is not None and there.incarnation > topic.incarnation:
        raise StaleSelf
    if there is None or there.incarnation < topic.incarnation:
        never_begun = new_control(
            incarnation=topic.incarnation,
            first_offset=topic.first_offset,
            now_ms=now_ms,
            vacuum_grace_ms=vacuum_grace_ms,
        )
        v = never_begun.v if there is None else max(never_begun.v, there.v)
        return replace(never_begun, log_state="DELETED", v=v)
    if there.log_state == "DELETED" and there.pending is None:
        return None
    return replace(there, log_state="DELETED", pending=None, fence_reason="")


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
