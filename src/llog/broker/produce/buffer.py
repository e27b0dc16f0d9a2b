"""Record groups that wait for their flush: the calls they came with, the logs that must be looked up first, and the
queue of batches, each of which becomes one blob.

The groups of one call may go with different flushes, and one flush answers many calls. A call is answered when its last
group has an outcome; each group gets exactly one. A caller that goes away changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from llog.broker.produce.groups import copy_error, join_groups
from llog.errors import (
    AppendNotCommitted,
    InconsistentReadState,
    LlogError,
    LogDeleted,
    LogError,
    PartitionOutOfRange,
    StoreError,
)
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.limits import BATCH_NEW_LOGS_IN_FLIGHT_MAX
from llog.log.append.append import Appended, AppendOutcome, EncodedGroup
from llog.log.append.known import KnownLogs
from llog.log.append.pieces import Landed
from llog.log.keys import Log
from llog.log.producers import ProducerClaim, StoredClaims
from llog.log.topics.create import Expected

# Record groups of calls in one flush; each is shared out and answered on its own.
BATCH_GROUPS_PER_FLUSH_MAX: Final = 8_192
# How long the new logs of one call wait for each other, in order to share a blob.
BATCH_NEW_LOGS_TOGETHER_MS: Final = 500

logger = logging.getLogger(__name__)
Lookup = asyncio.Task[LogError | None]


# -- calls -----------------------------------------------------------------------------------------------------------


class Timings(NamedTuple):
    """Where the time of a call went; of several flushes, the longest of each stage. Failed stages count too."""

    queue_ms: float = 0.0
    """From acceptance to the start of the flush."""
    upload_ms: float = 0.0
    commit_ms: float = 0.0
    """From the end of the upload to the outcome, including the wait for earlier flushes."""

    def longest(self, other: Timings) -> Timings:
        queue_ms, upload_ms, commit_ms = other
        if queue_ms >= self.queue_ms and upload_ms >= self.upload_ms and commit_ms >= self.commit_ms:
            return other  # nearly always: the logs of a flush are answered one after the other
        return Timings(*map(max, self, other))


NO_TIMINGS: Final = Timings()


class TimedOutcomes(NamedTuple):
    outcomes: list[Appended | LogError]
    timings: Timings


class AppendTally:
    """Counts of one call for the metrics. Records and bytes count once they are in a log, repeats do not count again,
    and a refused piece is a failure of its own even if its neighbours are appended."""

    __slots__ = ("byte_length", "failures", "groups", "payload_bytes", "records")

    def __init__(self) -> None:
        self.groups = self.records = self.byte_length = self.payload_bytes = 0
        self.failures: dict[str, int] = {}
        """By the name of the error class."""

    def add(self, group: EncodedGroup, byte_length: int, outcome: AppendOutcome) -> None:
        if not isinstance(outcome, Appended):
            self.add_failure(outcome)
            return
        self.groups += 1
        if len(outcome.pieces) == 1 and isinstance(outcome.pieces[0], Landed):  # the usual case
            if not outcome.pieces[0].repeated:
                self.records += group.msg_count
                self.byte_length += byte_length
                self.payload_bytes += group.pieces[0].payload_bytes
            return
        for piece, landed in zip(group.pieces, outcome.pieces, strict=True):
            if not isinstance(landed, Landed):
                self.add_failure(landed)
            elif not landed.repeated:
                self.records += piece.msg_count
                self.byte_length += piece.byte_length
                self.payload_bytes += piece.payload_bytes

    def add_failure(self, error: Exception) -> None:
        name = type(error).__name__
        self.failures[name] = self.failures.get(name, 0) + 1


class ProduceCall:
    """One call. The caller owns `answer` and may cancel it; it never holds an exception."""

    __slots__ = ("_left", "_on_answered", "_outcomes", "accepted_ms", "answer", "byte_length", "tally", "timings")

    def __init__(
        self, size: int, byte_length: int, accepted_ms: float, on_answered: Callable[[ProduceCall], None]
    ) -> None:
        self.byte_length, self.accepted_ms = byte_length, accepted_ms
        self.timings, self.tally = NO_TIMINGS, AppendTally()
        self.answer: asyncio.Future[TimedOutcomes] = asyncio.get_running_loop().create_future()
        self._outcomes: list[AppendOutcome | None] = [None] * size
        self._left, self._on_answered = size, on_answered

    def set_outcome(self, number: int, outcome: AppendOutcome, timings: Timings) -> None:
        assert self._outcomes[number] is None, f"a second outcome: {outcome}"
        self._outcomes[number] = outcome
        self.timings = timings if self.timings is NO_TIMINGS else self.timings.longest(timings)
        self._left -= 1
        if not self._left:
            self._on_answered(self)
            if not self.answer.done():
                outcomes = [outcome for outcome in self._outcomes if outcome is not None]
                self.answer.set_result(TimedOutcomes(outcomes, self.timings))


class CallGroup:
    """One record group of a call."""

    __slots__ = ("byte_length", "call", "claims", "group", "log", "number")

    def __init__(self, call: ProduceCall, number: int, group: EncodedGroup, byte_length: int) -> None:
        self.call, self.number, self.group, self.byte_length = call, number, group, byte_length
        self.log: Log = group.log
        pieces = group.pieces
        self.claims: Sequence[ProducerClaim]
        if len(pieces) == 1:  # the usual case
            claim = pieces[0].claim
            self.claims = () if claim is None else (claim,)
        else:
            self.claims = [piece.claim for piece in pieces if piece.claim is not None]

    def set_outcome(self, outcome: AppendOutcome, timings: Timings) -> None:
        self.call.tally.add(self.group, self.byte_length, outcome)
        self.call.set_outcome(self.number, outcome, timings)

    def refuse(self, error: LogError, timings: Timings = NO_TIMINGS) -> None:
        """Each group gets its own copy, because callers add to the error they receive."""
        self.set_outcome(copy_error(error), timings)

    def queue_ms(self, now_ms: float) -> float:
        return now_ms - self.call.accepted_ms


# -- batches ---------------------------------------------------------------------------------------------------------


class LogGroups:
    """The groups of one log in a batch, to be joined into one."""

    __slots__ = ("_claims", "members")

    def __init__(self) -> None:
        self.members: list[CallGroup] = []
        self._claims = StoredClaims()

    def has_room(self, member: CallGroup) -> bool:
        """Whether the group can join the others.

        A slice has one encoding, and a slice of bytes-batch-v1 is one batch. A group of more producers than one append
        may carry would be committed in several appends, and no single index entry would hold its pieces.
        """
        encoding = self.members[0].group.encoding
        if member.group.encoding != encoding or encoding == BYTES_BATCH:
            return False
        return not member.claims or self._claims.fits(member.claims)

    def add(self, member: CallGroup) -> None:
        self.members.append(member)
        for claim in member.claims:
            self._claims.add(claim.producer_id)

    def join(self) -> EncodedGroup:
        members = self.members
        if len(members) == 1:
            return members[0].group
        byte_lengths = [member.byte_length for member in members]
        return join_groups([member.group for member in members], byte_lengths, claimed=self._claims.count > 0)


class FlushBatch:
    """The content of one flush."""

    __slots__ = ("by_log", "byte_length", "first_ms", "group_count", "number", "urgency")

    def __init__(self, number: int, now_ms: float) -> None:
        self.number, self.first_ms = number, now_ms
        self.by_log: dict[Log, LogGroups] = {}
        self.byte_length = self.group_count = 0
        self.urgency = ""
        """The reason to flush without waiting, if any."""

    def add(self, member: CallGroup, max_bytes: int) -> bool:
        """False: there is no room for the group. An empty batch has room for any."""
        byte_length, group_count = self.byte_length + member.byte_length, self.group_count
        if group_count and (byte_length > max_bytes or group_count >= BATCH_GROUPS_PER_FLUSH_MAX):
            return False
        groups = self.by_log.get(member.log)
        if groups is None:
            groups = self.by_log[member.log] = LogGroups()
        elif not groups.has_room(member):
            return False
        groups.add(member)
        self.byte_length, self.group_count = byte_length, group_count + 1
        return True

    def members(self) -> list[CallGroup]:
        return [member for groups in self.by_log.values() for member in groups.members]

    def record_count(self) -> int:
        return sum(member.group.msg_count for member in self.members())


class FlushBuffer:
    """A queue of batches. A group joins the first batch that has room for it, but never one ahead of an earlier group
    of its log. So the next blob is as full as possible, and a group that cannot join (another encoding, a bare
    bytes-batch, too many producers) waits in a later batch without delaying others. A group larger than a batch gets a
    batch of its own."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: deque[FlushBatch] = deque()
        self._latest: dict[Log, int] = {}
        """Per log, the number of the last batch in the queue that holds a group of it."""
        self._next_number = 0
        self._full_until = -1
        """Batches up to this number are due now and take no more groups: that batch is full, earlier ones go first."""

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, member: CallGroup, now_ms: float) -> None:
        batch = self._join(member, now_ms)
        self._latest[member.log] = batch.number
        if batch.byte_length >= self._max_bytes or batch.group_count >= BATCH_GROUPS_PER_FLUSH_MAX:
            self._full_until = batch.number

    def _join(self, member: CallGroup, now_ms: float) -> FlushBatch:
        """The batch that the group was added to."""
        if self._batches:
            head = self._batches[0].number
            first = max(head, self._full_until + 1, self._latest.get(member.log, head))
            for position in range(first - head, len(self._batches)):
                batch = self._batches[position]
                if batch.add(member, self._max_bytes):
                    return batch
                if batch.byte_length + member.byte_length > self._max_bytes:
                    # Full for a group of this size, so it waits no longer.
                    self._full_until = batch.number
        batch = FlushBatch(self._next_number, now_ms)
        batch.add(member, self._max_bytes)
        self._batches.append(batch)
        self._next_number += 1
        return batch

    @property
    def head(self) -> FlushBatch:
        return self._batches[0]

    def head_is_full(self) -> bool:
        return bool(self._batches) and self._batches[0].number <= self._full_until

    def pop(self) -> FlushBatch:
        batch = self._batches.popleft()
        for log in batch.by_log:
            if self._latest[log] == batch.number:
                del self._latest[log]
        return batch

    def refuse_all(self, error: type[LogError], reason: str) -> None:
        """Empty the buffer; every group in it gets this error."""
        while self._batches:
            for member in self.pop().members():
                member.refuse(error(*member.log, reason))

    def expedite(self, reason: str) -> None:
        """Flush the batches that are in the queue now without waiting."""
        for batch in self._batches:
            batch.urgency = reason


