"""Requests for single logs that share jobs: one job for all logs that are due at the same time.

Slices of many logs lie in one blob. A job over all of them reads each blob once; one job per log would read it once per
log. So a visit asks here and waits for the job that takes its request.

The job that takes a request answers it once, with the outcome of its log. A job is cancelled when all its requests are;
a job that fails fails all its requests. At most COMPACT_JOBS_AT_ONCE jobs run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from llog.errors import LogBusy
from llog.log.keys import Log

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
        for requests in self._waiting.values():  # that no job took
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
