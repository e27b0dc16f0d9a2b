"""Commit: advance the counters of many logs, in rounds of one metadata write for all of them.

Each round decides every open log anew from the control record just read (R5) and writes all of them in one call. Logs
that another writer changed first stay for the next round, and so do groups of which only some pieces could be committed
together. Both kinds of store share the rounds; they differ in what one log writes:

    atomic store       control and index entry in one group; `pending` stays null
    compare-and-set    control with `pending`: that is the commit point. The entry follows off the path of the
                       acknowledgement, and our next append may replace a `pending` that we have seen settled

The outcome of a write without an answer is found by reading, never assumed (R4): see `resolve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, NamedTuple

from llog.errors import (
    AppendNotCommitted,
    AppendUncertain,
    FormatError,
    InconsistentReadState,
    InvalidArgument,
    MetadataStoreError,
    MetadataUncertain,
    UnsupportedFormat,
    VersionConflict,
)
from llog.formats.values import ControlRecord, Pending, decode_value, encode_value
from llog.log.append.known import CommitAttempt, Growth, KnownLogs, OnDone, PieceOutcomes
from llog.log.append.pieces import AppendSlice
from llog.log.append.resolve import resolve
from llog.log.append.settle import Settlements, StaleSelf, free_entry_key, settle
from llog.log.context import LogContext, get_all, write_all
from llog.log.control import NothingNew, Refusal, Reserved, cleared, index_entry_of, reserve
from llog.log.keys import Log
from llog.log.metrics import AppendCounters
from llog.stores.metadata.port import ABSENT, Put

# Rounds without progress before an append fails; they wait less than other rounds do, some seconds in all.
LOG_APPEND_ROUNDS_MAX: Final = 256
# The longest back-off after a lost race: the log moves fast, and a long wait only lets the winner win again.
LOG_CONFLICT_BACKOFF_MS_MAX: Final = 32
# The pause of a writer that lets other writers of the log go first (`Fairness`).
LOG_YIELD_MS: Final = 16


class _ControlWrite(NamedTuple):
    """One log's write of a round, with the version it expects: control may have been read again before its answer."""

    attempt: CommitAttempt
    made: Reserved
    control: ControlRecord
    """The record that it writes."""
    version: int
    group: list[Put]


