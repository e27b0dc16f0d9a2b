"""Vacuum: delete objects that nothing names and nothing can name any more.

    1. refuse, or learn the instant T before which to look           (`cluster`, `vacuum_clock`)
    2. one plain pass over every index: what is named is no candidate; nothing is written
    3. list objects older than T; the rest of them are candidates
    4. ask the logs that a candidate's header (or a segment's path) names    (`vacuum_check`: raise, then strict scan)
    5. blobs that no log names are deleted; segments are marked first, and go a grace later, their record last

What must stay true (I10): a candidate goes only if every log it names was asked and none names it. A log that cannot
be asked now keeps its objects, and only its own; an object that names a log without a control record here stays: a
wrong or empty metadata store must never empty a bucket (h25). Logs that no candidate names are not written to.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from llog.concurrency import gather_bounded
from llog.errors import (
    FormatError,
    InvalidArgument,
    LogError,
    MetadataStoreError,
    ObjectNotFound,
    VacuumRefused,
)
from llog.formats.shared_blob import header_length, parse_header
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import KIB, VACUUM_READS_IN_FLIGHT_MAX, VACUUM_REPORT_NAMES_MAX
from llog.log.cleanup.leftovers import remove_leftovers
from llog.log.cleanup.vacuum_check import Named, cursor_of, named_blobs, named_segments
from llog.log.cleanup.vacuum_clock import plan_now, read_clocks
from llog.log.cluster import compare_cluster, join_cluster
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of
from llog.log.index import EntryVerdict, entry_of, judge
from llog.log.keys import Log
from llog.log.rewrite import segments
from llog.stores.metadata.port import last_segment
from llog.stores.objects.port import ObjectMeta, ObjectStore

# Enough for the header of a blob of some 50 logs; a longer one takes a second request.
VACUUM_HEADER_PROBE_BYTES: Final = 8 * KIB
# Candidates judged together; their logs are checked once for all of them.
VACUUM_BATCH_OBJECTS_MAX: Final = 1_000


@dataclass(slots=True)
class Vacuumed:
    """What one vacuum did, or with `dry_run` would have done."""

    blobs_before_ms: int
    segments_before_ms: int
    dry_run: bool = False
    blobs_deleted: int = 0
    bytes_deleted: int = 0
    segments_marked: int = 0
    segments_deleted: int = 0
    phantoms_removed: int = 0
    kept_unreadable: int = 0
    """No header that tells whose they are."""
    kept_unknown_log: int = 0
    """They name a log that this metadata store does not know."""
    kept_unchecked: int = 0
    """A log they name could not be asked now."""
    names: list[str] = field(default_factory=list)
    """URIs of what went (at most VACUUM_REPORT_NAMES_MAX)."""

    def note(self, uri: str, byte_length: int) -> None:
        self.bytes_deleted += byte_length
        if len(self.names) < VACUUM_REPORT_NAMES_MAX:
            self.names.append(uri)


class Candidate(NamedTuple):
    uri: str
    meta: ObjectMeta
    logs: frozenset[Log]


class Overview(NamedTuple):
    """The plain pass: may be stale, so it only ever spares objects."""

    named: frozenset[str]
    logs: frozenset[Log]
    """Logs with a control record, tombstones included."""
    deleted: frozenset[Log]
    """Those of which only a tombstone is left."""
    segments: dict[Log, list[segments.KnownSegment]]


async def vacuum(context: LogContext, *, dry_run: bool = False) -> Vacuumed:
    """Run once over both stores. Raises `VacuumRefused` or `ClusterMismatch` before anything is touched."""
    if context.wal is None or context.segments is None:
        raise InvalidArgument("context", "vacuum needs the stores of blobs and of segments")
    await refuse_when_held(context)
    await (compare_cluster if dry_run else join_cluster)(context)
    options = context.options
    blob_grace_ms = options.vacuum_grace_ms if options.wal_grace_ms is None else options.wal_grace_ms
    now_ms = plan_now(await read_clocks(context), grace_ms=min(blob_grace_ms, options.vacuum_grace_ms))
    done = Vacuumed(now_ms - blob_grace_ms, now_ms - options.vacuum_grace_ms, dry_run)
    overview = await _look_around(context)
    await _vacuum_blobs(context, context.wal, overview, done)
    await vacuum_segments(context, context.segments, overview, done)
    if not dry_run:
        for log in sorted(overview.deleted):
            done.phantoms_removed += (await remove_leftovers(context, log)).found
        await remove_old_clocks(context, done)
    return done


async def refuse_when_held(context: LogContext) -> None:
    held = await context.metadata.get(context.keys.vacuum_hold(), strict=True)
    if held is not None:
        raise VacuumRefused(
            "metadata was restored from a backup, and objects newer than it may still be wanted: "
            "look at them, then lift the hold"
        )


# -- what there is -----------------------------------------------------------------------------------------------------
async def _look_around(context: LogContext) -> Overview:
    named: set[str] = set()
    logs: set[Log] = set()
    deleted: set[Log] = set()
    records: dict[Log, list[segments.KnownSegment]] = {}
    async for item in context.metadata.scan_all(context.keys.topics(), strict=True):
        topic = decode_value(TopicRecord, item.value, item.key.path)
        for partition in range(max(topic.partition_count, topic.partition_count_ever)):
            log = Log(last_segment(item.key.path), partition)
            found = await context.metadata.get(context.keys.control(log))
            if found is None:
                continue
            control = decode_value(ControlRecord, found.value, found.key.path)
            logs.add(log)
            if control.log_state == "DELETED":
                deleted.add(log)
            if control.pending is not None:
                named.add(control.pending.data_key)
            named |= await _named_now(context, log, control)
            records[log] = await segments.list_segments(context, log)
    return Overview(frozenset(named), frozenset(logs), frozenset(deleted), records)


async def _named_now(context: LogContext, log: Log, control: ControlRecord) -> set[str]:
    """What the log's entries name. A phantom names nothing: else what only it names would never become a candidate, and
    its log never be asked (h27)."""
    cursor = await cursor_of(context, log, control.incarnation)
    named = set()
    async for record in context.metadata.scan_all(context.keys.index(log)):
        entry = entry_of(record)
        verdict = judge(
            entry, incarnation=control.incarnation, cursor=cursor, log_start_offset=control.log_start_offset
        )
        if verdict is not EntryVerdict.PHANTOM:
            named.add(entry.value.data_key)
    return named


async def _older(
    context: LogContext, store: ObjectStore, prefix: str, kind: str, before_ms: int
) -> AsyncIterator[tuple[ObjectMeta, Log | None]]:
    """Objects of a kind whose id and whose time in the store are both older."""
    async for meta in store.list(prefix):
        parsed = context.keys.parse_object(meta.name)
        if parsed is None or parsed.kind != kind:
            continue
        if created_at_ms_of(parsed.object_id) < before_ms:
            if meta.last_modified_ms < before_ms:
                yield meta, parsed.log
        elif kind == "blob":
            return  # ids begin with their instant, and names come in order


# -- blobs -------------------------------------------------------------------------------------------------------------
async def _vacuum_blobs(context: LogContext, store: ObjectStore, overview: Overview, done: Vacuumed) -> None:
    asked: dict[Log, Named | None] = {}
    old = [
        meta
        async for meta, _ in _older(context, store, context.keys.blobs(), "blob", done.blobs_before_ms)
        if store.uri(meta.name) not in overview.named
    ]
    for metas in _batches(old):
        found = await gather_bounded(metas, lambda meta: with_logs(store, meta), limit=VACUUM_READS_IN_FLIGHT_MAX)
        candidates = []
        for candidate in found:
            if candidate is None:
                done.kept_unreadable += 1
            elif not candidate.logs <= overview.logs:
                done.kept_unknown_log += 1
            else:
                candidates.append(candidate)
        if not done.dry_run:
            candidates = await unnamed_by_logs(context, candidates, asked, named_blobs, done.blobs_before_ms, done)
            await store.delete_many([candidate.meta.name for candidate in candidates])
        for candidate in candidates:
            done.note(candidate.uri, candidate.meta.byte_length)
        done.blobs_deleted += len(candidates)


async def with_logs(store: ObjectStore, meta: ObjectMeta) -> Candidate | None:
    """The logs in a blob's header; None when it cannot be read."""
    try:
        probe = await store.get_range(meta.name, 0, min(meta.byte_length, VACUUM_HEADER_PROBE_BYTES))
        length = header_length(probe, meta.name)
        if length > len(probe):
            probe = await store.get_range(meta.name, 0, min(meta.byte_length, length))
        header = parse_header(probe, meta.name, object_length=meta.byte_length)
    except (FormatError, ObjectNotFound):
        return None
    logs = frozenset(Log(part.topic, part.partition) for part in header.partitions)
    return Candidate(store.uri(meta.name), meta, logs)


