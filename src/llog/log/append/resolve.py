"""R4: an append whose answer never came. Find out by positive evidence, or say that nobody can tell.

What must stay true: the same append is attempted again only at the same version (so only one of the attempts can
apply); a stale read never passes for "it did not happen"; giving up answers `AppendUncertain`. Where the owner of the
offset cannot be told any more, idempotent producers are asked: their state remembers each batch longer than the index
remembers each append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import AppendUncertain, LogError, MetadataStoreError
from llog.formats.values import ControlRecord, Pending, decode_value
from llog.log.append.pieces import PieceOutcome
from llog.log.context import LogContext
from llog.log.control import Reserved, weigh, weigh_claims
from llog.log.index import Entry, entry_of
from llog.log.keys import Log, offset_name
from llog.log.producers.state import KnownProducers
from llog.stores.metadata.port import Write

# Rounds of finding out what became of an append without an answer, before it is reported uncertain.
LOG_RESOLVE_ROUNDS_MAX: Final = 16


class Resolution(NamedTuple):
    """`committed`, or `pieces`, or `error`, or nothing of these: not committed, go on with `control` as it is now."""

    control: ControlRecord | None = None
    version: int = -1
    committed: bool = False
    pending: Pending | None = None
    """Of a committed append: set while its index entry may not be written yet."""
    pieces: tuple[tuple[int, PieceOutcome], ...] = ()
    """By number, what producer state tells of the run's pieces."""
    error: LogError | None = None


async def resolve(
    context: LogContext, log: Log, *, attempt_version: int, made: Reserved, group: Sequence[Write]
) -> Resolution:
    reason = "the metadata store did not answer, or control is not to be seen"
    async for round_number in context.rounds(LOG_RESOLVE_ROUNDS_MAX):
        try:
            found = await _look(context, log, attempt_version, made, group, strict=round_number > 0)
            if found is not None:
                return found
        except MetadataStoreError as error:
            if not error.retriable:
                reason = str(error)
                break
    return _nobody_can_tell(log, reason)


async def _look(
    context: LogContext, log: Log, attempt_version: int, made: Reserved, group: Sequence[Write], *, strict: bool
) -> Resolution | None:
    """None: look again."""
    key = context.keys.control(log)
    record = await context.metadata.get(key, strict=strict)
    if record is None:
        return None
    control = decode_value(ControlRecord, record.value, key.path)
    verdict, pending = weigh(control, record.version, attempt_version=attempt_version, attempt=made.pending)
    if verdict == "look_up":
        verdict = await _owner_says(context, log, made.pending, control)
    if verdict == "committed":
        return Resolution(control, record.version, committed=True, pending=pending)
    if verdict == "not_committed":
        return Resolution(control, record.version)
    if verdict == "cannot_tell":
        return await _ask_producers(context, log, attempt_version=attempt_version, made=made)
    if verdict == "undecided":
        [answer] = await context.metadata.write([group])
        if isinstance(answer, tuple):
            return _written(made, answer[0], with_entry=len(group) > 1)
    return None


def _written(made: Reserved, version: int, *, with_entry: bool) -> Resolution:
    control = replace(made.control, pending=None) if with_entry else made.control
    return Resolution(control, version, committed=True, pending=control.pending)


def _nobody_can_tell(log: Log, reason: str) -> Resolution:
    return Resolution(error=AppendUncertain(*log, f"the append got no answer, and nobody can tell: {reason}"))


async def _owner_says(context: LogContext, log: Log, attempt: Pending, control: ControlRecord) -> str:
    """Whoever covers the offset decides; a stale answer must not. `stale` when nothing is to be seen there."""
    start = offset_name(attempt.start_offset)
    async for record in context.metadata.scan_all(context.keys.index(log), start=start, strict=True):
        entry = entry_of(record)
        if entry.value.incarnation < control.incarnation:
            continue
        return _owner_is(entry, attempt)
    return "stale"


def _owner_is(entry: Entry, attempt: Pending) -> str:
    if not entry.covers(attempt.start_offset):
        return "stale"
    if entry.value.type == "COMPACTED" or entry.value.incarnation != attempt.incarnation:
        return "cannot_tell"
    return "committed" if entry.value.append_id == attempt.append_id else "not_committed"


async def _ask_producers(context: LogContext, log: Log, *, attempt_version: int, made: Reserved) -> Resolution:
    """Compaction or retention went over the offset. The producers' state as of a control record that the attempt can
    not change any more (its version is passed) holds every batch of theirs, or shows that it was never stored."""
    reason = "compaction or retention has passed it"
    key = context.keys.control(log)
    if any(piece.claim is None for piece in made.run):
        return _nobody_can_tell(log, reason)
    async for _ in context.rounds(LOG_RESOLVE_ROUNDS_MAX):
        try:
            record = await context.metadata.get(key, strict=True)
            if record is None:
                break
            control = decode_value(ControlRecord, record.value, key.path)
            if control.incarnation != made.pending.incarnation:
                break
            producers = KnownProducers()
            if record.version > attempt_version and await producers.catch_up(context, log, control):
                found = weigh_claims(made.run, producers.states)
                unknown = AppendUncertain(*log, f"{reason}, and its producer has gone on")
                pieces = tuple((number, landed or unknown) for number, landed in found)
                return Resolution(control, record.version, pieces=pieces)
        except MetadataStoreError as error:
            if not error.retriable:
                reason = str(error)
                break
    return _nobody_can_tell(log, reason)
