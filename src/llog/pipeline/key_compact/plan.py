"""What key compaction does to a log, decided from its index entries and the scan of its keys.

The range begins with the log and ends before the first entry that does not adjoin a segment, or that holds records
younger than `min.compaction.lag.ms`. Segments of a pass have a level of KEY_COMPACT_LEVEL or above (merges of them
too), so the index alone shows how far a log is clean: up to the last such segment, because every pass works on the
whole range and publishes it in offset order. No other state is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from llog.errors import LogBusy, MetadataUncertain, TopicNotFound
from llog.formats.values import ControlRecord
from llog.limits import KEY_COMPACT_LEVEL, LOG_COMPACT_ENTRIES_MAX
from llog.log.append.settle import settle_and_clear
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge_by
from llog.log.keys import Log, offset_name
from llog.log.read.fetch import Fetcher, data_length, is_segment
from llog.log.read.timestamps import known_newest_ms
from llog.log.read.view import view
from llog.log.rewrite.publish import KnownCompaction, finish, load_compaction
from llog.log.topics.config import TopicConfig
from llog.log.topics.create import load_topic
from llog.pipeline.key_compact.report import KeyCompacted
from llog.pipeline.key_compact.tasks import NO_HORIZON, ScannedSegment

# Segments that are rewritten to one hold at most this many times its target bytes. The kept bytes are estimated from
# record counts, but a few large records may be nearly all bytes, and the new segment is held in memory.
KEY_COMPACT_GROUP_TARGETS_MAX: Final = 4

KEY_COMPACT_RACES_MAX: Final = 16
"""Attempts to publish a group while other compactors change the log."""

Due = Literal["yes", "nothing to clean", "not dirty enough"]
NO_LAG: Final = 2**63 - 1


class LogRange(NamedTuple):
    """The entries a pass works on, in offset order."""

    entries: tuple[Entry, ...]
    clean_until: int
    """All lower offsets were in a complete pass."""
    clean_bytes: int
    dirty_bytes: int

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    @property
    def first_dirty(self) -> Entry | None:
        return next((entry for entry in self.entries if _is_dirty(entry, self.clean_until)), None)


def plan_range(entries: Sequence[Entry], config: TopicConfig, now_ms: int) -> LogRange:
    """From the log's valid COMPACTED entries, in offset order."""
    chosen: list[Entry] = []
    for entry in entries:
        if (chosen and entry.start_offset != chosen[-1].end_offset + 1) or _is_too_young(entry, config, now_ms):
            break
        chosen.append(entry)
    clean_until = max((entry.end_offset + 1 for entry in chosen if entry.value.level >= KEY_COMPACT_LEVEL), default=0)
    clean_bytes = dirty_bytes = 0
    for entry in chosen:
        if _is_dirty(entry, clean_until):
            dirty_bytes += entry.value.byte_length or 0
        else:
            clean_bytes += entry.value.byte_length or 0
    return LogRange(tuple(chosen), clean_until, clean_bytes, dirty_bytes)


def _is_too_young(entry: Entry, config: TopicConfig, now_ms: int) -> bool:
    """Judged by the newest record, as Kafka judges its segments. Without a minimum lag no entry is too young."""
    if config.min_compaction_lag_ms == 0 or entry.value.record_count == 0:
        return False
    return _newest_ms(entry) > now_ms - config.min_compaction_lag_ms


def _newest_ms(entry: Entry) -> int:
    newest_ms = known_newest_ms(entry)
    return entry.value.created_at_ms if newest_ms is None else newest_ms


def _is_dirty(entry: Entry, clean_until: int) -> bool:
    """Entries of bare payloads have no keys, so they are never dirty."""
    return is_segment(entry) and entry.end_offset >= clean_until


