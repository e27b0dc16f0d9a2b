"""What the hazard scripts are made of: actors that do one thing to one log, and ways to drive them.

Actors hand errors of ours back as results, so that a script goes on to its last expectation whatever happened. An
expectation that does not hold raises `HazardViolated`: the one way in which a hazard's script may be red.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from llog.errors import LlogError, SimulationStuck
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.cleanup.retention import Limits, delete_records, retain
from llog.log.context import LogContext, LogOptions
from llog.log.keys import Keys, Log
from llog.log.producers.idempotence import ProducerClaim
from llog.log.read.read import iter_runs
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.vacuum.job import vacuum_here
from llog.testing.sim import HOUR_MS, ActorContext, Puppet, Script
from llog.testing.sim.actor import ActorFunction
from llog.testing.sim_context import log_context

T = TypeVar("T")

ORDERS: Final = Log("orders", 0)
KEYS: Final = Keys()
GRACE_MS: Final = HOUR_MS

# Globs for `Puppet.run_until` and friends.
CONTROL: Final = "*/meta/control"
COMPACTION: Final = "*/meta/compaction-cursor"
INDEX: Final = "*/index"
SNAPSHOT: Final = "*/meta/producers"
SEGMENTS: Final = "*/segments/*"


class HazardViolated(AssertionError):
    """What a hazard's rule promises does not hold."""


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise HazardViolated(otherwise)


def entry_key(end_offset: int, log: Log = ORDERS) -> str:
    return KEYS.index_entry(log, end_offset).path


# -- actors -----------------------------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What a writer was told of its append."""

    log: Log
    tokens: tuple[bytes, ...]
    outcome: Any


def context_of(ctx: ActorContext) -> LogContext:
    return log_context(ctx, options=LogOptions(vacuum_grace_ms=GRACE_MS))


async def attempt(work: Awaitable[T]) -> T | LlogError:
    """Its result, or its error as one."""
    try:
        return await work
    except LlogError as error:
        return error


def doing(what: Callable[[LogContext], Awaitable[Any]]) -> ActorFunction:
    """An actor that does one thing and ends."""

    async def run(ctx: ActorContext) -> Any:
        return await attempt(what(context_of(ctx)))

    return run


def record_group(log: Log, tokens: tuple[bytes, ...], claim: ProducerClaim | None = None) -> EncodedGroup:
    # The bare encoding: no kernel to compile, and the protocol does not care.
    claims = () if claim is None else (claim,)
    return EncodedGroup(log, len(tokens), "bytes-batch-v1", encode_bytes_batch(list(tokens)), producers=claims)


def claim(sequence: int, *, producer_id: int = 7, count: int = 1) -> ProducerClaim:
    return ProducerClaim(producer_id, 0, sequence, sequence + count - 1)


def append(*tokens: bytes, log: Log = ORDERS, by: ProducerClaim | None = None) -> ActorFunction:
    """One append of these records; told before its entry is written, as a writer's client is."""

    async def run(ctx: ActorContext) -> Any:
        appender = Appender(context_of(ctx))
        found = await attempt(appender.append([record_group(log, tokens, by)]))
        outcome = found[0] if isinstance(found, list) else found
        ctx.record(Told(log, tokens, outcome))
        await appender.close()
        return outcome

    return run


def compact(log: Log = ORDERS, **options: Any) -> ActorFunction:
    return doing(lambda context: compact_once(context, log, **options))


def merge(log: Log = ORDERS) -> ActorFunction:
    return doing(lambda context: merge_once(context, log))


def delete_below(offset: int, log: Log = ORDERS) -> ActorFunction:
    return doing(lambda context: delete_records(context, log, offset))


def apply_retention(log: Log = ORDERS, **limits: Any) -> ActorFunction:
    return doing(lambda context: retain(context, log, Limits(**limits)))


def delete(topic: str = ORDERS.topic) -> ActorFunction:
    return doing(lambda context: delete_topic(context, topic))


def clean() -> ActorFunction:
    """Vacuum, once."""
    return doing(vacuum_here)


def read_from(offset: int, log: Log = ORDERS) -> ActorFunction:
    """All records from `offset` on, as pairs of offset and payload."""

    async def read(context: LogContext) -> list[tuple[int, bytes | None]]:
        return [(r.offset, r.payload) async for run in iter_runs(context, log, offset) for r in run.records()]

    return doing(read)


# -- driving ----------------------------------------------------------------------------------------------------------


def alone(script: Script, what: ActorFunction, name: str = "helper") -> Any:
    """Somebody does that from beginning to end while all others are held."""
    return script.world.alone(f"{name}-{len(script.world.scheduler.actors)}", what)


def written(script: Script, *tokens: bytes, log: Log = ORDERS) -> None:
    """One append each, settled and cleared."""
    for token in tokens:
        outcome = alone(script, append(token, log=log), "writer")
        expect(isinstance(outcome, Appended), f"{token!r} was refused: {outcome}")


def reborn(script: Script, *tokens: bytes, log: Log = ORDERS) -> None:
    """The topic is deleted, created again, and written to."""
    gone = alone(script, delete(log.topic), "deleter")
    expect(not isinstance(gone, LlogError), f"{log.topic} cannot be deleted: {gone}")
    written(script, *tokens, log=log)


def orphaned(script: Script, log: Log = ORDERS) -> str:
    """A writer crashes between upload and commit; the name of the blob that nothing names."""
    before = set(script.world.objects())
    writer = script.actor(f"crasher-{len(script.world.scheduler.actors)}", append(b"never committed", log=log))
    writer.run_until("put_object").perform()
    writer.crash()
    [name] = set(script.world.objects()) - before
    return name


def hours_pass(script: Script, hours: int = 3) -> None:
    script.pass_time(hours * HOUR_MS)


def reaches(puppet: Puppet, operation: str, path: str = "*") -> bool:
    """Whether it comes to that call before its end; for steps that are not taken without the rule, or only then."""
    try:
        puppet.run_until(operation, path)
    except SimulationStuck:
        return False
    return True
