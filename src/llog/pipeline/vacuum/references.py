"""What vacuum knows before it lists anything: named objects, existing logs, the sink's plans and unreadable records.

One plain pass over every index, some logs at a time. It may be stale, so it can only spare objects.

A record that cannot be read is reported and does not stop the pass; whatever it could refer to stays. The header of a
blob and the path of a segment name the logs that may refer to it. So an unreadable record of a log keeps that log's
objects, a topic record keeps those of all its logs, and any other record keeps everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from llog.errors import FormatError, InvalidArgument, InvalidField, VacuumRefused
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import SINK_ROUNDS_MAX, VACUUM_READS_IN_FLIGHT_MAX, VACUUM_UNREADABLE_NAMED_MAX
from llog.log.cleanup.vacuum_check import cursor_of
from llog.log.context import LogContext
from llog.log.index import EntryVerdict, entry_of, judge
from llog.log.keys import Log
from llog.log.read.view import view_of
from llog.log.rewrite.segments import KnownSegment, list_segments
from llog.pipeline.sink.plan import CommitPlan, PlanSlice, decode_page, decode_plan, page_keys
from llog.pipeline.sink.query import queries_key
from llog.stores.metadata.port import Record

T = TypeVar("T")


@dataclass(slots=True)
class Unreadable:
    """What could not be read, and what stays because of it."""

    topics: set[str] = field(default_factory=set)
    logs: set[Log] = field(default_factory=set)
    count: int = 0
    named: list[str] = field(default_factory=list)
    """Why, for the first VACUUM_UNREADABLE_NAMED_MAX of them; an error names its key."""

    def note(self, reason: str) -> None:
        self.count += 1
        if len(self.named) < VACUUM_UNREADABLE_NAMED_MAX:
            self.named.append(reason)

    def add(self, log: Log, other: Unreadable) -> None:
        """What was found in a log."""
        self.logs.add(log)
        self.count += other.count
        self.named += other.named[: VACUUM_UNREADABLE_NAMED_MAX - len(self.named)]

    def keeps(self, logs: Iterable[Log]) -> bool:
        return any(log in self.logs or log.topic in self.topics for log in logs)


@dataclass(slots=True)
class Overview:
    named: set[str] = field(default_factory=set)
    logs: set[Log] = field(default_factory=set)
    """Logs with a control record, tombstones included; without those of which something cannot be read."""
    deleted: set[Log] = field(default_factory=set)
    """Those of which only a tombstone is left."""
    with_phantoms: set[Log] = field(default_factory=set)
    segments: dict[Log, list[KnownSegment]] = field(default_factory=dict)
    unreadable: Unreadable = field(default_factory=Unreadable)

    def take(self, look: _Look) -> None:
        """All or nothing: of a log that cannot be read to its end nothing is known, but that its objects stay."""
        if look.unreadable.count:
            self.unreadable.add(look.log, look.unreadable)
        elif look.there:
            self.named |= look.named
            self.logs.add(look.log)
            self.segments[look.log] = look.segments
            self.deleted |= {look.log} if look.deleted else set()
            self.with_phantoms |= {look.log} if look.phantoms else set()


async def look_around(context: LogContext) -> Overview:
    """Raises `VacuumRefused` for an unreadable record of an unknown owner."""
    overview, logs = Overview(), list[Log]()
    async for record in context.metadata.scan_all(context.keys.topics(), strict=True):
        parsed = context.keys.parse(record.key.path)
        if parsed is None:
            raise VacuumRefused(f"{record.key.path} is no topic's record: whatever it stands for might name any object")
        try:
            topic = decode_value(TopicRecord, record.value, record.key.path)
        except FormatError as error:
            overview.unreadable.note(str(error))
            overview.unreadable.topics.add(parsed.topic)
            continue
        count = max(topic.partition_count, topic.partition_count_ever)
        logs += [Log(parsed.topic, partition) for partition in range(count)]
    async for look in some_at_a_time(logs, lambda log: _look_at(context, log)):
        overview.take(look)
    return overview


async def some_at_a_time(logs: Sequence[Log], work: Callable[[Log], Awaitable[T]]) -> AsyncIterator[T]:
    """What comes of each log, in order. Those that are worked on together end before an error of one is told: nobody is
    left behind that goes on."""
    for first in range(0, len(logs), VACUUM_READS_IN_FLIGHT_MAX):
        some = logs[first : first + VACUUM_READS_IN_FLIGHT_MAX]
        for done in await asyncio.gather(*map(work, some), return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
            yield done


class _Look(NamedTuple):
    """What there is of one log."""

    log: Log
    named: set[str]
    segments: list[KnownSegment]
    unreadable: Unreadable
    there: bool = False
    deleted: bool = False
    phantoms: bool = False


async def _look_at(context: LogContext, log: Log) -> _Look:
    look = _Look(log, set(), [], Unreadable())
    found = await context.metadata.get(context.keys.control(log))
    if found is None:
        return look
    try:
        control = decode_value(ControlRecord, found.value, found.key.path)
        phantoms = await _look_at_entries(context, look, control)
        look.segments.extend(await list_segments(context, log))
    except FormatError as error:
        look.unreadable.note(str(error))
        return look
    return look._replace(there=True, deleted=control.log_state == "DELETED", phantoms=phantoms)


async def _look_at_entries(context: LogContext, look: _Look, control: ControlRecord) -> bool:
    """Fills in what the log's entries and its pending append name; are there phantoms? Those name nothing: else what
    only a phantom names would never become a candidate, and its log never be asked (h27)."""
    look.named.update(() if control.pending is None else (control.pending.data_key,))
    phantoms, cursor = False, await cursor_of(context, look.log, control.incarnation)
    async for record in context.metadata.scan_all(context.keys.index(look.log)):
        try:
            entry = entry_of(record)
        except FormatError as error:
            look.unreadable.note(str(error))
            continue
        except InvalidArgument as error:
            look.unreadable.note(f"{record.key.path}: {error.reason}")
            continue
        verdict = judge(
            entry, incarnation=control.incarnation, cursor=cursor, log_start_offset=control.log_start_offset
        )
        if verdict is EntryVerdict.PHANTOM:
            phantoms = True
        else:
            look.named.add(entry.value.data_key)
    return phantoms


# -- plans -------------------------------------------------------------------------------------------------------------

# How long vacuum keeps the blobs of a commit plan that nobody finishes. A driver that is this late is told that its
# plan is lost; nothing keeps blobs for ever.
SINK_PLAN_KEPT_MS_MAX: Final = 7 * 24 * 3_600_000


class PlannedBlobs(NamedTuple):
    uris: frozenset[str]
    confirmed: frozenset[str] = frozenset()
    """Those among them that must be there: their plan may have been performed in part."""
    expired: tuple[str, ...] = ()
    """Keys of plans that stayed unfinished for too long to keep their blobs."""
    unreadable: tuple[str, ...] = ()
    """Keys of what may be a plan, and why it cannot be read."""


async def planned_blobs(context: LogContext, *, now_ms: int) -> PlannedBlobs:
    """As of now, by strict reads."""
    uris, confirmed = set[str](), set[str]()
    expired: list[str] = []
    unreadable: list[str] = []
    kept_since_ms = now_ms - max(SINK_PLAN_KEPT_MS_MAX, context.options.vacuum_grace_ms)
    async for record in _plan_records(context):
        path = record.key.path
        try:
            plan = decode_plan(record.value, path)
            if plan.done:
                continue
            if plan.created_at_ms < kept_since_ms:
                expired.append(path)
                continue
            named = await _named(context, record, plan)
            uris |= named
            confirmed |= named if plan.confirmed else set()
        except FormatError as error:
            unreadable.append(f"{path}: {error}")
    return PlannedBlobs(frozenset(uris), frozenset(confirmed), tuple(expired), tuple(unreadable))


async def wanted_by_plans(context: LogContext, uris: Collection[str]) -> set[str]:
    """Those of them that a confirmed plan is still to write to a log. What it has for a topic that was deleted since,
    created again or not, nobody writes any more; vacuum may have taken that before the plan was there."""
    wanted: set[str] = set()
    async for record in _plan_records(context):
        try:
            plan = decode_plan(record.value, record.key.path)
            if plan.done or not plan.confirmed:
                continue
            lives: dict[tuple[Log, int], set[str]] = {}
            async for part in _slices(context, plan):
                if part.data_key in uris:
                    lives.setdefault((part.log, part.incarnation), set()).add(part.data_key)
        except FormatError:
            continue  # a finding of its own
        for (log, incarnation), named in lives.items():
            found = await context.metadata.get(context.keys.control(log), strict=True)
            seen = view_of(found, None)
            if seen is not None and seen.control.incarnation == incarnation:
                wanted |= named
    return wanted


async def _slices(context: LogContext, plan: CommitPlan) -> AsyncIterator[PlanSlice]:
    """As far as they are there."""
    for part in plan.slices:
        yield part
    for key in page_keys(context.keys, plan):
        found = await context.metadata.get(key, strict=True)
        for part in () if found is None else decode_page(found.value, key.path).slices:
            yield part


async def _plan_records(context: LogContext) -> AsyncIterator[Record]:
    async for query in context.metadata.scan_all(queries_key(context.keys), strict=True):
        listed = context.keys.parse(query.key.path)
        if listed is None or listed.kind != "sink_query":
            continue
        async for record in context.metadata.scan_all(context.keys.sinks(listed.name), strict=True):
            parsed = context.keys.parse(record.key.path)
            if parsed is not None and parsed.kind == "sink":
                yield record


async def _named(context: LogContext, record: Record, plan: CommitPlan) -> set[str]:
    """What a plan names; of one that changes meanwhile, what it names then."""
    for _ in range(SINK_ROUNDS_MAX):
        on_pages = await _named_on_pages(context, plan)
        if on_pages is not None:
            return on_pages | {part.data_key for part in plan.slices}
        again = await context.metadata.get(record.key, strict=True)
        if again is None:
            return set()
        if again.version == record.version:
            raise InvalidField(record.key.path, "pages of it are missing")
        record, plan = again, decode_plan(again.value, again.key.path)
    raise InvalidField(record.key.path, f"it changed {SINK_ROUNDS_MAX} times while it was read")


async def _named_on_pages(context: LogContext, plan: CommitPlan) -> set[str] | None:
    """One page after the other, since a plan may be large. None: one is missing."""
    uris: set[str] = set()
    for key in page_keys(context.keys, plan):
        found = await context.metadata.get(key, strict=True)
        if found is None:
            return None
        uris |= {part.data_key for part in decode_page(found.value, key.path).slices}
    return uris
