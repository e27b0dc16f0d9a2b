"""R4: an append whose answer never came. Find out by positive evidence, or say that nobody can tell.

What must stay true: the same append is attempted again only at the same version (so only one of the attempts can
apply); a stale read never passes for "it did not happen"; giving up answers `AppendUncertain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from llog.errors import AppendUncertain, LogError, MetadataStoreError, MetadataUncertain
from llog.formats.values import ControlRecord, Pending, decode_value
from llog.limits import LOG_RESOLVE_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.control import AppendSlice, Reserved, weigh
from llog.log.index import Entry, entry_of
from llog.log.keys import Log, offset_name
from llog.stores.metadata.port import Write


class Resolution(NamedTuple):
    """`committed`, or `error`, or neither: not committed, go on with `control` as it is now."""

    control: ControlRecord | None = None
    version: int = -1
    committed: Pending | None = None
    pending: Pending | None = None
    """Of a committed append: set while its index entry may not be written yet."""
    error: LogError | None = None


async def resolve(
    context: LogContext, log: Log, part: AppendSlice, *, attempt_version: int, made: Reserved, group: Sequence[Write]
) -> Resolution:
    counter = made.pending.start_offset
    key = context.keys.control(log)
    for round_number in range(LOG_RESOLVE_ROUNDS_MAX):
        try:
            record = await context.metadata.get(key, strict=round_number > 0)
            if record is None:
                break
            control = decode_value(ControlRecord, record.value, key.path)
            evidence = weigh(control, record.version, attempt_version=attempt_version, counter=counter, part=part)
            now = Resolution(control, record.version)
            if evidence.verdict == "committed":
                return now._replace(committed=made.pending, pending=evidence.pending)
            if evidence.verdict == "not_committed":
                return now
            if evidence.verdict == "cannot_tell":
                break
            if evidence.verdict == "undecided":
                [answer] = await context.metadata.write([group])
                if isinstance(answer, tuple):
                    control = made.control if len(group) == 1 else replace(made.control, pending=None)
                    pending = made.pending if len(group) == 1 else None
                    return Resolution(control, answer[0], made.pending, pending)
            if evidence.verdict == "look_up":
                entry = await _owner_of(context, log, counter, control)
                if entry is not None and entry.value.type == "COMPACTED":
                    break
                if entry is not None and entry.value.append_id == part.append_id:
                    return now._replace(committed=made.pending)
                if entry is not None:
                    return now
        except MetadataUncertain:
            pass
        except MetadataStoreError as error:
            if not error.retriable:
                raise
        await context.back_off(round_number)
    reason = "the metadata store did not answer, and what happened since hides whether the append was committed"
    return Resolution(error=AppendUncertain(*log, reason))


async def _owner_of(context: LogContext, log: Log, offset: int, control: ControlRecord) -> Entry | None:
    """The entry of this life that covers `offset`; None when none is to be seen. A stale answer must not decide."""
    async for record in context.metadata.scan_all(context.keys.index(log), start=offset_name(offset), strict=True):
        entry = entry_of(record)
        if entry.value.incarnation < control.incarnation:
            continue
        return entry if entry.covers(offset) else None
    return None
