"""Describe a log or a metadata record for operators.

`describe_log` only counts, so a log of any size is described in the memory of one page. It confirms nothing by a second
read; `invariants` does. `describe_record` shows a value that this release cannot decode as it is, with the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from llog.errors import FormatError, InvalidArgument, PartitionNotInitialized
from llog.formats.backup import VacuumHold
from llog.formats.values import (
    BrokerRegistration,
    ClusterId,
    CompactionRecord,
    CompactionRun,
    CompactorClaim,
    ControlRecord,
    CoordinatorClaim,
    GroupOffset,
    IndexEntry,
    NodeClaim,
    PartitionDelete,
    Pending,
    ProducerIdBlock,
    ProducerPage,
    ProducerSnapshot,
    SegmentRecord,
    TopicRecord,
    Value,
    decode_value,
)
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.inspect.coherent import LogGuards, read_guards, run_of, shown_state
from llog.log.keys import Keys, Log
from llog.stores.metadata.port import Record

# The most index entries that a description lists.
LOG_DESCRIBE_ENTRIES_MAX: Final = 10_000


# -- a log -----------------------------------------------------------------------------------------------------------


class EntryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One index entry, and whether it is valid."""

    start_offset: int
    end_offset: int
    type: str
    level: int
    verdict: str
    records: int
    byte_length: int | None
    data_key: str
    created_at_ms: int
    incarnation: int
    version: int