Ask = Callable[[LogContext, Log, int], Awaitable[Named | None]]


async def unnamed_by_logs(
    context: LogContext,
    candidates: Iterable[Candidate],
    asked: dict[Log, Named | None],
    ask: Ask,
    horizon_ms: int,
    done: Vacuumed,
) -> list[Candidate]:
    """The candidates that every one of their logs was asked about and none names. An answer holds for good."""
    candidates = list(candidates)
    new = sorted({log for candidate in candidates for log in candidate.logs} - asked.keys())

    async def answer(log: Log) -> Named | None:
        try:
            return await ask(context, log, horizon_ms)
        except (LogError, MetadataStoreError, FormatError):
            return None  # whatever is wrong with it, its objects stay

    for log, named in zip(new, await gather_bounded(new, answer, limit=VACUUM_READS_IN_FLIGHT_MAX), strict=True):
        asked[log] = named
        done.phantoms_removed += 0 if named is None else named.phantoms_removed
    free = []
    for candidate in candidates:
        answers = [asked[log] for log in candidate.logs]
        if any(named is None for named in answers):
            done.kept_unchecked += 1
        elif not any(candidate.uri in named.uris for named in answers if named is not None):
            free.append(candidate)
    return free


# -- segments ----------------------------------------------------------------------------------------------------------
async def vacuum_segments(context: LogContext, store: ObjectStore, overview: Overview, done: Vacuumed) -> None:
    """Objects without a name, and records without an object: both begin as candidates of their log."""
    by_log = await _segment_candidates(context, store, overview, done)
    for log, candidates in by_log.items():
        asked: dict[Log, Named | None] = {}
        if not done.dry_run:
            before_ms = done.segments_before_ms
            free = await unnamed_by_logs(context, candidates.values(), asked, named_segments, before_ms, done)
            candidates = {candidate.uri: candidate for candidate in free}
        known = {segment.record.data_key: segment for segment in overview.segments.get(log, [])}
        for uri, candidate in candidates.items():
            await _retire(context, log, store, candidate, known.get(uri), done)


