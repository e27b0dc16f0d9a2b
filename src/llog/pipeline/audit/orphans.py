"""Orphans: objects older than a grace that nothing names.

An object is an orphan when it was listed, nothing named it before the listing, it still exists afterwards, and a strict
read shows that neither the logs in its header (or path) nor an unfinished plan of the sink names it. A segment that the
catalogue retired less than a grace ago is not an orphan. A plan that cannot be read may name any blob: then no blob is
called an orphan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.concurrency import batched, gather_bounded
from llog.errors import LlogError, ObjectNotFound
from llog.formats.values import SegmentRecord
from llog.limits import VACUUM_READS_IN_FLIGHT_MAX, VACUUM_TASK_HEADERS_MAX
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of
from llog.log.keys import Log
from llog.pipeline.audit.log_metadata import inspect_metadata
from llog.pipeline.audit.report import AuditReport, Finding
from llog.pipeline.runtime.survey import Seen, survey_blobs, survey_segments
from llog.pipeline.runtime.tasks import TaskFailed, TaskRunner
from llog.pipeline.vacuum.job import READ_OWNERS, Blobs
from llog.pipeline.vacuum.references import PlannedBlobs, planned_blobs, wanted_by_plans
from llog.stores.objects.port import ObjectStore

UNNAMED: Final = "nothing names it; vacuum deletes it"


class Known(NamedTuple):
    """The metadata, read before any listing."""

    named: Collection[str]
    records: Mapping[str, SegmentRecord]
    logs: Mapping[Log, int]
    """All logs, with the number of segments in each catalogue."""
    whole: bool
    """False: a record could not be read, so more objects may be named."""


class OrphanSearch:
    def __init__(self, context: LogContext, runner: TaskRunner, known: Known, report: AuditReport) -> None:
        self._context, self._runner, self._known, self._report = context, runner, known, report
        options = context.options
        self._now_ms = context.now_ms()
        self._segments_before_ms = self._now_ms - options.vacuum_grace_ms
        blob_grace_ms = options.vacuum_grace_ms if options.wal_grace_ms is None else options.wal_grace_ms
        self._blobs_before_ms = self._now_ms - blob_grace_ms
        self._named_now: dict[Log, Collection[str] | None] = {}
        """By strict reads after the listing; None: unknown."""

    async def blobs(self, store: ObjectStore) -> None:
        # Read before the logs: a plan is done only when its logs name its blobs.
        planned = await self._plans()
        pages = survey_blobs(self._context, self._runner, store, before_ms=self._blobs_before_ms)
        async for _, page in pages:
            self._report.surveyed += len(page.old)
            unnamed = [seen for seen in page.old if store.uri(seen.name) not in self._known.named]
            if unnamed:
                now = await planned_blobs(self._context, now_ms=self._now_ms)
                named = planned.uris | now.uris
                readable = not (planned.unreadable or now.unreadable)
                unnamed = [seen for seen in unnamed if readable and store.uri(seen.name) not in named]
            for batch in batched(unnamed, VACUUM_TASK_HEADERS_MAX):
                await self._judge_blobs(store, batch)

    async def _plans(self) -> PlannedBlobs:
        """The blobs that plans name. An unreadable plan, a missing blob and an abandoned plan are findings."""
        planned = await planned_blobs(self._context, now_ms=self._now_ms)
        for reason in planned.unreadable:
            self._report.add(Finding(severity="damage", rule="values", kind="unreadable value", reason=reason))
        for path in planned.expired:
            reason = f"{path} was never finished, and keeps its blobs no longer"
            self._report.add(Finding(severity="leftover", rule="plans", kind="expired plan", reason=reason))
        for uri in await self._missing(planned.confirmed):
            reason = "a confirmed plan of the sink, which is not finished, names it"
            finding = Finding(severity="damage", rule="plans", kind="missing object", reason=reason, object=uri)
            self._report.add(finding)
        return planned

    async def _missing(self, uris: Collection[str]) -> list[str]:
        """Blobs that do not exist, and that a plan read afterwards still wants."""

        async def missing_uri(uri: str) -> str | None:
            try:
                store, name = await self._context.find_object(uri)
                await store.head(name)
            except ObjectNotFound:
                return uri
            except LlogError as error:
                self._report.not_checked(f"{uri}: {error}")
            return None

        checked = await gather_bounded(sorted(uris), missing_uri, limit=VACUUM_READS_IN_FLIGHT_MAX)
        missing = [uri for uri in checked if uri is not None]
        wanted = await wanted_by_plans(self._context, missing) if missing else set()
        return [uri for uri in missing if uri in wanted]

    async def _judge_blobs(self, store: ObjectStore, unnamed: Sequence[Seen]) -> None:
        [owners] = await self._runner.run(READ_OWNERS, [Blobs(store_url=store.url, blobs=tuple(unnamed))])
        if isinstance(owners, TaskFailed):
            self._report.not_checked(f"headers of {len(unnamed)} blobs: {owners.error}")
            return
        for number, seen in enumerate(unnamed):
            logs = owners.of_blob(number)
            if logs is None and not self._known.whole:
                continue  # its log is unknown, and an entry of some log could not be read
            reason = "its header cannot be read" if logs is None else UNNAMED
            if logs is not None and not logs <= self._known.logs.keys():
                reason = f"its header names {min(logs - self._known.logs.keys())}, which is not known here"
            await self._judge(store, seen, logs or frozenset(), reason)

    async def segments(self, store: ObjectStore) -> None:
        before_ms, weights = self._segments_before_ms, self._known.logs
        pages = survey_segments(self._context, self._runner, store, before_ms=before_ms, weights=weights)
        async for _, page in pages:
            self._report.surveyed += len(page.old)
            for seen in page.old:
                uri = store.uri(seen.name)
                record = self._known.records.get(uri)
                leaving = record is not None and record.state_changed_at_ms >= before_ms
                if uri in self._known.named or leaving:
                    continue
                parsed = self._context.keys.parse_object(seen.name)
                assert parsed is not None
                assert parsed.log is not None
                reason = UNNAMED
                if parsed.log not in self._known.logs:
                    reason = f"{parsed.log} is not known here"
                elif record is not None:
                    reason = f"nothing names it, and the catalogue says {record.state}"
                await self._judge(store, seen, {parsed.log}, reason)

    async def _judge(self, store: ObjectStore, seen: Seen, logs: Collection[Log], reason: str) -> None:
        uri = store.uri(seen.name)
        for log in sorted(logs):
            named = await self._named_by(log)
            if named is None or uri in named:
                return
        try:
            await store.head(seen.name)
        except ObjectNotFound:
            return  # deleted meanwhile
        parsed = self._context.keys.parse_object(seen.name)
        assert parsed is not None
        age_ms = self._now_ms - created_at_ms_of(parsed.object_id)
        found = Finding(severity="leftover", rule="I13", kind="orphan", reason=reason, object=uri, age_ms=age_ms)
        if parsed.log is not None:
            found = replace(found, topic=parsed.log.topic, partition=parsed.log.partition)
        self._report.add(found)

    async def _named_by(self, log: Log) -> Collection[str] | None:
        if log not in self._named_now:
            try:
                now = await inspect_metadata(self._context, log, strict=True)
                self._named_now[log] = now.named if now.whole else None
            except LlogError as error:
                self._report.not_checked(f"orphans of {log}: {error}")
                self._named_now[log] = None
        return self._named_now[log]
