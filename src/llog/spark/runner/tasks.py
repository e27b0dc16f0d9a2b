"""`SparkTasks`: executes the tasks of a pipeline job in Spark.

    runner = await SparkTasks.start(settings)                      # the session of this process
    runner = SparkTasks(spark, settings)                           # a session of the caller, classic or Connect

Drivers use `llog.pipeline.runtime.tasks.TaskRunner` and do not know Spark. A run is one Spark job, or several if the
items would make the plan too large: one item per task, one outcome per item, passed on as it arrives.

- The event loop never waits for Spark: a thread watches each run, and their number is bounded.
- A run that is cancelled, or fails in `on_done`, interrupts its Spark job.
- If an item ran twice, one outcome counts. An item without an outcome fails the run.
- Outcomes carry the requests that their tasks made to object stores (`on_requests`). Those of a task that broke or died
  are lost.
- A run does not wait forever for a cluster without executors (`until_starved`).
- `close` ends the runs, not the session, which belongs to its creator.

Rows arrive while a job still runs. A Connect session streams results by itself. A classic session streams Arrow batches
as partitions end, but its public functions collect them first; so `rows_as_they_come` reads the same socket, batch by
batch, in a session of its own in which every row is a batch.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from llog.errors import SparkJobFailed, SparkTaskFailed, ValueTooLarge
from llog.limits import MIB
from llog.pipeline.runtime.tasks import (
    Item,
    OnDone,
    OnPart,
    OnProgress,
    Result,
    Task,
    TaskFailed,
    TaskProgress,
    decoded_outcome,
    encoded_item,
)
from llog.settings import Settings
from llog.spark.runner.worker import JobHead, sent_settings, unmarked
from llog.spark.sessions.launch import reason_in
from llog.spark.sessions.session import (
    count_of,
    is_connect,
    master_of,
    own_interpreter,
    started_in_background,
    until_starved,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from llog.stores.metering import OnRequests

# Runs of a runner at the same time, each a Spark job watched by a thread; more wait.
SPARK_RUNS_AT_ONCE_MAX: Final = 8
# What one Spark job carries in its plan: more items make several jobs, one after the other.
SPARK_JOB_ITEMS_MAX: Final = 10_000
SPARK_JOB_BYTES_MAX: Final = 16 * MIB
# How long a cancelled run waits until its Spark job has ended, and how often it interrupts the job.
SPARK_CANCEL_WAIT_MS: Final = 30_000
SPARK_CANCEL_POLL_MS: Final = 200

_log: Final = logging.getLogger("llog.spark")


class _SparkJob(NamedTuple):
    """One Spark job: the items from number `first` on."""

    head: JobHead
    first: int
    items: list[bytes]
    tag: str
    given_up: threading.Event


class SparkTasks:
    def __init__(self, spark: SparkSession, settings: Settings, *, on_progress: OnProgress | None = None) -> None:
        self.spark, self._progress = spark, TaskProgress(on_progress)
        self.on_requests: OnRequests = lambda _: None
        """Receives the requests of each task to object stores."""
        self._own: SparkSession | None = None
        self._making = threading.Lock()
        self._sent = sent_settings(settings)
        self._slots = asyncio.Semaphore(SPARK_RUNS_AT_ONCE_MAX)
        self._threads = ThreadPoolExecutor(SPARK_RUNS_AT_ONCE_MAX, thread_name_prefix="llog-run")
        self._watched: dict[str, tuple[_SparkJob, asyncio.Future[None]]] = {}
        self._closed = False

    @classmethod
    async def start(
        cls, settings: Settings, *, master: str | None = None, on_progress: OnProgress | None = None
    ) -> Self:
        """On this process's session; starting one takes seconds, in which the event loop goes on, and which end early
        when the caller is cancelled."""
        sent_settings(settings)  # what cannot work is refused before those seconds
        return cls(await started_in_background(settings, master=master), settings, on_progress=on_progress)

    async def run(
        self,
        task: Task[Item, Result],
        items: Sequence[Item],
        on_done: OnDone[Result] | None = None,
        *,
        on_part: OnPart | None = None,
    ) -> list[Result | TaskFailed]:
        """`on_part` is never called: an executor sends whole outcomes."""
        outcomes: dict[int, Result | TaskFailed] = {}
        self._progress.planned(len(items))

        def take(number: int, outcome: bytes) -> None:
            decoded: Result | TaskFailed = decoded_outcome(task, outcome, self.on_requests)
            if number in outcomes:
                return
            outcomes[number] = decoded
            self._progress.done()
            if on_done is not None:
                on_done(number, decoded)

        head = JobHead(task.place, f"{task.item.__module__}:{task.item.__qualname__}", self._sent)
        async with self._slots:
            for first, chunk in chunked([encoded_item(item) for item in items]):
                if self._closed:
                    raise SparkJobFailed(task.place, "the runner is closed")
                await self._perform(
                    _SparkJob(head, first, chunk, f"llog-{secrets.token_hex(8)}", threading.Event()), take
                )
        missing = [number for number in range(len(items)) if number not in outcomes]
        if missing:
            raise SparkJobFailed(task.place, f"{len(missing)} of {len(items)} items came back without an outcome")
        return [outcomes[number] for number in range(len(items))]

    async def close(self) -> None:
        """Ends what still runs: those runs raise `SparkJobFailed`."""
        self._closed = True
        await asyncio.gather(*(self._give_up(job, watching) for job, watching in list(self._watched.values())))
        self._threads.shutdown(wait=False)

    # -- one Spark job -----------------------------------------------------------------------------------------------

    async def _perform(self, job: _SparkJob, take: Callable[[int, bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[int, bytes] | SparkJobFailed | None] = asyncio.Queue(len(job.items) + 2)

        def arrive(number: int, outcome: bytes) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, (number, outcome))

        watching = loop.run_in_executor(self._threads, self._watch, job, arrive)
        watching.add_done_callback(lambda _: arrived.put_nowait(None))
        starving = asyncio.create_task(self._starve(job.head.place, arrived.put_nowait))
        self._watched[job.tag] = job, watching
        try:
            while (row := await arrived.get()) is not None:
                if isinstance(row, SparkJobFailed):
                    raise row
                take(*row)
            await watching
        except BaseException:
            await self._give_up(job, watching)
            raise
        finally:
            starving.cancel()
            del self._watched[job.tag]

    async def _starve(self, place: str, on_starved: Callable[[SparkJobFailed], None]) -> None:
        """Report a job that waits in vain for executors."""
        with suppress(Exception):  # the job reports a session that is gone
            count = count_of(self.spark)
            if count is not None:
                on_starved(await until_starved(count, master_of(self.spark), place))

    def _watch(self, job: _SparkJob, on_row: Callable[[int, bytes], None]) -> None:
        """In a thread of its own: run the Spark job to its end."""
        from llog.spark.runner.task_source import NAME, PUSH, options_of

        if job.given_up.is_set():
            return
        options = options_of(job.head, job.first, job.items, pushed=not is_connect(self.spark))
        try:
            spark = self._session()
            with tagged(spark, job.tag):
                frame = spark.read.format(NAME).options(**options).load()
                for number, outcome in rows_as_they_come(frame):
                    if number != PUSH:
                        on_row(number, outcome)
        except Exception as error:
            _log.debug("the Spark job of %s failed", job.head.place, exc_info=error)
            raise failure_of(job.head.place, error) from None  # what it chains is the stack of the JVM

    def _session(self) -> SparkSession:
        """Made in the first thread that needs it, as it takes a moment."""
        from llog.spark.runner.task_source import TaskSource

        with self._making:
            if self._own is None:
                own = own_session(self.spark)
                with own_interpreter(own):
                    own.dataSource.register(TaskSource)
                self._own = own
            return self._own

    async def _give_up(self, job: _SparkJob, watching: asyncio.Future[None]) -> None:
        """Interrupt until it has ended: a job that is being planned has nothing yet that could be interrupted."""
        job.given_up.set()
        for _ in range(SPARK_CANCEL_WAIT_MS // SPARK_CANCEL_POLL_MS):
            if watching.done():
                break
            with suppress(Exception):  # a session that is gone has no jobs; what went wrong is being raised already
                await asyncio.to_thread(interrupt, self.spark, job.tag)
            await asyncio.wait([watching], timeout=SPARK_CANCEL_POLL_MS / 1_000)
        if watching.done():
            watching.exception()
        else:
            watching.add_done_callback(lambda ended: ended.exception())
            _log.warning("the Spark job of %s did not end within %d ms", job.head.place, SPARK_CANCEL_WAIT_MS)


def chunked(items: Sequence[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Items in order, in lists that one plan may carry, each with the number of its first."""
    chunk: list[bytes] = []
    first = chunk_bytes = 0
    for number, item in enumerate(items):
        if len(item) > SPARK_JOB_BYTES_MAX:
            raise ValueTooLarge(f"work item {number}", len(item), SPARK_JOB_BYTES_MAX)
        if chunk and (len(chunk) == SPARK_JOB_ITEMS_MAX or chunk_bytes + len(item) > SPARK_JOB_BYTES_MAX):
            yield first, chunk
            first, chunk, chunk_bytes = number, [], 0
        chunk.append(item)
        chunk_bytes += len(item)
    if chunk:
        yield first, chunk


