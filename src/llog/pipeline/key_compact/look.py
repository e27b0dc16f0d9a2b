"""A look at one log: is it compacted by key, which of its segments, and is it worth a pass now?"""

from __future__ import annotations

from typing import NamedTuple

from llog.errors import TopicNotFound
from llog.formats.values import ControlRecord
from llog.log.append.settle import settle_and_clear
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log, offset_name
from llog.log.read.fetch import Fetcher
from llog.log.read.view import view
from llog.log.topics.config import TopicConfig
from llog.log.topics.create import load_topic
from llog.pipeline.key_compact.plan import LogRange, limits_lag, plan_due, plan_range
from llog.pipeline.key_compact.publish import settled_compaction
from llog.pipeline.key_compact.report import KeyCompacted


class LogLook(NamedTuple):
    """A log that is worth a pass."""

    config: TopicConfig
    control: ControlRecord
    range: LogRange
    now_ms: int


async def look_at(
    context: LogContext, log: Log, report: KeyCompacted, *, force: bool, read_only: bool
) -> LogLook | None:
    """None where there is nothing to do; the report says why. Unless `read_only`, a run in flight is finished first."""
    found = await load_topic(context, log.topic, strict=True)
    if found is None or found[0].state != "LIVE":
        raise TopicNotFound(log.topic, "no such topic")
    config = TopicConfig.of(found[0].config)
    if not config.compact:
        report.state = "not by key"
        return None
    if read_only:
        seen = await view(context, log, strict=True)
        control, cursor = seen.control, seen.cursor
    else:
        control = await settle_and_clear(context, log, found[0].incarnation)
        cursor = (await settled_compaction(context, log, control)).value.offset
    report.not_in_segments = control.sequence_counter - max(cursor, control.log_start_offset)
    now_ms = context.now_ms()
    chosen = plan_range(await _compacted_entries(context, log, control, cursor), config, now_ms)
    report.dirty_ratio, report.clean_until = round(chosen.dirty_ratio, 4), chosen.clean_until
    oldest_ms = await _oldest_dirty_ms(context, chosen) if limits_lag(config) else None
    due = plan_due(chosen, config, now_ms, oldest_dirty_ms=oldest_ms, force=force)
    if due == "yes":
        report.state = "compacted"
        return LogLook(config, control, chosen, now_ms)
    report.state = "clean" if due == "nothing to clean" else "not dirty enough"
    return None


async def _compacted_entries(context: LogContext, log: Log, control: ControlRecord, cursor: int) -> list[Entry]:
    """Valid COMPACTED entries below the cursor. May be stale: publishing looks at those it replaces again, strictly."""
    found: list[Entry] = []
    start, log_start = offset_name(control.log_start_offset), control.log_start_offset
    async for item in context.metadata.scan_all(context.keys.index(log), start=start, stop=offset_name(cursor)):
        entry = entry_of(item)
        verdict = judge(entry, incarnation=control.incarnation, cursor=cursor, log_start_offset=log_start)
        if verdict is EntryVerdict.FROM_THE_FUTURE:
            break
        if verdict is EntryVerdict.VALID and entry.value.type == "COMPACTED":
            found.append(entry)
    return found


async def _oldest_dirty_ms(context: LogContext, chosen: LogRange) -> int | None:
    """Of the first batch that no pass has seen: its newest record, which the footer tells."""
    first = chosen.first_dirty
    if first is None:
        return None
    footer = await Fetcher(context.find_object).footer(first)
    return int(footer.entries["max_timestamp_ms"][0]) if len(footer.entries) else None