# -- new logs --------------------------------------------------------------------------------------------------------


class NewLogs:
    """Looks up logs that this process has not met, before their records enter a flush.

    A log must be initialized before the blob's id is drawn (h04), and that may take long or fail: its shard is away,
    its topic is being deleted, a newer release wrote its record. Inside a flush that would delay or fail all other logs
    of the flush. While a log is looked up, all groups for it wait here in order.
    """

    def __init__(self, known: KnownLogs, on_known: Callable[[Sequence[CallGroup]], None]) -> None:
        self._known, self._on_known = known, on_known
        self._waiting: dict[Log, list[CallGroup]] = {}
        self._new: list[Log] = []
        """Logs added since the last `start_lookups`."""
        self._expected: dict[Log, Expected | None] = {}
        """What the look-up of a waiting log was made for: the first group's expectation."""
        self._lookups: set[Lookup] = set()
        self._joint_lookups: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(BATCH_NEW_LOGS_IN_FLIGHT_MAX)

    def unknown(self, logs: Sequence[Log]) -> list[Log]:
        """Those that were not met before; the names of all others are valid."""
        known = self._known.get
        return [log for log in logs if known(log) is None]

    def hold(self, member: CallGroup) -> bool:
        """Keep the group until its log is known; False when the log is known and none of its groups waits here.
        `start_lookups` must follow."""
        waiting = self._waiting.get(member.log)
        if waiting is not None:
            waiting.append(member)
            return True
        known, incarnation = self._known.get(member.log), member.group.pieces[0].incarnation
        if known is not None and known.fresh and (incarnation is None or known.control.incarnation >= incarnation):
            return False
        self._waiting[member.log] = [member]
        self._expected[member.log] = None if incarnation is None else Expected(incarnation)
        self._new.append(member.log)
        return True

    def start_lookups(self) -> None:
        """Look up the logs added since the last call. They go on together, so that one call becomes one blob, but wait
        for the slowest of them for a limited time only."""
        if self._new:
            logs, self._new = self._new, []
            joint = asyncio.create_task(self._look_up_together(logs))
            self._joint_lookups.add(joint)
            joint.add_done_callback(self._joint_lookups.discard)

    async def _look_up_together(self, logs: Sequence[Log]) -> None:
        lookups = {asyncio.create_task(self._look_up(log)): log for log in logs}
        self._lookups |= lookups.keys()
        try:
            done, left = await asyncio.wait(lookups, timeout=BATCH_NEW_LOGS_TOGETHER_MS / 1_000)
            self._release(lookups, done)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                self._release(lookups, done)
        finally:
            self._lookups -= lookups.keys()

    def _release(self, lookups: Mapping[Lookup, Log], done: Collection[Lookup]) -> None:
        errors = {log: _error_of(lookup, log) for lookup, log in lookups.items() if lookup in done}
        self._on_known([member for log, error in errors.items() if error is None for member in self._waiting.pop(log)])
        for log, error in errors.items():
            expected = self._expected.pop(log)
            if error is not None:
                self._refuse(self._waiting.pop(log), expected, error)
        self.start_lookups()

    def _refuse(self, members: Sequence[CallGroup], expected: Expected | None, error: LogError) -> None:
        """Refuse the groups that the look-up was made for. That an expected incarnation is gone says nothing to groups
        with another expectation that came meanwhile: their log is looked up again, for them."""
        for member in members:
            others = expected is not None and member.group.pieces[0].incarnation != expected.incarnation
            if not others or not isinstance(error, LogDeleted | PartitionOutOfRange):
                member.refuse(error)
            elif not self.hold(member):
                self._on_known([member])

    async def _look_up(self, log: Log) -> LogError | None:
        """The reason that the log takes no appends, or None."""
        try:
            async with self._slots:
                await self._known.know(log, expected=self._expected[log])
        except LogError as refused:
            return refused
        except StoreError as unavailable:
            return AppendNotCommitted(*log, f"its control record could not be read: {unavailable}")
        except LlogError as damage:
            return InconsistentReadState(*log, str(damage))
        except Exception as bug:
            logger.exception("cannot look up log %s", log)
            return AppendNotCommitted(*log, f"its control record could not be read: {bug!r}")
        self._known.release([log])
        return None

    async def cancel(self) -> None:
        """Refuse all groups that wait here."""
        for lookup in list(self._lookups):
            lookup.cancel()
        if self._joint_lookups:
            await asyncio.wait(self._joint_lookups)


def _error_of(lookup: Lookup, log: Log) -> LogError | None:
    if lookup.cancelled():
        return AppendNotCommitted(*log, "the broker is closing and had not looked the log up; append again elsewhere")
    return lookup.result()
