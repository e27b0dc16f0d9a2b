"""Commit: move the counters of many logs, in rounds of one metadata write for all of them.

Each round decides every open log anew from the control record just read (R5), writes all of them in one call, and
keeps for the next round those that somebody else moved, and those of whose pieces only a run could be committed
together. Both kinds of store share the rounds; they differ in what one log writes:

    atomic store       control and index entry in one group; `pending` stays null
    compare-and-set    control with `pending`; that is the commit point. The entry follows, off the path of the
                       acknowledgement, and the next append here may replace a `pending` that we have seen settled

An answer that never came is resolved by reading, never by assuming (R4): see `resolve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

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
from llog.log.append.attempt import Job, PieceOutcomes
from llog.log.append.known import Known, KnownLogs
from llog.log.append.pieces import AppendSlice
from llog.log.append.resolve import resolve
from llog.log.append.settle import StaleSelf, fence_inconsistent, settle
from llog.log.append.settle_later import Settlements
from llog.log.context import LogContext, get_all, write_all
from llog.log.control import NothingNew, Refusal, Reserved, refusal_of, reserve
from llog.log.index import entry_of, index_entry_of
from llog.log.keys import Log
from llog.log.metrics import AppendCounters
from llog.stores.metadata.port import ABSENT, Put

# The same for an append, which waits less between them (LOG_CONFLICT_BACKOFF_MS_MAX): some seconds in all.
LOG_APPEND_ROUNDS_MAX: Final = 256
# Who lost to another writer waits no longer than this: its log moves, and a long wait only lets the winner win again.
LOG_CONFLICT_BACKOFF_MS_MAX: Final = 32
# … for this long; also on trial, where it met no others: after twice as many commits each time, up to so many.
LOG_YIELD_MS: Final = 16


OnDone = Callable[[Log, PieceOutcomes], None]


class _Attempt(NamedTuple):
    """One log's write of a round. What it expects is kept: by the time of its answer we may know more."""

    job: Job
    made: Reserved
    version: int
    group: list[Put]


