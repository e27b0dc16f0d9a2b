"""The writer thread: many calls, one transaction, one fsync.

LMDB allows one write transaction at a time on a machine, bound to the thread that began it, and a commit waits for the
disk. So one thread per process writes: all calls that wait when it gets the lock share a transaction (group commit),
and the event loop does not wait.
- A call returns after the commit of its writes, with the result of that commit.
- A call that gives up before its job is claimed does not happen: claiming and giving up exclude each other.
- If the map is full, the whole transaction is rolled back and repeated with a larger map.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import lmdb

from llog.errors import LlogError, MetadataStoreError, MetadataUnavailable, MetadataUncertain, StoreClosed
from llog.limits import LMDB_WAIT_MS_MAX, MIB
from llog.stores.metadata.lmdb.failures import translate
from llog.stores.metadata.lmdb.transaction import KnownVersions, Transaction

if TYPE_CHECKING:
    from llog.stores.metadata.lmdb.environment import Environment

# Write calls that wait for the writer thread; more are refused as unavailable.
LMDB_WRITE_QUEUE_MAX: Final = 4_096
# Calls share a transaction up to this size; a single call may be larger.
LMDB_TRANSACTION_WRITES_MAX: Final = 16_384
LMDB_TRANSACTION_BYTES_MAX: Final = 64 * MIB
# Writes of a call from which on its result is made while the commit waits for the disk.
LMDB_FINISH_EARLY_WRITES_MIN: Final = 128

Work = Callable[[Transaction], Any]


class WriterJob:
    """The part of a transaction of one call, and the future of its caller."""

    __slots__ = (
        "claimed",
        "finish",
        "finished",
        "finishes_early",
        "future",
        "loop",
        "size_bytes",
        "size_writes",
        "work",
    )

    def __init__(
        self,
        work: Work,
        loop: asyncio.AbstractEventLoop,
        size_writes: int,
        size_bytes: int,
        finish: Callable[[Any], Any] | None,
    ) -> None:
        self.work, self.loop, self.finish = work, loop, finish
        self.finished: Any = None
        self.finishes_early = finish is not None and size_writes >= LMDB_FINISH_EARLY_WRITES_MIN
        self.size_writes, self.size_bytes = size_writes, size_bytes
        self.future: asyncio.Future[Any] = loop.create_future()
        self.claimed = False

    def finish_early(self, result: object) -> None:
        """Runs on the loop of the job while the writer waits for the disk; `settle` publishes the result. Waking the
        loop for it is worth its cost only if there is much to do."""
        if self.finish is not None:
            self.finished = self.finish(result)

    def settle(self, result: object, error: BaseException | None) -> None:
        """Runs on the loop of the job after `finish_early` (callbacks of a loop run in order)."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        elif self.finishes_early:
            self.future.set_result(self.finished)
        else:
            self.future.set_result(result if self.finish is None else self.finish(result))


