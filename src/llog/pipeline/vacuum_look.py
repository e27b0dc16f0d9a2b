"""What vacuum knows before it lists anything: which objects are named, which logs there are, what cannot be read.

One plain pass over every index. It may be stale, so it only ever spares objects.

What must stay true: a record that cannot be read is named, and does not stop the pass; whatever it could refer to
stays. Blobs tell in their headers, and segments by their path, which logs may refer to them. So a record below a log
keeps that log's objects, a topic's record those of all its logs, and one that is no topic's keeps everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from llog.errors import FormatError, InvalidArgument, VacuumRefused
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import VACUUM_UNREADABLE_NAMED_MAX
from llog.log.context import LogContext
from llog.log.index import Verdict, entry_of, judge
from llog.log.keys import Log
from llog.log.segments import KnownSegment, list_segments
from llog.log.vacuum_check import cursor_of


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


async def look_around(context: LogContext) -> Overview:
    """Raises `VacuumRefused` where a record cannot be read and nobody can tell whose it is."""
    overview = Overview()
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
        for partition in range(max(topic.partition_count, topic.partition_count_ever)):
            await _look_at(context, Log(parsed.topic, partition), overview)
    return overview


async def _look_at(context: LogContext, log: Log, overview: Overview) -> None:
    """All or nothing: of a log that cannot be read to its end nothing is known, but that its objects stay."""
    found = await context.metadata.get(context.keys.control(log))
    if found is None:
        return
    unreadable, before = overview.unreadable, overview.unreadable.count
    named, known = set[str](), list[KnownSegment]()
    try:
        control = decode_value(ControlRecord, found.value, found.key.path)
        named = await _named(context, log, control, overview)
        known = await list_segments(context, log)
    except FormatError as error:
        unreadable.note(str(error))
    if unreadable.count > before:
        unreadable.logs.add(log)
        return
    overview.named |= named
    overview.logs.add(log)
    overview.segments[log] = known
    if control.log_state == "DELETED":
        overview.deleted.add(log)


async def _named(context: LogContext, log: Log, control: ControlRecord, overview: Overview) -> set[str]:
    """What the log's entries and its pending append name. A phantom names nothing: else what only it names would never
    become a candidate, and its log never be asked (h27)."""
    unreadable = overview.unreadable
    named = set() if control.pending is None else {control.pending.data_key}
    cursor = await cursor_of(context, log, control.incarnation)
    async for record in context.metadata.scan_all(context.keys.index(log)):
        try:
            entry = entry_of(record)
        except FormatError as error:
            unreadable.note(str(error))
            continue
        except InvalidArgument as error:
            unreadable.note(f"{record.key.path}: {error.reason}")
            continue
        verdict = judge(
            entry, incarnation=control.incarnation, cursor=cursor, log_start_offset=control.log_start_offset
        )
        if verdict is Verdict.PHANTOM:
            overview.with_phantoms.add(log)
        else:
            named.add(entry.value.data_key)
    return named
