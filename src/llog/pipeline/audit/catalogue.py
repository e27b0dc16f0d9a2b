"""Audit of the segment catalogue: compares its records with the entries that name segments. Pure rules.

    damage     an entry's segment has no record, or a record that is being removed, or one with other offsets, another
               size, another URI
    leftover   a record of a dead incarnation; a finished record that no entry names; a record that was begun or left
               longer than a grace ago

No step of a running compaction, retention or vacuum is a finding: a run in flight names its segment and its sources,
and records are marked before entries go and removed after objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from llog.formats.values import CompactionRun, SegmentRecord
from llog.log.ids import is_object_id
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.rewrite.segments import KnownSegment
from llog.pipeline.audit.report import Finding, damage, leftover

RULE: Final = "catalogue"
UNNAMED_SEGMENT: Final = "unnamed segment"


def catalogue_findings(
    log: Log,
    known: Iterable[KnownSegment],
    named: Mapping[str, Entry],
    *,
    incarnation: int,
    run: CompactionRun | None,
    before_ms: int,
    own_objects: str,
) -> list[Finding]:
    """`named`: valid COMPACTED entries by URI. `before_ms`: a grace ago. `own_objects`: prefix of this log's segment
    names; an entry that names an object elsewhere, or one without an object id, is older than the catalogue."""
    findings: list[Finding] = []
    in_flight = set() if run is None else {run.data_key, *run.sources}
    recorded: set[str] = set()
    for record, _ in known:
        recorded.add(record.data_key)
        entry = named.get(record.data_key)
        if record.incarnation != incarnation:
            findings += _of_other_incarnation(log, record, incarnation)
        elif entry is not None:
            findings += _named(log, record, entry, in_flight)
        elif record.data_key not in in_flight:
            findings += _unnamed(log, record, before_ms)
    for uri, entry in named.items():
        if uri not in recorded and f"/{own_objects}" in uri and is_object_id(uri.rpartition("/")[2]):
            reason = f"the segment of {entry.start_offset} … {entry.end_offset} is not in the catalogue"
            findings.append(damage(log, RULE, "no record", reason, entry.start_offset, entry.end_offset, uri))
    return findings


def _of_other_incarnation(log: Log, record: SegmentRecord, incarnation: int) -> list[Finding]:
    reason = f"record {record.segment_id} is of incarnation {record.incarnation}, the log of incarnation {incarnation}"
    make = leftover if record.incarnation < incarnation else damage
    kind = "phantom record" if record.incarnation < incarnation else "later incarnation"
    return [make(log, RULE, kind, reason, record.start_offset, record.end_offset, record.data_key)]


def _named(log: Log, record: SegmentRecord, entry: Entry, in_flight: set[str]) -> list[Finding]:
    wrong = []
    if record.state in ("DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"):
        wrong.append(f"is {record.state}, and the entry at {entry.end_offset} names it")
    elif record.state == "COPY_SEGMENT_STARTED" and record.data_key not in in_flight:
        wrong.append(f"is {record.state}, and the entry at {entry.end_offset} names it, with no run in flight")
    if (record.start_offset, record.end_offset) != (entry.start_offset, entry.end_offset):
        offsets = f"{record.start_offset} … {record.end_offset}"
        wrong.append(f"has offsets {offsets}, its entry {entry.start_offset} … {entry.end_offset}")
    if record.state == "COPY_SEGMENT_FINISHED" and record.size_bytes != (entry.value.byte_length or 0):
        wrong.append(f"has {record.size_bytes} bytes, its entry {entry.value.byte_length}")
    where, subject = (entry.start_offset, entry.end_offset, record.data_key), f"record {record.segment_id}"
    return [damage(log, RULE, "wrong record", f"{subject} {reason}", *where) for reason in wrong]


def _unnamed(log: Log, record: SegmentRecord, before_ms: int) -> list[Finding]:
    """Young records are work in progress; vacuum removes old ones."""
    if record.state_changed_at_ms >= before_ms:
        return []
    reason = f"record {record.segment_id} is {record.state} for longer than a grace, and no entry names its segment"
    return [leftover(log, RULE, UNNAMED_SEGMENT, reason, record.start_offset, record.end_offset, record.data_key)]
