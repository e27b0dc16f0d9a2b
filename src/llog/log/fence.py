"""Fence and unfence: an operator closes a log to appends, and opens it again (R6).

The state change is one compare-and-set that refuses every append after it; settling what was committed before comes
after. `expected_epoch` makes a repeated call harmless: if somebody opened the log meanwhile, it is not closed again
(h16).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from llog.errors import LogBusy, MetadataUncertain, PartitionNotInitialized, VersionConflict
from llog.formats.values import ControlRecord, decode_value, encode_value
from llog.limits import LOG_CAS_ROUNDS_MAX
from llog.log.append.settle import StaleSelf, settle
from llog.log.context import LogContext
from llog.log.control import fenced, unfenced
from llog.log.keys import Log

Change = Callable[[ControlRecord], ControlRecord | None]


async def fence(context: LogContext, log: Log, *, expected_epoch: int | None = None, reason: str = "") -> int:
    """Close the log; its epoch afterwards. Closing a closed log changes nothing."""
    words = reason or "fenced by an operator"
    return await _change(context, log, lambda control: fenced(control, expected_epoch=expected_epoch, reason=words))


async def unfence(context: LogContext, log: Log, *, expected_epoch: int | None = None) -> int:
    """Open the log; its epoch afterwards. Opening an open log changes nothing."""
    return await _change(context, log, lambda control: unfenced(control, expected_epoch=expected_epoch))


async def _change(context: LogContext, log: Log, change: Change) -> int:
    key = context.keys.control(log)
    first_epoch: int | None = None
    async for _ in context.rounds(LOG_CAS_ROUNDS_MAX):
        control, version = await _load(context, log)
        # Without an expected epoch, the first one read stands in for it: a retry after a lost answer must not undo
        # what somebody else did in between.
        first_epoch = control.epoch if first_epoch is None else first_epoch
        changed = change(control) if control.epoch == first_epoch else None
        if changed is None:
            return await _settle_pending(context, log, control, version)
        try:
            version = await context.metadata.put(key, encode_value(changed, key.path), expected=version)
            return await _settle_pending(context, log, changed, version)
        except (VersionConflict, MetadataUncertain):
            continue
    raise LogBusy(*log, "its control record kept changing")


async def _load(context: LogContext, log: Log) -> tuple[ControlRecord, int]:
    record = await context.metadata.get(context.keys.control(log), strict=True)
    if record is None:
        raise PartitionNotInitialized(*log)
    control = decode_value(ControlRecord, record.value, record.key.path)
    if control.log_state == "DELETED":
        raise PartitionNotInitialized(*log)
    return control, record.version


async def _settle_pending(context: LogContext, log: Log, control: ControlRecord, version: int) -> int:
    """Write the entry of what was committed before, and clear it; whoever comes next would otherwise."""
    if control.pending is not None:
        key = context.keys.control(log)
        try:
            await settle(context, log, control.pending)
            cleared = encode_value(replace(control, pending=None), key.path)
            await context.metadata.put(key, cleared, expected=version)
        except (VersionConflict, MetadataUncertain, StaleSelf):
            pass  # moved on, done, or of a life that is over: nothing depends on it
    return control.epoch
