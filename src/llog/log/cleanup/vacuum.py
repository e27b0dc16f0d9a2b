"""What vacuum decides and deletes: which old objects no log names, and in which order a segment goes.

`llog.pipeline.vacuum` lists the stores and drives these functions. Rule (I10): an object goes only if every log that
may name it was asked (`vacuum_check`) and none names it.

- A log that cannot be asked now keeps its objects, and only its own.
- An object of a log without a control record here stays: else a wrong or empty metadata store would empty a bucket
  (h25).
- A segment's record is marked first; the object goes a grace later and the record last, so that a reader of an old
  entry still finds the object, and a crash leaves a record to resume from.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from llog.concurrency import gather_bounded
from llog.errors import FormatError, LogError, MetadataStoreError, ObjectNotFound, VacuumRefused
from llog.formats.shared_blob import header_length, parse_header
from llog.limits import KIB, VACUUM_READS_IN_FLIGHT_MAX, VACUUM_REPORT_NAMES_MAX
from llog.log.cleanup.vacuum_check import NamedObjects, named_segments
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of
from llog.log.keys import Log
from llog.log.rewrite import segments
from llog.stores.objects.port import ObjectMeta, ObjectStore

# Enough for the header of a blob of some 50 logs; a longer one takes a second request.
VACUUM_HEADER_PROBE_BYTES: Final = 8 * KIB


@dataclass(slots=True)
class Vacuumed:
    """Counts of one vacuum; with `dry_run`, of what it would delete."""

    blobs_before_ms: int
    segments_before_ms: int
    dry_run: bool = False
    blobs_deleted: int = 0
    bytes_deleted: int = 0
    segments_marked: int = 0
    segments_deleted: int = 0
    phantoms_removed: int = 0
    kept_unreadable: int = 0
    """Blobs without a readable header, which names their logs."""
    kept_unknown_log: int = 0
    """Objects of a log without a control record in this metadata store."""
    kept_unchecked: int = 0
    """Objects of a log that could not be asked now."""
    names: list[str] = field(default_factory=list)
    """URIs of deleted objects (at most VACUUM_REPORT_NAMES_MAX)."""

    def note(self, uri: str, byte_length: int) -> None:
        self.bytes_deleted += byte_length
        if len(self.names) < VACUUM_REPORT_NAMES_MAX:
            self.names.append(uri)


class Candidate(NamedTuple):
    """An old object that the plain pass found unnamed, and the logs that may name it."""

    uri: str
    meta: ObjectMeta
    logs: frozenset[Log]


async def refuse_when_held(context: LogContext) -> None:
    held = await context.metadata.get(context.keys.vacuum_hold(), strict=True)
    if held is not None:
        raise VacuumRefused(
            "the metadata was restored from a backup, and objects newer than the backup may still be wanted: "
            "check them, then lift the hold"
        )


# -- blobs -------------------------------------------------------------------------------------------------------------


async def with_logs(store: ObjectStore, meta: ObjectMeta) -> Candidate | None:
    """The blob and the logs in its header; None when the header cannot be read."""
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


Ask = Callable[[LogContext, Log, int], Awaitable[NamedObjects | None]]


async def unnamed_by_logs(
    context: LogContext,
    candidates: Iterable[Candidate],
    asked: dict[Log, NamedObjects | None],
    ask: Ask,
    horizon_ms: int,
    done: Vacuumed,
) -> list[Candidate]:
    """The candidates that no log names, of those for which every log answered. An answer holds for good: the log's
    horizon is raised (R8)."""
    candidates = list(candidates)
    new = sorted({log for candidate in candidates for log in candidate.logs} - asked.keys())

    async def answer(log: Log) -> NamedObjects | None:
        try:
            return await ask(context, log, horizon_ms)
        except (LogError, MetadataStoreError, FormatError):
            return None  # the log's objects stay

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


async def vacuum_segments(
    context: LogContext,
    store: ObjectStore,
    old: AsyncIterable[tuple[Log, ObjectMeta]],
    named: Set[str],
    known: Mapping[Log, Sequence[segments.KnownSegment]],
    done: Vacuumed,
) -> None:
    """Retire segments without a name: `old` are the objects listed, of logs with a control record; `known` are the
    segment records, of which some have no object. `named` are URIs that the plain pass found."""
    by_log: dict[Log, dict[str, Candidate]] = {}

    def add(log: Log, meta: ObjectMeta, uri: str) -> None:
        if uri not in named:
            by_log.setdefault(log, {}).setdefault(uri, Candidate(uri, meta, frozenset({log})))

    async for log, meta in old:
        add(log, meta, store.uri(meta.name))
    for log, of_log in known.items():
        for record, _ in of_log:
            if created_at_ms_of(record.segment_id) < done.segments_before_ms:
                add(log, ObjectMeta("", 0, 0), record.data_key)
    for log, candidates in by_log.items():
        if not done.dry_run:
            free = await unnamed_by_logs(
                context, candidates.values(), {}, named_segments, done.segments_before_ms, done
            )
            candidates = {candidate.uri: candidate for candidate in free}
        records = {segment.record.data_key: segment for segment in known.get(log, ())}
        for uri, candidate in candidates.items():
            await _retire(context, log, store, candidate, records.get(uri), done)


async def _retire(
    context: LogContext,
    log: Log,
    store: ObjectStore,
    candidate: Candidate,
    known: segments.KnownSegment | None,
    done: Vacuumed,
) -> None:
    if known is None:  # the record is deleted already: only the object is left
        if not done.dry_run:
            await store.delete_many([candidate.meta.name])
    elif known.record.state in ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"):
        if not done.dry_run:
            await segments.mark(context, log, known.record.segment_id, "DELETE_SEGMENT_STARTED")
        done.segments_marked += 1
        return
    elif known.record.state_changed_at_ms >= done.segments_before_ms:
        return  # within its grace
    elif not done.dry_run:
        await segments.remove(context, log, known)
    done.segments_deleted += 1
    done.note(candidate.uri, candidate.meta.byte_length)


# -- clock objects -----------------------------------------------------------------------------------------------------


async def remove_old_clocks(context: LogContext, done: Vacuumed) -> None:
    """Objects that an earlier vacuum put to read a store's clock, and did not live to delete."""
    before_ms = min(done.blobs_before_ms, done.segments_before_ms)
    for store in context.stores():
        names = []
        async for meta in store.list(f"{context.keys.root}/@cluster/"):
            parsed = context.keys.parse_object(meta.name)
            if parsed is None or parsed.kind != "clock":
                continue
            if created_at_ms_of(parsed.object_id) < before_ms and meta.last_modified_ms < before_ms:
                names.append(meta.name)
        await store.delete_many(names)
