"""State of a log's idempotent producers: what a process knows of it, and the snapshot that it starts from.

The snapshot moves only forward, only over entries read without a hole, and before any entry at or above it is swapped
or removed: else a producer's retry would not be recognised (h06a, h06e). Pages are immutable; only the head moves, by
compare-and-set.

A log remembers the LOG_PRODUCERS_MAX producers that wrote last. Once it has forgotten one, its head says so (`forgot`)
for good: a producer that the log does not know may be one of those.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from llog.errors import InconsistentReadState, LogBusy, MetadataUncertain, PartitionNotInitialized, VersionConflict
from llog.formats.values import (
    ControlRecord,
    Pending,
    ProducerPage,
    ProducerSnapshot,
    ProducerState,
    decode_value,
    encode_value,
)
from llog.limits import LOG_COMPACT_ROUNDS_MAX, LOG_READ_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.index import entry_of
from llog.log.keys import Log, offset_name
from llog.log.producers import add_batches
from llog.stores.metadata.port import ABSENT, Record

# Producers that a snapshot keeps; of more, the ones that wrote longest ago are dropped.
LOG_PRODUCERS_MAX: Final = 10_000
# Producers above that number that a process holds before it drops them.
LOG_PRODUCERS_SLACK: Final = 1_000
# Each state holds five batches of about 120 bytes.
LOG_PRODUCERS_PER_PAGE_MAX: Final = 500


class KnownProducers:
    """State of all producers of one log as of an offset: the snapshot, then the entries that tile up to the counter,
    then `pending`. It only moves forward, and is forgotten when in doubt. A hole among the entries means "read again",
    never "new producer" (h06b): otherwise a repeat would be stored twice."""

    def __init__(self) -> None:
        self.states: dict[int, ProducerState] = {}
        self.forgot = False
        """Producers were dropped from `states`, by this process or from the snapshot."""
        self.as_of: int | None = None
        """Every batch below this offset is in `states`."""

    def forget(self) -> None:
        self.states, self.forgot, self.as_of = {}, False, None

    def complete(self, control: ControlRecord) -> bool:
        """Whether this is the state as of that control record, so that nothing must be read."""
        return self.as_of == control.sequence_counter

    def add(self, pending: Pending) -> None:
        """Add an append, if it starts at the offset that the state has reached."""
        if self.as_of == pending.start_offset:
            add_batches(self.states, pending.producers, pending.created_at_ms)
            self.as_of = pending.end_offset + 1
            self._bound()

    def _bound(self) -> None:
        """Drop producers above LOG_PRODUCERS_MAX, many at a time."""
        if len(self.states) > LOG_PRODUCERS_MAX + LOG_PRODUCERS_SLACK:
            self.states = {state.producer_id: state for state in remembered(self.states.values())}
            self.forgot = True

    async def catch_up(self, context: LogContext, log: Log, control: ControlRecord) -> bool:
        """Bring the state up to `control`; False when there is a hole, and control must be read again."""
        if self.as_of is None and not await self._load_snapshot(context, log, control):
            return False
        assert self.as_of is not None
        if self.as_of > control.sequence_counter:
            self.forget()
            return False
        pending = control.pending
        end = control.sequence_counter if pending is None else pending.start_offset
        if not await self._add_entries(context, log, control, end):
            self.forget()
            return False
        self._bound()
        if pending is not None and self.as_of == pending.start_offset:
            self.add(pending)
        return self.as_of == control.sequence_counter

    async def catch_up_to(self, context: LogContext, log: Log, control: ControlRecord, offset: int) -> bool:
        """State as of exactly `offset`, from the snapshot and whole entries; False when there is a hole."""
        if not await self._load_snapshot(context, log, control):
            return False
        return await self._add_entries(context, log, control, offset) and self.as_of == offset

    async def _add_entries(self, context: LogContext, log: Log, control: ControlRecord, end: int) -> bool:
        assert self.as_of is not None
        if self.as_of >= end:
            return True
        async for record in context.metadata.scan_all(context.keys.index(log), start=offset_name(self.as_of)):
            entry = entry_of(record)
            if entry.start_offset >= end:
                break
            if entry.value.incarnation < control.incarnation:
                continue
            if entry.start_offset != self.as_of or entry.value.type != "WAL":
                return False  # a hole, or compaction has passed this offset, and moved the snapshot first
            add_batches(self.states, entry.value.producers, entry.value.created_at_ms)
            self.as_of = entry.end_offset + 1
        return self.as_of >= end

    async def _load_snapshot(self, context: LogContext, log: Log, control: ControlRecord) -> bool:
        """False when the head is of another incarnation, or changed while its pages were read: read again."""
        record = await context.metadata.get(context.keys.producers(log))
        if record is None:
            return False
        head = decode_value(ProducerSnapshot, record.value, record.key.path)
        if head.incarnation != control.incarnation:
            return False
        states: dict[int, ProducerState] = {}
        keys = [context.keys.producer_page(log, head.as_of, page) for page in range(head.pages)]
        for page in await context.metadata.get_many(keys):
            if page is None:
                return False  # the head has changed
            for state in decode_value(ProducerPage, page.value, page.key.path).producers:
                states[state.producer_id] = state
        self.states, self.as_of = states, head.as_of
        # A snapshot of an earlier release that is full has no mark.
        self.forgot = head.forgot or len(states) >= LOG_PRODUCERS_MAX
        return True


# -- snapshot ----------------------------------------------------------------------------------------------------------


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
                kept = remembered(known.states.values())
                pages = await _write_pages(context, log, control.incarnation, to_offset, kept)
                forgot = known.forgot or len(kept) < len(known.states)
                moved = ProducerSnapshot(incarnation=control.incarnation, as_of=to_offset, pages=pages, forgot=forgot)
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


def remembered(states: Iterable[ProducerState]) -> list[ProducerState]:
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


# -- reading -----------------------------------------------------------------------------------------------------------


async def read_producers(context: LogContext, log: Log) -> list[ProducerState]:
    """The producers that the log knows now, by id. Raises `PartitionNotInitialized`."""
    key = context.keys.control(log)
    async for round_number in context.rounds(LOG_READ_ROUNDS_MAX):
        record = await context.metadata.get(key, strict=round_number > 0)
        control = None if record is None else decode_value(ControlRecord, record.value, key.path)
        if control is None or control.log_state == "DELETED":
            if round_number == 0:
                continue  # a strict read decides (R7)
            raise PartitionNotInitialized(*log)
        known = KnownProducers()
        if await known.catch_up(context, log, control):
            return remembered(known.states.values())
    raise InconsistentReadState(*log, "its producers could not be read: entries have a hole, or the log keeps changing")
