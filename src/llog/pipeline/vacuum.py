"""Vacuum as a job: tasks list the stores and read headers, the driver asks the logs and deletes.

    1. refuse, or learn the instant T before which to look
    2. one plain pass over every index: what is named is no candidate
    3. tasks list objects older than T, a range of names each
    4. of those that nothing names, tasks read the headers: which logs may name them?
    5. those logs are asked (horizon raised, then a strict scan); what none of them names is deleted

Why it is safe: 1, 2 and 5 are the functions of `llog.log.vacuum`, in its order and with its arguments; only 3 and 4 are
done elsewhere, and both can do no more than name candidates (I10). T is fixed before anything is listed. A task that
ran twice, late or on an old listing brings candidates that the logs are asked about like any other.

`dry_run` writes nothing at all: no horizon, no marker, not even the object that the stores' clocks are read from; so it
goes by the clocks that can be read without, and asks no log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from llog.errors import InvalidArgument, ObjectStoreUnavailable
from llog.limits import VACUUM_REPORT_NAMES_MAX, VACUUM_TASK_HEADERS_MAX
from llog.log import vacuum as protocol
from llog.log.cluster import compare_cluster, join_cluster
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.leftovers import remove_leftovers
from llog.log.vacuum_check import Named, named_blobs
from llog.log.vacuum_clock import plan_now, read_clocks
from llog.pipeline.survey import survey_blobs, survey_segments
from llog.pipeline.survey_task import Seen
from llog.pipeline.vacuum_task import READ_OWNERS, Blobs, Owners
from llog.pipeline.work import Runner, TaskFailed
from llog.stores.objects.port import ObjectMeta, ObjectStore
from llog.stores.objects.wrapper import ForwardingObjectStore


class Swept(msgspec.Struct):
    """What became of the objects of one place: all blobs, or the segments of one topic."""

    surveyed: int = 0
    """Old enough to be looked at."""
    surveyed_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0


class VacuumReport(msgspec.Struct, kw_only=True):
    """What one vacuum did, or with `dry_run` would do, as far as it can be told without asking the logs."""

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
    places: dict[str, Swept] = {}
    """By the beginning of their URIs."""
    names: list[str] = []
    """URIs of what went (at most VACUUM_REPORT_NAMES_MAX)."""


async def vacuum(context: LogContext, runner: Runner, *, dry_run: bool = False) -> VacuumReport:
    """Run once over both stores. Raises `VacuumRefused` or `ClusterMismatch` before anything is touched."""
    if context.wal is None or context.segments is None:
        raise InvalidArgument("context", "vacuum needs the stores of blobs and of segments")
    await protocol._refuse_when_held(context)
    await (compare_cluster if dry_run else join_cluster)(context)
    options = context.options
    blob_grace_ms = options.vacuum_grace_ms if options.wal_grace_ms is None else options.wal_grace_ms
    clocks = await (_clocks_without_writing(context) if dry_run else read_clocks(context))
    now_ms = plan_now(clocks, grace_ms=min(blob_grace_ms, options.vacuum_grace_ms))
    done = _Done(now_ms - blob_grace_ms, now_ms - options.vacuum_grace_ms, dry_run, root=context.keys.root)
    sweep = _Sweep(context, runner, done, await protocol._look_around(context))
    await sweep.blobs(context.wal)
    await sweep.segments(context.segments)
    if not dry_run:
        for log in sorted(sweep.overview.deleted):
            done.phantoms_removed += (await remove_leftovers(context, log)).found
        await protocol._remove_old_clocks(context, done)
    return sweep.report()


async def _clocks_without_writing(context: LogContext) -> dict[str, int]:
    clocks = {"this machine": context.now_ms()}
    told = await context.metadata.server_time_ms()
    return clocks if told is None else {**clocks, "the metadata store": told}


@dataclass(slots=True)
class _Done(protocol.Vacuumed):
    """What the protocol counts, and where it was."""

    root: str = ""
    places: dict[str, Swept] = field(default_factory=dict)

    def note(self, uri: str, byte_length: int) -> None:
        protocol.Vacuumed.note(self, uri, byte_length)
        place = self.place(uri)
        place.deleted += 1
        place.deleted_bytes += byte_length

    def place(self, uri: str) -> Swept:
        """Of the blobs, or of the topic that a segment's name begins with."""
        above, root, below = uri.rpartition(f"/{self.root}/")
        return self.places.setdefault(f"{above}{root}{below.partition('/')[0]}/", Swept())


class _Listed(ForwardingObjectStore):
    """The store of segments, with a listing that tasks made: old segments, and nothing else."""

    def __init__(self, inner: ObjectStore, old: Callable[[ObjectStore], AsyncIterator[ObjectMeta]]) -> None:
        super().__init__(inner)
        self._old = old

    def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        return self._old(self.inner)


