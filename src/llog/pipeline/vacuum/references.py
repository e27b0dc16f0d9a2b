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

from llog.concurrency import batched
from llog.errors import FormatError, InvalidArgument, InvalidField, VacuumRefused
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import SINK_ROUNDS_MAX, VACUUM_READS_IN_FLIGHT_MAX, VACUUM_UNREADABLE_NAMED_MAX
from llog.log.cleanup.vacuum_check import cursor_of
from llog.log.context import LogContext
from llog.log.index import EntryVerdict, entry_of, judge_by
from llog.log.keys import Log
from llog.log.read.view import view_of
from llog.log.rewrite.segments import KnownSegment, list_segments
from llog.pipeline.sink.plan import CommitPlan, PlanSlice, decode_page, decode_plan, page_keys
from llog.pipeline.sink.query import queries_key
from llog.stores.metadata.port import Record

T = TypeVar("T")


@dataclass(slots=True)
class Unreadable:
    """Unreadable records, and the topics and logs of which vacuum keeps all objects because of them."""

    topics: set[str] = field(default_factory=set)
    logs: set[Log] = field(default_factory=set)
    count: int = 0
    named: list[str] = field(default_factory=list)
    """The first VACUUM_UNREADABLE_NAMED_MAX errors; an error names its key."""

    def note(self, reason: str) -> None:
        self.count += 1
        if len(self.named) < VACUUM_UNREADABLE_NAMED_MAX:
            self.named.append(reason)

    def add(self, log: Log, other: Unreadable) -> None:
        """Add the unreadable records of one log."""
        self.logs.add(log)
        self.count += other.count
        self.named += other.named[: VACUUM_UNREADABLE_NAMED_MAX - len(self.named)]

    def keeps(self, logs: Iterable[Log]) -> bool:
        return any(log in self.logs or log.topic in self.topics for log in logs)


@dataclass(slots=True)
class Overview:
    named: set[str] = field(default_factory=set)
    logs: set[Log] = field(default_factory=set)
    """Logs with a control record, including tombstones, but no log with an unreadable record."""
    deleted: set[Log] = field(default_factory=set)
    """Logs with a tombstone only."""
    with_phantoms: set[Log] = field(default_factory=set)
    segments: dict[Log, list[KnownSegment]] = field(default_factory=dict)
    unreadable: Unreadable = field(default_factory=Unreadable)

    def take(self, state: _LogState) -> None:
        """All or nothing: vacuum keeps all objects of a log with an unreadable record."""
        if state.unreadable.count:
            self.unreadable.add(state.log, state.unreadable)
        elif state.exists:
            self.named |= state.named
            self.logs.add(state.log)
            self.segments[state.log] = state.segments
            self.deleted |= {state.log} if state.deleted else set()
            self.with_phantoms |= {state.log} if state.phantoms else set()


async def read_overview(context: LogContext) -> Overview:
    """Raises `VacuumRefused` for an unreadable record of an unknown owner."""
    overview, logs = Overview(), list[Log]()
    async for record in context.metadata.scan_all(context.keys.topics(), strict=True):
        parsed = context.keys.parse(record.key.path)
        if parsed is None:
            raise VacuumRefused(f"{record.key.path} is not a topic record; its logs may name any object")
        try:
            topic = decode_value(TopicRecord, record.value, record.key.path)
        except FormatError as error:
            overview.unreadable.note(str(error))
            overview.unreadable.topics.add(parsed.topic)
            continue
        count = max(topic.partition_count, topic.partition_count_ever)
        logs += [Log(parsed.topic, partition) for partition in range(count)]
    async for state in in_batches(logs, lambda log: _read_log(context, log)):
        overview.take(state)
    return overview


