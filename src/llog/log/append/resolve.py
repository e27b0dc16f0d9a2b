"""R4: find the outcome of an append that got no answer, by positive evidence, or report it as uncertain.

The same append is attempted again only at the same version, so only one of the attempts can apply. A stale read never
counts as "not committed". Where the index no longer shows which append holds the offset, the state of idempotent
producers may: it remembers each batch longer than the index remembers each append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import AppendUncertain, LogError, MetadataStoreError
from llog.formats.values import ControlRecord, Pending, decode_value
from llog.log.append.known import error_of
from llog.log.append.pieces import PieceOutcome
from llog.log.context import LogContext
from llog.log.control import Refusal, Reserved, cleared, weigh, weigh_claims
from llog.log.index import Entry, entry_of
from llog.log.keys import Log, offset_name
from llog.log.producer_state import KnownProducers
from llog.stores.metadata.port import Write

# Rounds of reading before an append without an answer is reported uncertain.
LOG_RESOLVE_ROUNDS_MAX: Final = 16


class Resolution(NamedTuple):
    """Exactly one of `committed`, `pieces` and `error`, or none of them: not committed, go on with `control`."""

    control: ControlRecord | None = None
    version: int = -1
    committed: bool = False
    pending: Pending | None = None
    """Of a committed append: set while its index entry may not be written yet."""
    pieces: tuple[tuple[int, PieceOutcome], ...] = ()
    """By piece number, the outcomes that producer state shows."""
    error: LogError | None = None


async def resolve(
    context: LogContext, log: Log, *, attempt_version: int, made: Reserved, group: Sequence[Write]
) -> Resolution:
    reason = "the metadata store did not answer, or shows no control record"
    async for round_number in context.rounds(LOG_RESOLVE_ROUNDS_MAX):
        try:
            resolution = await _examine(context, log, attempt_version, made, group, strict=round_number > 0)
            if resolution is not None:
                return resolution
        except MetadataStoreError as error:
            if not error.retriable:
                reason = str(error)
                break
    return _uncertain(log, reason)


async def _examine(
    context: LogContext, log: Log, attempt_version: int, made: Reserved, group: Sequence[Write], *, strict: bool
) -> Resolution | None:
    """None: read again."""
    key = context.keys.control(log)
    record = await context.metadata.get(key, strict=strict)
    if record is None:
        return None
    control = decode_value(ControlRecord, record.value, key.path)
    verdict, pending = weigh(control, record.version, attempt_version=attempt_version, attempt=made.pending)
    if verdict == "look_up":
        verdict = await _weigh_index(context, log, made.pending, control)
    if verdict == "committed":
        return Resolution(control, record.version, committed=True, pending=pending)
    if verdict == "not_committed":
        return Resolution(control, record.version)
    if verdict == "cannot_tell":
        return await _weigh_producers(context, log, attempt_version=attempt_version, made=made)
    if verdict == "undecided":
        [answer] = await context.metadata.write([group])
        if isinstance(answer, tuple):
            written = cleared(made.control) if len(group) > 1 else made.control
            return Resolution(written, answer[0], committed=True, pending=written.pending)
    return None


def _uncertain(log: Log, reason: str) -> Resolution:
    return Resolution(error=AppendUncertain(*log, f"the append got no answer, and its outcome is unknown: {reason}"))


async def _weigh_index(context: LogContext, log: Log, attempt: Pending, control: ControlRecord) -> str:
    """The entry that covers the offset decides, read strictly; `stale` when no entry is there."""
    start = offset_name(attempt.start_offset)
    async for record in context.metadata.scan_all(context.keys.index(log), start=start, strict=True):
        entry = entry_of(record)
        if entry.value.incarnation < control.incarnation:
            continue
        return _weigh_entry(entry, attempt)
    return "stale"


def _weigh_entry(entry: Entry, attempt: Pending) -> str:
    if not entry.covers(attempt.start_offset):
        return "stale"
    if entry.value.type == "COMPACTED" or entry.value.incarnation != attempt.incarnation:
        return "cannot_tell"
    return "committed" if entry.value.append_id == attempt.append_id else "not_committed"


async def _weigh_producers(context: LogContext, log: Log, *, attempt_version: int, made: Reserved) -> Resolution:
    """For an offset that compaction or retention has passed. Producer state as of a control record that the attempt can
    no longer change (its version is passed) holds every batch of those producers, or shows that it was never stored."""
    reason = "compaction or retention has passed it"
    key = context.keys.control(log)
    if any(piece.claim is None for piece in made.run):
        return _uncertain(log, reason)
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
                unknown = AppendUncertain(*log, f"{reason}, and its producer has gone on or is forgotten")
                outcomes = weigh_claims(made.run, producers.states, forgot=producers.forgot)
                pieces = tuple(
                    (number, error_of(log, found) if isinstance(found, Refusal) else found or unknown)
                    for number, found in outcomes
                )
                return Resolution(control, record.version, pieces=pieces)
        except MetadataStoreError as error:
            if not error.retriable:
                reason = str(error)
                break
    return _uncertain(log, reason)
