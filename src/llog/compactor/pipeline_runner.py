"""The runner whose compaction and merges are pipeline jobs, over many logs at a time; in this process, or in Spark.
Key compaction goes the same way.

A visit asks for one log; what is asked for at the same time becomes one job (`gathering`), so a blob that holds slices
of all these logs is read once. The service holds the claims; the job takes none of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from llog.compactor.gathering import Gathering
from llog.compactor.runner import InProcessRunner
from llog.compactor.tasks import TaskRunner, TaskRunners
from llog.limits import COMPACTOR_KEYS_BYTES_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.rewrite.publish import Compacted
from llog.pipeline.compact.job import CompactOptions, compact_claimed
from llog.pipeline.compact.merge import merge_claimed
from llog.pipeline.compact.once import RunAnswers
from llog.pipeline.compact.plan import SegmentRules
from llog.pipeline.compact.report import CompactReport, LogReport
from llog.pipeline.key_compact.report import KeyCompactOptions, KeyCompactReport
from llog.pipeline.runtime.work import Item, OnDone, Result, Task, TaskFailed, tools_of

if TYPE_CHECKING:
    from llog.pipeline.key_compact.aggregate import KeyAggregate, SegmentKeys
    from llog.pipeline.key_compact.scratch import ScratchPart, ScratchPlace
from typing import Final

# The compactor service: visits that share a job, one after the other or several at a time, and how long a job waits
# for more of them: each log is claimed first, and a claim takes as long as a disk's or a server's sync.
COMPACT_LOGS_PER_WORKER: Final = 64


class _Terms(NamedTuple):
    max_offsets: int
    target_bytes: int
    min_age_ms: int


class PipelineRunner(InProcessRunner):
    logs_per_worker = COMPACT_LOGS_PER_WORKER

    def __init__(self, context: LogContext, tasks: TaskRunners | None = None) -> None:
        super().__init__(context)
        self._tasks = TaskRunners(context) if tasks is None else tasks
        self._compactions: Gathering[_Terms, Compacted | None] = Gathering(self._compact, context.sleep)

    @property
    def spark_state(self) -> str:
        return self._tasks.state

    async def compact(self, log: Log, *, max_offsets: int, target_bytes: int, min_age_ms: int) -> Compacted | None:
        return await self._compactions.ask(_Terms(max_offsets, target_bytes, min_age_ms), log)

    async def merge(self, log: Log, *, target_bytes: int, min_inputs: int) -> Compacted | None:
        used, runs = self._tasks.current, RunAnswers()
        reports = {log: LogReport(topic=log.topic, partition=log.partition)}
        options = CompactOptions(
            sizing=used.sizing,
            resize=used.resize,
            merge_bytes=target_bytes,
            merge_inputs_min=min_inputs,
            once=True,
        )
        async with self._merges:
            try:
                await merge_claimed(self._context, used.runner, reports, CompactReport(), options, runs.add, runs.fail)
            except Exception as error:
                self._tasks.failed(used, error)
                raise
        return runs.result(log, reports[log])

    async def key_compact(self, logs: Sequence[Log], *, bytes_per_second: int | None) -> KeyCompactReport:
        await asyncio.to_thread(import_module, "llog.pipeline.key_compact.job")  # heavy, and most have no use for it
        from llog.pipeline.key_compact.aggregate import InProcessAggregate
        from llog.pipeline.key_compact.job import key_compact

        used, tools = self._tasks.current, tools_of(self._context)
        make_aggregate = used.make_aggregate or partial(InProcessAggregate, bytes_max=COMPACTOR_KEYS_BYTES_MAX)
        # A pass tells of its failures by log: whether Spark is still worth using is seen from here.
        watched = _Watched(used, await asyncio.to_thread(make_aggregate, tools), self._tasks.failed)
        options = KeyCompactOptions(bytes_per_second=bytes_per_second)
        return await key_compact(self._context, watched, watched, logs, options=options)

    async def close(self) -> None:
        await self._compactions.close()
        await self._tasks.close()

    async def _compact(self, terms: _Terms, logs: Sequence[Log]) -> Mapping[Log, Compacted | Exception | None]:
        used, runs = self._tasks.current, RunAnswers()
        options = CompactOptions(
            rules=SegmentRules(terms.target_bytes, terms.max_offsets),
            sizing=used.sizing,
            resize=used.resize,
            min_age_ms=terms.min_age_ms,
            log_bytes_max=terms.target_bytes,
            log_offsets_max=terms.max_offsets,
            once=True,
        )
        try:
            reports = await compact_claimed(
                self._context, used.runner, logs, CompactReport(), options, runs.add, runs.fail
            )
        except Exception as error:
            self._tasks.failed(used, error)
            raise
        return {log: runs.answer(log, report) for log, report in reports.items()}


class _Watched:
    """Runs tasks and aggregates keys, and tells of errors before others deal with them."""

    def __init__(
        self, used: TaskRunner, aggregate: KeyAggregate, on_error: Callable[[TaskRunner, BaseException], None]
    ) -> None:
        self._used, self._aggregate, self._on_error = used, aggregate, on_error

    async def run(
        self, task: Task[Item, Result], items: Sequence[Item], on_done: OnDone[Result] | None = None
    ) -> list[Result | TaskFailed]:
        try:
            return await self._used.runner.run(task, items, on_done)
        except Exception as error:
            self._on_error(self._used, error)
            raise

    async def survivors(self, place: ScratchPlace, scanned: Sequence[SegmentKeys]) -> Mapping[int, ScratchPart]:
        try:
            return await self._aggregate.survivors(place, scanned)
        except Exception as error:
            self._on_error(self._used, error)
            raise

    async def close(self) -> None:
        """The runner is somebody else's."""