async def _segment_candidates(
    context: LogContext, store: ObjectStore, overview: Overview, done: Vacuumed
) -> dict[Log, dict[str, Candidate]]:
    by_log: dict[Log, dict[str, Candidate]] = {}

    def add(log: Log, meta: ObjectMeta, uri: str) -> None:
        if uri not in overview.named:
            by_log.setdefault(log, {}).setdefault(uri, Candidate(uri, meta, frozenset({log})))

    prefix = context.keys.root + "/"
    async for meta, log in _older(context, store, prefix, "segment_object", done.segments_before_ms):
        assert log is not None
        if log in overview.logs:
            add(log, meta, store.uri(meta.name))
        else:
            done.kept_unknown_log += 1
    for log, known in overview.segments.items():
        for segment, _ in known:
            if created_at_ms_of(segment.segment_id) < done.segments_before_ms:
                add(log, ObjectMeta("", 0, 0), segment.data_key)
    return by_log


async def _retire(
    context: LogContext,
    log: Log,
    store: ObjectStore,
    candidate: Candidate,
    known: segments.KnownSegment | None,
    done: Vacuumed,
) -> None:
    if known is None:  # its record is gone already: only the object was left
        if not done.dry_run:
            await store.delete_many([candidate.meta.name])
    elif known.record.state in ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"):
        if not done.dry_run:
            await segments.mark(context, log, known.record.segment_id, "DELETE_SEGMENT_STARTED")
        done.segments_marked += 1
        return
    elif known.record.state_changed_at_ms >= done.segments_before_ms:
        return  # its grace is not over
    elif not done.dry_run:
        await segments.remove(context, log, known)
    done.segments_deleted += 1
    done.note(candidate.uri, candidate.meta.byte_length)


# -- helpers -----------------------------------------------------------------------------------------------------------
async def remove_old_clocks(context: LogContext, done: Vacuumed) -> None:
    before_ms = min(done.blobs_before_ms, done.segments_before_ms)
    for store in context.stores():
        prefix = f"{context.keys.root}/@cluster/"
        old = [meta.name async for meta, _ in _older(context, store, prefix, "clock", before_ms)]
        await store.delete_many(old)


def _batches(metas: list[ObjectMeta]) -> Iterable[list[ObjectMeta]]:
    pending = iter(metas)
    while batch := list(itertools.islice(pending, VACUUM_BATCH_OBJECTS_MAX)):
        yield batch
