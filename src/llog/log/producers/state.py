"""Producer state as of a control version: the snapshot, then the entries that tile up to the counter, then `pending`.

A hole among the entries means "read again", never "new producer" (h06b): otherwise a repeat would be stored twice.
"""

from __future__ import annotations

from llog.formats.values import (
    ControlRecord,
    Pending,
    ProducerPage,
    ProducerSnapshot,
    ProducerState,
    decode_value,
)
from llog.log.context import LogContext
from llog.log.index import entry_of
from llog.log.keys import Log, offset_name
from llog.log.producers.idempotence import add_batches


class KnownProducers:
    """State of all producers of one log as of an offset. It only moves forward, and is forgotten when in doubt."""

    def __init__(self) -> None:
        self.states: dict[int, ProducerState] = {}
        self.as_of: int | None = None
        """Every batch below this offset is in `states`."""

    def forget(self) -> None:
        self.states, self.as_of = {}, None

    def complete(self, control: ControlRecord) -> bool:
        """Whether this is the state as of that control record, so that nothing must be read."""
        return self.as_of == control.sequence_counter

    def add(self, pending: Pending) -> None:
        """Add an append, if it starts at the offset that the state has reached."""
        if self.as_of == pending.start_offset:
            add_batches(self.states, pending.producers, pending.created_at_ms)
            self.as_of = pending.end_offset + 1

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
        return True
