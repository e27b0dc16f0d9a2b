"""Settling: write the index entry of a pending append. Any process may do it, any number of times (R3).

The entry is a copy of the pending append and is written with create-if-absent, so two settlers write the same bytes
once. `_occupant_of` judges what may already stand at its key.

`Settlements` settles the appends of this process off the path of the acknowledgement (compare-and-set stores only),
and clears settled `pending` values of idle logs. The next append of a log replaces its settled `pending` at no cost; on
an idle log a timer removes it, so that its control record stays small and later readers need not check it. Only a
`pending` with an entry that we have seen written is cleared (R2), by compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from llog.errors import (
    InconsistentReadState,
    LogBusy,
    LogError,
    MetadataStoreError,
    MetadataUncertain,
    PartitionNotInitialized,
    StoreClosed,
    StoreError,
    UnsupportedFormat,
    VersionConflict,
)
from llog.formats.values import ControlRecord, Pending, decode_value, encode_value
from llog.limits import LOG_CAS_ROUNDS_MAX, LOG_IDLE_CLEAR_MS
from llog.log.append.known import KnownLog, KnownLogs
from llog.log.change import change_value
from llog.log.context import LogContext, write_all
from llog.log.control import cleared, fence_change, fenced, index_entry_of, settled
from llog.log.index import Entry, entry_of
from llog.log.keys import Log
from llog.log.metrics import AppendCounters
from llog.stores.metadata.port import ABSENT, Key, Put

LOG_SETTLE_ROUNDS_MAX: Final = 16
# Appends with index entries that are being written, off the path of the acknowledgement.
LOG_SETTLEMENTS_MAX: Final = 64
LOG_IDLE_CLEAR_ATTEMPTS_MAX: Final = 3
# Logs with a `pending` that one call clears.
LOG_IDLE_CLEAR_LOGS_MAX: Final = 1_000


class StaleSelf(Exception):
    """The topic has a later incarnation: the caller's knowledge is stale, so it stops and changes nothing."""


class _Occupant(Enum):
    """What stands at the key of an entry that is to be written."""

    SETTLED = "settled"
    PHANTOM = "phantom"
    FUTURE = "future"
    FOREIGN = "foreign"


async def settle(context: LogContext, log: Log, pending: Pending) -> None:
    """Returns once the entry is written, or compaction has replaced it. Raises `StaleSelf`, or `InconsistentReadState`
    after it has fenced the log, when something else stands at the entry's key."""
    key = context.keys.index_entry(log, pending.end_offset)
    data = encode_value(index_entry_of(pending))
    expected = ABSENT
    for round_number in range(LOG_SETTLE_ROUNDS_MAX):
        try:
            await context.metadata.put(key, data, expected=expected)
            return
        except (VersionConflict, MetadataUncertain):
            pass
        # A stale read suffices to know that the entry was written; any other decision needs a strict one (R7).
        record = await context.metadata.get(key)
        if record is not None and _occupant_of(entry_of(record), pending) is _Occupant.SETTLED:
            return
        record = await context.metadata.get(key, strict=True)
        if record is None:
            # Either settled and then compacted, or the request never arrived. Control decides: it shows this append
            # until a process has seen its entry written.
            if not await _still_pending(context, log, pending):
                return
            expected = ABSENT
            continue
        occupant = _occupant_of(entry_of(record), pending)
        if occupant is _Occupant.SETTLED:
            return
        if occupant is _Occupant.FUTURE:
            raise StaleSelf
        if occupant is _Occupant.FOREIGN:
            if not await _still_pending(context, log, pending):
                return
            reason = f"{record.key.path} holds another append than the pending {pending.append_id}"
            await fence_inconsistent(context, log, pending.incarnation, reason)
        expected = record.version  # a phantom: replaced by version
        await context.back_off(round_number)
    raise MetadataUncertain("settle", key.path, f"not known to be written after {LOG_SETTLE_ROUNDS_MAX} rounds")


