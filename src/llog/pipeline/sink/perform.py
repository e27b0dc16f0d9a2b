"""Performing a commit plan: each of its slices gets into its log once, whoever performs it, and however often.

    logs side by side, the slices of one log one after the other: the next only when the one before is there

Why that is safe: a slice speaks as a batch of the query's producer, and `reserve` judges it inside the compare-and-set.

    new           it is appended
    a repeat      it is there: somebody performed this plan before us, or does so now
    an old epoch  a later slice of this log, or of a later batch, is there; those come only after this one (see
                  `sink_query`), so it is there too

A blob that is gone is such evidence too, where the plan is done: until then vacuum keeps it.

What must stay true: a slice is counted as there only on such evidence. A log that was deleted (or lives again) since
the plan was made has taken its records with it: nothing of the plan is appended to its new life.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import (
    AppendNotCommitted,
    AppendUncertain,
    FormatError,
    InconsistentReadState,
    LogDeleted,
    LogError,
    MetadataStoreError,
    ObjectNotFound,
    PartitionNotInitialized,
    ProducerEpochFenced,
    SinkPlanLost,
)
from llog.formats.values import ControlRecord, decode_value
from llog.limits import SINK_LOGS_IN_FLIGHT_MAX
from llog.log.append.commit import Committer
from llog.log.append.pieces import Landed, PieceOutcome
from llog.log.context import LogContext, get_all
from llog.log.keys import Log
from llog.log.producers.idempotence import Judgement, judge_claim
from llog.log.producers.state import KnownProducers
from llog.pipeline.sink.copy import copied
from llog.pipeline.sink.plan import Claimed, CommitPlan, PlanSlice, append_id, claimed_slices
from llog.pipeline.sink.query import Batch, persist
from llog.pipeline.sink.records import find

# How often one slice is committed anew after a passing trouble: each time a repeat would be recognised.
SINK_ATTEMPTS_MAX: Final = 8


class Performed(NamedTuple):
    """What became of the slices of a plan."""

    appended: int = 0
    repeated: int = 0
    """They were there already."""
    gone: int = 0
    """Their topic was deleted after the plan was made."""


class _Work:
    """One log's slices that are not known to be there, the next one first."""

    def __init__(self, log: Log, slices: Iterable[Claimed]) -> None:
        self.log, self.left = log, deque(slices)
        self._planned = {one.slice.n: one.slice for one in self.left}
        self.incarnation = self.left[0].slice.incarnation
        self.attempts = 0
        """At the next slice."""
        self.error: LogError | SinkPlanLost | None = None

    @property
    def planned(self) -> PlanSlice:
        """The next one as the plan has it. What it is in now may be a copy of ours, which nothing keeps: a driver that
        sleeps finds it gone, and the plan's own blob still there."""
        return self._planned[self.left[0].slice.n]

    @property
    def open(self) -> bool:
        return bool(self.left) and self.error is None


async def perform(context: LogContext, plan: CommitPlan, slices: Sequence[PlanSlice]) -> Performed:
    """Raises what stopped a log, after all others were brought to their ends."""
    performance = _Performance(context, plan, slices)
    try:
        await performance.run()
    finally:
        await performance.close()
    return Performed(performance.appended, performance.repeated, performance.gone)


