"""The export job: a topic as Parquet files or as an Iceberg table. Each run adds the records since the last.

    target = ParquetTarget(await opened.objects.at("file:///exports"), "orders")
    report = await export(context, runner, "orders", target, decoding=Decoding("json", schema_text))

The driver plans offsets, a runner writes files (`task`), and the target makes files and offsets visible by one act.
The job runs rounds until every partition reaches the end it had when the job began. After any number of runs, crashes
and concurrent runs, every record below the target's offsets is in the target exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from llog.errors import ExportFailed, InvalidArgument, TopicNotFound
from llog.limits import EXPORT_CONFLICTS_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.create import load_topic
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.evolution import columns_of, packed
from llog.pipeline.export.plan import (
    ExportPlan,
    ExportTarget,
    Sizes,
    Subject,
    check_not_ahead,
    plan_round,
    splits_again,
    wanted_ranges,
)
from llog.pipeline.export.schema_ids import WriterSchemas
from llog.pipeline.export.schema_source import SchemaLookup
from llog.pipeline.export.task import EXPORT_SPLIT, ExportItem, ExportWritten
from llog.pipeline.runtime.tasks import TaskRunner, TaskTools
from llog.pipeline.scan.splits import Split
from llog.pipeline.scan.subscription import LogEnds, Subscription, find_logs
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.wrappers import RetryingObjectStore
from llog.wiring import ObjectStores

# Rounds in which splits with missing objects are planned again.
EXPORT_REPLANS_MAX: Final = 5
# Rounds in which schema ids that splits met are looked up: one round finds all ids of the splits that can be read.
EXPORT_LOOKUPS_MAX: Final = 5
# Errors of a task after which the same offsets are planned again, because objects changed since (R10).
_GONE: Final = frozenset({"ObjectNotFound", "ObjectRangeInvalid"})


class PartitionExport(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    next_offset: int
    """The first offset that the target does not hold."""
    log_end_offset: int
    empty: bool = False
    """The log never had a record."""


class ExportReport(msgspec.Struct, kw_only=True):
    """What one run did, updated while it runs."""

    topic: str
    target: str
    commits: int = 0
    resumed: int = 0
    """Commits of plans that an earlier run left unfinished."""
    conflicts: int = 0
    """Rounds that were void because another exporter committed first."""
    tasks: int = 0
    records: int = 0
    bad_records: int = 0
    files: int = 0
    bytes_written: int = 0
    quarantine_files: list[str] = []
    partitions: list[PartitionExport] = []
    seconds: float = 0.0
    object_requests: dict[str, int] = {}
    """Requests of the job and its tasks to object stores, by operation."""

    def add(self, written: Sequence[ExportWritten]) -> None:
        self.commits += 1
        for one in written:
            self.records += one.records
            self.bad_records += one.bad_records
            self.files += len(one.files)
            self.bytes_written += sum(file.byte_length for file in (*one.files, *one.quarantine))
            self.quarantine_files += [file.name for file in one.quarantine]


async def export(
    context: LogContext,
    runner: TaskRunner,
    topic: str,
    target: ExportTarget,
    *,
    decoding: Decoding | None = None,
    sizes: Sizes | None = None,
    by_date: bool = True,
    allow_gaps: bool = False,
    schemas: SchemaLookup | None = None,
) -> ExportReport:
    """Export up to the current ends of the topic's logs. `schemas` answers for the ids in `avro-confluent` values."""
    decoding, sizes = decoding or Decoding(), sizes or Sizes()
    began_ms, report = context.now_ms(), ExportReport(topic=topic, target=target.title)
    subject = await _subject(context, topic, decoding)
    progress = await target.progress(subject)
    # Read after the target's progress: everything the target holds is below these ends.
    ends = await find_logs(context, Subscription(topics=(topic,)))
    check_not_ahead(target.title, ends, progress.reached)
    ids = _SchemaIds(schemas, target)
    await ids.expect(progress.schema_ids)
    while True:
        splits: list[Split] | None = None
        plan = progress.unfinished
        if plan is None:
            ends = await _with_current_starts(context, topic, ends)
            ranges = wanted_ranges(subject, ends, progress.reached, allow_gaps=allow_gaps)
            if not ranges:
                break
            made, splits = await plan_round(
                context,
                progress.subject,
                progress.number,
                ranges,
                ends,
                progress.reached,
                sizes,
                decoding=decoding,
                by_date=by_date,
                writers=ids.known(progress.schema_ids),
            )
            plan = await target.begin(made)
            splits = splits if plan == made else None
        report.resumed += splits is None
        plan_run = _PlanRun(context, runner, target, resumable(plan, decoding), allow_gaps, ids)
        written = await plan_run.run(splits)
        report.tasks += plan_run.tasks
        if await target.commit(plan, written):
            report.add(written)
        else:
            report.conflicts += 1
            if report.conflicts > EXPORT_CONFLICTS_MAX:
                reason = "other exporters kept committing first"
                raise ExportFailed(target.title, reason, retriable=True)
        progress = await target.progress(subject)
    report.partitions = [
        PartitionExport(
            partition=log.partition,
            next_offset=progress.reached.get(log.partition, at.log_start_offset),
            log_end_offset=at.next_offset,
            empty=at.next_offset == subject.first_offset,
        )
        for log, at in ends.items()
    ]
    report.seconds = (context.now_ms() - began_ms) / 1_000
    return report


