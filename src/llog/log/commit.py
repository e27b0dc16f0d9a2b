"""Commit: move the counters of many logs, in rounds of one metadata write for all of them.

Each round decides every open log anew from the control record just read (R5), writes all of them in one call, and
keeps for the next round those that somebody else moved. Both kinds of store share the rounds; they differ in what one
log writes:

    atomic store       control and index entry in one group; `pending` stays null
    compare-and-set    control with `pending`; that is the commit point. The entry follows, off the path of the
                       acknowledgement, and the next append here may replace a `pending` that we have seen settled

An answer that never came is resolved by reading, never by assuming (R4): see `resolve`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from llog.errors import (
    AppendNotCommitted,
    InconsistentReadState,
    LogDeleted,
    LogError,
    LogFenced,
    MetadataStoreError,
    MetadataUncertain,
    OutOfOrderSequence,
    ProducerEpochFenced,
    VersionConflict,
)
from llog.formats.values import ControlRecord, Pending, decode_value, encode_value
from llog.limits import LOG_CAS_ROUNDS_MAX, LOG_KNOWN_MAX, LOG_SETTLEMENTS_MAX
from llog.log.context import LogContext
from llog.log.control import AlreadyThere, AppendSlice, MustSettle, Refusal, Reserved, reserve, settled
from llog.log.index import entry_of, index_entry_of
from llog.log.keys import Log
from llog.log.producer_state import KnownProducers
from llog.log.resolve import Resolution, resolve
from llog.log.settle import StaleSelf, fence_inconsistent, settle
from llog.log.topics import initialize
from llog.stores.metadata.port import ABSENT, GroupOutcome, Put, Write


class Committed(NamedTuple):
    start_offset: int
    end_offset: int


# Committed, why not, or None: not from this blob (too old, or of another life of the topic), upload again.
CommitOutcome = Committed | LogError | None


class _Known:
    """What this process knows of one log: control at a version, and whether its pending append is settled."""

    __slots__ = ("control", "fresh", "pins", "producers", "settled_append_id", "settling", "turn", "version")

    def __init__(self, control: ControlRecord, version: int) -> None:
        self.control, self.version = control, version
        self.fresh = True
        """False once the log turned out to have another life than we knew."""
        self.pins = 0
        """Appends under way; what is pinned is not forgotten."""
        self.settled_append_id: str | None = None
        self.settling: asyncio.Task[None] | None = None
        self.producers = KnownProducers()
        self.turn = asyncio.Lock()
        """Appends of one log commit one after the other, in the order of their calls."""

    def move(self, control: ControlRecord, version: int) -> None:
        self.control, self.version = control, version


class Committer:
    def __init__(self, context: LogContext, *, first_offset: int) -> None:
        self._context, self._first_offset = context, first_offset
        self._atomic = context.metadata.capabilities.atomic_groups
        self._known: dict[Log, _Known] = {}
        self._settlements: set[asyncio.Task[None]] = set()
        self._settlement_slots = asyncio.Semaphore(LOG_SETTLEMENTS_MAX)

    # -- what we know -------------------------------------------------------------------------------------------------
    async def know(self, log: Log) -> int:
        """The incarnation under which the log can be appended to; initialized if need be. Pinned until `release`."""
        known = self._known.get(log)
        if known is None or not known.fresh:
            found = await initialize(self._context, log, first_offset=self._first_offset)
            if len(self._known) >= LOG_KNOWN_MAX:
                self._forget_idle()
            # Another call may have been faster; its lock is the one that orders appends.
            known = self._known.setdefault(log, _Known(*found))
            if not known.fresh or found.version > known.version:
                known.move(*found)
                known.producers.forget()
                known.fresh = True
        known.pins += 1
        return known.control.incarnation

    def release(self, logs: Iterable[Log]) -> None:
        """Undo one `know` of each."""
        for log in logs:
            self._known[log].pins -= 1

    def _forget_idle(self) -> None:
        """Make room, oldest first; a log met again is read again."""
        idle = (log for log, known in self._known.items() if not known.pins)
        for log in list(itertools.islice(idle, LOG_KNOWN_MAX // 10 + 1)):
            del self._known[log]

    # -- rounds -------------------------------------------------------------------------------------------------------
    async def commit(self, parts: Mapping[Log, AppendSlice]) -> dict[Log, CommitOutcome]:
        """Every log's outcome. Logs whose turn it is not yet wait without holding up the others' flush."""
        # In one order for everybody, so nobody waits in a circle.
        turns = [self._known[log].turn for log in sorted(parts)]
        held = 0
        try:
            for turn in turns:
                await turn.acquire()
                held += 1
            return await self._commit_in_turn({log: parts[log] for log in sorted(parts)})
        finally:
            for turn in turns[:held]:
                turn.release()

    async def _commit_in_turn(self, parts: dict[Log, AppendSlice]) -> dict[Log, CommitOutcome]:
        outcomes: dict[Log, CommitOutcome] = {}
        confirmed: set[Log] = set()
        for round_number in range(LOG_CAS_ROUNDS_MAX):
            reserved, doubted = await self._decide(parts, outcomes, confirmed)
            await self._write(parts, reserved, outcomes)
            waiting = [log for log in parts if log not in outcomes]
            if not waiting:
                return outcomes
            if doubted and await self._read_again(doubted, strict=True):
                confirmed.update(doubted)
            moved = [log for log in waiting if log not in confirmed]
            if moved:
                await self._context.back_off(round_number)
                await self._read_again(moved)
            confirmed.difference_update(log for log in waiting if log not in doubted)
        for log in parts:
            if log not in outcomes:
                reason = f"other writers were faster {LOG_CAS_ROUNDS_MAX} times"
                outcomes[log] = AppendNotCommitted(*log, reason)
        return outcomes

    async def _decide(
        self, parts: Mapping[Log, AppendSlice], outcomes: dict[Log, CommitOutcome], confirmed: set[Log]
    ) -> tuple[dict[Log, Reserved], list[Log]]:
        """What each open log writes now; refusals and repeats are outcomes already.

        A refusal that rests on what we remember is doubted first: no write would prove it, so it takes a strict read
        (R7). The second answer names those logs.
        """
        reserved: dict[Log, Reserved] = {}
        doubted: list[Log] = []
        for log, part in parts.items():
            if log in outcomes:
                continue
            known = self._known[log]
            if part.producers and not await self._catch_up(log, known):
                continue  # a hole: read control again
            decision = self._reserve(known, part)
            if isinstance(decision, MustSettle) and known.settling is not None:
                # Our own last append, on its way already.
                await asyncio.wait([known.settling])
                decision = self._reserve(known, part)
            if isinstance(decision, MustSettle):
                if not await self._settle_other(log, known, decision.pending, outcomes):
                    continue
                decision = self._reserve(known, part)
            if isinstance(decision, Reserved):
                reserved[log] = decision
            elif isinstance(decision, AlreadyThere):
                outcomes[log] = Committed(decision.start_offset, decision.end_offset)
            elif isinstance(decision, Refusal) and log in confirmed:
                self._refuse(log, known, decision, outcomes)
            elif isinstance(decision, Refusal):
                doubted.append(log)
        return reserved, doubted

    def _reserve(self, known: _Known, part: AppendSlice) -> Reserved | AlreadyThere | MustSettle | Refusal:
        return reserve(known.control, part, producers=known.producers.states, settled_append_id=known.settled_append_id)

    async def _catch_up(self, log: Log, known: _Known) -> bool:
        """Producer state complete as of the control we hold; False: not now, look at control again."""
        try:
            return await known.producers.catch_up(self._context, log, known.control)
        except MetadataStoreError:
            return False

    async def _settle_other(
        self, log: Log, known: _Known, pending: Pending, outcomes: dict[Log, CommitOutcome]
    ) -> bool:
        """Settle the append that stands in the way (R2); False when the log is out of this round."""
        try:
            await settle(self._context, log, pending)
        except StaleSelf:
            known.fresh = False
            outcomes[log] = None
            return False
        except InconsistentReadState as error:
            outcomes[log] = error
            return False
        except MetadataStoreError:
            return False
        known.settled_append_id = pending.append_id
        return True

    def _refuse(self, log: Log, known: _Known, refusal: Refusal, outcomes: dict[Log, CommitOutcome]) -> None:
        match refusal.kind:
            case "fenced":
                outcomes[log] = LogFenced(*log, refusal.reason)
            case "deleted":
                outcomes[log] = LogDeleted(*log, refusal.reason)
            case "old_epoch":
                outcomes[log] = ProducerEpochFenced(*log, refusal.reason)
            case "out_of_order":
                outcomes[log] = OutOfOrderSequence(*log, refusal.reason)
            case "mixed":
                outcomes[log] = AppendNotCommitted(*log, refusal.reason)
            case "expired":
                outcomes[log] = None
            case _:  # stale_control, stale_self: the log has another life than this blob was made for
                known.fresh = False
                outcomes[log] = None

    # -- writing ------------------------------------------------------------------------------------------------------
    async def _write(
        self, parts: Mapping[Log, AppendSlice], reserved: Mapping[Log, Reserved], outcomes: dict[Log, CommitOutcome]
    ) -> None:
        if not reserved:
            return
        answers = await self._write_all([self._group(log, made) for log, made in reserved.items()])
        landed: list[tuple[Log, Pending]] = []
        for (log, made), answer in zip(reserved.items(), answers, strict=True):
            known = self._known[log]
            if isinstance(answer, tuple):
                self._landed(log, known, made, answer[0], outcomes)
                landed.append((log, made.pending))
            elif isinstance(answer, VersionConflict):
                if self._atomic:
                    await self._clear_the_way(log, known, made.pending, outcomes)
            elif isinstance(answer, MetadataUncertain):
                await self._find_out(log, known, parts[log], made, outcomes, landed)
            elif not answer.retriable:
                outcomes[log] = AppendNotCommitted(*log, str(answer))
            # Otherwise nothing happened, and the next round tries again.
        if landed and not self._atomic:
            await self._settle_later(landed)

    async def _write_all(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        try:
            return await self._context.metadata.write(groups)
        except MetadataStoreError as error:
            return [error] * len(groups)

    def _group(self, log: Log, made: Reserved) -> list[Write]:
        keys, known = self._context.keys, self._known[log]
        key = keys.control(log)
        if not self._atomic:
            return [Put(key, encode_value(made.control, key.path), known.version)]
        entry = encode_value(index_entry_of(made.pending))
        return [
            Put(key, encode_value(replace(made.control, pending=None), key.path), known.version),
            Put(keys.index_entry(log, made.pending.end_offset), entry, ABSENT),
        ]

    def _landed(
        self, log: Log, known: _Known, made: Reserved, version: int, outcomes: dict[Log, CommitOutcome]
    ) -> None:
        known.move(replace(made.control, pending=None) if self._atomic else made.control, version)
        known.producers.add(made.pending, self._context.now_ms())
        outcomes[log] = Committed(made.pending.start_offset, made.pending.end_offset)

    async def _clear_the_way(
        self, log: Log, known: _Known, pending: Pending, outcomes: dict[Log, CommitOutcome]
    ) -> None:
        """A refused group on an atomic store: control moved (the usual case), or something stands at the entry's key:
        a phantom, which is removed by version, or what must not be, which fences the log."""
        keys, metadata = self._context.keys, self._context.metadata
        try:
            control, record = await metadata.get_many(
                [keys.control(log), keys.index_entry(log, pending.end_offset)], strict=True
            )
            if control is None or control.version != known.version or record is None:
                return
            entry = entry_of(record)
            if entry.value.incarnation < pending.incarnation:
                await metadata.delete(record.key, expected=record.version)
            elif entry.value.incarnation == pending.incarnation:
                await fence_inconsistent(self._context, log, pending.incarnation, f"{record.key.path} is there already")
        except MetadataStoreError:
            return  # the next round meets it again
        except StaleSelf:
            known.fresh = False
            outcomes[log] = None
        except InconsistentReadState as error:
            outcomes[log] = error

    async def _find_out(
        self,
        log: Log,
        known: _Known,
        part: AppendSlice,
        made: Reserved,
        outcomes: dict[Log, CommitOutcome],
        landed: list[tuple[Log, Pending]],
    ) -> None:
        """R4: what became of an append whose answer never came?"""
        found: Resolution = await resolve(
            self._context, log, part, attempt_version=known.version, made=made, group=self._group(log, made)
        )
        if found.control is not None:
            known.move(found.control, found.version)
            known.producers.forget()
        if found.committed is not None:
            outcomes[log] = Committed(found.committed.start_offset, found.committed.end_offset)
            if found.pending is not None and not self._atomic:
                landed.append((log, found.pending))
        elif found.error is not None:
            outcomes[log] = found.error

    async def _read_again(self, logs: Sequence[Log], *, strict: bool = False) -> bool:
        """Control as it is now; False when there was no answer. Without `strict` it may be stale: a later round's write
        proves that it was not."""
        keys = [self._context.keys.control(log) for log in logs]
        try:
            records = await self._context.metadata.get_many(keys, strict=strict)
        except MetadataStoreError:
            return False
        for log, record in zip(logs, records, strict=True):
            if record is not None and record.version != self._known[log].version:
                control = decode_value(ControlRecord, record.value, record.key.path)
                self._known[log].move(control, record.version)
        return True

    # -- settling, off the path of the acknowledgement ----------------------------------------------------------------
    async def _settle_later(self, landed: Sequence[tuple[Log, Pending]]) -> None:
        await self._settlement_slots.acquire()
        task = asyncio.create_task(self._settle_landed(landed))
        for log, _ in landed:
            self._known[log].settling = task
        self._settlements.add(task)
        task.add_done_callback(self._settlement_done)

    def _settlement_done(self, task: asyncio.Task[None]) -> None:
        self._settlements.discard(task)
        self._settlement_slots.release()

    async def _settle_landed(self, landed: Sequence[tuple[Log, Pending]]) -> None:
        """All entries of a flush in one call; what does not go smoothly takes the careful way."""
        keys = self._context.keys
        groups = [
            [Put(keys.index_entry(log, pending.end_offset), encode_value(index_entry_of(pending)), ABSENT)]
            for log, pending in landed
        ]
        for (log, pending), answer in zip(landed, await self._write_all(groups), strict=True):
            try:
                if not isinstance(answer, tuple):
                    await settle(self._context, log, pending)
            except (StaleSelf, MetadataStoreError, LogError):
                continue  # whoever appends next finds it pending, and settles it or says why not
            known = self._known.get(log)
            if known is not None:
                known.settled_append_id = pending.append_id

    async def clear_settled(self) -> None:
        """Take away what is settled and still stands as pending: for logs that nobody appends to any more."""
        for log, known in list(self._known.items()):
            if known.settled_append_id is None or known.turn.locked():
                continue
            async with known.turn:
                cleared = settled(known.control, known.settled_append_id)
                if cleared is None:
                    continue
                key = self._context.keys.control(log)
                try:
                    version = await self._context.metadata.put(
                        key, encode_value(cleared, key.path), expected=known.version
                    )
                except MetadataStoreError:
                    continue  # somebody moved it, or nobody knows: the next append reads it anyway
                known.move(cleared, version)
                known.settled_append_id = None

    async def close(self) -> None:
        if self._settlements:
            await asyncio.gather(*self._settlements, return_exceptions=True)
        if not self._atomic:
            await self.clear_settled()
