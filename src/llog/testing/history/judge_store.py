"""Judges the final store: entries tile each log, every object exists, and nothing belongs to another incarnation.

I2 (what entries say), I4, I5, I6, I7 (epochs of entries), I8, I11, I12 (its shape), I13.
"""

from __future__ import annotations

from collections.abc import Mapping

from llog.formats.values import IndexEntry
from llog.log.ids import created_at_ms_of, is_object_id
from llog.log.keys import Keys, Log
from llog.testing.history.contents import EntryContents, Tokens, UnreadableEntry
from llog.testing.history.image import Covering, Dump, Image, LogImage
from llog.testing.history.verdict import Phase, Violation

ASKED_BY = "asked by "
"""Prefix of the reason of a fence that a client asked for; the log itself gives other reasons."""


def judge_log(image: LogImage, dump: Dump, contents: EntryContents, phase: Phase) -> tuple[list[Violation], Tokens]:
    """Violations of one living log, and what it holds."""
    found = [*_tiling(image, phase), *_cursor(image, phase), *_epochs(image), *_snapshot(image)]
    tokens: Tokens = {}
    assert image.control is not None
    start = image.control.log_start_offset
    entries = image.counting()
    pending = image.control.pending
    if pending is not None and not any(entry.end_offset >= pending.end_offset for entry in entries):
        entries.append(_as_entry(image))
    for entry in entries:
        try:
            held = contents.of(image.log, entry, dump.objects)
        except UnreadableEntry as error:
            found.append(Violation("I8", image.log, entry.start_offset, entry.key, str(error)))
            continue
        tokens.update((offset, token) for offset, token in held.items() if offset >= start)
    return found, tokens


def _as_entry(image: LogImage) -> Covering:
    """The pending append as the entry that settling it would write."""
    assert image.control is not None
    pending = image.control.pending
    assert pending is not None
    value = IndexEntry(
        type=pending.entry_type,
        msg_count=pending.msg_count,
        data_key=pending.data_key,
        encoding=pending.encoding,
        byte_offset=pending.byte_offset,
        byte_length=pending.byte_length,
        append_id=pending.append_id,
        incarnation=pending.incarnation,
        epoch=pending.epoch,
        created_at_ms=pending.created_at_ms,
    )
    return Covering("pending", pending.end_offset, value)


def _tiling(image: LogImage, phase: Phase) -> list[Violation]:
    """I4 and I5, offset by offset from the log's start to its counter."""
    control, found = image.control, list[Violation]()
    assert control is not None
    if control.log_state == "FENCED" and not control.fence_reason.startswith(ASKED_BY):
        found.append(Violation("I4", image.log, -1, "", f"the log closed itself: {control.fence_reason}"))
    reached, first = control.log_start_offset, True
    replaced = _replaced(image) if phase is Phase.LEFT else set()
    for entry in image.counting():
        if entry.key in replaced:
            continue
        if entry.start_offset > reached:
            text = f"no entry covers {reached} … {entry.start_offset - 1}"
            found.append(Violation("I4", image.log, reached, entry.key, text))
        elif entry.start_offset < reached and not first:
            text = f"{entry.start_offset} … {entry.end_offset} overlaps the entries below {reached}"
            found.append(Violation("I5", image.log, entry.start_offset, entry.key, text))
        reached, first = max(reached, entry.end_offset + 1), False
    found += _tail(image, reached)
    return found


def _replaced(image: LogImage) -> set[str]:
    """Old entries under the segment of a run that is in flight: between its swap and its deletes they may stay."""
    run = image.compaction.in_flight if image.compaction is not None else None
    if run is None or not any(entry.value.data_key == run.data_key for entry in image.entries):
        return set()
    return {
        entry.key
        for entry in image.entries
        if entry.value.data_key != run.data_key
        and run.start_offset <= entry.start_offset
        and entry.end_offset < run.end_offset
    }


def _tail(image: LogImage, reached: int) -> list[Violation]:
    """Offsets between the last entry and the counter must be pending."""
    control = image.control
    assert control is not None
    pending = control.pending
    if pending is not None:
        if pending.end_offset + 1 != control.sequence_counter or pending.start_offset > pending.end_offset:
            text = f"pending {pending.start_offset} … {pending.end_offset}, counter {control.sequence_counter}"
            return [Violation("I2", image.log, pending.start_offset, "", text)]
        if reached == pending.start_offset:
            reached = pending.end_offset + 1
        elif reached == control.sequence_counter:
            last = image.counting()[-1] if image.counting() else None
            if last is not None and last.value.append_id != pending.append_id and last.value.type == "WAL":
                text = f"covers the offsets of the pending append {pending.append_id}"
                return [Violation("I5", image.log, pending.start_offset, last.key, text)]
    if reached < control.sequence_counter:
        text = f"no entry covers {reached} … {control.sequence_counter - 1}, and nothing is pending there"
        return [Violation("I4", image.log, reached, "", text)]
    if reached > control.sequence_counter:
        text = f"entries reach {reached - 1}, the counter is {control.sequence_counter}"
        return [Violation("I2", image.log, reached - 1, "", text)]
    return []


