"""Settling: write the index entry of a pending append. Anyone may do it, any number of times (R3).

The entry is a pure copy of the pending append, and writing it is create-if-absent, so two settlers write the same
bytes once. What may already stand at its key is judged in one place, `_what_stands_there`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec.structs import replace

from llog.errors import (
    InconsistentReadState,
    LogBusy,
    MetadataUncertain,
    PartitionNotInitialized,
    VersionConflict,
)
from llog.formats.values import ControlRecord, Pending, decode_value, encode_value
from llog.limits import LOG_CAS_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.control import fenced
from llog.log.index import Entry, entry_of, index_entry_of
from llog.log.keys import Log
from llog.stores.metadata.port import ABSENT

LOG_SETTLE_ROUNDS_MAX: Final = 16


class StaleSelf(Exception):
    """A later life of the topic is there: whoever holds this knowledge stops and touches nothing."""


class _There(Enum):
    DONE = "done"
    PHANTOM = "phantom"
    FUTURE = "future"
    FOREIGN = "foreign"


async def settle(context: LogContext, log: Log, pending: Pending) -> None:
    """Returns once the entry is written, or compaction has done with it. Raises `StaleSelf`, or `InconsistentReadState`
    after fencing the log when something else stands where the entry belongs."""
    key = context.keys.index_entry(log, pending.end_offset)
    data = encode_value(index_entry_of(pending))
    expected = ABSENT
    for round_number in range(LOG_SETTLE_ROUNDS_MAX):
        try:
            await context.metadata.put(key, data, expected=expected)
            return
        except (VersionConflict, MetadataUncertain):
            pass
        # That the entry was written is a fact, also when it is read from the past; any other decision on what stands
        # there needs a read that is not (R7).
        found = await context.metadata.get(key)
        if found is not None and _what_stands_there(entry_of(found), pending) is _There.DONE:
            return
        found = await context.metadata.get(key, strict=True)
        if found is None:
            # Settled and compacted since then, or a request that never arrived: control knows which. It shows this
            # append until someone has seen its entry written.
            if not await _still_pending(context, log, pending):
                return
            expected = ABSENT
            continue
        there = _what_stands_there(entry_of(found), pending)
        if there is _There.DONE:
            return
        if there is _There.FUTURE:
            raise StaleSelf
        if there is _There.FOREIGN:
            if not await _still_pending(context, log, pending):
                return
            reason = f"{found.key.path} holds another append than the pending {pending.append_id}"
            await fence_inconsistent(context, log, pending.incarnation, reason)
        expected = found.version  # a phantom: replaced by version
        await context.back_off(round_number)
    raise MetadataUncertain("settle", key.path, f"not known to be written after {LOG_SETTLE_ROUNDS_MAX} rounds")


async def settle_and_clear(context: LogContext, log: Log, incarnation: int | None = None) -> ControlRecord:
    """Control without a pending append; its counter is the one that a run may reach up to (R11).

    Of one life only, the first one met unless it is said which: whoever came to do something to a log must not do it
    to the one that took its place (h01d).
    """
    key = context.keys.control(log)
    async for _ in context.rounds(LOG_CAS_ROUNDS_MAX):
        found = await context.metadata.get(key, strict=True)
        if found is None:
            raise PartitionNotInitialized(*log)
        control = decode_value(ControlRecord, found.value, key.path)
        if control.log_state == "DELETED":
            raise PartitionNotInitialized(*log)
        incarnation = control.incarnation if incarnation is None else incarnation
        if control.incarnation != incarnation:
            raise LogBusy(*log, "the topic was created again meanwhile; nothing was done to it")
        if control.pending is None:
            return control
        cleared = replace(control, pending=None)
        try:
            await settle(context, log, control.pending)
            await context.metadata.put(key, encode_value(cleared, key.path), expected=found.version)
            return cleared
        except (VersionConflict, MetadataUncertain, StaleSelf):
            continue  # the record may be of a later incarnation by now
    raise LogBusy(*log, "its control record kept changing; try again")


def _what_stands_there(entry: Entry, pending: Pending) -> _There:
    if entry.value.incarnation < pending.incarnation:
        return _There.PHANTOM
    if entry.value.incarnation > pending.incarnation:
        return _There.FUTURE
    if entry.value.append_id == pending.append_id:
        return _There.DONE
    if entry.value.type == "COMPACTED" and entry.start_offset <= pending.start_offset:
        return _There.DONE
    return _There.FOREIGN


async def _still_pending(context: LogContext, log: Log, pending: Pending) -> bool:
    """Does control, read strictly, still show this very append?"""
    record = await context.metadata.get(context.keys.control(log), strict=True)
    if record is None:
        return False
    control = decode_value(ControlRecord, record.value, record.key.path)
    return control.pending is not None and control.pending.append_id == pending.append_id


async def fence_inconsistent(context: LogContext, log: Log, incarnation: int, reason: str) -> None:
    """Close the log to appends, with the reason on record, and say so: always raises."""
    key = context.keys.control(log)
    async for _ in context.rounds(LOG_SETTLE_ROUNDS_MAX):
        record = await context.metadata.get(key, strict=True)
        closed = None
        if record is not None:
            control = decode_value(ControlRecord, record.value, key.path)
            if control.incarnation > incarnation:
                raise StaleSelf
            closed = fenced(control, expected_epoch=None, reason=reason)
        if record is None or closed is None:
            break
        try:
            await context.metadata.put(key, encode_value(closed, key.path), expected=record.version)
            break
        except (VersionConflict, MetadataUncertain):
            continue
    raise InconsistentReadState(*log, f"{reason}; the log is fenced until an operator lifts it")