def plan_due(chosen: LogRange, config: TopicConfig, now_ms: int, *, oldest_dirty_ms: int | None, force: bool) -> Due:
    """Is the range worth a pass? `oldest_dirty_ms` is only needed if the topic limits the lag."""
    if not any(is_segment(entry) for entry in chosen.entries):
        return "nothing to clean"
    if force:
        return "yes"
    if not chosen.dirty_bytes:
        return "nothing to clean"
    if chosen.dirty_ratio >= config.min_cleanable_dirty_ratio:
        return "yes"
    waited_too_long = oldest_dirty_ms is not None and oldest_dirty_ms <= now_ms - config.max_compaction_lag_ms
    return "yes" if waited_too_long else "not dirty enough"


def plan_due_at_ms(
    entries: Sequence[Entry], chosen: LogRange, config: TopicConfig, now_ms: int, *, oldest_dirty_ms: int | None
) -> int | None:
    """When time alone may make a range worth a pass that is not: its next entry is old enough, or its records waited
    for as long as the topic allows. None: never."""
    instants: list[int] = []
    following = entries[len(chosen.entries) :]
    if following and _is_too_young(following[0], config, now_ms):
        instants.append(_newest_ms(following[0]) + config.min_compaction_lag_ms)
    if oldest_dirty_ms is not None and chosen.dirty_bytes:
        instants.append(oldest_dirty_ms + config.max_compaction_lag_ms)
    return min(instants, default=None)


def limits_lag(config: TopicConfig) -> bool:
    return config.max_compaction_lag_ms < NO_LAG


class ScannedEntry(NamedTuple):
    """An entry with the results of scan and aggregation."""

    position: int
    """Number of the entry in the range."""
    entry: Entry
    scanned: ScannedSegment
    survivors: int
    """Number of records with a key that stay."""

    @property
    def superseded(self) -> int:
        return self.scanned.keyed_records - self.survivors

    @property
    def whole_bytes(self) -> int:
        return data_length(self.entry) or self.scanned.data_bytes

    @property
    def kept_bytes(self) -> int:
        """Estimated from the number of kept records."""
        kept = self.scanned.records - self.superseded
        return self.whole_bytes * kept // max(1, self.scanned.records)


def may_drop_tombstones(found: ScannedEntry, now_ms: int, delete_retention_ms: int) -> bool:
    due_ms = found.scanned.tombstones_due_ms
    due = due_ms != NO_HORIZON and due_ms <= now_ms
    return due or (delete_retention_ms == 0 and found.scanned.tombstones_unmarked > 0)


def needs_rewriting(found: ScannedEntry, now_ms: int, delete_retention_ms: int) -> bool:
    """A record is superseded, or a tombstone needs a delete horizon, or its horizon has passed.

    In a segment without superseded records every tombstone is the last of its key, so the counts of the scan are exact.
    """
    marks = found.scanned.tombstones_unmarked > 0
    return found.superseded > 0 or marks or may_drop_tombstones(found, now_ms, delete_retention_ms)


def plan_groups(
    found: Sequence[ScannedEntry], now_ms: int, *, delete_retention_ms: int, target_bytes: int
) -> list[list[ScannedEntry]]:
    """Groups of adjoining entries that become one segment each, in offset order. Other entries stay unchanged.

    An entry that may lose tombstones begins a group. While a group is being published, its new segment stands at the
    end key and the old entries below still answer reads: if the new segment lacked a tombstone and an old entry still
    held an older value of its key, the value would reappear. So all older values must be in earlier groups, or in the
    same entry.

    The last entry is always rewritten, unless a pass wrote it: its level shows how far the log is clean.
    """
    groups: list[list[ScannedEntry]] = []
    size_bytes = whole_bytes = 0
    for number, one in enumerate(found):
        is_mark = number == len(found) - 1 and one.entry.value.level < KEY_COMPACT_LEVEL
        if not (needs_rewriting(one, now_ms, delete_retention_ms) or is_mark):
            continue
        fits = (
            bool(groups)
            and groups[-1][-1].entry.end_offset + 1 == one.entry.start_offset
            and size_bytes + one.kept_bytes <= target_bytes
            and whole_bytes + one.whole_bytes <= KEY_COMPACT_GROUP_TARGETS_MAX * target_bytes
            and len(groups[-1]) < LOG_COMPACT_ENTRIES_MAX
            and not may_drop_tombstones(one, now_ms, delete_retention_ms)
        )
        if fits:
            groups[-1].append(one)
            size_bytes, whole_bytes = size_bytes + one.kept_bytes, whole_bytes + one.whole_bytes
        else:
            groups.append([one])
            size_bytes, whole_bytes = one.kept_bytes, one.whole_bytes
    return groups