def failure_of(place: str, error: Exception) -> SparkTaskFailed | SparkJobFailed:
    """From what Spark raises to what happened: a task's own error, or what the job says in one line."""
    text = str(error)
    unforeseen = unmarked(text)
    if unforeseen is not None:
        return SparkTaskFailed(place, unforeseen.error_type, unforeseen.error, unforeseen.trace)
    return SparkJobFailed(place, reason_in(text) or type(error).__name__)


# -- collecting --------------------------------------------------------------------------------------------------------


def own_session(spark: SparkSession) -> SparkSession:
    """The session in which rows come as they are known; what is set or registered in it, the caller's never sees."""
    if is_connect(spark):
        return spark
    own = spark.newSession()
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    return own


def rows_as_they_come(frame: DataFrame) -> Iterator[tuple[int, bytes]]:
    """(number, outcome) of each row, in the order in which they are known. The session is `own_session`'s."""
    if is_connect(frame.sparkSession):
        for row in frame.toLocalIterator():
            yield row["number"], bytes(row["outcome"])
        return
    for batch in _arrow_batches(frame):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _arrow_batches(frame: Any) -> Iterator[Any]:
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer
    from pyspark.util import _load_from_socket

    port, secret, server = frame._jdf.collectAsArrowToPython()
    given_up = False
    try:
        with _load_from_socket((port, secret), ArrowStreamSerializer()) as batches:
            yield from batches
    except GeneratorExit:
        given_up = True  # the caller wants neither the rest nor an error about it
        raise
    finally:
        if not given_up:
            with unwrap_spark_exception():
                server.getResult()


# -- tags --------------------------------------------------------------------------------------------------------------


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """What this thread starts meanwhile carries the tag."""
    if is_connect(spark):
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    # A pool per thread: with fair scheduling, a small job does not wait for all tasks of a large one.
    context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)


def interrupt(spark: SparkSession, tag: str) -> None:
    """End what carries the tag and runs now. Its tasks' Python processes are ended with it."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)