async def settle_and_clear(context: LogContext, log: Log, incarnation: int | None = None) -> ControlRecord:
    """Control without a pending append; a run may reach up to its counter (R11).

    Applies to one incarnation: the given one, or the first one read. A log that was created again in between must not
    be changed (h01d).
    """
    key = context.keys.control(log)
    async for _ in context.rounds(LOG_CAS_ROUNDS_MAX):
        record = await context.metadata.get(key, strict=True)
        if record is None:
            raise PartitionNotInitialized(*log)
        control = decode_value(ControlRecord, record.value, key.path)
        if control.log_state == "DELETED":
            raise PartitionNotInitialized(*log)
        incarnation = control.incarnation if incarnation is None else incarnation
        if control.incarnation != incarnation:
            raise LogBusy(*log, "the topic was deleted and created again meanwhile; nothing was changed")
        if control.pending is None:
            return control
        try:
            await settle(context, log, control.pending)
            await context.metadata.put(key, encode_value(cleared(control), key.path), expected=record.version)
            return cleared(control)
        except (VersionConflict, MetadataUncertain, StaleSelf):
            continue  # control may be of a later incarnation now
    raise LogBusy(*log, "its control record kept changing; try again")


def _occupant_of(entry: Entry, pending: Pending) -> _Occupant:
    if entry.value.incarnation < pending.incarnation:
        return _Occupant.PHANTOM
    if entry.value.incarnation > pending.incarnation:
        return _Occupant.FUTURE
    if entry.value.append_id == pending.append_id:
        return _Occupant.SETTLED
    if entry.value.type == "COMPACTED" and entry.start_offset <= pending.start_offset:
        return _Occupant.SETTLED
    return _Occupant.FOREIGN


async def _still_pending(context: LogContext, log: Log, pending: Pending) -> bool:
    """Whether control, read strictly, still shows this append."""
    record = await context.metadata.get(context.keys.control(log), strict=True)
    if record is None:
        return False
    control = decode_value(ControlRecord, record.value, record.key.path)
    return control.pending is not None and control.pending.append_id == pending.append_id


async def free_entry_key(
    context: LogContext, log: Log, pending: Pending, entry_key: Key, *, control_version: int
) -> None:
    """Find out why an atomic write of control and entry was refused, and remove the obstacle.

    Usually control has changed and nothing is done. Otherwise something stands at the entry's key: a phantom is removed
    by version; an entry of this incarnation fences the log.
    """
    metadata = context.metadata
    control, record = await metadata.get_many([context.keys.control(log), entry_key], strict=True)
    if control is None or control.version != control_version or record is None:
        return
    entry = entry_of(record)
    if entry.value.incarnation < pending.incarnation:
        await metadata.delete(record.key, expected=record.version)
    elif entry.value.incarnation == pending.incarnation:
        await fence_inconsistent(context, log, pending.incarnation, f"{record.key.path} exists already")


async def fence_inconsistent(context: LogContext, log: Log, incarnation: int, reason: str) -> None:
    """Close the log to appends, with the reason on record. Always raises."""

    def fence(control: ControlRecord | None) -> ControlRecord | None:
        if control is None:
            return None
        if control.incarnation > incarnation:
            raise StaleSelf
        return fenced(control, expected_epoch=None, reason=reason)

    inconsistent = InconsistentReadState(*log, f"{reason}; the log is fenced until an operator unfences it")
    key = context.keys.control(log)
    await change_value(
        context,
        key,
        ControlRecord,
        fence,
        rounds_max=LOG_SETTLE_ROUNDS_MAX,
        busy=inconsistent,
        describe=lambda before, after: fence_change(log, before, after),
    )
    raise inconsistent


# -- off the path of the acknowledgement -----------------------------------------------------------------------------


class _Uncleared(NamedTuple):
    """A settled append that is still `pending` in control, as far as we know."""

    append_id: str
    attempts: int = 0


class _Clearing(NamedTuple):
    log: Log
    known: KnownLog
    cleared: ControlRecord
    write: list[Put]


