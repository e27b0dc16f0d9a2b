"""Parts of the hazard scripts: actors that do one thing to one log, ways to drive them, and expectations.

The actors run production code: the compaction driver, the vacuum job, retention, deletion. They return our errors as
results, so that a script reaches its last expectation. An expectation that does not hold raises `HazardViolated`; a
hazard's script fails in no other way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from llog.errors import LlogError, SimulationStuck
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.values import (
    CompactionRecord,
    ControlRecord,
    ProducerSnapshot,
    SegmentRecord,
    Value,
    decode_value,
)
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.cleanup.retention import Limits, delete_records, retain
from llog.log.context import LogContext, LogOptions
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Keys, Log
from llog.log.producers import ProducerClaim
from llog.log.read.read import iter_runs
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.vacuum.job import vacuum_here
from llog.stores.metadata.port import Key
from llog.testing.history.workload import read_all
from llog.testing.sim import HOUR_MS, ActorContext, Puppet, Script
from llog.testing.sim.actor import ActorFunction, log_context

T = TypeVar("T")
V = TypeVar("V", bound=Value)

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
    """An expectation of a hazard's script does not hold."""


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise HazardViolated(otherwise)


def entry_key(end_offset: int, log: Log = ORDERS) -> str:
    return KEYS.index_entry(log, end_offset).path


# -- actors -----------------------------------------------------------------------------------------------------------


class AppendAnswer(NamedTuple):
    """The answer that a writer got for its append."""

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
    """One append of these records. The answer is recorded before the entry is written, as a writer's client gets it."""

    async def run(ctx: ActorContext) -> Any:
        appender = Appender(context_of(ctx), growth=Growth.HTTP)
        found = await attempt(appender.append([record_group(log, tokens, by)]))
        outcome = found[0] if isinstance(found, list) else found
        ctx.record(AppendAnswer(log, tokens, outcome))
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
    """An actor does this from beginning to end while all others are held."""
    return script.world.alone(f"{name}-{len(script.world.scheduler.actors)}", what)


def written(script: Script, *tokens: bytes, log: Log = ORDERS) -> None:
    """One append each, settled and cleared."""
    for token in tokens:
        outcome = alone(script, append(token, log=log), "writer")
        expect(isinstance(outcome, Appended), f"{token!r} was refused: {outcome}")


def unsettled(script: Script, name: str, appending: ActorFunction, log: Log = ORDERS) -> Puppet:
    """A writer that is held before it writes the index entry at offset 1. The append of that entry is acknowledged."""
    return script.actor(name, appending).run_until("put_object").run_until("put", entry_key(1, log))


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
    """Whether the actor makes that call before its end; for steps that depend on the rule under test."""
    try:
        puppet.run_until(operation, path)
    except SimulationStuck:
        return False
    return True


# -- looking ----------------------------------------------------------------------------------------------------------


def value_at(script: Script, key: Key, kind: type[V]) -> V | None:
    found = script.world.metadata.find(key)
    return None if found is None else decode_value(kind, found.value, key.path)


def _required(script: Script, key: Key, kind: type[V]) -> V:
    value = value_at(script, key, kind)
    assert value is not None, key
    return value


def control_of(script: Script, log: Log = ORDERS) -> ControlRecord:
    return _required(script, KEYS.control(log), ControlRecord)


def compaction_of(script: Script, log: Log = ORDERS) -> CompactionRecord:
    return _required(script, KEYS.compaction(log), CompactionRecord)


def snapshot_of(script: Script, log: Log = ORDERS) -> ProducerSnapshot:
    return _required(script, KEYS.producers(log), ProducerSnapshot)


def entries_of(script: Script, log: Log = ORDERS) -> list[Entry]:
    found = script.world.records(KEYS.index(log).path)
    return [entry_of(record) for _, record in sorted(found.items())]


def valid_entries(script: Script, log: Log = ORDERS) -> list[Entry]:
    control, cursor = control_of(script, log), compaction_of(script, log).offset
    bounds = {"incarnation": control.incarnation, "cursor": cursor, "log_start_offset": control.log_start_offset}
    return [entry for entry in entries_of(script, log) if judge(entry, **bounds) is EntryVerdict.VALID]


def segments_of(script: Script, log: Log = ORDERS) -> list[SegmentRecord]:
    found = script.world.records(KEYS.segments(log).path)
    return [decode_value(SegmentRecord, record.value, path) for path, record in sorted(found.items())]


def object_name(script: Script, uri: str) -> str:
    return script.world.bucket().inner.name_of(uri)


