"""Vacuum as a job: tasks list the stores and read headers, the driver asks the logs and deletes.

    1. refuse, or determine the instant T before which objects are old
    2. one plain pass over every index and every plan of the sink: a named object is no candidate   (`references`)
    3. tasks list objects older than T, a range of names each
    4. tasks read the headers of unnamed objects: which logs may name them?
    5. the driver raises the horizon of those logs, then scans them strictly
    6. after that, it reads the sink's plans again, and deletes what neither names                  (`references`)
    7. it also asks logs in which the plain pass saw a phantom, which removes the phantom

Why the order is safe: step 5 is the function of `llog.log.cleanup.vacuum`, with its arguments; steps 2, 3 and 4 only
name candidates (I10). T is fixed before anything is listed. Candidates of a task that ran twice, late or on an old
listing go through step 5 like all others. A plan recorded after step 6 finds the horizon raised.

A record that cannot be read is reported, and vacuum keeps whatever it could refer to: a record of a log or a topic
keeps the objects of that log or topic, a plan keeps all blobs.

`dry_run` writes nothing: no horizon, no marker, not even the object that shows the clock of a store; it uses the clocks
that it can read without writing, and asks no log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from llog.concurrency import batched, gather_bounded
from llog.errors import FormatError, InvalidArgument, LogError, MetadataStoreError, ObjectStoreUnavailable
from llog.limits import (
    VACUUM_READS_IN_FLIGHT_MAX,
    VACUUM_REPORT_NAMES_MAX,
    VACUUM_TASK_HEADERS_MAX,
    VACUUM_UNREADABLE_NAMED_MAX,
)
from llog.log.cleanup import vacuum as protocol
from llog.log.cleanup.leftovers import remove_leftovers
from llog.log.cleanup.vacuum import with_logs as candidate_of
from llog.log.cleanup.vacuum_check import NamedObjects, named_blobs, plan_now, read_clocks
from llog.log.cluster import compare_cluster, join_cluster
from llog.log.context import LogChange, LogContext
from llog.log.keys import Log
from llog.pipeline.runtime.survey import Seen, has_younger_blob, survey_blobs, survey_segments
from llog.pipeline.runtime.tasks import LocalTasks, Task, TaskFailed, TaskRunner, TaskTools, tools_of
from llog.pipeline.vacuum.references import Overview, PlannedBlobs, in_batches, planned_blobs, read_overview
from llog.stores.objects.port import ObjectMeta, ObjectStore

T = TypeVar("T")
_log: Final = logging.getLogger("llog.pipeline")


class Swept(msgspec.Struct):
    """Counts of all blobs, or of the segments of one topic."""

    surveyed: int = 0
    """Objects older than the grace."""
    surveyed_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0


class VacuumReport(msgspec.Struct, kw_only=True):
    """What one vacuum did; with `dry_run`, what it would do at most, because no log was asked."""

    dry_run: bool
    blobs_before_ms: int
    segments_before_ms: int
    blobs_deleted: int = 0
    bytes_deleted: int = 0
    segments_marked: int = 0
    segments_deleted: int = 0
    phantoms_removed: int = 0
    kept_unreadable: int = 0
    kept_unknown_log: int = 0
    kept_unchecked: int = 0
    kept_planned: int = 0
    """Blobs that an unfinished commit plan of the sink names."""
    kept_unread: int = 0
    """Objects that an unreadable record may name."""
    left_for_later: int = 0
    """Objects that are too young to judge (of blobs, at least one is counted), and segments on their way out."""
    plans_expired: list[str] = []
    """Keys of plans that stayed unfinished for too long to keep their blobs."""
    unreadable_count: int = 0
    unreadable: list[str] = []
    """Metadata records that could not be read (at most VACUUM_UNREADABLE_NAMED_MAX)."""
    places: dict[str, Swept] = {}
    """By URI prefix."""
    names: list[str] = []
    """URIs of deleted objects (at most VACUUM_REPORT_NAMES_MAX)."""
    object_requests: dict[str, int] = {}
    """Requests of the job and its tasks to object stores, by operation."""

    @property
    def left_nothing(self) -> bool:
        """Another vacuum finds nothing to do, as long as no metadata changes and no object is written."""
        return not (
            self.left_for_later
            or self.blobs_deleted
            or self.segments_marked
            or self.segments_deleted
            or self.phantoms_removed
            or self.kept_unchecked
            or self.kept_planned
        )


# -- task --------------------------------------------------------------------------------------------------------------


class Blobs(msgspec.Struct, frozen=True, kw_only=True):
    store_url: str
    blobs: tuple[Seen, ...]


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """Logs are listed once and referred to by number: thousands of blobs name the same ones."""

    logs: tuple[tuple[str, int], ...]
    """Topic and partition."""
    of_blobs: tuple[tuple[int, ...] | None, ...]
    """Log numbers of each blob, in the order of the blobs; None: the header cannot be read."""

    def of_blob(self, number: int) -> frozenset[Log] | None:
        named = self.of_blobs[number]
        return None if named is None else frozenset(Log(*self.logs[index]) for index in named)


READ_OWNERS: Final = Task("llog.pipeline.vacuum.job:read_owners", Blobs, Owners)


async def read_owners(tools: TaskTools, item: Blobs) -> Owners:
    async def logs_of(blob: Seen) -> frozenset[Log] | None:
        store, name = await tools.find_object(f"{item.store_url}/{blob.name}")
        candidate = await candidate_of(store, ObjectMeta(name, blob.byte_length, blob.last_modified_ms))
        return None if candidate is None else candidate.logs

    owners = await gather_bounded(item.blobs, logs_of, limit=VACUUM_READS_IN_FLIGHT_MAX)
    numbers: dict[Log, int] = {}
    of_blobs = tuple(
        None if logs is None else tuple(numbers.setdefault(log, len(numbers)) for log in sorted(logs))
        for logs in owners
    )
    return Owners(logs=tuple((log.topic, log.partition) for log in numbers), of_blobs=of_blobs)


# -- job ---------------------------------------------------------------------------------------------------------------


async def vacuum(context: LogContext, runner: TaskRunner, *, dry_run: bool = False) -> VacuumReport:
    """Run once over both stores. Raises `VacuumRefused` or `ClusterMismatch` before anything is touched."""
    if context.wal is None or context.segments is None:
        raise InvalidArgument("context", "vacuum needs the stores of blobs and of segments")
    await protocol.refuse_when_held(context)
    await (compare_cluster if dry_run else join_cluster)(context)
    options = context.options
    blob_grace_ms = options.vacuum_grace_ms if options.wal_grace_ms is None else options.wal_grace_ms
    clocks = await (_clocks_without_writing(context) if dry_run else read_clocks(context))
    now_ms = plan_now(clocks, grace_ms=min(blob_grace_ms, options.vacuum_grace_ms))
    done = _Done(now_ms - blob_grace_ms, now_ms - options.vacuum_grace_ms, dry_run, root=context.keys.root)
    sweep = _Sweep(context, runner, done, await read_overview(context), now_ms)
    try:
        await sweep.blobs(context.wal)
        await sweep.segments(context.segments)
        if not dry_run:
            await sweep.phantoms()
            await sweep.leftovers()
            await protocol.remove_old_clocks(context, done)
    finally:
        _report_deletions(context, done)
    return sweep.report()


def _report_deletions(context: LogContext, done: _Done) -> None:
    """Also after a failure half-way, which leaves no other trace of what was deleted."""
    for place, swept in sorted(done.places.items()):
        if swept.deleted and not done.dry_run:
            counts = {"objects": swept.deleted, "bytes": swept.deleted_bytes}
            context.on_change(LogChange("vacuum.delete", place, after=counts))


async def _clocks_without_writing(context: LogContext) -> dict[str, int]:
    clocks = {"this machine": context.now_ms()}
    server_ms = await context.metadata.server_time_ms()
    return clocks if server_ms is None else {**clocks, "the metadata store": server_ms}


async def vacuum_here(context: LogContext, *, dry_run: bool = False) -> VacuumReport:
    """The job without Spark: its tasks run in this process."""
    return await vacuum(context, LocalTasks(tools_of(context)), dry_run=dry_run)


@dataclass(slots=True)
class _Done(protocol.Vacuumed):
    """The counts of the protocol, and counts by place."""

    root: str = ""
    places: dict[str, Swept] = field(default_factory=dict)
    kept_planned: int = 0
    kept_unread: int = 0
    left_for_later: int = 0

    def note(self, uri: str, byte_length: int) -> None:
        protocol.Vacuumed.note(self, uri, byte_length)
        place = self.place(uri)
        place.deleted += 1
        place.deleted_bytes += byte_length
        if not self.dry_run and _log.isEnabledFor(logging.DEBUG):
            _log.debug("vacuum deleted an object", extra={"llog": {"uri": uri, "bytes": byte_length}})

    def place(self, uri: str) -> Swept:
        """The counts of the blobs, or of the topic in a segment's name."""
        above, root, below = uri.rpartition(f"/{self.root}/")
        return self.places.setdefault(f"{above}{root}{below.partition('/')[0]}/", Swept())