async def _with_current_starts(context: LogContext, topic: str, ends: Mapping[Log, LogEnds]) -> dict[Log, LogEnds]:
    """The same ends with the current start of each log: retention may have moved it during a long round."""
    now = await find_logs(context, Subscription(topics=(topic,)))
    return {log: at._replace(log_start_offset=now.get(log, at).log_start_offset) for log, at in ends.items()}


def resumable(plan: ExportPlan, decoding: Decoding) -> ExportPlan:
    """The plan as recorded, or a directory could hold a record twice. The exception: a plan that fails at the first bad
    value may quarantine bad values instead, because a task that failed wrote nothing of its split."""
    if plan.decoding.on_error == "fail" and decoding == replace(plan.decoding, on_error="quarantine"):
        return replace(plan, decoding=decoding)
    return plan


def export_tools(context: LogContext, objects: ObjectStores) -> TaskTools:
    """Tools for tasks in the driver's process, which may put files into any store the driver can open."""

    async def open_store(url: str) -> ObjectStore:
        return RetryingObjectStore(objects.wrapped(url, await objects.at(url)))

    return TaskTools(context.find_object, open_store, context.now_ms)


async def _subject(context: LogContext, topic: str, decoding: Decoding) -> Subject:
    loaded = await load_topic(context, topic, strict=True)
    if loaded is None or loaded[0].state != "LIVE":
        raise TopicNotFound(topic, "no such topic")
    schema = Decoder(decoding).schema
    return Subject(
        topic=topic,
        topic_id=loaded[0].topic_id,
        incarnation=loaded[0].incarnation,
        first_offset=loaded[0].first_offset,
        columns=columns_of(schema),
        arrow=packed(schema),
    )


class _SchemaIds:
    """What the driver knows of schema ids, over all rounds of one export."""

    def __init__(self, lookup: SchemaLookup | None, target: ExportTarget) -> None:
        self._lookup, self._target = lookup, target

    async def expect(self, ids: Iterable[int]) -> None:
        """Look up ids that values are likely to name, so that the first tasks can write at once."""
        if self._lookup is not None:
            await self._lookup.look_up(ids, WriterSchemas(), self._target.title)

    def known(self, likely: Iterable[int]) -> WriterSchemas:
        return WriterSchemas() if self._lookup is None else self._lookup.known(likely)

    async def learn(self, plan: ExportPlan, known: WriterSchemas, ids: Iterable[int]) -> WriterSchemas:
        """`known` with answers for these ids, recorded for other drivers of the plan."""
        if self._lookup is None:
            reason = "avro-confluent values name their schemas by id: a registry or a directory must have them"
            raise InvalidArgument("decode", reason)
        learnt = await self._lookup.look_up(ids, known, self._target.title)
        if plan.decoding.on_error != "fail":
            return await self._target.record_writers(plan, learnt)
        # A task that meets an id without a schema will fail and write nothing. So the id may get its schema before the
        # plan is performed again.
        recorded = await self._target.record_writers(plan, WriterSchemas(learnt.found))
        return recorded.merged(learnt, self._target.title)


class _PlanRun:
    """Performs one plan: every split, and again those with missing objects or with schema ids that were not known."""

    def __init__(
        self,
        context: LogContext,
        runner: TaskRunner,
        target: ExportTarget,
        plan: ExportPlan,
        allow_gaps: bool,
        ids: _SchemaIds,
    ) -> None:
        self._context, self._runner, self._target, self._plan = context, runner, target, plan
        self._allow_gaps, self._ids, self._writers, self.tasks = allow_gaps, ids, plan.writers, 0

    async def run(self, splits: list[Split] | None) -> list[ExportWritten]:
        done: dict[int, ExportWritten] = {}
        left = list(range(len(self._plan.splits)))
        lookups = replans = 0
        while lookups <= EXPORT_LOOKUPS_MAX and replans <= EXPORT_REPLANS_MAX:
            if splits is None:
                splits = await splits_again(self._context, self._plan, left, allow_gaps=self._allow_gaps)
            items = [self._item(number, split) for number, split in zip(left, splits, strict=True)]
            self.tasks += len(items)
            outcomes = await self._runner.run(EXPORT_SPLIT, items)
            gone: list[int] = []
            unknown: set[int] = set()
            for number, outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, ExportWritten) and outcome.unknown_ids:
                    gone.append(number)
                    unknown.update(outcome.unknown_ids)
                elif isinstance(outcome, ExportWritten):
                    done[number] = outcome
                elif outcome.error_type in _GONE:
                    gone.append(number)
                else:
                    raise ExportFailed(
                        self._target.title, f"{outcome.error_type}: {outcome.error}", retriable=outcome.retriable
                    )
            if not gone:
                return [done[number] for number in range(len(self._plan.splits))]
            lookups, replans = lookups + bool(unknown), replans + (not unknown)
            if unknown:
                self._writers = await self._ids.learn(self._plan, self._writers, unknown)
            left, splits = gone, None
        reason = f"objects or schemas of {len(left)} splits were missing in each of {lookups + replans} rounds"
        raise ExportFailed(self._target.title, reason, retriable=True)

    def _item(self, number: int, split: Split) -> ExportItem:
        paths = self._target.paths()
        return ExportItem(
            split=split,
            decoding=self._plan.decoding,
            writers=self._writers,
            store_url=paths.store_url,
            data_prefix=paths.data_prefix,
            quarantine_prefix=paths.quarantine_prefix,
            path_columns=paths.path_columns,
            file_name=self._target.file_name(self._plan, number),
            by_date=self._plan.by_date,
        )