class Committer:
    def __init__(self, context: LogContext, *, first_offset: int, growth: Growth = Growth.FIRST_WRITE) -> None:
        self._context = context
        self._atomic = context.metadata.capabilities.atomic_groups
        self.known = KnownLogs(context, first_offset=first_offset, growth=growth)
        self.counters = AppendCounters()
        self._settlements = Settlements(context, self.known, self.counters)

    # -- rounds -------------------------------------------------------------------------------------------------------
    async def commit(
        self, slices: Mapping[Log, AppendSlice], on_done: OnDone | None = None, *, logs_per_call: int | None = None
    ) -> dict[Log, PieceOutcomes]:
        """The outcome of every piece of every log. Calls `on_done` for each log as soon as it is decided.

        `logs_per_call` commits very many logs in steps, so that other tasks run in between. Logs commit independently:
        a step that fails leaves the logs of earlier steps committed.
        """
        logs = sorted(slices)  # one order in all commits, so there is no circular wait
        if logs_per_call is None or len(logs) <= logs_per_call:
            return await self._commit([CommitAttempt(log, self.known[log], slices[log], on_done) for log in logs])
        outcomes: dict[Log, PieceOutcomes] = {}
        for first in range(0, len(logs), logs_per_call):
            await asyncio.sleep(0)
            step = logs[first : first + logs_per_call]
            outcomes |= await self._commit([CommitAttempt(log, self.known[log], slices[log], on_done) for log in step])
        return outcomes

    async def _commit(self, attempts: Sequence[CommitAttempt]) -> dict[Log, PieceOutcomes]:
        try:
            for attempt in attempts:
                await attempt.take_turn()
            await self._commit_in_turn(attempts)
        finally:
            for attempt in attempts:
                attempt.leave_turn()
        return {attempt.log: attempt.outcomes for attempt in attempts}

    async def _commit_in_turn(self, attempts: Sequence[CommitAttempt]) -> None:
        now_ms = self._context.now_ms()
        # An atomic store serves writers in the order of their calls, so there is no need for a trial pause.
        trial = not self._atomic
        yielding = [attempt for attempt in attempts if attempt.known.fairness.should_yield(now_ms, on_trial=trial)]
        if yielding:
            self.counters.yields += len(yielding)
            await self._context.sleep(LOG_YIELD_MS / 1_000)
        while attempts:
            await self._write(await self._decide(attempts))
            attempts = _still_open(attempts)
            await self._refresh(attempts)
            attempts = _still_open(attempts)

    async def _decide(self, attempts: Sequence[CommitAttempt]) -> list[tuple[CommitAttempt, Reserved]]:
        """What each log writes now; logs that need no write are decided.

        A refusal or a repeat that rests on remembered control is doubted first (its log may have been deleted since):
        no write would prove it, so it takes a strict read (R7). Beside new pieces the write of those proves it.
        """
        unready = [attempt for attempt in attempts if not attempt.is_ready()]
        skipped = set()
        if unready:
            ready = await asyncio.gather(*(self._make_ready(attempt) for attempt in unready))
            skipped = {attempt.log for attempt, is_ready in zip(unready, ready, strict=True) if not is_ready}
        reserved: list[tuple[CommitAttempt, Reserved]] = []
        for attempt in attempts:
            confirmed = attempt.begin_round()
            if attempt.log in skipped:
                continue
            known = attempt.known
            decision = reserve(
                known.control,
                attempt.slice,
                producers=known.producers.states,
                settled_append_id=known.settled_append_id,
                forgot=known.producers.forgot,
            )
            if isinstance(decision, Reserved):
                reserved.append((attempt, decision))
            elif isinstance(decision, NothingNew) and confirmed:
                attempt.decide(decision.verdicts)
            elif isinstance(decision, Refusal) and confirmed:
                attempt.refuse(decision)
            else:
                attempt.doubted = True
        return reserved

    async def _make_ready(self, attempt: CommitAttempt) -> bool:
        """Settle the pending append (R2), and read producer state as of the known control record. False when the log
        skips this round: it is decided, or control must be read again."""
        known = attempt.known
        try:
            if not known.is_settled() and known.settling is not None:
                await asyncio.wait([known.settling])  # our own last append
            pending = known.control.pending
            if pending is not None and not known.is_settled():
                await settle(self._context, attempt.log, pending)
                known.settled_append_id = pending.append_id
                self.counters.settles += 1
            if not attempt.slice.has_claims():
                return True
            return await known.producers.catch_up(self._context, attempt.log, known.control)
        except (StaleSelf, InconsistentReadState, FormatError, InvalidArgument) as error:
            _fail_with(attempt, error)
        except MetadataStoreError:
            pass  # the next round asks again
        return False

    async def _refresh(self, attempts: Sequence[CommitAttempt]) -> None:
        """Read control again for the logs without progress; a strict read confirms doubted decisions."""
        for attempt in attempts:
            if attempt.end_round() >= LOG_APPEND_ROUNDS_MAX:
                reason = f"other writers were faster {LOG_APPEND_ROUNDS_MAX} times; append again"
                attempt.fail(AppendNotCommitted(*attempt.log, reason))
        doubted = [attempt for attempt in attempts if attempt.open and attempt.doubted]
        if doubted and await self._read_control(doubted, strict=True):
            for attempt in doubted:
                attempt.confirmed = True
        lost = [attempt for attempt in attempts if attempt.open and not attempt.progressed and not attempt.confirmed]
        if lost:
            rounds = max(attempt.rounds for attempt in lost) - 1
            await self._context.back_off(rounds, longest_ms=LOG_CONFLICT_BACKOFF_MS_MAX)
            await self._read_control(lost)

    async def _read_control(self, attempts: Sequence[CommitAttempt], *, strict: bool = False) -> bool:
        """False when the store did not answer. A read that is not strict may be stale; a later write proves it was
        not."""
        keys = [self._context.keys.control(attempt.log) for attempt in attempts]
        try:
            records = await get_all(self._context.metadata, keys, strict=strict)
        except MetadataStoreError:
            return False
        for attempt, record in zip(attempts, records, strict=True):
            if record is not None and record.version != attempt.known.version:
                try:
                    attempt.known.update(decode_value(ControlRecord, record.value, record.key.path), record.version)
                except FormatError as error:
                    _fail_with(attempt, error)
        return True

    # -- writing ------------------------------------------------------------------------------------------------------
    async def _write(self, reserved: Sequence[tuple[CommitAttempt, Reserved]]) -> None:
        writes = [write for attempt, made in reserved if (write := self._control_write(attempt, made)) is not None]
        answers = await write_all(self._context.metadata, [write.group for write in writes])
        committed: list[tuple[Log, Pending]] = []
        unclear: list[Awaitable[tuple[Log, Pending] | None]] = []
        for write, answer in zip(writes, answers, strict=True):
            self.counters.cas_rounds += 1
            if isinstance(answer, tuple):
                committed.append(self._committed(write, answer[0]))
            elif isinstance(answer, VersionConflict):
                self.counters.conflicts += 1
                write.attempt.known.fairness.lost(self._context.now_ms())
                if self._atomic:
                    unclear.append(self._free_entry_key(write))
            elif isinstance(answer, MetadataUncertain):
                unclear.append(self._resolve(write))
            elif not answer.retriable:
                write.attempt.fail(AppendNotCommitted(*write.attempt.log, str(answer)))
            # Otherwise nothing was written, and the next round tries again.
        await self._settle_later(committed)
        if unclear:
            # Logs that are decided need not wait for the others.
            _still_open([write.attempt for write in writes])
            resolved = await asyncio.gather(*unclear)
            await self._settle_later([pending for pending in resolved if pending is not None])

    def _control_write(self, attempt: CommitAttempt, made: Reserved) -> _ControlWrite | None:
        keys, version = self._context.keys, attempt.known.version
        key = keys.control(attempt.log)
        control = cleared(made.control) if self._atomic else made.control
        try:
            group = [Put(key, encode_value(control, key.path), version)]
        except UnsupportedFormat as error:  # a newer release wrote it (h18)
            _fail_with(attempt, error)
            return None
        if self._atomic:
            entry = encode_value(index_entry_of(made.pending))
            group.append(Put(keys.index_entry(attempt.log, made.pending.end_offset), entry, ABSENT))
        return _ControlWrite(attempt, made, control, version, group)

    def _committed(self, write: _ControlWrite, version: int) -> tuple[Log, Pending]:
        attempt, made = write.attempt, write.made
        attempt.known.update(write.control, version)
        attempt.known.producers.add(made.pending)
        attempt.known.fairness.won(self._context.now_ms())
        attempt.decide(made.verdicts)
        self.counters.appends += 1
        return attempt.log, made.pending

    async def _settle_later(self, committed: Sequence[tuple[Log, Pending]]) -> None:
        if committed and not self._atomic:
            await self._settlements.settle_later(committed)

    async def _free_entry_key(self, write: _ControlWrite) -> None:
        attempt, [_, entry] = write.attempt, write.group
        try:
            await free_entry_key(
                self._context, attempt.log, write.made.pending, entry.key, control_version=write.version
            )
        except MetadataStoreError:
            return  # the next round meets the obstacle again
        except (StaleSelf, InconsistentReadState, FormatError, InvalidArgument) as error:
            _fail_with(attempt, error)

    async def _resolve(self, write: _ControlWrite) -> tuple[Log, Pending] | None:
        """R4: find the outcome of a write without an answer; returns its append if that is still to be settled."""
        attempt, made = write.attempt, write.made
        self.counters.uncertain += 1
        try:
            resolution = await resolve(
                self._context, attempt.log, attempt_version=write.version, made=made, group=write.group
            )
        except (FormatError, InvalidArgument) as error:
            attempt.fail_run(made.run, AppendUncertain(*attempt.log, str(error)))
            return None
        if resolution.control is not None:
            attempt.known.update(resolution.control, resolution.version)
            attempt.known.producers.forget()
        if resolution.error is not None:
            attempt.fail_run(made.run, resolution.error)
            return None
        self.counters.resolved += 1
        if resolution.committed:
            self.counters.appends += 1
            attempt.decide(made.verdicts)
            return None if resolution.pending is None else (attempt.log, resolution.pending)
        attempt.set_outcomes(resolution.pieces)
        return None

    # -- the end ------------------------------------------------------------------------------------------------------
    async def clear_settled(self) -> None:
        """Remove settled `pending` values, for logs without further appends."""
        if not self._atomic:
            await self._settlements.clear_settled()

    async def close(self) -> None:
        if not self._atomic:
            await self._settlements.close()


def _fail_with(attempt: CommitAttempt, error: Exception) -> None:
    if isinstance(error, StaleSelf):
        attempt.set_stale()
    elif isinstance(error, InconsistentReadState):
        attempt.fail(error)
    else:  # a value that cannot be read, or that a newer release wrote
        attempt.fail(InconsistentReadState(*attempt.log, str(error)))


def _still_open(attempts: Sequence[CommitAttempt]) -> list[CommitAttempt]:
    """The open ones. Decided logs leave their turn and report at once, without waiting for the others."""
    for attempt in attempts:
        if not attempt.open:
            attempt.leave_turn()
    return [attempt for attempt in attempts if attempt.open]
