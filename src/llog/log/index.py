"""Index entries: the offsets they cover, and the one predicate that decides which of them count.

Readers, compaction and vacuum judge entries by `judge` alone (R9). An entry of a lower incarnation is a phantom; an
entry of a higher one means that the reader is stale and must change nothing (R13).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from llog.errors import InvalidArgument
from llog.formats.values import ControlRecord, IndexEntry, decode_value
from llog.log.keys import offset_of
from llog.stores.metadata.port import Record, last_segment


class Entry(NamedTuple):
    """An index entry with the end offset from its key, and the version at which it was read."""

    end_offset: int
    value: IndexEntry
    version: int

    @property
    def start_offset(self) -> int:
        return self.end_offset - self.value.msg_count + 1

    def covers(self, offset: int) -> bool:
        return self.start_offset <= offset <= self.end_offset


class EntryVerdict(Enum):
    VALID = "valid"
    PHANTOM = "phantom"
    """Counts as absent; any process may remove it by key and version."""
    BELOW_START = "below start"
    """Invisible, but only retention removes it, after the producer snapshot has passed it."""
    FROM_THE_FUTURE = "from the future"
    """It has a higher incarnation: the reader is stale."""


def entry_of(record: Record) -> Entry:
    """Raises `InvalidField` (naming the key) for a value that is not an index entry."""
    end_offset = offset_of(last_segment(record.key.path))
    value = decode_value(IndexEntry, record.value, record.key.path)
    if not 0 < value.msg_count <= end_offset + 1:
        raise InvalidArgument("index entry", f"{record.key.path} covers {value.msg_count} offsets")
    return Entry(end_offset, value, record.version)


def judge(entry: Entry, *, incarnation: int, cursor: int, log_start_offset: int) -> EntryVerdict:
    """R9. `cursor` is the compaction record's offset: WAL entries that end below it were compacted."""
    if entry.value.incarnation > incarnation:
        return EntryVerdict.FROM_THE_FUTURE
    if entry.value.incarnation < incarnation:
        return EntryVerdict.PHANTOM
    if entry.value.type == "WAL" and entry.end_offset < cursor:
        return EntryVerdict.PHANTOM
    return EntryVerdict.BELOW_START if entry.end_offset < log_start_offset else EntryVerdict.VALID


def judge_by(control: ControlRecord, cursor: int, entry: Entry) -> EntryVerdict:
    start_offset = control.log_start_offset
    return judge(entry, incarnation=control.incarnation, cursor=cursor, log_start_offset=start_offset)