def _cursor(image: LogImage, phase: Phase) -> list[Violation]:
    control, log = image.control, image.log
    assert control is not None
    if image.compaction is None or image.compaction.incarnation != control.incarnation:
        return [Violation("I6", log, -1, "", "there is no compaction record of this incarnation")]
    cursor, counter = image.cursor, control.sequence_counter
    if cursor > counter:
        return [Violation("I6", log, cursor, "", f"the cursor {cursor} is beyond the counter {counter}")]
    found = []
    # Of an empty log there is nothing to compact, wherever its start was moved to.
    if phase >= Phase.COMPACTED and max(cursor, control.log_start_offset) < counter:
        found.append(Violation("I13", log, cursor, "", f"a lone compactor stops at {cursor} of {counter}"))
    if phase >= Phase.COMPACTED and image.compaction.in_flight is not None:
        run = image.compaction.in_flight.compaction_id
        found.append(Violation("I13", log, cursor, "", f"the run {run} is never finished"))
    return found


def _epochs(image: LogImage) -> list[Violation]:
    """I7: a log is open in even epochs; entries carry the epoch they were committed in, and those never fall."""
    found, last = list[Violation](), 0
    for entry in image.counting():
        epoch = entry.value.epoch
        if epoch % 2:
            text = f"committed in epoch {epoch}, in which the log was fenced"
            found.append(Violation("I7", image.log, entry.start_offset, entry.key, text))
        if epoch < last:
            found.append(Violation("I7", image.log, entry.start_offset, entry.key, f"epoch {epoch} after {last}"))
        last = epoch
    return found


def _snapshot(image: LogImage) -> list[Violation]:
    """I12: the head is of this incarnation, its pages exist, and entries continue exactly where it ends."""
    control, head, log = image.control, image.head, image.log
    assert control is not None
    if head is None or head.incarnation != control.incarnation:
        return [Violation("I12", log, -1, "", "there is no producer snapshot of this incarnation")]
    if head.as_of > control.sequence_counter:
        text = f"as of {head.as_of}, the counter is {control.sequence_counter}"
        return [Violation("I12", log, head.as_of, "", text)]
    found = []
    for number in range(head.pages):
        page = image.pages.get((head.as_of, number))
        if page is None or page.incarnation != head.incarnation:
            found.append(Violation("I12", log, head.as_of, "", f"page {number} of {head.pages} is missing"))
    if head.as_of < image.cursor:
        found.append(Violation("I12", log, head.as_of, "", f"as of {head.as_of}, compacted up to {image.cursor}"))
    reached = head.as_of
    for entry in image.entries:
        if entry.value.incarnation != control.incarnation or entry.end_offset < head.as_of:
            continue
        if entry.start_offset != reached or entry.value.type != "WAL":
            text = f"{entry.value.type} from {entry.start_offset}: producers are known up to {reached} only"
            found.append(Violation("I12", log, reached, entry.key, text))
            break
        reached = entry.end_offset + 1
    return found


def judge_incarnations(image: Image) -> list[Violation]:
    """I11: no value has a later incarnation than its topic; a deleted log holds only its tombstone."""
    found = []
    for log, one in image.logs.items():
        if one.topic is None:
            found.append(Violation("I11", log, -1, "", "there is no record of its topic"))
            continue
        for key, incarnation in one.incarnations.items():
            if incarnation > one.topic.incarnation:
                text = f"of incarnation {incarnation}, the topic has incarnation {one.topic.incarnation}"
                found.append(Violation("I11", log, -1, key, text))
        control = one.control
        if control is None or control.pending is None:
            continue
        if control.log_state == "DELETED":
            found.append(Violation("I11", log, control.pending.start_offset, "", "a tombstone has a pending append"))
        if control.pending.incarnation != control.incarnation:
            found.append(Violation("I11", log, -1, "", "a pending append of another incarnation"))
    return found


def judge_leftovers(image: Image, dump: Dump, keys: Keys, *, older_than_ms: int) -> list[Violation]:
    """I13: unnamed objects older than that are deleted."""
    named: set[str] = set()
    for one in image.logs.values():
        named |= one.names()
    found = []
    for uri in sorted(dump.objects):
        object_id = uri.rpartition("/")[2]
        if uri in named or not is_object_id(object_id):
            continue
        if created_at_ms_of(object_id) < older_than_ms:
            log = _log_of(uri, image.logs, keys)
            found.append(Violation("I13", log, -1, uri, "nothing names it, and vacuum did not delete it"))
    return found


def _log_of(uri: str, logs: Mapping[Log, LogImage], keys: Keys) -> Log | None:
    return next((log for log in logs if keys.segment_objects(log) in uri), None)
