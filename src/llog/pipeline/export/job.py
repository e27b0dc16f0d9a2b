"""The export job: a topic as Parquet files or as an Iceberg table, each run adding what came since the last.

    target = ParquetTarget(await opened.objects.at("file:///exports"), "orders")
    report = await export(context, runner, "orders", target, decoding=Decoding("json", schema_text))

The driver plans offsets, lets a runner write files (`export_task`) and has the target make files and offsets visible
by one act. It goes on in rounds until every partition has reached the end it had when the job began. What must stay
true: after any number of runs, crashes and doubles, every record below the target's offsets is there exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from llog.errors import ExportFailed, TopicNotFound
from llog.limits import EXPORT_CONFLICTS_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.create import load_topic
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.plan import (
    ExportPlan,
    Sizes,
    Subject,
    check_not_ahead,
    plan_round,
    splits_again,
    wanted_ranges,
)
from llog.pipeline.export.target import ExportTarget
from llog.pipeline.export.task import EXPORT_SPLIT, ExportItem, ExportWritten
from llog.pipeline.runtime.tasks import TaskRunner, TaskTools
from llog.pipeline.scan.splits import Split
from llog.pipeline.scan.subscription import LogEnds, Subscription, find_logs
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.retrying import RetryingObjectStore
from llog.wiring import ObjectStores

# Rounds in which tasks whose objects were gone are planned again, and commits that others were faster with.
EXPORT_REPLANS_MAX: Final = 5


_GONE = frozenset({"ObjectNotFound", "ObjectRangeInvalid"})
"""What means that a plan's objects changed since (R10): the same offsets are planned again."""


class PartitionExport(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    next_offset: int
    """The first that the target does not hold."""
    log_end_offset: int
    empty: bool = False
    """The log never had a record."""


class ExportReport(msgspec.Struct, kw_only=True):
    """What one run did; filled while it runs."""

    topic: str
    target: str
    commits: int = 0
    resumed: int = 0
    """Of these, plans that an earlier run had left unfinished."""
    conflicts: int = 0
    """Rounds of which nothing counts, because another exporter committed first."""
    tasks: int = 0
    records: int = 0
    bad_records: int = 0
    files: int = 0
    bytes_written: int = 0
    quarantine_files: list[str] = []
    partitions: list[PartitionExport] = []
    seconds: float = 0.0

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
) -> ExportReport:
    """Bring the target up to the ends that the topic's logs have now."""
    decoding, sizes = decoding or Decoding(), sizes or Sizes()
    began_ms, report = context.now_ms(), ExportReport(topic=topic, target=target.title)
    subject = await _subject(context, topic, decoding)
    progress = await target.progress(subject)
    # After the look at the target: what it holds by now was below these ends.
    ends = await find_logs(context, Subscription(topics=(topic,)))
    check_not_ahead(target.title, ends, progress.reached)
    while True:
        splits: list[Split] | None = None
        plan = progress.unfinished
        if plan is None:
            ends = await _begun_anew(context, topic, ends)
            ranges = wanted_ranges(subject, ends, progress.reached, allow_gaps=allow_gaps)
            if not ranges:
                break
            made, splits = await plan_round(
                context,
                subject,
                progress.number,
                ranges,
                ends,
                progress.reached,
                sizes,
                decoding=decoding,
                by_date=by_date,
            )
            plan = await target.begin(made)
            splits = splits if plan == made else None
        report.resumed += splits is None
        performing = _Performing(context, runner, target, resumable(plan, decoding), allow_gaps)
        written = await performing.run(splits)
        report.tasks += performing.tasks
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


async def _begun_anew(context: LogContext, topic: str, ends: Mapping[Log, LogEnds]) -> dict[Log, LogEnds]:
    """The same ends, and where the logs begin by now: a round may take long, and retention goes on meanwhile."""
    now = await find_logs(context, Subscription(topics=(topic,)))
    return {log: at._replace(log_start_offset=now.get(log, at).log_start_offset) for log, at in ends.items()}


def resumable(plan: ExportPlan, decoding: Decoding) -> ExportPlan:
    """A plan is carried out as it was made, or a directory could hold a record twice. But one that was to end at the
    first bad value may put such values aside instead: whoever ended there wrote nothing of that split."""
    if plan.decoding.on_error == "fail" and decoding == replace(plan.decoding, on_error="quarantine"):
        return replace(plan, decoding=decoding)
    return plan


def export_tools(context: LogContext, objects: ObjectStores) -> TaskTools:
    """For tasks in the driver's own process: they may put files anywhere that the driver was told to."""

    async def open_store(url: str) -> ObjectStore:
        return RetryingObjectStore(await objects.at(url))

    return TaskTools(context.find_object, open_store, context.now_ms)


async def _subject(context: LogContext, topic: str, decoding: Decoding) -> Subject:
    found = await load_topic(context, topic, strict=True)
    if found is None or found[0].state != "LIVE":
        raise TopicNotFound(topic, "no such topic")
    columns = tuple((field.name, str(field.type)) for field in Decoder(decoding).schema)
    return Subject(
        topic=topic,
        topic_id=found[0].topic_id,
        incarnation=found[0].incarnation,
        first_offset=found[0].first_offset,
        columns=columns,
    )


class _Performing:
    """One plan, carried out: every split, and those whose objects were gone again."""

    def __init__(
        self,
        context: LogContext,
        runner: TaskRunner,
        target: ExportTarget,
        plan: ExportPlan,
        allow_gaps: bool,
    ) -> None:
        self._context, self._runner, self._target, self._plan = context, runner, target, plan
        self._allow_gaps, self.tasks = allow_gaps, 0

    async def run(self, splits: list[Split] | None) -> list[ExportWritten]:
        done: dict[int, ExportWritten] = {}
        left = list(range(len(self._plan.splits)))
        for _ in range(EXPORT_REPLANS_MAX + 1):
            if splits is None:
                splits = await splits_again(self._context, self._plan, left, allow_gaps=self._allow_gaps)
            items = [self._item(number, split) for number, split in zip(left, splits, strict=True)]
            self.tasks += len(items)
            outcomes = await self._runner.run(EXPORT_SPLIT, items)
            gone: list[int] = []
            for number, outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, ExportWritten):
                    done[number] = outcome
                elif outcome.error_type in _GONE:
                    gone.append(number)
                else:
                    raise ExportFailed(
                        self._target.title, f"{outcome.error_type}: {outcome.error}", retriable=outcome.retriable
                    )
            if not gone:
                return [done[number] for number in range(len(self._plan.splits))]
            left, splits = gone, None
        reason = f"objects of {len(left)} splits were gone each of {EXPORT_REPLANS_MAX + 1} times they were planned"
        raise ExportFailed(self._target.title, reason, retriable=True)

    def _item(self, number: int, split: Split) -> ExportItem:
        place = self._target.place()
        return ExportItem(
            split=split,
            decoding=self._plan.decoding,
            store_url=place.store_url,
            data_prefix=place.data_prefix,
            quarantine_prefix=place.quarantine_prefix,
            path_columns=place.path_columns,
            file_name=self._target.file_name(self._plan, number),
            by_date=self._plan.by_date,
        )