class Committer:
    def __init__(self, context: LogContext, *, first_offset: int) -> None:
        self._context = context
        self._atomic = context.metadata.capabilities.atomic_groups
        self.known = KnownLogs(context, first_offset=first_offset)
        self.counters = AppendCounters()
        self._settlements = Settlements(context, self.known, self.counters)

    # -- rounds -------------------------------------------------------------------------------------------------------
    async def commit(self, parts: Mapping[Log, AppendSlice], on_done: OnDone | None = None) -> dict[Log, PieceOutcomes]:
        """What became of every piece of every log. `on_done` is told of each log as soon as it is decided."""
        # In one order for everybody, so nobody waits in a circle.
        jobs = [Job(log, self.known[log], parts[log], on_done) for log in sorted(parts)]
        try:
            for job in jobs:
                await job.take_turn()
            await self._commit_in_turn(jobs)
        finally:
            for job in jobs:
                job.leave_turn()
        return {job.log: job.outcomes for job in jobs}

    async def _commit_in_turn(self, jobs: Sequence[Job]) -> None:
        now_ms = self._context.now_ms()
        # An atomic store lets writers through in the order they come: no need to look for others there.
        trial = not self._atomic
        yielding = [job for job in jobs if job.known.fairness.should_yield(now_ms, on_trial=trial)]
        if yielding:
            self.counters.yields += len(yielding)
            await self._context.sleep(LOG_YIELD_MS / 1_000)
        while jobs:
            await self._write(await self._decide(jobs))
            jobs = _still_open(jobs)
            await self._look_again(jobs)
            jobs = _still_open(jobs)

    async def _decide(self, jobs: Sequence[Job]) -> list[tuple[Job, Reserved]]:
        """What each log writes now; what needs no write is decided already.

        A refusal that rests on what we remember is doubted first, and so is a repeat (its log may have been deleted
        since): no write would prove it, so it takes a strict read (R7). Beside new pieces they need none: the write of
        those proves them.
        """
        unready = [job for job in jobs if not _is_ready(job)]
        out = set()
        if unready:
            ready = await asyncio.gather(*(self._make_ready(job) for job in unready))
            out = {job.log for job, it_is in zip(unready, ready, strict=True) if not it_is}
        reserved: list[tuple[Job, Reserved]] = []
        for job in jobs:
            confirmed = job.begin_round()
            if job.log in out:
                continue
            known = job.known
            decision = reserve(
                known.control,
                job.part,
                producers=known.producers.states,
                settled_append_id=known.settled_append_id,
            )
            if isinstance(decision, Reserved):
                reserved.append((job, decision))
            elif isinstance(decision, NothingNew) and confirmed:
                job.decide(decision.verdicts)
            elif isinstance(decision, Refusal) and confirmed:
                job.refuse(decision)
            else:
                job.doubted = True
        return reserved

    async def _make_ready(self, job: Job) -> bool:
        """Settle the append that stands in the way (R2), and know the producers as of the control record we hold; False
        when the log is out of this round: decided, or control must be read again."""
        known = job.known
        try:
            if not known.is_settled() and known.settling is not None:
                await asyncio.wait([known.settling])  # our own last append, on its way already
            pending = known.control.pending
            if pending is not None and not known.is_settled():
                await settle(self._context, job.log, pending)
                known.settled_append_id = pending.append_id
                self.counters.settles += 1
            return not job.part.has_claims() or await known.producers.catch_up(self._context, job.log, known.control)
        except StaleSelf:
            job.is_of_another_life()
        except InconsistentReadState as error:
            job.fail(error)
        except (FormatError, InvalidArgument) as error:
            job.fail(InconsistentReadState(*job.log, str(error)))
        except MetadataStoreError:
            pass  # the next round asks again
        return False

    async def _look_again(self, jobs: Sequence[Job]) -> None:
        """Control as it is now, for those that got no further; doubts are put to rest by a strict read."""
        for job in jobs:
            if job.end_round() >= LOG_APPEND_ROUNDS_MAX:
                job.fail(AppendNotCommitted(*job.log, f"other writers were faster {LOG_APPEND_ROUNDS_MAX} times"))
        doubted = [job for job in jobs if job.open and job.doubted]
        if doubted and await self._read_again(doubted, strict=True):
            for job in doubted:
                job.confirmed = True
        moved = [job for job in jobs if job.open and not job.progressed and not job.confirmed]
        if moved:
            rounds = max(job.rounds for job in moved) - 1
            await self._context.back_off(rounds, longest_ms=LOG_CONFLICT_BACKOFF_MS_MAX)
            await self._read_again(moved)

    async def _read_again(self, jobs: Sequence[Job], *, strict: bool = False) -> bool:
        """False when there was no answer. Without `strict` it may be stale: a later round's write proves that it was
        not."""
        keys = [self._context.keys.control(job.log) for job in jobs]
        try:
            records = await get_all(self._context.metadata, keys, strict=strict)
        except MetadataStoreError:
            return False
        for job, record in zip(jobs, records, strict=True):
            if record is not None and record.version != job.known.version:
                try:
                    job.known.move(decode_value(ControlRecord, record.value, record.key.path), record.version)
                except FormatError as error:
                    job.fail(InconsistentReadState(*job.log, str(error)))
        return True

    # -- writing ------------------------------------------------------------------------------------------------------
    async def _write(self, reserved: Sequence[tuple[Job, Reserved]]) -> None:
        attempts = [attempt for job, made in reserved if (attempt := self._attempt(job, made)) is not None]
        answers = await write_all(self._context.metadata, [attempt.group for attempt in attempts])
        landed: list[tuple[Log, Pending]] = []
        unclear: list[Awaitable[tuple[Log, Pending] | None]] = []
        for attempt, answer in zip(attempts, answers, strict=True):
            self.counters.cas_rounds += 1
            if isinstance(answer, tuple):
                landed.append(self._landed(attempt, answer[0]))
            elif isinstance(answer, VersionConflict):
                self.counters.conflicts += 1
                attempt.job.known.fairness.lost(self._context.now_ms())
                if self._atomic:
                    unclear.append(self._clear_the_way(attempt))
            elif isinstance(answer, MetadataUncertain):
                unclear.append(self._find_out(attempt))
            elif not answer.retriable:
                attempt.job.fail(AppendNotCommitted(*attempt.job.log, str(answer)))
            # Otherwise nothing happened, and the next round tries again.
        await self._settle_later(landed)
        if unclear:
            # Those that are decided need not wait for the others.
            _still_open([attempt.job for attempt in attempts])
            found = await asyncio.gather(*unclear)
            await self._settle_later([pending for pending in found if pending is not None])

    def _attempt(self, job: Job, made: Reserved) -> _Attempt | None:
        keys, version = self._context.keys, job.known.version
        key = keys.control(job.log)
        control = replace(made.control, pending=None) if self._atomic else made.control
        try:
            group = [Put(key, encode_value(control, key.path), version)]
        except UnsupportedFormat as error:  # a newer release wrote it (h18)
            job.fail(InconsistentReadState(*job.log, str(error)))
            return None
        if self._atomic:
            entry = encode_value(index_entry_of(made.pending))
            group.append(Put(keys.index_entry(job.log, made.pending.end_offset), entry, ABSENT))
        return _Attempt(job, made, version, group)

    def _landed(self, attempt: _Attempt, version: int) -> tuple[Log, Pending]:
        job, made = attempt.job, attempt.made
        job.known.move(replace(made.control, pending=None) if self._atomic else made.control, version)
        job.known.producers.add(made.pending)
        job.known.fairness.won(self._context.now_ms())
        job.decide(made.verdicts)
        self.counters.appends += 1
        return job.log, made.pending

    async def _settle_later(self, landed: Sequence[tuple[Log, Pending]]) -> None:
        if landed and not self._atomic:
            await self._settlements.later(landed)

    async def _clear_the_way(self, attempt: _Attempt) -> None:
        """A refused group on an atomic store: control moved (the usual case), or something stands at the entry's key:
        a phantom, which is removed by version, or what must not be, which fences the log."""
        job, pending, metadata = attempt.job, attempt.made.pending, self._context.metadata
        try:
            control, record = await metadata.get_many([put.key for put in attempt.group], strict=True)
            if control is None or control.version != attempt.version or record is None:
                return
            entry = entry_of(record)
            if entry.value.incarnation < pending.incarnation:
                await metadata.delete(record.key, expected=record.version)
            elif entry.value.incarnation == pending.incarnation:
                reason = f"{record.key.path} is there already"
                await fence_inconsistent(self._context, job.log, pending.incarnation, reason)
        except MetadataStoreError:
            return  # the next round meets it again
        except StaleSelf:
            job.is_of_another_life()
        except InconsistentReadState as error:
            job.fail(error)
        except (FormatError, InvalidArgument) as error:
            job.fail(InconsistentReadState(*job.log, str(error)))

    async def _find_out(self, attempt: _Attempt) -> tuple[Log, Pending] | None:
        """R4: what became of an append whose answer never came? Its pending append, if that is still to be settled."""
        job, made, known = attempt.job, attempt.made, attempt.job.known
        self.counters.uncertain += 1
        try:
            found = await resolve(
                self._context, job.log, attempt_version=attempt.version, made=made, group=attempt.group
            )
        except (FormatError, InvalidArgument) as error:
            job.fail_run(made.run, AppendUncertain(*job.log, str(error)))
            return None
        if found.control is not None:
            known.move(found.control, found.version)
            known.producers.forget()
        if found.error is not None:
            job.fail_run(made.run, found.error)
            return None
        self.counters.resolved += 1
        if found.committed:
            self.counters.appends += 1
            job.decide(made.verdicts)
            return None if found.pending is None else (job.log, found.pending)
        job.settle_pieces(found.pieces)
        return None

    # -- the end ------------------------------------------------------------------------------------------------------
    async def clear_settled(self) -> None:
        """Take away what is settled and still stands as pending: for logs that nobody appends to any more."""
        if not self._atomic:
            await self._settlements.clear_settled()

    async def close(self) -> None:
        if not self._atomic:
            await self._settlements.close()


def _is_ready(job: Job) -> bool:
    """Is all that `reserve` needs in hand?"""
    known: Known = job.known
    if refusal_of(known.control, job.part) is not None:
        return True
    return known.is_settled() and (not job.part.has_claims() or known.producers.complete(known.control))


def _still_open(jobs: Sequence[Job]) -> list[Job]:
    """Those that are decided make way for the log's next flush, and are told of, without waiting for the others."""
    for job in jobs:
        if not job.open:
            job.leave_turn()
    return [job for job in jobs if job.open]
