"""Which index entries one rewriting run takes: compaction (`select_run`) and merge (`select_merge`). Pure functions.

R11: a run takes whole entries, contiguous, starting with the valid entry that covers the floor (the later of cursor and
log start), and ends below the counter noted when `pending` was last cleared. A run that ended inside an entry would
lose the rest of it when the cursor moves; a run past that counter would lose an append that is not settled yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from llog.formats.values import CompactionKind
from llog.limits import LOG_COMPACT_ENTRIES_MAX
from llog.log.index import Entry, EntryVerdict, judge

# Segments that one merge takes at least.
LOG_MERGE_INPUTS_MIN: Final = 2


class Run(NamedTuple):
    """Entries to be rewritten into one segment, in offset order."""

    entries: tuple[Entry, ...]

    @property
    def start_offset(self) -> int:
        return self.entries[0].start_offset

    @property
    def end_offset(self) -> int:
        return self.entries[-1].end_offset

    @property
    def msg_count(self) -> int:
        return self.end_offset - self.start_offset + 1

    @property
    def sources(self) -> tuple[str, ...]:
        """URIs of the objects that hold its bytes."""
        return tuple(sorted({entry.value.data_key for entry in self.entries}))


class Choice(NamedTuple):
    """A run, and which segment it becomes."""

    kind: CompactionKind
    level: int
    """Level of the new segment."""
    run: Run


class Bounds(NamedTuple):
    incarnation: int
    cursor: int
    log_start_offset: int
    counter: int
    """Entries end below it."""
    max_offsets: int
    target_bytes: int
    created_before_ms: int
    """Younger entries are left alone (R4)."""


def select_run(entries: Iterable[Entry], bounds: Bounds) -> Run | None:
    """The next run, from index entries in order from the floor on; None when there is nothing to do."""
    chosen: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        verdict = judge(
            entry,
            incarnation=bounds.incarnation,
            cursor=bounds.cursor,
            log_start_offset=bounds.log_start_offset,
        )
        if verdict in (EntryVerdict.PHANTOM, EntryVerdict.BELOW_START):
            continue
        if verdict is EntryVerdict.FROM_THE_FUTURE or not _fits(entry, chosen, bounds):
            break
        offsets = entry.end_offset - (chosen[0].start_offset if chosen else entry.start_offset) + 1
        length = entry.value.byte_length or 0
        if chosen and (offsets > bounds.max_offsets or size_bytes + length > bounds.target_bytes):
            break
        chosen.append(entry)
        size_bytes += length
    return Run(tuple(chosen)) if chosen else None


def _fits(entry: Entry, chosen: list[Entry], bounds: Bounds) -> bool:
    """Is it the next whole WAL entry, old enough and below the counter?"""
    floor = max(bounds.cursor, bounds.log_start_offset)
    follows = entry.start_offset == chosen[-1].end_offset + 1 if chosen else entry.covers(floor)
    return (
        follows
        and entry.value.type == "WAL"
        and entry.end_offset < bounds.counter
        and entry.value.created_at_ms <= bounds.created_before_ms
    )


def select_merge(entries: Iterable[Entry], *, target_bytes: int, min_inputs: int) -> Run | None:
    """The first neighbours of one level that together stay within `target_bytes`: at least `min_inputs`, and as many as
    fit. `entries` are valid COMPACTED entries in offset order."""
    chosen: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        length = entry.value.byte_length or 0
        follows = (
            bool(chosen)
            and entry.start_offset == chosen[-1].end_offset + 1
            and entry.value.level == chosen[-1].value.level
            and size_bytes + length <= target_bytes
            and len(chosen) < LOG_COMPACT_ENTRIES_MAX
        )
        if not follows:
            if len(chosen) >= min_inputs:
                break
            chosen, size_bytes = [], 0
        chosen.append(entry)
        size_bytes += length
    return Run(tuple(chosen)) if len(chosen) >= min_inputs else None
