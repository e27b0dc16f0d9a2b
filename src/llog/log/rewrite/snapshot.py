"""Moves the producer snapshot: only forward, and only over entries read without a hole.

It moves before any entry at or above it is swapped or removed: else a producer's retry would not be recognised
(h06a, h06e). Pages are immutable; only the head moves, by compare-and-set.
"""

from __future__ import annotations

from typing import Final

from llog.errors import InconsistentReadState, LogBusy, MetadataUncertain, PartitionNotInitialized, VersionConflict
from llog.formats.values import (
    ControlRecord,
    ProducerPage,
    ProducerSnapshot,
    ProducerState,
    decode_value,
    encode_value,
)
from llog.limits import LOG_COMPACT_ROUNDS_MAX
from llog.log.append.known import KnownProducers
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.stores.metadata.port import ABSENT, Record

# Producers that a snapshot keeps; of more, the ones that wrote longest ago are dropped.
LOG_PRODUCERS_MAX: Final = 10_000
# Each state holds five batches of about 120 bytes.
LOG_PRODUCERS_PER_PAGE_MAX: Final = 500


async def move_snapshot(context: LogContext, log: Log, control: ControlRecord, to_offset: int) -> None:
    """Make the snapshot hold every batch below `to_offset`. `control` is of the run's incarnation."""
    key = context.keys.producers(log)
    async for _ in context.rounds(LOG_COMPACT_ROUNDS_MAX):
        found = await context.metadata.get(key, strict=True)
        if found is None:
            raise PartitionNotInitialized(*log)  # initialization writes it: the log was deleted
        head = _head_of(log, found, control.incarnation)
        if head is not None and head.as_of >= to_offset:
            return
        known = KnownProducers()
        if await known.catch_up_to(context, log, control, to_offset):
            try:
                pages = await _write_pages(context, log, control.incarnation, to_offset, list(known.states.values()))
                moved = ProducerSnapshot(incarnation=control.incarnation, as_of=to_offset, pages=pages)
                await context.metadata.put(key, encode_value(moved, key.path), expected=found.version)
                if head is not None:
                    await _remove_pages(context, log, head)
                return
            except (VersionConflict, MetadataUncertain):
                continue
    raise InconsistentReadState(*log, f"the producer snapshot could not be moved to {to_offset}: entries have a hole")


def _head_of(log: Log, found: Record, incarnation: int) -> ProducerSnapshot | None:
    """The head of this incarnation; None for a head of an earlier one. A later one is not touched (R13)."""
    head = decode_value(ProducerSnapshot, found.value, found.key.path)
    if head.incarnation > incarnation:
        raise LogBusy(*log, "the topic was created again meanwhile")
    return head if head.incarnation == incarnation else None


async def _write_pages(context: LogContext, log: Log, incarnation: int, as_of: int, states: list[ProducerState]) -> int:
    """Every process writes the same states into the pages of one offset, so writing a page again is harmless."""
    states = _remembered(states)
    pages = [states[i : i + LOG_PRODUCERS_PER_PAGE_MAX] for i in range(0, len(states), LOG_PRODUCERS_PER_PAGE_MAX)]
    for number, page in enumerate(pages):
        key = context.keys.producer_page(log, as_of, number)
        found = await context.metadata.get(key, strict=True)
        if found is not None:
            theirs = decode_value(ProducerPage, found.value, key.path).incarnation
            if theirs == incarnation:
                continue  # another process wrote it, with the same states
            if theirs > incarnation:
                raise LogBusy(*log, "the topic was created again meanwhile")
        value = encode_value(ProducerPage(incarnation=incarnation, producers=tuple(page)))
        await context.metadata.put(key, value, expected=ABSENT if found is None else found.version)
    return len(pages)


def _remembered(states: list[ProducerState]) -> list[ProducerState]:
    """The LOG_PRODUCERS_MAX producers that wrote last, by offset, sorted by id. Not by time: a writer's clock that is
    ahead would make all others look silent (h29), and all processes must write the same pages."""
    latest = sorted(states, key=lambda state: state.batches[-1].start_offset if state.batches else -1)
    return sorted(latest[-LOG_PRODUCERS_MAX:], key=lambda state: state.producer_id)


async def _remove_pages(context: LogContext, log: Log, head: ProducerSnapshot) -> None:
    """Remove pages that no head names any more. Pages that a crash leaves are small and go with the topic."""
    keys = [context.keys.producer_page(log, head.as_of, number) for number in range(head.pages)]
    for found in await context.metadata.get_many(keys, strict=True):
        if found is None or decode_value(ProducerPage, found.value, found.key.path).incarnation > head.incarnation:
            continue
        try:
            await context.metadata.delete(found.key, expected=found.version)
        except (VersionConflict, MetadataUncertain):
            continue
