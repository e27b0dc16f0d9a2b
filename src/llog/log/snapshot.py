"""Moving the producer snapshot: only forward, only over entries read without a hole, before anyone swaps or removes an
entry at or above it (h06a, h06e). Pages are immutable; only the head moves, by compare-and-set."""

from __future__ import annotations

from llog.errors import InconsistentReadState, MetadataUncertain, VersionConflict
from llog.formats.values import (
    ControlRecord,
    ProducerPage,
    ProducerSnapshot,
    ProducerState,
    decode_value,
    encode_value,
)
from llog.limits import LOG_COMPACT_ROUNDS_MAX, LOG_PRODUCERS_PER_PAGE_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.producer_state import KnownProducers
from llog.stores.metadata.port import ABSENT, Record


async def move_snapshot(context: LogContext, log: Log, control: ControlRecord, to_offset: int) -> None:
    """Make the snapshot hold every batch below `to_offset`. `control` is of the run's incarnation."""
    key = context.keys.producers(log)
    for round_number in range(LOG_COMPACT_ROUNDS_MAX):
        found = await context.metadata.get(key, strict=True)
        head = _head_of(found, control.incarnation)
        if head is not None and head.as_of >= to_offset:
            return
        known = KnownProducers()
        if await known.catch_up_to(context, log, control, to_offset):
            pages = await _write_pages(context, log, control.incarnation, to_offset, list(known.states.values()))
            moved = ProducerSnapshot(incarnation=control.incarnation, as_of=to_offset, pages=pages)
            try:
                expected = ABSENT if found is None else found.version
                await context.metadata.put(key, encode_value(moved, key.path), expected=expected)
                return
            except (VersionConflict, MetadataUncertain):
                pass
        await context.back_off(round_number)
    raise InconsistentReadState(*log, f"the producer snapshot could not be moved to {to_offset}: entries have a hole")


def _head_of(found: Record | None, incarnation: int) -> ProducerSnapshot | None:
    if found is None:
        return None
    head = decode_value(ProducerSnapshot, found.value, found.key.path)
    return head if head.incarnation == incarnation else None


async def _write_pages(context: LogContext, log: Log, incarnation: int, as_of: int, states: list[ProducerState]) -> int:
    """Pages of the same offset hold the same states, whoever writes them: putting them again is harmless."""
    states.sort(key=lambda state: state.producer_id)
    pages = [states[i : i + LOG_PRODUCERS_PER_PAGE_MAX] for i in range(0, len(states), LOG_PRODUCERS_PER_PAGE_MAX)]
    for number, page in enumerate(pages):
        value = encode_value(ProducerPage(incarnation=incarnation, producers=tuple(page)))
        await context.metadata.put(context.keys.producer_page(log, as_of, number), value)
    return len(pages)
