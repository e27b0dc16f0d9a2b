"""Audit: compares every entry of every log with its object, and every old object with the entries.

    1. the driver reads and judges the metadata of each log                     (`log_metadata`)
    2. tasks read each named object once, and compare it with its entries       (`task`)
    3. suspicions are compared again, and then checked against fresh metadata
    4. tasks list the stores; an old object that nothing names is an orphan     (`orphans`)
    5. leftovers of the metadata that have vanished meanwhile were work in progress, and are dropped

An audit writes nothing, and no concurrent work on a log makes a finding. For an object the order proves it: the object
was wrong (or gone) first, and a strict read afterwards showed that the log still names it; vacuum and retention remove
a name before its object. When a store stops answering, earlier findings stay, and the rest is reported as unchecked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from llog.concurrency import batched, gather_bounded
from llog.errors import ClusterMismatch, FormatError, LlogError
from llog.formats.values import SegmentRecord, TopicRecord, decode_value
from llog.limits import MIB
from llog.log.cluster import compare_cluster
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.pipeline.audit.catalogue import UNNAMED_SEGMENT
from llog.pipeline.audit.log_metadata import LogInspection, audit_log, inspect_metadata, still_claims
from llog.pipeline.audit.orphans import Known, OrphanSearch
from llog.pipeline.audit.report import AuditReport, Finding, damage
from llog.pipeline.audit.task import COMPARE_OBJECTS, Claim, ClaimedObject, Compared, Objects, Suspect, bytes_claimed
from llog.pipeline.runtime.tasks import TaskFailed, TaskRunner
from llog.stores.metadata.port import last_segment

# Bytes and objects that one task reads, and claims it receives (some 400 bytes each).
AUDIT_TASK_BYTES: Final = 128 * MIB
AUDIT_TASK_OBJECTS_MAX: Final = 1_000
AUDIT_TASK_CLAIMS_MAX: Final = 10_000

_TASK_BYTES_MIN: Final = 8 * MIB
_TASKS_WANTED: Final = 16
"""Even a small audit is shared among a few executors."""

Place = tuple[Log, int, int | None]
"""Log, end offset and first byte identify a claim."""


class Grouped:
    """Claims by object, each once: a run in flight and the entry it has published make the same claim."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[Place, Claim]] = {}
        self.claims = 0

    def add(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            of_object = self.objects.setdefault(claim.entry.data_key, {})
            place = (claim.log, claim.end_offset, claim.entry.byte_offset)
            if place not in of_object:
                of_object[place] = claim
                self.claims += 1


def plan_items(grouped: Grouped, *, root: str, fast: bool) -> list[Objects]:
    claimed = [ClaimedObject(uri=uri, claims=tuple(of.values())) for uri, of in sorted(grouped.objects.items())]
    sizes = [bytes_claimed(one.claims) for one in claimed]
    target = max(_TASK_BYTES_MIN, min(AUDIT_TASK_BYTES, sum(sizes) // _TASKS_WANTED))
    return [Objects(root=root, objects=tuple(pack), fast=fast) for pack in _packs(claimed, sizes, target)]


def _packs(claimed: Sequence[ClaimedObject], sizes: Sequence[int], target: int) -> list[list[ClaimedObject]]:
    """In name order: objects with adjoining names were written at the same time, and lie together in a store."""
    packs, held, claims = list[list[ClaimedObject]](), 0, 0
    for one, size in zip(claimed, sizes, strict=True):
        full = held + size > target or claims + len(one.claims) > AUDIT_TASK_CLAIMS_MAX
        if not packs or full or len(packs[-1]) == AUDIT_TASK_OBJECTS_MAX:
            packs.append([])
            held = claims = 0
        packs[-1].append(one)
        held, claims = held + size, claims + len(one.claims)
    return packs


# -- job ---------------------------------------------------------------------------------------------------------------

# Logs inspected at the same time, and claims held until their objects are compared. A blob with claims in two such
# batches is read twice.
AUDIT_LOGS_IN_FLIGHT_MAX: Final = 8
AUDIT_ENTRIES_HELD_MAX: Final = 500_000

Progress = Callable[[int, str], None]
"""Receives the number of logs done since the last call, and the name of what was done."""


class _LogToAudit(NamedTuple):
    log: Log
    being_deleted: bool = False


async def audit(
    context: LogContext,
    runner: TaskRunner,
    *,
    logs: Sequence[Log] | None = None,
    fast: bool = False,
    on_progress: Progress | None = None,
) -> AuditReport:
    """Audit all logs and all old objects; or `logs` and the objects they name.

    `fast` reads no object, only metadata and the length of each named object.
    """
    return await _Audit(context, runner, fast, on_progress).run(logs)


class _Audit:
    def __init__(self, context: LogContext, runner: TaskRunner, fast: bool, on_progress: Progress | None) -> None:
        self._context, self._runner = context, runner
        self.report = AuditReport(fast=fast)
        self._on_progress = on_progress or (lambda _count, _name: None)
        self._grouped = Grouped()
        self._leftovers: dict[_LogToAudit, list[Finding]] = {}
        self._named: set[str] = set()
        self._records: dict[str, SegmentRecord] = {}
        self._segments: dict[Log, int] = {}
        """Number of segments in each log's catalogue."""
        self._whole = True

    async def run(self, logs: Sequence[Log] | None) -> AuditReport:
        ours = logs is None and await self._of_one_cluster()
        chosen = await self._all_logs() if logs is None else [_LogToAudit(log) for log in logs]
        for batch in batched(chosen, AUDIT_LOGS_IN_FLIGHT_MAX):
            await asyncio.gather(*(self._log(one) for one in batch))
            if self._grouped.claims >= AUDIT_ENTRIES_HELD_MAX:
                await self._compare_all()
        await self._compare_all()
        if ours:
            await self._orphans()
        await self._confirm_leftovers()
        return self.report

    async def _of_one_cluster(self) -> bool:
        """Stores of another cluster say nothing about these logs: every object would look like an orphan."""
        try:
            await compare_cluster(self._context)
        except ClusterMismatch as error:
            reason, store = error.reason, error.store
            finding = Finding(severity="damage", rule="cluster", kind="store of others", reason=reason, object=store)
            self.report.add(finding)
            return False
        except LlogError as error:
            self.report.not_checked(f"whether the stores belong to this cluster: {error}")
        return True

    # -- logs ----------------------------------------------------------------------------------------------------------
    async def _all_logs(self) -> list[_LogToAudit]:
        """Includes logs of deleted topics, which must have nothing besides their tombstones."""
        logs = []
        async for item in self._context.metadata.scan_all(self._context.keys.topics(), strict=True):
            topic = last_segment(item.key.path)
            try:
                record = decode_value(TopicRecord, item.value, item.key.path)
            except FormatError as error:
                self.report.add(damage(Log(topic, -1), "values", "unreadable value", str(error)))
                self._whole = False
                continue
            count = max(record.partition_count, record.partition_count_ever)
            dying = record.state == "DELETING"
            logs += [_LogToAudit(Log(topic, partition), dying) for partition in range(count)]
        return logs

    async def _log(self, one: _LogToAudit) -> None:
        try:
            done = await audit_log(self._context, one.log, being_deleted=one.being_deleted)
        except LlogError as error:
            self.report.not_checked(f"{one.log}: {error}")
            self._whole = False
            return
        self._take(one.log, done.inspection)
        if not done.settled:
            self.report.unsettled.append(str(one.log))
        for finding in done.inspection.findings:
            if finding.severity == "damage":
                self.report.add(finding)
            else:
                self._leftovers.setdefault(one, []).append(finding)
        self._on_progress(1, str(one.log))

    def _take(self, log: Log, inspection: LogInspection) -> None:
        self.report.logs += 1
        self.report.entries += len(inspection.claims)
        self._grouped.add(inspection.claims)
        self._named |= inspection.named
        self._records.update(inspection.records)
        self._segments[log] = len(inspection.records)
        self._whole = self._whole and inspection.whole

    # -- objects -------------------------------------------------------------------------------------------------------
    async def _compare_all(self) -> None:
        """Compare the held claims, compare suspicions again, and check those against fresh metadata."""
        grouped, self._grouped, again = self._grouped, Grouped(), Grouped()
        again.add(claim for claim, _ in await self._compare(grouped))

        async def confirm(suspected: tuple[Claim, Suspect]) -> None:
            claim, suspect = suspected
            start, end, uri = claim.start_offset, claim.end_offset, claim.entry.data_key
            try:
                still = await still_claims(self._context, claim)
            except LlogError as error:
                self.report.not_checked(f"{claim.log}, offsets {start} … {end}, {suspect.kind} {uri}: {error}")
                return
            if still:
                self.report.add(damage(claim.log, "I8", suspect.kind, suspect.reason, start, end, uri))
            else:
                self.report.moved_on += 1

        suspects = await self._compare(again, counted=False)
        await gather_bounded(suspects, confirm, limit=AUDIT_LOGS_IN_FLIGHT_MAX)

    async def _compare(self, grouped: Grouped, *, counted: bool = True) -> list[tuple[Claim, Suspect]]:
        items = plan_items(grouped, root=self._context.keys.root, fast=self.report.fast)
        if not items:
            return []

        def done(number: int, outcome: Compared | TaskFailed) -> None:
            if counted:
                self._on_progress(0, f"{len(items[number].objects)} objects")

        try:
            outcomes = await self._runner.run(COMPARE_OBJECTS, items, done)
        except LlogError as error:
            self.report.not_checked(f"{sum(len(item.objects) for item in items)} objects: {error}")
            return []
        return [
            suspect
            for item, outcome in zip(items, outcomes, strict=True)
            for suspect in self._taken(item, outcome, counted=counted)
        ]

    def _taken(self, item: Objects, outcome: Compared | TaskFailed, *, counted: bool) -> list[tuple[Claim, Suspect]]:
        if isinstance(outcome, TaskFailed):
            self.report.not_checked(f"{len(item.objects)} objects: {outcome.error}")
            return []
        if counted:
            self.report.objects += outcome.objects
            self.report.bytes_read += outcome.bytes_read
            self.report.requests += outcome.requests
        for uri, error in outcome.unread:
            self.report.not_checked(f"{uri}: {error}")
        if outcome.suspects_left_out:
            self.report.not_checked(f"{outcome.suspects_left_out} more suspicions in one task: audit again")
        return [(item.objects[one.object].claims[one.claim], one) for one in outcome.suspects]

    # -- leftovers -----------------------------------------------------------------------------------------------------
    async def _orphans(self) -> None:
        known = Known(self._named, self._records, self._segments, self._whole)
        search = OrphanSearch(self._context, self._runner, known, self.report)
        for name, store, find_orphans in (
            ("blobs", self._context.wal, search.blobs),
            ("segments", self._context.segments, search.segments),
        ):
            try:
                if store is not None:
                    await find_orphans(store)
            except LlogError as error:
                self.report.not_checked(f"old {name}: {error}")

    async def _confirm_leftovers(self) -> None:
        orphans = {finding.object for finding in self.report.findings if finding.kind == "orphan"}
        for one, findings in self._leftovers.items():
            try:
                now = await inspect_metadata(self._context, one.log, strict=True, being_deleted=one.being_deleted)
            except LlogError as error:
                self.report.not_checked(f"leftovers of {one.log}: {error}")
                continue
            for finding in findings:
                reported = finding.kind == UNNAMED_SEGMENT and finding.object in orphans
                if finding in now.findings and not reported:
                    self.report.add(finding)