class _Sweep:
    """One vacuum under way."""

    def __init__(self, context: LogContext, runner: Runner, done: _Done, overview: protocol._Overview) -> None:
        self.context, self.runner, self.done, self.overview = context, runner, done, overview
        self._asked: dict[Log, Named | None] = {}
        """An answer holds for good: its horizon is raised."""

    # -- blobs ---------------------------------------------------------------------------------------------------------
    async def blobs(self, store: ObjectStore) -> None:
        place = self.done.place(store.uri(self.context.keys.blobs() + "x"))
        before_ms = self.done.blobs_before_ms
        async for _, page in survey_blobs(self.context, self.runner, store, before_ms=before_ms):
            place.surveyed += len(page.old)
            place.surveyed_bytes += sum(seen.byte_length for seen in page.old)
            unnamed = [seen for seen in page.old if store.uri(seen.name) not in self.overview.named]
            for candidates in await self._owned(store, unnamed):
                await self._delete_blobs(store, candidates)

    async def _owned(self, store: ObjectStore, unnamed: Sequence[Seen]) -> list[list[protocol._Candidate]]:
        """The candidates whose logs are all known here, in helpings."""
        chunks = [
            Blobs(store_url=store.url, blobs=tuple(unnamed[first : first + VACUUM_TASK_HEADERS_MAX]))
            for first in range(0, len(unnamed), VACUUM_TASK_HEADERS_MAX)
        ]
        answers = await self.runner.run(READ_OWNERS, chunks) if chunks else []
        return [self._judged(store, chunk, answer) for chunk, answer in zip(chunks, answers, strict=True)]

    def _judged(self, store: ObjectStore, chunk: Blobs, answer: Owners | TaskFailed) -> list[protocol._Candidate]:
        if isinstance(answer, TaskFailed):
            raise ObjectStoreUnavailable("get_range", store.url, answer.error)
        candidates = []
        for number, seen in enumerate(chunk.blobs):
            logs = answer.of_blob(number)
            if logs is None:
                self.done.kept_unreadable += 1
            elif not logs <= self.overview.logs:
                self.done.kept_unknown_log += 1
            else:
                meta = ObjectMeta(seen.name, seen.byte_length, seen.last_modified_ms)
                candidates.append(protocol._Candidate(store.uri(seen.name), meta, logs))
        return candidates

    async def _delete_blobs(self, store: ObjectStore, found: list[protocol._Candidate]) -> None:
        done, candidates = self.done, found
        if not done.dry_run:
            before_ms = done.blobs_before_ms
            candidates = await protocol._unnamed(self.context, found, self._asked, named_blobs, before_ms, done)
            await store.delete_many([candidate.meta.name for candidate in candidates])
        for candidate in candidates:
            done.note(candidate.uri, candidate.meta.byte_length)
        done.blobs_deleted += len(candidates)

    # -- segments ------------------------------------------------------------------------------------------------------
    async def segments(self, store: ObjectStore) -> None:
        """As the protocol has it, on a listing that tasks made."""
        listed = _Listed(store, self._old_segments)
        await protocol._vacuum_segments(self.context, listed, self.overview, self.done)

    async def _old_segments(self, store: ObjectStore) -> AsyncIterator[ObjectMeta]:
        weights = {log: len(known) for log, known in self.overview.segments.items()}
        before_ms = self.done.segments_before_ms
        async for _, page in survey_segments(self.context, self.runner, store, before_ms=before_ms, weights=weights):
            for seen in page.old:
                place = self.done.place(store.uri(seen.name))
                place.surveyed += 1
                place.surveyed_bytes += seen.byte_length
                yield ObjectMeta(seen.name, seen.byte_length, seen.last_modified_ms)

    # -- report --------------------------------------------------------------------------------------------------------
    def report(self) -> VacuumReport:
        done = self.done
        return VacuumReport(
            dry_run=done.dry_run,
            blobs_before_ms=done.blobs_before_ms,
            segments_before_ms=done.segments_before_ms,
            blobs_deleted=done.blobs_deleted,
            bytes_deleted=done.bytes_deleted,
            segments_marked=done.segments_marked,
            segments_deleted=done.segments_deleted,
            phantoms_removed=done.phantoms_removed,
            kept_unreadable=done.kept_unreadable,
            kept_unknown_log=done.kept_unknown_log,
            kept_unchecked=done.kept_unchecked,
            places=dict(sorted(done.places.items())),
            names=done.names[:VACUUM_REPORT_NAMES_MAX],
        )