# -- inspection --------------------------------------------------------------------------------------------------------


class LogCandidate(NamedTuple):
    """A log that is worth a pass."""

    config: TopicConfig
    control: ControlRecord
    range: LogRange
    now_ms: int


async def inspect_log(
    context: LogContext, log: Log, report: KeyCompacted, *, force: bool, read_only: bool
) -> LogCandidate | None:
    """None: no pass is due, and the report has the reason. Unless `read_only`, finishes a run in flight first."""
    topic = await load_topic(context, log.topic, strict=True)
    if topic is None or topic[0].state != "LIVE":
        raise TopicNotFound(log.topic, "no such topic")
    config = TopicConfig.of(topic[0].config)
    if not config.compact:
        report.state = "not by key"
        return None
    if read_only:
        seen = await view(context, log, strict=True)
        control, cursor = seen.control, seen.cursor
    else:
        control = await settle_and_clear(context, log, topic[0].incarnation)
        cursor = (await settled_compaction(context, log, control)).value.offset
    report.not_in_segments = control.sequence_counter - max(cursor, control.log_start_offset)
    now_ms = context.now_ms()
    entries = await _compacted_entries(context, log, control, cursor)
    chosen = plan_range(entries, config, now_ms)
    report.dirty_ratio, report.clean_until = round(chosen.dirty_ratio, 4), chosen.clean_until
    oldest_ms = await _oldest_dirty_ms(context, chosen) if limits_lag(config) else None
    due = plan_due(chosen, config, now_ms, oldest_dirty_ms=oldest_ms, force=force)
    if due == "yes":
        report.state = "compacted"
        return LogCandidate(config, control, chosen, now_ms)
    report.state = "clean" if due == "nothing to clean" else "not dirty enough"
    report.due_at_ms = plan_due_at_ms(entries, chosen, config, now_ms, oldest_dirty_ms=oldest_ms)
    return None


async def _compacted_entries(context: LogContext, log: Log, control: ControlRecord, cursor: int) -> list[Entry]:
    """Valid COMPACTED entries below the cursor. May be stale: publishing reads the replaced entries again, strictly."""
    entries: list[Entry] = []
    start, stop = offset_name(control.log_start_offset), offset_name(cursor)
    async for item in context.metadata.scan_all(context.keys.index(log), start=start, stop=stop):
        entry = entry_of(item)
        verdict = judge_by(control, cursor, entry)
        if verdict is EntryVerdict.FROM_THE_FUTURE:
            break
        if verdict is EntryVerdict.VALID and entry.value.type == "COMPACTED":
            entries.append(entry)
    return entries


async def _oldest_dirty_ms(context: LogContext, chosen: LogRange) -> int | None:
    """Newest timestamp of the first dirty batch, from the footer of its segment."""
    first = chosen.first_dirty
    if first is None:
        return None
    footer = await Fetcher(context.find_object).footer(first)
    return int(footer.entries["max_timestamp_ms"][0]) if len(footer.entries) else None


async def settled_compaction(context: LogContext, log: Log, control: ControlRecord) -> KnownCompaction:
    """The compaction record with nothing in flight: a run in flight, of any process, is finished first."""
    for round_number in range(KEY_COMPACT_RACES_MAX):
        record = await load_compaction(context, log, control.incarnation)
        if record.value.in_flight is None:
            return record
        try:
            await finish(context, log, control, record.value.in_flight)
        except MetadataUncertain:
            await context.back_off(round_number)
    raise LogBusy(*log, "other compactors keep working on it; try again")