class IndexSummary(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    valid: int
    phantoms: int
    below_start: int
    later_incarnation: int
    wal: int
    """Valid WAL entries."""
    compacted_by_level: dict[int, int]
    data_bytes: int
    """Bytes that the valid entries cover."""
    first: EntryRow | None
    last: EntryRow | None


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    compaction_id: str
    kind: str
    state: str
    start_offset: int
    end_offset: int
    data_key: str
    sources: int
    created_at_ms: int


class SegmentSummary(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    byte_length: int


class LogDescription(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    incarnation: int
    log_state: str
    fence_reason: str
    epoch: int
    log_start_offset: int
    next_offset: int
    pending: Pending | None
    control_version: int
    commit_horizon_ms: int
    cursor: int | None
    """None: this incarnation has no compaction record."""
    segment_horizon_ms: int | None
    run: RunSummary | None
    index: IndexSummary
    segments: dict[str, SegmentSummary]
    """By state."""
    snapshot_as_of: int | None
    snapshot_pages: int | None
    claim: CompactorClaim | None
    entries: tuple[EntryRow, ...] = ()


async def describe_log(context: LogContext, log: Log, *, entries: int = 0) -> LogDescription:
    """Describe a log and list its first `entries` entries. Raises `PartitionNotInitialized` if it does not exist."""
    if not 0 <= entries <= LOG_DESCRIBE_ENTRIES_MAX:
        raise InvalidArgument("entries", f"must be 0 to {LOG_DESCRIBE_ENTRIES_MAX}, got {entries}")
    head = await read_guards(context, log)
    if head is None:
        raise PartitionNotInitialized(*log)
    keys, control = context.keys, head.control
    snapshot, claim = await context.metadata.get_many([keys.producers(log), keys.claim(log)], strict=True)
    snapshot_head = None if snapshot is None else decode_value(ProducerSnapshot, snapshot.value, snapshot.key.path)
    counted = _IndexCount(head, entries)
    async for record in context.metadata.scan_all(keys.index(log)):
        counted.add(entry_of(record))
    compaction = head.compaction
    if compaction is not None and compaction.incarnation != control.incarnation:
        compaction = None
    return LogDescription(
        topic=log.topic,
        partition=log.partition,
        incarnation=control.incarnation,
        log_state=control.log_state,
        fence_reason=control.fence_reason,
        epoch=control.epoch,
        log_start_offset=control.log_start_offset,
        next_offset=control.sequence_counter,
        pending=control.pending,
        control_version=head.control_record.version,
        commit_horizon_ms=control.commit_horizon_ms,
        cursor=None if compaction is None else compaction.offset,
        segment_horizon_ms=None if compaction is None else compaction.segment_horizon_ms,
        run=await _run(context, log, run_of(control, head.compaction)),
        index=counted.summary(),
        segments=await _segments(context, log),
        snapshot_as_of=None if snapshot_head is None else snapshot_head.as_of,
        snapshot_pages=None if snapshot_head is None else snapshot_head.pages,
        claim=None if claim is None else decode_value(CompactorClaim, claim.value, claim.key.path),
        entries=tuple(counted.rows),
    )


class _IndexCount:
    def __init__(self, head: LogGuards, rows_max: int) -> None:
        self._head, self._rows_max = head, rows_max
        self._verdicts = dict.fromkeys(EntryVerdict, 0)
        self._levels: dict[int, int] = {}
        self._entries = self._wal = self._data_bytes = 0
        self._first: EntryRow | None = None
        self._last: Entry | None = None
        self.rows: list[EntryRow] = []

    def add(self, entry: Entry) -> None:
        control = self._head.control
        verdict = judge(
            entry,
            incarnation=control.incarnation,
            cursor=self._head.cursor,
            log_start_offset=control.log_start_offset,
        )
        self._entries += 1
        self._verdicts[verdict] += 1
        if len(self.rows) < self._rows_max:
            self.rows.append(row_of(entry, verdict))
        if verdict is not EntryVerdict.VALID:
            return
        self._first = self._first or row_of(entry, verdict)
        self._last = entry
        self._data_bytes += entry.value.byte_length or 0
        if entry.value.type == "WAL":
            self._wal += 1
        else:
            self._levels[entry.value.level] = self._levels.get(entry.value.level, 0) + 1

    def summary(self) -> IndexSummary:
        return IndexSummary(
            entries=self._entries,
            valid=self._verdicts[EntryVerdict.VALID],
            phantoms=self._verdicts[EntryVerdict.PHANTOM],
            below_start=self._verdicts[EntryVerdict.BELOW_START],
            later_incarnation=self._verdicts[EntryVerdict.FROM_THE_FUTURE],
            wal=self._wal,
            compacted_by_level=dict(sorted(self._levels.items())),
            data_bytes=self._data_bytes,
            first=self._first,
            last=None if self._last is None else row_of(self._last, EntryVerdict.VALID),
        )


def row_of(entry: Entry, verdict: EntryVerdict) -> EntryRow:
    value = entry.value
    return EntryRow(
        start_offset=entry.start_offset,
        end_offset=entry.end_offset,
        type=value.type,
        level=value.level,
        verdict=verdict.value,
        records=value.msg_count if value.record_count is None else value.record_count,
        byte_length=value.byte_length,
        data_key=value.data_key,
        created_at_ms=value.created_at_ms,
        incarnation=value.incarnation,
        version=entry.version,
    )


async def _run(context: LogContext, log: Log, run: CompactionRun | None) -> RunSummary | None:
    if run is None:
        return None
    record = await context.metadata.get(context.keys.index_entry(log, run.end_offset))
    return RunSummary(
        compaction_id=run.compaction_id,
        kind=run.kind,
        state=shown_state(run, None if record is None else entry_of(record)),
        start_offset=run.start_offset,
        end_offset=run.end_offset,
        data_key=run.data_key,
        sources=len(run.sources),
        created_at_ms=run.created_at_ms,
    )


async def _segments(context: LogContext, log: Log) -> dict[str, SegmentSummary]:
    by_state: dict[str, tuple[int, int]] = {}
    async for record in context.metadata.scan_all(context.keys.segments(log)):
        segment = decode_value(SegmentRecord, record.value, record.key.path)
        count, size = by_state.get(segment.state, (0, 0))
        by_state[segment.state] = (count + 1, size + segment.size_bytes)
    return {state: SegmentSummary(count=count, byte_length=size) for state, (count, size) in sorted(by_state.items())}


# -- a record --------------------------------------------------------------------------------------------------------

VALUE_OF_KIND: Final[dict[str, type[Value]]] = {
    "topic": TopicRecord,
    "control": ControlRecord,
    "compaction": CompactionRecord,
    "claim": CompactorClaim,
    "chore_claim": CompactorClaim,
    "partition_delete": PartitionDelete,
    "producers": ProducerSnapshot,
    "producer_page": ProducerPage,
    "index_entry": IndexEntry,
    "segment": SegmentRecord,
    "cluster_id": ClusterId,
    "broker": BrokerRegistration,
    "node": NodeClaim,
    "coordinator": CoordinatorClaim,
    "producer_ids": ProducerIdBlock,
    "vacuum_hold": VacuumHold,
    "group_item": GroupOffset,
}
_DECODERS: Final[dict[str, Callable[[bytes], Value]]] = {
    kind: msgspec.json.Decoder(value).decode for kind, value in VALUE_OF_KIND.items()
}


class DescribedRecord(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    kind: str
    """The name of the `Keys` method that builds the key; `unknown` for other keys."""
    version: int
    ephemeral: bool
    byte_length: int
    value: Any = None
    """Decoded. A value that does not fit its key is shown as JSON, text or base64."""
    problem: str = ""


def describe_record(keys: Keys, record: Record, *, with_value: bool = True) -> DescribedRecord:
    parsed = keys.parse(record.key.path)
    kind = "unknown" if parsed is None else parsed.kind
    value: Any = None
    problem = ""
    if with_value:
        value, problem = _decoded(kind, record.value)
    return DescribedRecord(
        key=record.key.path,
        kind=kind,
        version=record.version,
        ephemeral=record.ephemeral,
        byte_length=len(record.value),
        value=value,
        problem=problem,
    )


_SECRET_KINDS: Final = frozenset({"user", "security_state"})


def _decoded(kind: str, data: bytes) -> tuple[Any, str]:
    if kind in _SECRET_KINDS:
        return "not shown: it verifies passwords and tokens", ""
    decode = _DECODERS.get(kind)
    problem = ""
    if decode is not None:
        try:
            return msgspec.to_builtins(decode(data)), ""
        except (msgspec.MsgspecError, UnicodeDecodeError, FormatError) as error:
            problem = f"not a {VALUE_OF_KIND[kind].__name__}: {error}"
    try:
        return msgspec.json.decode(data), problem
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        return data.decode(), problem or "not JSON"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), problem or "not text, shown as base64"
