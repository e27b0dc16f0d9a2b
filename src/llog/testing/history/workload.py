"""Clients of a log under test: writers, readers, compactors and operators that record what they ask and hear.

The same clients run as simulated actors and as processes that get killed, against one checker. A client records its
request before it sends it and the answer as it came; it waits for each answer before the next request, so its events
have an order. No two records are the same, except those of an idempotent producer's retry. An error that a client does
not expect ends it and fails the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

from llog import errors
from llog.errors import (
    CompactionFailed,
    InconsistentReadState,
    LogError,
    MetadataStoreError,
    ObjectAlreadyExists,
    ObjectRangeInvalid,
    ObjectStoreError,
    OffsetOutOfRange,
    PartitionNotInitialized,
    TopicError,
    UncertainOutcome,
    UnknownProducer,
    VacuumRefused,
)
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, AppendOutcome, EncodedGroup
from llog.log.append.known import Growth
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.producers import ProducerClaim
from llog.log.read.read import iter_runs, view
from llog.testing.history.events import (
    Act,
    ActAnswered,
    ActAsked,
    AppendAnswered,
    AppendAsked,
    Observed,
    ReadAnswered,
    ReadAsked,
    ReadOutcome,
    Record,
)

T = TypeVar("T")

TROUBLE: Final = (LogError, TopicError, MetadataStoreError, ObjectStoreError, VacuumRefused)
"""Errors that a client may get while stores fail and other clients work. Any other error is a bug."""
RUNS_PER_READ_MAX: Final = 4
ATTEMPTS_MAX: Final = 4
"""Of an idempotent producer, before it gives a batch up and goes on in its next epoch."""


def is_trouble(error_type: str) -> bool:
    """Whether a job may name this error for one log while stores fail. A bad checksum, or a range outside its object,
    is a bug."""
    found = getattr(errors, error_type)
    return issubclass(found, TROUBLE) and not issubclass(found, ObjectRangeInvalid | ObjectAlreadyExists)


class Client:
    """One process at work. `pause_ms` is about how long it rests between two operations."""

    def __init__(
        self, name: str, context: LogContext, record: Record, *, encoding: str = "bytes-batch-v1", pause_ms: int = 20
    ) -> None:
        self.name, self.context, self.record = name, context, record
        self._encoding, self._pause_ms = encoding, pause_ms
        self._ops = itertools.count()

    def next_op(self) -> int:
        return next(self._ops)

    def draw(self, below: int) -> int:
        return self.context.random_bits(32) % below

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.draw(len(choices))]

    async def pause(self, times: int = 1) -> None:
        await self.context.sleep(self.draw(self._pause_ms * times + 1) / 1_000)

    def append_asked(self, log: Log, tokens: tuple[str, ...], claim: ProducerClaim | None = None) -> AppendAsked:
        return AppendAsked(op=self.next_op(), log=log, tokens=tokens, claim=claim)

    def group(self, asked: AppendAsked) -> EncodedGroup:
        payloads = [token.encode() for token in asked.tokens]
        now_ms = self.context.now_ms()
        claims = () if asked.claim is None else (asked.claim,)
        if self._encoding == "bytes-batch-v1":
            body = encode_bytes_batch(payloads)
        else:
            body = [encode_records(payloads, timestamps_ms=now_ms)]
        return EncodedGroup(asked.log, len(payloads), self._encoding, body, now_ms, claims)


# -- writers ---------------------------------------------------------------------------------------------------------


async def append(client: Client, appender: Appender, asked: Sequence[AppendAsked]) -> list[AppendAnswered]:
    """One flush. Returns the answer for each batch."""
    for request in asked:
        client.record(request)
    groups = [client.group(request) for request in asked]
    outcomes: Sequence[AppendOutcome | Exception]
    try:
        outcomes = await appender.append(groups)
    except (MetadataStoreError, ObjectStoreError) as error:
        outcomes = [error] * len(groups)
    answers = [append_answered(request, outcome) for request, outcome in zip(asked, outcomes, strict=True)]
    for answer in answers:
        client.record(answer)
    return answers


def append_answered(asked: AppendAsked, outcome: AppendOutcome | Exception) -> AppendAnswered:
    if isinstance(outcome, Appended):
        return AppendAnswered(op=asked.op, outcome="landed", start_offset=outcome.start_offset)
    uncertain = isinstance(outcome, UncertainOutcome)
    return AppendAnswered(op=asked.op, outcome="uncertain" if uncertain else "refused", reason=type(outcome).__name__)


async def write(client: Client, logs: Sequence[Log], appends: int, *, records_max: int = 2) -> None:
    """A plain writer: each flush goes to some of the logs."""
    appender = Appender(client.context, growth=Growth.HTTP)
    for number in range(appends):
        chosen = [log for log in logs if client.draw(3)] or [client.one_of(logs)]
        asked = []
        for log in chosen:
            tokens = tuple(f"{client.name}/{number}/{log}/{i}" for i in range(1 + client.draw(records_max)))
            asked.append(client.append_asked(log, tokens))
        await append(client, appender, asked)
        await client.pause()
    await _closed(appender)


async def write_idempotently(client: Client, logs: Sequence[Log], appends: int, producer_id: int) -> None:
    """A producer that numbers its records and retries until it has an answer; an uncertain outcome ends its epoch, and
    so does a log that was created again and does not know it."""
    appender = Appender(client.context, growth=Growth.HTTP)
    places = dict.fromkeys(logs, (0, 0))  # epoch, next sequence
    for number in range(appends):
        log = client.one_of(logs)
        epoch, sequence = places[log]
        tokens = tuple(f"{client.name}/{number}/{log}/{i}" for i in range(1 + client.draw(2)))
        doubtful = False
        for _ in range(ATTEMPTS_MAX):
            claim = ProducerClaim(producer_id, epoch, sequence, sequence + len(tokens) - 1)
            [answer] = await append(client, appender, [client.append_asked(log, tokens, claim)])
            if answer.outcome == "landed":
                places[log], doubtful = (epoch, sequence + len(tokens)), False
                if client.draw(3):
                    break
                # As if the answer had been lost on its way to the client: the retry must get the same one.
            elif places[log] == (epoch, sequence):
                doubtful = doubtful or answer.outcome == "uncertain"
                if answer.reason == UnknownProducer.__name__:
                    epoch, sequence = places[log] = (epoch + 1, 0)
            await client.pause()
        if doubtful:
            places[log] = (epoch + 1, 0)
    await _closed(appender)


async def _closed(appender: Appender) -> None:
    try:
        await appender.close()
    except TROUBLE:
        pass  # the next append settles the pending one


# -- readers ---------------------------------------------------------------------------------------------------------


async def follow(client: Client, logs: Sequence[Log], rounds: int) -> None:
    """Reads every log from its own position on, again and again, and observes how far each has come."""
    positions: dict[Log, int] = {}
    for _ in range(rounds):
        log = client.one_of(logs)
        if log not in positions:
            start = await observe(client, log)
            if start is None:
                await client.pause()
                continue
            positions[log] = start
        moved = await read(client, log, positions[log])
        if moved is None:
            del positions[log]
        else:
            positions[log] = moved
        await client.pause()


async def observe(client: Client, log: Log) -> int | None:
    """Where the log starts."""
    try:
        seen = await view(client.context, log, strict=True)
    except TROUBLE:
        return None
    client.record(
        Observed(
            op=client.next_op(),
            log=log,
            incarnation=seen.control.incarnation,
            epoch=seen.control.epoch,
            counter=seen.control.sequence_counter,
            log_start_offset=seen.control.log_start_offset,
            cursor=seen.cursor,
        )
    )
    return seen.control.log_start_offset


async def read(client: Client, log: Log, offset: int) -> int | None:
    """Some records from `offset` on; where to go on, or None when the log's start must be read again."""
    op = client.next_op()
    client.record(ReadAsked(op=op, log=log, offset=offset))
    records: list[tuple[int, str]] = []
    outcome: ReadOutcome = "end"
    reason, bounds = "", (-1, -1)
    try:
        async with aclosing(iter_runs(client.context, log, offset)) as runs:
            taken = 0
            async for run in runs:
                records += [(record.offset, (record.payload or b"").decode()) for record in run.records()]
                outcome, taken = "records", taken + 1
                if taken == RUNS_PER_READ_MAX:
                    break
    except OffsetOutOfRange as error:
        outcome, bounds = "out_of_range", (error.log_start_offset, error.next_offset)
    except PartitionNotInitialized:
        outcome = "not_initialized"
    except InconsistentReadState as error:
        outcome, reason = "inconsistent", str(error)
    except TROUBLE as error:
        outcome, reason = "no_answer", type(error).__name__
    client.record(
        ReadAnswered(
            op=op,
            outcome=outcome,
            records=tuple(records),
            log_start_offset=bounds[0],
            next_offset=bounds[1],
            reason=reason,
        )
    )
    if outcome in ("out_of_range", "not_initialized"):
        return None
    return records[-1][0] + 1 if records else offset


