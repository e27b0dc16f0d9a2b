"""Performing a commit plan: each slice gets into its log once, whichever driver performs it and however often.

    logs concurrently; the slices of one log in order, each only after the previous one is in the log

Why that is safe: a slice speaks as a batch of the query's producer, and `reserve` judges it inside the compare-and-set.

    new        the slice is appended
    repeat     the slice is in the log: another driver performed this plan before, or performs it now
    old epoch  a later slice of this log, or of a later batch, is in the log; that happens only after this one
               (`llog.pipeline.sink.query`), so this slice is in the log too
    duplicate  so many later slices are in the log that its offsets are forgotten

A missing blob is such evidence as well if the plan is done: vacuum keeps the blob until then. A slice counts as
appended only on one of these grounds. If a log was deleted or recreated after the plan was made, its records are gone:
nothing of the plan is appended to the new incarnation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.concurrency import gather_bounded
from llog.errors import (
    AppendNotCommitted,
    AppendUncertain,
    DuplicateSequence,
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
from llog.log.producer_state import KnownProducers
from llog.log.producers import Judgement, judge_claim
from llog.pipeline.sink.plan import ClaimedSlice, CommitPlan, PlanSlice, append_id, claimed_slices, find_plan
from llog.pipeline.sink.query import SinkBatch, persist
from llog.pipeline.sink.uploads import copy_slices

# Attempts to commit one slice. Each attempt recognises a slice that is already in the log.
SINK_ATTEMPTS_MAX: Final = 8


class Performed(NamedTuple):
    """Outcomes of the slices of a plan, counted."""

    appended: int = 0
    repeated: int = 0
    """Already in the log."""
    gone: int = 0
    """Not appended: their topic was deleted after the plan was made."""


class _LogSlices:
    """The slices of one log that are not known to be in the log, in order."""

    def __init__(self, log: Log, slices: Iterable[ClaimedSlice]) -> None:
        self.log, self.left = log, deque(slices)
        self._planned = {one.slice.n: one.slice for one in self.left}
        self.incarnation = self.left[0].slice.incarnation
        self.attempts = 0
        """At the next slice, so far."""
        self.error: LogError | SinkPlanLost | None = None

    @property
    def planned(self) -> PlanSlice:
        """The next slice as the plan has it. The one in `left` may be in a copy that vacuum may remove; the plan's own
        blob stays."""
        return self._planned[self.left[0].slice.n]

    @property
    def open(self) -> bool:
        return bool(self.left) and self.error is None


async def perform(context: LogContext, plan: CommitPlan, slices: Sequence[PlanSlice]) -> Performed:
    """Raises the error that stopped a log, after all other logs were finished."""
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
        self._works = [_LogSlices(log, claimed) for log, claimed in claimed_slices(plan, slices).items()]
        self._pinned: set[Log] = set()
        self.appended = self.repeated = self.gone = 0

    async def run(self) -> None:
        await self._read_controls(self._works)
        await self._open_logs(self._works)
        while works := [work for work in self._works if work.open]:
            outcomes = await self._committer.commit({work.log: work.left[0].to_append() for work in works})
            unclear = [work for work in works if not self._settle(work, outcomes[work.log][0])]
            if unclear:
                await self._investigate(unclear)
        errors = [work.error for work in self._works if work.error is not None]
        if errors:
            raise errors[0]

    async def close(self) -> None:
        self._committer.known.release(self._pinned)
        await self._committer.close()

    # -- one slice ----------------------------------------------------------------------------------------------------
    def _settle(self, work: _LogSlices, outcome: PieceOutcome | None) -> bool:
        """False: the outcome is unclear. None means "not from this blob, or not in this incarnation"."""
        if isinstance(outcome, Landed):
            self._count_appended(work, repeated=outcome.repeated)
        elif isinstance(outcome, ProducerEpochFenced | DuplicateSequence):
            self._count_appended(work, repeated=True)
        elif isinstance(outcome, LogDeleted):
            self._drop(work)
        elif outcome is None or outcome.retriable or isinstance(outcome, AppendUncertain):
            work.attempts += 1
            if work.attempts >= SINK_ATTEMPTS_MAX:
                reason = f"slice {work.left[0].slice.n} was tried {work.attempts} times"
                work.error = outcome or AppendNotCommitted(*work.log, reason)
            return work.error is not None
        else:
            work.error = outcome
        return True

    def _count_appended(self, work: _LogSlices, *, repeated: bool) -> None:
        work.left.popleft()
        work.attempts = 0
        self.appended += not repeated
        self.repeated += repeated

    def _drop(self, work: _LogSlices) -> None:
        self.gone += len(work.left)
        work.left.clear()

    # -- unclear outcomes ---------------------------------------------------------------------------------------------
    async def _investigate(self, works: Sequence[_LogSlices]) -> None:
        """Count slices that are in their log after all, and copy those in blobs that are too old."""
        await self._context.back_off(max(work.attempts for work in works))
        expired: list[_LogSlices] = []
        for work, control in zip(works, await self._read_controls(works), strict=True):
            if control is None or not work.open or await self._is_appended(work, control) is not False:
                continue
            if work.left[0].slice.created_at_ms < control.commit_horizon_ms:
                expired.append(work)
        await self._open_logs(works)
        await self._copy([work for work in expired if work.open])

    async def _read_controls(self, works: Sequence[_LogSlices]) -> list[ControlRecord | None]:
        """The control records now; None for a log that is not in the incarnation the plan was made for."""
        keys = [self._context.keys.control(work.log) for work in works]

        async def read(_: bool) -> list[ControlRecord | None]:
            records = await get_all(self._context.metadata, keys, strict=True)
            return [None if r is None else decode_value(ControlRecord, r.value, r.key.path) for r in records]

        controls = await persist(self._context, self._batch(), read)
        pairs = zip(works, controls, strict=True)
        return [control if self._is_planned_incarnation(work, control) else None for work, control in pairs]

    def _is_planned_incarnation(self, work: _LogSlices, control: ControlRecord | None) -> bool:
        if control is None:
            work.error = PartitionNotInitialized(*work.log)
        elif control.incarnation < work.incarnation:
            reason = f"the control record is of incarnation {control.incarnation}, the plan of {work.incarnation}"
            work.error = InconsistentReadState(*work.log, reason)
        elif control.incarnation > work.incarnation or control.log_state == "DELETED":
            self._drop(work)
        return work.open

    async def _is_appended(self, work: _LogSlices, control: ControlRecord) -> bool | None:
        """Whether the log's producer state has the next slice: the committer refuses an old blob before it checks. None
        means unknown, so a missing blob proves nothing."""
        producers = KnownProducers()
        try:
            if not await producers.catch_up(self._context, work.log, control):
                return None  # the log moved on; an unclear outcome leads here again
        except MetadataStoreError as error:
            if not error.retriable:
                raise
            return None
        except FormatError as error:
            work.error = InconsistentReadState(*work.log, str(error))
            return None
        claim = work.left[0].claim
        state = producers.states.get(claim.producer_id)
        judgement = judge_claim(state, claim, forgot=producers.forgot).judgement
        if judgement in (Judgement.REPEAT, Judgement.OLD_EPOCH, Judgement.DUPLICATE):
            self._count_appended(work, repeated=True)
            return True
        return False

    async def _copy(self, works: Sequence[_LogSlices]) -> None:
        try:
            copies = await copy_slices(self._context, [work.planned for work in works])
        except ObjectNotFound as error:
            if await self._is_done():
                for work in works:
                    while work.left:
                        self._count_appended(work, repeated=True)
                return
            reason = (
                f"{error}: a blob of its commit plan was removed before the plan was finished. Records that are in the "
                "logs stay; run the query under a new queryId to write the batch again"
            )
            for work in works:
                work.error = SinkPlanLost(self._plan.query, self._plan.batch, reason)
            return
        for work, part in zip(works, copies, strict=True):
            name = append_id(self._plan.query, self._plan.batch, part.log, part.n, part.data_key)
            work.left[0] = work.left[0]._replace(slice=replace(part, append_id=name))

    async def _is_done(self) -> bool:
        """Another driver finished the plan, so its blobs may be gone. The plan is removed when its query advances."""
        stored = await find_plan(self._context, self._batch(), strict=True)
        return stored is None or stored.plan.done

    # -- logs ---------------------------------------------------------------------------------------------------------
    async def _open_logs(self, works: Sequence[_LogSlices]) -> None:
        """Load what the committer needs of each log. Control records exist by now: this creates none."""
        known = self._committer.known

        async def load(work: _LogSlices) -> None:
            if work.log in self._pinned:
                if known[work.log].fresh:
                    return
                known.release([work.log])
                self._pinned.remove(work.log)
            try:
                await known.know(work.log)
                self._pinned.add(work.log)
            except LogDeleted:
                self._drop(work)
            except LogError as error:
                work.error = error

        await gather_bounded([work for work in works if work.open], load, limit=SINK_LOGS_IN_FLIGHT_MAX)

    def _batch(self) -> SinkBatch:
        return SinkBatch(self._plan.query, self._plan.batch)
