"""Fence and unfence: an operator closes a log to appends, and opens it again (R6).

One compare-and-set changes the state and refuses every append after it; an append committed before it is settled
afterwards. `expected_epoch` makes a repeated call harmless: a log that was opened in between is not closed again (h16).
"""

from __future__ import annotations

from collections.abc import Callable

from llog.errors import LogBusy, MetadataUncertain, PartitionNotInitialized, VersionConflict
from llog.formats.values import ControlRecord, encode_value
from llog.limits import LOG_CAS_ROUNDS_MAX
from llog.log.append.settle import StaleSelf, settle
from llog.log.change import change_value
from llog.log.context import LogContext
from llog.log.control import cleared, fence_change, fenced, unfenced
from llog.log.keys import Log

ControlChange = Callable[[ControlRecord], ControlRecord | None]


async def fence(context: LogContext, log: Log, *, expected_epoch: int | None = None, reason: str = "") -> int:
    """Close the log and return its epoch afterwards. A closed log stays as it is."""
    reason = reason or "fenced by an operator"
    return await _change(context, log, lambda control: fenced(control, expected_epoch=expected_epoch, reason=reason))


async def unfence(context: LogContext, log: Log, *, expected_epoch: int | None = None) -> int:
    """Open the log and return its epoch afterwards. An open log stays as it is."""
    return await _change(context, log, lambda control: unfenced(control, expected_epoch=expected_epoch))


async def _change(context: LogContext, log: Log, change: ControlChange) -> int:
    first_epoch: int | None = None

    def decide(control: ControlRecord | None) -> ControlRecord | None:
        nonlocal first_epoch
        if control is None or control.log_state == "DELETED":
            raise PartitionNotInitialized(*log)
        # Without an expected epoch, the first epoch read takes its place: a retry after a lost answer must not undo
        # what another process did in between.
        first_epoch = control.epoch if first_epoch is None else first_epoch
        return change(control) if control.epoch == first_epoch else None

    control, version = await change_value(
        context,
        context.keys.control(log),
        ControlRecord,
        decide,
        rounds_max=LOG_CAS_ROUNDS_MAX,
        busy=LogBusy(*log, "its control record kept changing; try again"),
        describe=lambda before, after: fence_change(log, before, after),
    )
    assert control is not None
    await _settle_pending(context, log, control, version)
    return control.epoch


async def _settle_pending(context: LogContext, log: Log, control: ControlRecord, version: int) -> None:
    """Write the index entry of an append committed before, and clear it. The next append would do the same."""
    if control.pending is None:
        return
    key = context.keys.control(log)
    try:
        await settle(context, log, control.pending)
        await context.metadata.put(key, encode_value(cleared(control), key.path), expected=version)
    except (VersionConflict, MetadataUncertain, StaleSelf):
        pass  # changed since, done, or of an incarnation that has ended: nothing depends on it