async def read_all(context: LogContext, log: Log) -> list[tuple[int, bytes | None]]:
    """Every record of the log, as pairs of offset and payload."""
    start = (await view(context, log, strict=True)).control.log_start_offset
    return [(r.offset, r.payload) async for run in iter_runs(context, log, start) for r in run.records()]


# -- maintenance and operators ---------------------------------------------------------------------------------------

Chore = Callable[[LogContext, Log], Awaitable[object]]


async def tend(client: Client, logs: Sequence[Log], rounds: int, chores: Sequence[Chore]) -> None:
    """Compaction, merge, vacuum and the like, which clients must not notice."""
    for _ in range(rounds):
        try:
            await client.one_of(chores)(client.context, client.one_of(logs))
        except CompactionFailed as error:
            if not is_trouble(error.error_type):
                raise
        except TROUBLE:
            pass  # the next round resumes what this one left
        await client.pause()


async def act(client: Client, log: Log, what: Act, action: Awaitable[int], offset: int = -1) -> int | None:
    """Await an action that clients notice. Returns its value, or None when it was refused or is uncertain."""
    op = client.next_op()
    client.record(ActAsked(op=op, log=log, act=what, offset=offset))
    try:
        value = await action
    except TROUBLE as error:
        client.record(ActAnswered(op=op, done=False, reason=type(error).__name__))
        return None
    client.record(ActAnswered(op=op, done=True, value=value))
    return value
