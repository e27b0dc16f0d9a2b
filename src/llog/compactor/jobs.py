"""The jobs of the compactor service: everything it changes in the log, on whichever backend executes tasks.

The service plans, claims and counts; this class does the work. Visits that ask for compaction at the same time share
one pipeline job (`shared_jobs`), so a blob with slices of all these logs is read once. The service holds the claims of
the logs; a job takes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from llog.compactor.backends import Backends
from llog.errors import InvalidArgument, LogBusy
from llog.formats.backup import BackupManifest
from llog.limits import COMPACTOR_KEYS_BYTES_MAX, COMPACTOR_MERGES_AT_ONCE
from llog.log.cleanup.retention import Retained, configured_limits, retain
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.log.recovery.backup import write_backup
from llog.log.recovery.backup_places import BackupObjects
from llog.log.rewrite.publish import Compacted
from llog.log.topics.delete import TopicDeleted, delete_topic
from llog.pipeline.compact.job import CompactOptions, compact_claimed
from llog.pipeline.compact.merge import merge_claimed
from llog.pipeline.compact.once import RunAnswers
from llog.pipeline.compact.plan import SegmentRules
from llog.pipeline.compact.round import CompactReport, LogReport
from llog.pipeline.key_compact.report import KeyCompactOptions, KeyCompactReport
from llog.pipeline.runtime.tasks import tools_of
from llog.pipeline.vacuum.job import VacuumReport, vacuum_here

COMPACT_JOBS_AT_ONCE: Final = 2
COMPACT_GATHER_QUIET_MS: Final = 100
COMPACT_GATHER_MS_MAX: Final = 2_000

Terms = TypeVar("Terms", bound=Hashable)
Answer = TypeVar("Answer")
Perform = Callable[[Terms, Sequence[Log]], Awaitable[Mapping[Log, Answer | Exception]]]


class SharedJobs(Generic[Terms, Answer]):
    def __init__(self, perform: Perform[Terms, Answer], sleep: Callable[[float], Awaitable[object]]) -> None:
        self._perform, self._sleep = perform, sleep
        self._waiting: dict[Terms, dict[Log, asyncio.Future[Answer]]] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._asked = 0
        self._closed = False

    async def ask(self, terms: Terms, log: Log) -> Answer:
        """The answer of the next job with these terms for the log."""
        if self._closed:
            raise LogBusy(*log, "the compactor is stopping")
        requests = self._waiting.setdefault(terms, {})
        if log in requests:
            raise LogBusy(*log, "it already waits for a job")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        requests[log] = answer
        self._asked += 1
        self._begin()
        try:
            return await answer
        finally:
            if self._waiting.get(terms, {}).get(log) is answer:  # cancelled before a job took it
                del self._waiting[terms][log]

    async def close(self) -> None:
        self._closed = True
        jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        for requests in self._waiting.values():  # not taken by any job
            for answer in requests.values():
                answer.cancel()

    def _begin(self) -> None:
        if not self._closed and len(self._jobs) < COMPACT_JOBS_AT_ONCE and any(self._waiting.values()):
            job = asyncio.create_task(self._job(), name="compaction job")
            self._jobs.add(job)
            job.add_done_callback(self._ended)

    def _ended(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            raise error  # a bug in this class: the event loop's handler reports it
        self._begin()

    async def _job(self) -> None:
        await self._until_quiet()
        terms = next((terms for terms, requests in self._waiting.items() if requests), None)
        if terms is None:
            return
        requests = self._waiting.pop(terms)
        work = asyncio.ensure_future(self._perform(terms, list(requests)))

        def cancelled(_: asyncio.Future[Answer]) -> None:
            if all(answer.cancelled() for answer in requests.values()):
                work.cancel()

        for answer in requests.values():
            answer.add_done_callback(cancelled)
        try:
            _answer_all(requests, await work)
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            for answer in requests.values():
                answer.cancel()
        except Exception as error:
            _answer_all(requests, dict.fromkeys(requests, error))

    async def _until_quiet(self) -> None:
        """Until COMPACT_GATHER_QUIET_MS pass without a request: visits of one pass come within milliseconds."""
        for _ in range(COMPACT_GATHER_MS_MAX // COMPACT_GATHER_QUIET_MS):
            asked = self._asked
            await self._sleep(COMPACT_GATHER_QUIET_MS / 1_000)
            if asked == self._asked:
                return


def _answer_all(requests: Mapping[Log, asyncio.Future[Answer]], answers: Mapping[Log, Answer | Exception]) -> None:
    for log, future in requests.items():
        if future.done():
            continue
        answer = answers[log]
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


# -- jobs --------------------------------------------------------------------------------------------------------------

COMPACT_LOGS_PER_WORKER: Final = 64
"""Concurrent visits per worker, so that their logs share a job."""


class _Terms(NamedTuple):
    max_offsets: int
    target_bytes: int
    min_age_ms: int


class CompactorJobs:
    logs_per_worker: ClassVar[int] = COMPACT_LOGS_PER_WORKER

    def __init__(self, context: LogContext, backends: Backends | None = None) -> None:
        self._context = context
        self._backends = Backends(context) if backends is None else backends
        self._merges = asyncio.Semaphore(COMPACTOR_MERGES_AT_ONCE)
        self._compactions: SharedJobs[_Terms, Compacted | None] = SharedJobs(self._compact, context.sleep)

    @property
    def spark_state(self) -> str:
        """`starting`, `ready` or `unavailable (reason)`."""
        return self._backends.spark_state

    # -- one log -------------------------------------------------------------------------------------------------------
    async def compact(self, log: Log, *, max_offsets: int, target_bytes: int, min_age_ms: int) -> Compacted | None:
        """Finish the run in flight, or compact the next one; None when there is nothing to do."""
        return await self._compactions.ask(_Terms(max_offsets, target_bytes, min_age_ms), log)

    async def merge(self, log: Log, *, target_bytes: int, min_inputs: int) -> Compacted | None:
        backend, runs = self._backends.current, RunAnswers()
        reports = {log: LogReport(topic=log.topic, partition=log.partition)}
        sizing, resize = backend.sizing, backend.resize
        options = CompactOptions(
            sizing=sizing, resize=resize, merge_bytes=target_bytes, merge_inputs_min=min_inputs, once=True
        )
        async with self._merges:
            try:
                await merge_claimed(
                    self._context, backend.runner, reports, CompactReport(), options, runs.add, runs.fail
                )
            except Exception as error:
                self._backends.failed(backend, error)
                raise
        return runs.result(log, reports[log])

    async def retain(self, log: Log) -> Retained:
        """Apply the retention limits of the topic, and remove what earlier calls left."""
        return await retain(self._context, log, await configured_limits(self._context, log.topic))

    # -- many logs -----------------------------------------------------------------------------------------------------
    async def key_compact(self, logs: Sequence[Log], *, bytes_per_second: int | None) -> KeyCompactReport:
        """Clean the logs that are worth a pass, reading at most this fast. The report holds the failures of logs."""
        # The import is slow, and most services never need it.
        await asyncio.to_thread(import_module, "llog.pipeline.key_compact.job")
        from llog.pipeline.key_compact.aggregate import LocalKeyAggregate
        from llog.pipeline.key_compact.job import key_compact

        backend = self._backends.current
        make_aggregate = backend.make_aggregate or partial(LocalKeyAggregate, bytes_max=COMPACTOR_KEYS_BYTES_MAX)
        aggregate = await asyncio.to_thread(make_aggregate, tools_of(self._context))
        on_error = partial(self._backends.failed, backend)
        options = KeyCompactOptions(bytes_per_second=bytes_per_second)
        return await key_compact(self._context, backend.runner, aggregate, logs, options=options, on_error=on_error)

    async def _compact(self, terms: _Terms, logs: Sequence[Log]) -> Mapping[Log, Compacted | Exception | None]:
        backend, runs = self._backends.current, RunAnswers()
        options = CompactOptions(
            rules=SegmentRules(terms.target_bytes, terms.max_offsets),
            sizing=backend.sizing,
            resize=backend.resize,
            min_age_ms=terms.min_age_ms,
            log_bytes_max=terms.target_bytes,
            log_offsets_max=terms.max_offsets,
            once=True,
        )
        try:
            reports = await compact_claimed(
                self._context, backend.runner, logs, CompactReport(), options, runs.add, runs.fail
            )
        except Exception as error:
            self._backends.failed(backend, error)
            raise
        return {log: runs.answer(log, report) for log, report in reports.items()}

    # -- the cluster ---------------------------------------------------------------------------------------------------
    async def vacuum(self) -> VacuumReport:
        return await vacuum_here(self._context)

    async def delete_topic(self, topic: str, incarnation: int) -> TopicDeleted:
        """Finish deleting this incarnation of the topic."""
        return await delete_topic(self._context, topic, expected_incarnation=incarnation)

    async def backup(self) -> BackupManifest:
        """Copy the metadata to the object store, marked as a scheduled backup."""
        context = self._context
        if context.segments is None:
            raise InvalidArgument("context", "it has no object store for the backup")
        backup_id = new_object_id(context.now_ms(), context.random_bits)
        # The mark comes first: it lets a later cleanup find what an interrupted backup left.
        await context.segments.put(context.keys.backup_schedule_object(backup_id), [b"{}"])
        place = BackupObjects(context.segments, context.keys, backup_id)
        return await write_backup(context, place, backup_id)

    async def close(self) -> None:
        await self._compactions.close()
        await self._backends.close()