class Settlements:
    def __init__(self, context: LogContext, known: KnownLogs, counters: AppendCounters) -> None:
        self._context, self._known, self._counters = context, known, counters
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(LOG_SETTLEMENTS_MAX)
        self._uncleared: dict[Log, _Uncleared] = {}
        self._timer: asyncio.Task[None] | None = None

    async def settle_later(self, committed: Sequence[tuple[Log, Pending]]) -> None:
        """Write the entries of these appends in the background. Waits only while LOG_SETTLEMENTS_MAX are under way."""
        await self._slots.acquire()
        task = asyncio.create_task(self._settle(committed))
        for log, _ in committed:
            self._known[log].settling = task
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    async def _settle(self, committed: Sequence[tuple[Log, Pending]]) -> None:
        """Write all entries in one call; an entry that the store refuses goes through `settle`."""
        keys = self._context.keys
        groups = [
            [Put(keys.index_entry(log, pending.end_offset), encode_value(index_entry_of(pending)), ABSENT)]
            for log, pending in committed
        ]
        try:
            answers = await write_all(self._context.metadata, groups)
        except StoreClosed:
            return  # the next process that opens the log settles it
        for (log, pending), answer in zip(committed, answers, strict=True):
            known = self._known.get(log)
            try:
                if not isinstance(answer, tuple):
                    await settle(self._context, log, pending)
            except (StaleSelf, StoreError, LogError):
                continue  # the next append finds it pending, and settles it or reports the reason
            self._counters.settles += 1
            if known is not None:
                known.settled_append_id = pending.append_id
                self._uncleared[log] = _Uncleared(pending.append_id)
        if self._uncleared and (self._timer is None or self._timer.done()):
            self._timer = asyncio.create_task(self._clear_idle())

    async def _clear_idle(self) -> None:
        """The timer: clears a log that had no append for one period; ends when nothing is left to clear."""
        before: dict[Log, str] = {}
        while self._uncleared:
            await self._context.sleep(LOG_IDLE_CLEAR_MS / 1_000)
            now = {log: mark.append_id for log, mark in self._uncleared.items()}
            idle = [log for log, append_id in now.items() if before.get(log) == append_id]
            before = now
            try:
                await self.clear_settled(idle)
            except StoreClosed:
                return

    async def clear_settled(self, logs: Iterable[Log] | None = None) -> None:
        """Remove settled `pending` values of the given logs, by default of all."""
        waiting = self._known.logs() if logs is None else list(logs)
        for first in range(0, len(waiting), LOG_IDLE_CLEAR_LOGS_MAX):
            await self._clear(waiting[first : first + LOG_IDLE_CLEAR_LOGS_MAX])

    async def _clear(self, logs: Sequence[Log]) -> None:
        held: list[_Clearing] = []
        try:
            for log in logs:
                known = self._known.get(log)
                if known is not None and known.turn.locked():
                    continue  # an append is in progress and replaces `pending` by itself
                clearing = None if known is None else self._plan(log, known)
                if clearing is None:
                    self._uncleared.pop(log, None)
                    continue
                await clearing.known.turn.acquire()  # it is free, so this does not wait
                held.append(clearing)
            answers = await write_all(self._context.metadata, [clearing.write for clearing in held])
            for clearing, answer in zip(held, answers, strict=True):
                self._cleared(clearing, answer)
        finally:
            for clearing in held:
                clearing.known.turn.release()

    def _plan(self, log: Log, known: KnownLog) -> _Clearing | None:
        """None: no settled append of ours is pending, or we may not write the record."""
        control = None if known.settled_append_id is None else settled(known.control, known.settled_append_id)
        if control is None:
            return None
        key = self._context.keys.control(log)
        try:
            return _Clearing(log, known, control, [Put(key, encode_value(control, key.path), known.version)])
        except UnsupportedFormat:
            return None  # a newer release wrote it (h18)

    def _cleared(self, clearing: _Clearing, answer: tuple[int, ...] | MetadataStoreError) -> None:
        mark = self._uncleared.pop(clearing.log, None)
        if isinstance(answer, tuple):
            clearing.known.update(clearing.cleared, answer[0])
            clearing.known.settled_append_id = None
            self._counters.cleared += 1
        elif mark is not None and answer.retriable and mark.attempts + 1 < LOG_IDLE_CLEAR_ATTEMPTS_MAX:
            # Uncertain or unavailable: tried again at the same version, so only one attempt can apply.
            self._uncleared[clearing.log] = mark._replace(attempts=mark.attempts + 1)

    async def close(self) -> None:
        """Finish settling, and clear every `pending` that is known to be settled."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        await self.clear_settled()