class _Performance:
    def __init__(self, context: LogContext, plan: CommitPlan, slices: Sequence[PlanSlice]) -> None:
        self._context, self._plan = context, plan
        self._committer = Committer(context, first_offset=1)
        self._works = [_Work(log, claimed) for log, claimed in claimed_slices(plan, slices).items()]
        self._pinned: set[Log] = set()
        self.appended = self.repeated = self.gone = 0

    async def run(self) -> None:
        await self._look(self._works)
        await self._know(self._works)
        while works := [work for work in self._works if work.open]:
            found = await self._committer.commit({work.log: work.left[0].part() for work in works})
            unclear = [work for work in works if not self._judged(work, found[work.log][0])]
            if unclear:
                await self._look_into(unclear)
        errors = [work.error for work in self._works if work.error is not None]
        if errors:
            raise errors[0]

    async def close(self) -> None:
        self._committer.known.release(self._pinned)
        await self._committer.close()

    # -- one slice ----------------------------------------------------------------------------------------------------
    def _judged(self, work: _Work, outcome: PieceOutcome | None) -> bool:
        """False: it takes another look. None among outcomes means "not from this blob, or not in this life"."""
        if isinstance(outcome, Landed):
            self._there(work, repeated=outcome.repeated)
        elif isinstance(outcome, ProducerEpochFenced):
            self._there(work, repeated=True)
        elif isinstance(outcome, LogDeleted):
            self._is_gone(work)
        elif outcome is None or outcome.retriable or isinstance(outcome, AppendUncertain):
            work.attempts += 1
            if work.attempts >= SINK_ATTEMPTS_MAX:
                reason = f"slice {work.left[0].slice.n} was tried {work.attempts} times"
                work.error = outcome or AppendNotCommitted(*work.log, reason)
            return work.error is not None
        else:
            work.error = outcome
        return True

    def _there(self, work: _Work, *, repeated: bool) -> None:
        work.left.popleft()
        work.attempts = 0
        self.appended += not repeated
        self.repeated += repeated

    def _is_gone(self, work: _Work) -> None:
        self.gone += len(work.left)
        work.left.clear()

    # -- another look -------------------------------------------------------------------------------------------------
    async def _look_into(self, works: Sequence[_Work]) -> None:
        """Slices that are there although nobody told us are counted; those in blobs that are too old are copied."""
        await self._context.back_off(max(work.attempts for work in works))
        expired: list[_Work] = []
        for work, control in zip(works, await self._look(works), strict=True):
            if control is None or not work.open or await self._is_there(work, control) is not False:
                continue
            if work.left[0].slice.created_at_ms < control.commit_horizon_ms:
                expired.append(work)
        await self._know(works)
        await self._copy([work for work in expired if work.open])

    async def _look(self, works: Sequence[_Work]) -> list[ControlRecord | None]:
        """The control records as they are now; None for a log that is not what the plan was made for."""
        keys = [self._context.keys.control(work.log) for work in works]

        async def read(_: bool) -> list[ControlRecord | None]:
            found = await get_all(self._context.metadata, keys, strict=True)
            return [None if r is None else decode_value(ControlRecord, r.value, r.key.path) for r in found]

        controls = await persist(self._context, self._batch(), read)
        return [
            control if self._is_its_life(work, control) else None for work, control in zip(works, controls, strict=True)
        ]

    def _is_its_life(self, work: _Work, control: ControlRecord | None) -> bool:
        if control is None:
            work.error = PartitionNotInitialized(*work.log)
        elif control.incarnation < work.incarnation:
            reason = f"control is of incarnation {control.incarnation}, a plan was made for {work.incarnation}"
            work.error = InconsistentReadState(*work.log, reason)
        elif control.incarnation > work.incarnation or control.log_state == "DELETED":
            self._is_gone(work)
        return work.open

    async def _is_there(self, work: _Work, control: ControlRecord) -> bool | None:
        """By the producers' state: a blob that is too old is refused before anybody looks whether it is there. None:
        it cannot be told now. Then nothing follows from a blob that is gone: whoever finished the plan let it go."""
        producers = KnownProducers()
        try:
            if not await producers.catch_up(self._context, work.log, control):
                return None  # it moved on; if it counts, we come here again
        except MetadataStoreError as error:
            if not error.retriable:
                raise
            return None
        except FormatError as error:
            work.error = InconsistentReadState(*work.log, str(error))
            return None
        claim = work.left[0].claim
        judged = judge_claim(producers.states.get(claim.producer_id), claim).judgement
        if judged in (Judgement.REPEAT, Judgement.OLD_EPOCH):
            self._there(work, repeated=True)
            return True
        return False

    async def _copy(self, works: Sequence[_Work]) -> None:
        try:
            moved = await copied(self._context, [work.planned for work in works])
        except ObjectNotFound as error:
            if await self._is_done():
                for work in works:
                    while work.left:
                        self._there(work, repeated=True)
                return
            reason = (
                f"{error}: a blob of its commit plan was removed before the plan was finished. What is in the logs "
                "stays; run the query under a new queryId to write the batch anew"
            )
            for work in works:
                work.error = SinkPlanLost(self._plan.query, self._plan.batch, reason)
            return
        for work, part in zip(works, moved, strict=True):
            name = append_id(self._plan.query, self._plan.batch, part.log, part.n, part.data_key)
            work.left[0] = work.left[0]._replace(slice=replace(part, append_id=name))

    async def _is_done(self) -> bool:
        """Somebody else finished the plan, after which its blobs may go; it goes itself when its query has gone on."""
        found = await find(self._context, self._batch(), strict=True)
        return found is None or found.plan.done

    # -- logs ---------------------------------------------------------------------------------------------------------
    async def _know(self, works: Sequence[_Work]) -> None:
        """What the committer must know of each log. Only of logs whose control record is there: none is created."""
        known, slots = self._committer.known, asyncio.Semaphore(SINK_LOGS_IN_FLIGHT_MAX)

        async def one(work: _Work) -> None:
            if work.log in self._pinned:
                if known[work.log].fresh:
                    return
                known.release([work.log])
                self._pinned.remove(work.log)
            async with slots:
                try:
                    await known.know(work.log)
                    self._pinned.add(work.log)
                except LogDeleted:
                    self._is_gone(work)
                except LogError as error:
                    work.error = error

        await asyncio.gather(*(one(work) for work in works if work.open))

    def _batch(self) -> Batch:
        return Batch(self._plan.query, self._plan.batch)
