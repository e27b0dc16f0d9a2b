"""What each job does once everything is open: the same for `llog pipeline …` and for `llog.spark.jobs`.

Names of logs are topics, or `topic:partition`; none means all there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llog.pipeline.audit.job import audit
from llog.pipeline.audit.report import AuditReport
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.plan import Sizing
from llog.pipeline.compact.report import CompactReport
from llog.pipeline.key_compact.aggregate import KeyAggregate, LocalKeyAggregate
from llog.pipeline.key_compact.job import KeyCompactOptions, KeyCompactReport, key_compact
from llog.pipeline.retain import RetainedLog, RetainReport, retain_logs
from llog.pipeline.runtime.log_choice import chosen_logs
from llog.pipeline.runtime.tasks import tools_of
from llog.pipeline.vacuum.job import VacuumReport, vacuum
from llog.spark.job import Job


async def do_compact(job: Job, names: Sequence[str], *, merge: bool, min_age_ms: int) -> CompactReport:
    logs = await chosen_logs(job.context, names) if names else None
    return await compact(
        job.context,
        job.runner,
        logs,
        options=replace(_sized(job), min_age_ms=min_age_ms),
        merge=merge,
        owner=f"{job.settings.compactor_id}/pipeline",
        session_timeout_ms=job.settings.session_timeout_ms,
    )


def _sized(job: Job) -> CompactOptions:
    """Windows as large as the runner can hold."""
    if job.spark is None:
        return CompactOptions(sizing=Sizing.in_process())
    from llog.spark.runner.compaction import resize_of, sizing_of

    return CompactOptions(sizing=sizing_of(job.spark), resize=resize_of(job.spark))


async def do_key_compact(job: Job, names: Sequence[str], options: KeyCompactOptions) -> KeyCompactReport:
    chosen = await chosen_logs(job.context, names) if names else None
    return await key_compact(job.context, job.runner, _aggregate(job), chosen, options=options)


def _aggregate(job: Job) -> KeyAggregate:
    """On the runner's own Spark session, or in this process as the tasks are."""
    if job.spark is None:
        return LocalKeyAggregate(tools_of(job.context))
    from llog.spark.runner.key_aggregate import SparkKeyAggregate

    return SparkKeyAggregate(job.spark, job.settings, tools_of(job.context))


async def do_retain(job: Job, names: Sequence[str], *, dry_run: bool) -> RetainReport:
    def note(log: RetainedLog) -> None:
        job.on_progress(1, f"{log.topic}:{log.partition}")

    logs = await chosen_logs(job.context, names)
    return await retain_logs(job.context, logs, dry_run=dry_run, on_done=note)


async def do_vacuum(job: Job, *, dry_run: bool) -> VacuumReport:
    return await vacuum(job.context, job.runner, dry_run=dry_run)


async def do_audit(job: Job, names: Sequence[str], *, fast: bool) -> AuditReport:
    logs = await chosen_logs(job.context, names) if names else None
    return await audit(job.context, job.runner, logs=logs, fast=fast, on_progress=job.on_progress)