async def in_batches(logs: Sequence[Log], work: Callable[[Log], Awaitable[T]]) -> AsyncIterator[T]:
    """The result of each log, in order. All logs of a batch end before an error of one is raised."""
    for batch in batched(logs, VACUUM_READS_IN_FLIGHT_MAX):
        for done in await asyncio.gather(*map(work, batch), return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
            yield done


@dataclass(slots=True)
class _LogState:
    log: Log
    named: set[str] = field(default_factory=set)
    segments: list[KnownSegment] = field(default_factory=list)
    unreadable: Unreadable = field(default_factory=Unreadable)
    exists: bool = False
    deleted: bool = False
    phantoms: bool = False


async def _read_log(context: LogContext, log: Log) -> _LogState:
    state, record = _LogState(log), await context.metadata.get(context.keys.control(log))
    if record is None:
        return state
    try:
        control = decode_value(ControlRecord, record.value, record.key.path)
        await _read_entries(context, state, control)
        state.segments = await list_segments(context, log)
        state.exists, state.deleted = True, control.log_state == "DELETED"
    except FormatError as error:
        state.unreadable.note(str(error))
    return state


async def _read_entries(context: LogContext, state: _LogState, control: ControlRecord) -> None:
    """Collect the objects that entries and the pending append name. Phantoms name nothing: otherwise an object that
    only a phantom names would never become a candidate, and its log would never be asked (h27)."""
    state.named.update(() if control.pending is None else (control.pending.data_key,))
    cursor = await cursor_of(context, state.log, control.incarnation)
    async for record in context.metadata.scan_all(context.keys.index(state.log)):
        try:
            entry = entry_of(record)
        except (FormatError, InvalidArgument) as error:
            path = record.key.path
            state.unreadable.note(str(error) if isinstance(error, FormatError) else f"{path}: {error.reason}")
            continue
        verdict = judge_by(control, cursor, entry)
        if verdict is EntryVerdict.PHANTOM:
            state.phantoms = True
        else:
            state.named.add(entry.value.data_key)


# -- plans -------------------------------------------------------------------------------------------------------------

# How long vacuum keeps the blobs of an unfinished commit plan. A driver that comes back later gets an error: its plan
# is lost.
SINK_PLAN_KEPT_MS_MAX: Final = 7 * 24 * 3_600_000


class PlannedBlobs(NamedTuple):
    uris: frozenset[str]
    confirmed: frozenset[str] = frozenset()
    """Blobs of confirmed plans. They must exist, because a confirmed plan may have been performed in part."""
    expired: tuple[str, ...] = ()
    """Keys of plans that stayed unfinished for too long to keep their blobs."""
    unreadable: tuple[str, ...] = ()
    """Key and error of each record that may be a plan and cannot be read."""


async def planned_blobs(context: LogContext, *, now_ms: int) -> PlannedBlobs:
    """By strict reads."""
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
    """The blobs that a confirmed plan still has to write to a log. Slices of an incarnation that was deleted since are
    never written, and vacuum may have deleted their blobs before the plan was recorded."""
    wanted: set[str] = set()
    async for record in _plan_records(context):
        try:
            plan = decode_plan(record.value, record.key.path)
            if plan.done or not plan.confirmed:
                continue
            by_incarnation: dict[tuple[Log, int], set[str]] = {}
            async for part in _slices(context, plan):
                if part.data_key in uris:
                    by_incarnation.setdefault((part.log, part.incarnation), set()).add(part.data_key)
        except FormatError:
            continue  # the audit reports unreadable plans
        for (log, incarnation), named in by_incarnation.items():
            now = view_of(await context.metadata.get(context.keys.control(log), strict=True), None)
            if now is not None and now.control.incarnation == incarnation:
                wanted |= named
    return wanted


async def _slices(context: LogContext, plan: CommitPlan) -> AsyncIterator[PlanSlice]:
    """The slices on all existing pages."""
    for part in plan.slices:
        yield part
    for key in page_keys(context.keys, plan):
        page = await context.metadata.get(key, strict=True)
        for part in () if page is None else decode_page(page.value, key.path).slices:
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
    """The blobs that a plan names; a plan that changes meanwhile is read again."""
    for _ in range(SINK_ROUNDS_MAX):
        on_pages = await _named_on_pages(context, plan)
        if on_pages is not None:
            return on_pages | {part.data_key for part in plan.slices}
        again = await context.metadata.get(record.key, strict=True)
        if again is None:
            return set()
        if again.version == record.version:
            raise InvalidField(record.key.path, "some of its pages are missing")
        record, plan = again, decode_plan(again.value, again.key.path)
    raise InvalidField(record.key.path, f"it changed {SINK_ROUNDS_MAX} times while it was read")


async def _named_on_pages(context: LogContext, plan: CommitPlan) -> set[str] | None:
    """Reads one page at a time, since a plan may be large. None: a page is missing."""
    uris: set[str] = set()
    for key in page_keys(context.keys, plan):
        page = await context.metadata.get(key, strict=True)
        if page is None:
            return None
        uris |= {part.data_key for part in decode_page(page.value, key.path).slices}
    return uris