class _Sweep:
    """One vacuum in progress."""

    def __init__(self, context: LogContext, runner: TaskRunner, done: _Done, overview: Overview, now_ms: int) -> None:
        self.context, self.runner, self.done, self.overview = context, runner, done, overview
        self._now_ms = now_ms
        self._asked: dict[Log, NamedObjects | None] = {}
        """Answers of logs. An answer stays valid, because the horizon of the log is raised."""
        self._planned = PlannedBlobs(frozenset())
        """Read after the last log was asked."""

    # -- blobs ---------------------------------------------------------------------------------------------------------
    async def blobs(self, store: ObjectStore) -> None:
        place = self.done.place(store.uri(self.context.keys.blobs() + "x"))
        before_ms = self.done.blobs_before_ms
        self._planned = await planned_blobs(self.context, now_ms=self._now_ms)
        async for _, page in survey_blobs(self.context, self.runner, store, before_ms=before_ms):
            place.surveyed += len(page.old)
            place.surveyed_bytes += sum(seen.byte_length for seen in page.old)
            self.done.left_for_later += page.objects - len(page.old)
            unnamed = [seen for seen in page.old if store.uri(seen.name) not in self.overview.named]
            unplanned = self._not_planned(unnamed, lambda seen: store.uri(seen.name))
            batches = batched(unplanned, VACUUM_TASK_HEADERS_MAX)
            chunks = [Blobs(store_url=store.url, blobs=tuple(batch)) for batch in batches]
            answers = await self.runner.run(READ_OWNERS, chunks) if chunks else []
            judged = [self._judged(store, chunk, answer) for chunk, answer in zip(chunks, answers, strict=True)]
            for candidates in judged:
                await self._delete_blobs(store, candidates)
        self.done.left_for_later += await has_younger_blob(self.context, store, before_ms)

    def _not_planned(self, blobs: list[T], uri_of: Callable[[T], str]) -> list[T]:
        """Without blobs that a plan keeps, whatever their logs name."""
        if self._planned.unreadable:
            self.done.kept_unread += len(blobs)
            return []
        free = [blob for blob in blobs if uri_of(blob) not in self._planned.uris]
        self.done.kept_planned += len(blobs) - len(free)
        return free

    def _judged(self, store: ObjectStore, chunk: Blobs, answer: Owners | TaskFailed) -> list[protocol.Candidate]:
        """The candidates of known logs only."""
        if isinstance(answer, TaskFailed):
            raise ObjectStoreUnavailable("get_range", store.url, answer.error)
        candidates = []
        for number, seen in enumerate(chunk.blobs):
            logs = answer.of_blob(number)
            if logs is None:
                self.done.kept_unreadable += 1
            elif self.overview.unreadable.keeps(logs):
                self.done.kept_unread += 1
            elif not logs <= self.overview.logs:
                self.done.kept_unknown_log += 1
            else:
                meta = ObjectMeta(seen.name, seen.byte_length, seen.last_modified_ms)
                candidates.append(protocol.Candidate(store.uri(seen.name), meta, logs))
        return candidates

    async def _delete_blobs(self, store: ObjectStore, old: list[protocol.Candidate]) -> None:
        done, candidates = self.done, old
        if not done.dry_run:
            before_ms, asked = done.blobs_before_ms, len(self._asked)
            candidates = await protocol.unnamed_by_logs(self.context, old, self._asked, named_blobs, before_ms, done)
            if len(self._asked) > asked:  # horizons were raised: plans recorded before that must be read
                self._planned = await planned_blobs(self.context, now_ms=self._now_ms)
            candidates = self._not_planned(candidates, lambda candidate: candidate.uri)
            await store.delete_many([candidate.meta.name for candidate in candidates])
        for candidate in candidates:
            done.note(candidate.uri, candidate.meta.byte_length)
        done.blobs_deleted += len(candidates)

    # -- segments ------------------------------------------------------------------------------------------------------
    async def segments(self, store: ObjectStore) -> None:
        named, known = self.overview.named, self.overview.segments
        self.done.left_for_later += sum(
            segment.record.state != "COPY_SEGMENT_FINISHED" for segments in known.values() for segment in segments
        )
        await protocol.vacuum_segments(self.context, store, self._old_segments(store), named, known, self.done)

    async def _old_segments(self, store: ObjectStore) -> AsyncIterator[tuple[Log, ObjectMeta]]:
        """Old segment objects, listed by tasks, of logs with a control record."""
        weights = {log: len(known) for log, known in self.overview.segments.items()}
        before_ms = self.done.segments_before_ms
        async for _, page in survey_segments(self.context, self.runner, store, before_ms=before_ms, weights=weights):
            self.done.left_for_later += page.objects - len(page.old)
            for seen in page.old:
                place = self.done.place(store.uri(seen.name))
                place.surveyed += 1
                place.surveyed_bytes += seen.byte_length
                parsed = self.context.keys.parse_object(seen.name)
                assert parsed is not None
                assert parsed.log is not None
                if self.overview.unreadable.keeps([parsed.log]):
                    self.done.kept_unread += 1
                elif parsed.log not in self.overview.logs:
                    self.done.kept_unknown_log += 1
                else:
                    yield parsed.log, ObjectMeta(seen.name, seen.byte_length, seen.last_modified_ms)

    # -- phantoms and leftovers ----------------------------------------------------------------------------------------
    async def phantoms(self) -> None:
        """A late settlement may name a blob that no longer exists, so no candidate makes vacuum ask its log."""
        for log in sorted(self.overview.with_phantoms - self.overview.deleted - self._asked.keys()):
            try:
                named = await named_blobs(self.context, log, self.done.blobs_before_ms)
            except (LogError, MetadataStoreError, FormatError):
                continue  # a phantom does no harm, and the next vacuum asks again
            self.done.phantoms_removed += 0 if named is None else named.phantoms_removed

    async def leftovers(self) -> None:
        """Remove records that late processes added to deleted logs."""
        async for removed in in_batches(sorted(self.overview.deleted), self._remove_leftovers):
            self.done.phantoms_removed += removed

    async def _remove_leftovers(self, log: Log) -> int:
        try:
            return (await remove_leftovers(self.context, log)).found
        except FormatError as error:
            self.overview.unreadable.note(str(error))
            return 0

    # -- report --------------------------------------------------------------------------------------------------------
    def report(self) -> VacuumReport:
        unreadable, plans = self.overview.unreadable, self._planned
        report = msgspec.convert(self.done, VacuumReport, from_attributes=True)
        report.plans_expired = list(plans.expired[:VACUUM_REPORT_NAMES_MAX])
        report.unreadable_count = len(plans.unreadable) + unreadable.count
        report.unreadable = [*plans.unreadable, *unreadable.named][:VACUUM_UNREADABLE_NAMED_MAX]
        report.places = dict(sorted(self.done.places.items()))
        return report