class Writer:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._ready = threading.Condition()
        self._waiting: deque[WriterJob] = deque()
        self._stopping = False
        self._known = KnownVersions()
        self._thread = threading.Thread(target=self._run, name="llog-lmdb-write", daemon=True)
        self._thread.start()

    # -- the callers' side, on their event loops --------------------------------------------------------------------
    async def do(
        self,
        operation: str,
        work: Work,
        *,
        writes: int = 1,
        size_bytes: int = 0,
        finish: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Run `work` in a transaction and return its result after the commit. `finish` converts the result on the loop
        of the caller, while the commit runs."""
        url, loop = self._environment.url, asyncio.get_running_loop()
        job = WriterJob(work, loop, writes, size_bytes, finish)
        with self._ready:
            if self._stopping:
                raise StoreClosed(operation, url)
            if len(self._waiting) >= LMDB_WRITE_QUEUE_MAX:
                raise MetadataUnavailable(operation, url, f"{LMDB_WRITE_QUEUE_MAX} calls are waiting already")
            self._waiting.append(job)
            self._ready.notify()
        timer = loop.call_later(LMDB_WAIT_MS_MAX / 1_000, self._give_up, operation, job, 1)
        try:
            return await job.future
        except asyncio.CancelledError:
            self.withdraw(job)
            raise
        finally:
            timer.cancel()

    def withdraw(self, job: WriterJob) -> bool:
        """True if the job was still waiting and will not happen."""
        with self._ready:
            if job.claimed:
                return False
            try:
                self._waiting.remove(job)
            except ValueError:
                return False
            return True

    def _give_up(self, operation: str, job: WriterJob, turn: int) -> None:
        url = self._environment.url
        if self.withdraw(job):
            reason = f"another process has held the write lock for {LMDB_WAIT_MS_MAX} ms"
            job.settle(None, MetadataUnavailable(operation, url, reason))
        elif turn:
            # Claimed, so the disk is slow: wait once more as long, then the outcome is uncertain.
            job.loop.call_later(LMDB_WAIT_MS_MAX / 1_000, self._give_up, operation, job, turn - 1)
        else:
            job.settle(None, MetadataUncertain(operation, url, f"no commit within {2 * LMDB_WAIT_MS_MAX} ms"))

    def stop(self) -> None:
        """Refuse waiting calls and finish the current transaction. Blocks."""
        with self._ready:
            self._stopping = True
            refused = list(self._waiting)
            self._waiting.clear()
            self._ready.notify()
        self._answer([(job, None, StoreClosed("write", self._environment.url)) for job in refused])
        self._thread.join()

    # -- the thread's side --------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._waiting and not self._stopping:
                    self._ready.wait()
                if self._stopping:
                    return
            self._commit_what_waits()

    def _commit_what_waits(self) -> None:
        jobs: list[WriterJob] = []
        committing, number = False, 0
        while True:
            try:
                with self._environment.gate.using(), self._environment.begin_write() as txn:
                    number = txn.id()
                    # Only now, with the lock held, so that calls that came meanwhile join the transaction.
                    jobs = jobs or self._claim()
                    transaction = Transaction(txn, self._environment.clock, self._known)
                    results = [job.work(transaction) for job in jobs]
                    transaction.finish()
                    self._finish_early(jobs, results)
                    committing = True
                self._answer([(job, result, None) for job, result in zip(jobs, results, strict=True)])
                return
            except (lmdb.MapFullError, lmdb.MapResizedError) as error:
                committing = False
                self._known.forget_all()
                failure = self._change_map(error)
                if failure is None:
                    continue
            except Exception as error:
                failure = error
            self._known.forget_all()
            committing = committing and not self._did_not_happen(number)
            jobs = jobs or self._claim()
            self._answer([(job, None, self._our_error(failure, committing)) for job in jobs])
            return

    @staticmethod
    def _finish_early(jobs: list[WriterJob], results: list[Any]) -> None:
        for job, result in zip(jobs, results, strict=True):
            if job.finishes_early:
                try:
                    job.loop.call_soon_threadsafe(job.finish_early, result)
                except RuntimeError:
                    continue  # its loop is closed: no caller is left

    def _did_not_happen(self, number: int) -> bool:
        """After a failed commit: if no transaction has that number, ours did not happen; otherwise it may have."""
        try:
            return self._environment.read(lambda txn: txn.id()) < number
        except (lmdb.Error, MetadataStoreError):
            return False

    def _change_map(self, error: lmdb.Error) -> Exception | None:
        try:
            if isinstance(error, lmdb.MapFullError):
                self._environment.grow_map()
            else:
                self._environment.adopt_map()
        except Exception as failure:
            return failure
        return None

    def _our_error(self, error: Exception, committing: bool) -> Exception:
        if isinstance(error, lmdb.Error | OSError | MemoryError):
            ours: MetadataStoreError = translate(error, "write", self._environment.url, committing=committing)
            ours.__cause__ = error
            return ours
        return error if isinstance(error, LlogError) else RuntimeError(f"the LMDB writer failed: {error!r}")

    def _claim(self) -> list[WriterJob]:
        jobs: list[WriterJob] = []
        writes = size_bytes = 0
        with self._ready:
            while self._waiting:
                job = self._waiting[0]
                writes, size_bytes = writes + job.size_writes, size_bytes + job.size_bytes
                if jobs and (writes > LMDB_TRANSACTION_WRITES_MAX or size_bytes > LMDB_TRANSACTION_BYTES_MAX):
                    break
                job.claimed = True
                jobs.append(self._waiting.popleft())
        return jobs

    def _answer(self, answers: list[tuple[WriterJob, object, BaseException | None]]) -> None:
        """One wake-up per event loop for all its calls."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[WriterJob, object, BaseException | None]]] = {}
        for answer in answers:
            by_loop.setdefault(answer[0].loop, []).append(answer)
        for loop, its_answers in by_loop.items():
            try:
                loop.call_soon_threadsafe(_settle_all, its_answers)
            except RuntimeError:
                # The loop is closed: no caller is left.
                continue


def _settle_all(answers: list[tuple[WriterJob, object, BaseException | None]]) -> None:
    for job, result, error in answers:
        job.settle(result, error)