# -- expecting --------------------------------------------------------------------------------------------------------


def contents(script: Script, log: Log = ORDERS) -> list[tuple[int, bytes | None]]:
    """The whole log, read by the real reader; it must be readable."""
    found = alone(script, doing(lambda context: read_all(context, log)), "reader")
    expect(not isinstance(found, LlogError), f"{log} cannot be read: {found}")
    assert isinstance(found, list)
    return found


def expect_contents(script: Script, *records: tuple[int, bytes], log: Log = ORDERS) -> None:
    found = contents(script, log)
    expect(found == list(records), f"{log} holds {found}, expected {list(records)}")


def expect_answers_hold(script: Script, log: Log = ORDERS) -> None:
    """Every acknowledged record is at its offset (I1), no offset is given twice or skipped (I2), no record is stored
    twice (I3)."""
    control, found = control_of(script, log), contents(script, log)
    offsets, payloads = [offset for offset, _ in found], [payload for _, payload in found]
    wanted = list(range(control.log_start_offset, control.sequence_counter))
    expect(offsets == wanted, f"{log}: offsets {offsets}, expected {wanted}")
    expect(len(set(payloads)) == len(payloads), f"{log}: a record is stored twice: {payloads}")
    stored = dict(found)
    for event in script.world.history:
        answer = event.event
        if isinstance(answer, AppendAnswer) and answer.log == log and isinstance(answer.outcome, Appended):
            for offset, token in enumerate(answer.tokens, answer.outcome.start_offset):
                if offset >= control.log_start_offset:
                    why = f"{log}: {token!r} was acknowledged at {offset}, which holds {stored.get(offset)!r}"
                    expect(stored.get(offset) == token, why)


def expect_tiled(script: Script, log: Log = ORDERS) -> None:
    """Valid entries neither overlap nor leave a hole (I4, I5). For a log with nothing pending or in flight."""
    control = control_of(script, log)
    offset = control.log_start_offset
    for entry in valid_entries(script, log):
        expect(
            entry.start_offset == offset or entry.start_offset < offset == control.log_start_offset,
            f"{log}: an entry covers {entry.start_offset} to {entry.end_offset}, expected one from {offset} on",
        )
        offset = entry.end_offset + 1
    expect(offset == control.sequence_counter, f"{log}: entries end at {offset}, the log at {control.sequence_counter}")


def expect_compacts_to_the_end(script: Script, log: Log = ORDERS) -> None:
    """A lone compactor reaches the counter (I13), and the log reads the same."""
    before = contents(script, log)

    async def compact_all(context: LogContext) -> None:
        while await compact_once(context, log) is not None:
            pass

    trouble = alone(script, doing(compact_all), "compactor")
    expect(trouble is None, f"{log}: a lone compactor fails: {trouble}")
    cursor, counter = compaction_of(script, log).offset, control_of(script, log).sequence_counter
    expect(cursor == counter, f"{log}: a lone compactor stops at {cursor}, the log ends at {counter}")
    expect_tiled(script, log)
    expect(contents(script, log) == before, f"{log}: compaction changed what the log holds")


def expect_no_orphans(script: Script, log: Log = ORDERS, *, also: tuple[Log, ...] = ()) -> None:
    """After lone retention and vacuum every blob, segment, segment record and entry of this log is in use
    (I13). `also` are the other logs of the cluster."""
    for _ in range(2):  # segments are marked first, and go a grace later
        alone(script, apply_retention(log), "retention")
        hours_pass(script)
        done = alone(script, clean(), "vacuum")
        expect(not isinstance(done, LlogError), f"vacuum fails: {done}")
    valid = valid_entries(script, log)
    named = {entry.value.data_key for entry in valid}
    phantoms = [entry.end_offset for entry in entries_of(script, log) if entry not in valid]
    expect(not phantoms, f"entries at {phantoms} are phantoms, and stay for ever")
    uris = [script.world.bucket().inner.uri(name) for name in script.world.objects() if "@cluster" not in name]
    theirs = {entry.value.data_key for other in also for entry in valid_entries(script, other)}
    objects = sorted(set(uris) - named - theirs)
    expect(not objects, f"nothing names {objects}, and they stay for ever")
    records = [segment.state for segment in segments_of(script, log) if segment.data_key not in named]
    expect(not records, f"records of segments that nothing names stay for ever: {records}")


def expect_landed(outcome: Any, offset: int) -> None:
    """An append, or its repeat, got this offset."""
    answer = outcome.start_offset if isinstance(outcome, Appended) else outcome
    expect(answer == offset, f"expected offset {offset}, got: {answer}")
